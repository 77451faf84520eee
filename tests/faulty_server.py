"""A real server on this machine that answers as it is told: well, late, with nonsense, with an error, or not at all."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Any]


class FaultyServer:
    """`answer(body, number)` makes the reply to the number-th request: (status, JSON or bytes), or one of the words below."""

    CLOSE = "close"  # the connection, without a word

    def __init__(self, answer: Callable[[Any, int], Reply | str]) -> None:
        self.answer = answer
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.most = 0  # requests that were there at once
        self._here = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer._serve(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self) -> FaultyServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self._lock:
            number = len(self.bodies)
            self.bodies.append(body)
            self.headers.append(dict(handler.headers))
            self._here += 1
            self.most = max(self.most, self._here)
        try:
            reply = self.answer(body, number)
        finally:
            with self._lock:
                self._here -= 1
        if reply == self.CLOSE:
            handler.close_connection = True
            handler.connection.close()
            return
        status, data, *headers = reply
        raw = data if isinstance(data, bytes) else json.dumps(data).encode()
        try:
            handler.send_response(status)
            for name, value in headers:
                handler.send_header(name, value)
            handler.send_header("Content-Length", str(len(raw)))
            handler.end_headers()
            handler.wfile.write(raw)
        except OSError:  # the client has given up
            handler.close_connection = True


def slowly(seconds: float, reply: Reply) -> Reply:
    time.sleep(seconds)
    return reply
