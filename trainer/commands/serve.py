"""`serve`: a folder of runs over HTTP, without ComfyUI."""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from .. import runs
from ..errors import UserError, one_line
from ..preflight import check_resume
from ..runs import RunDir
from ..runs.addresses import bare_host, is_loopback
from ..runs.http import routes
from ..runs.launch import Child, launch
from ..runs.page import page_routes
from ..runs.state import state_or_lost


class Actions:
    """What a client with the token may ask for."""

    def __init__(self, root: Path, device: str) -> None:
        self.root, self.device = root, device
        self._children: list[Child] = []

    def control(self, run: RunDir, action: str) -> None:
        state = state_or_lost(run)
        if not state.active:
            raise UserError(f"The run '{run.id}' is {state.status}, so nobody is there to {action} it.")
        runs.request(run, action)

    def delete(self, run: RunDir) -> None:
        runs.delete_run(run)

    def resume(self, run: RunDir, device: str) -> None:
        check_resume(run, self.root)
        self._children = [child for child in self._children if child.poll() is None]
        self._children.append(launch(run, self.device if device == "auto" else device))


def application(root: Path, actions: Actions | None, token: str | None, host_ok: Callable[[str], bool]) -> web.Application:
    """The page and the routes. Every POST needs `Authorization: Bearer <token>`; a Host that is not ours is refused."""

    @web.middleware
    async def guard(request: web.Request, handler: Callable) -> web.StreamResponse:
        if not host_ok(request.host):
            return web.json_response({"error": "this server is not known by that name (Host)"}, status=403)
        if request.method == "POST" and actions is not None and not _knows(request, token or ""):
            text = "the token is missing or wrong; send it as: Authorization: Bearer TOKEN"
            return web.json_response({"error": text}, status=401, headers={"WWW-Authenticate": "Bearer"})
        response = await handler(request)
        if not response.prepared:
            response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    app = web.Application(middlewares=[guard])
    table = routes(lambda: root, actions, pictures=True)
    app.add_routes(table)
    app.add_routes(page_routes(actions is not None, root.name))
    app.add_routes([web.RouteDef(r.method, f"/api{r.path}", r.handler, {}) for r in table if isinstance(r, web.RouteDef)])
    return app


def run(args) -> int:
    root = args.root.resolve()
    if not root.is_dir():
        raise UserError(f"there is no folder {root}; give the folder that holds the runs")
    if not 0 <= args.port <= 65535:
        raise UserError(f"--port is {args.port}; allowed: 0 to 65535")
    token, made_up = args.token or os.environ.get("VGRPO_TOKEN"), False
    if args.token and not args.control:
        raise UserError("--token is for --control, which is not given; without it nothing can be changed")
    if args.control and not token:
        token, made_up = secrets.token_urlsafe(24), True
    sockets = _listen(args.host, args.port)
    port = sockets[0].getsockname()[1]
    shown = f"[{args.host}]" if ":" in args.host else args.host
    page = f"http://{shown}:{port}/"
    print(f"runs of {root} at {page}, {'with' if args.control else 'without'} control; Ctrl-C ends")
    if made_up:
        # Behind '#' it stays in the browser, and in no log of a server.
        print(f"token: {token}\nopen: {page}#token={token}")
    if not is_loopback(args.host):
        print(f"note: everybody who reaches {args.host} can read these runs; the connection is not encrypted")
    actions = Actions(root, args.device) if args.control else None
    app = application(root, actions, token, _host_check(args.host))
    sys.stdout.flush()  # a program may read the address and the token from a pipe
    web.run_app(app, sock=sockets, print=None, access_log=None, handle_signals=True)
    return 0


def _listen(host: str, port: int) -> list[socket.socket]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[:1]
        return [socket.create_server(info[4][:2], family=info[0], reuse_port=False) for info in found]
    except OSError as error:
        raise UserError(f"cannot listen on {host}, port {port}: {one_line(error)}; choose another --host or --port") from error


def _host_check(host: str) -> Callable[[str], bool]:
    """On the loopback address only its own names: a page whose name was made to resolve to this machine is no friend."""
    if not is_loopback(host):
        return lambda name: True

    return lambda name: is_loopback(bare_host(name))


def _knows(request: web.Request, token: str) -> bool:
    kind, _, given = request.headers.get("Authorization", "").partition(" ")
    return kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())
