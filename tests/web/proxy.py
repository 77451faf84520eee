"""A reverse proxy that serves ComfyUI below a path, as people's home servers do; it can also break, for tests."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from aiohttp import ClientError, ClientSession, WSMsgType, web

_HOP = {"connection", "keep-alive", "transfer-encoding", "upgrade", "content-encoding", "content-length", "te", "trailer"}


class Proxy:
    """`with Proxy(lambda: server.url, "/tools/comfy") as proxy: page.goto(proxy.url)`

    strays: paths asked for outside the prefix. `drop`: told of each message to a page, true means it is lost.
    """

    def __init__(self, upstream: Callable[[], str], prefix: str) -> None:
        self.upstream, self.prefix = upstream, prefix
        self.strays: list[str] = []
        self.drop: Callable[[dict[str, Any]], bool] = lambda message: False
        self.port = 0
        self._sockets: set[web.WebSocketResponse] = set()
        self._ready, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.prefix}/"

    def __enter__(self) -> Proxy:
        self._thread.start()
        assert self._ready.wait(20), "the proxy does not start"
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        self._thread.join(10)

    async def _serve(self) -> None:
        async with ClientSession(auto_decompress=True) as self._session:
            app = web.Application(client_max_size=64 * 1024 * 1024)
            app.router.add_route("*", "/{path:.*}", self._handle)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.port = runner.addresses[0][1]
            self._ready.set()
            while not self._end.is_set():
                await asyncio.sleep(0.05)
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.raw_path
        if not path.startswith(self.prefix + "/"):
            self.strays.append(path)
            return web.Response(status=404, text="outside of the proxied path")
        target = self.upstream() + path[len(self.prefix) :]
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._websocket(request, target)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        body = await request.read()
        from yarl import URL

        try:
            async with self._session.request(
                request.method, URL(target, encoded=True), headers=headers, data=body or None, allow_redirects=False
            ) as answer:
                kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
                return web.Response(status=answer.status, headers=kept, body=await answer.read())
        except (ClientError, OSError):
            return web.Response(status=502, text="upstream is away")

    async def _websocket(self, request: web.Request, target: str) -> web.StreamResponse:
        try:
            upstream = await self._session.ws_connect(target, max_msg_size=0)
        except (ClientError, OSError):
            return web.Response(status=502, text="upstream is away")
        page = web.WebSocketResponse(max_msg_size=0)
        await page.prepare(request)
        self._sockets.add(page)

        async def to_page() -> None:
            async for message in upstream:
                if message.type == WSMsgType.TEXT:
                    if not self.drop(json.loads(message.data)):
                        await page.send_str(message.data)
                elif message.type == WSMsgType.BINARY:
                    await page.send_bytes(message.data)

        async def to_upstream() -> None:
            async for message in page:
                if message.type == WSMsgType.TEXT:
                    await upstream.send_str(message.data)

        with suppress(ConnectionError):
            both = [asyncio.ensure_future(to_page()), asyncio.ensure_future(to_upstream())]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        self._sockets.discard(page)
        await upstream.close()
        await page.close()
        return page
