"""A page as a user has it: in a Chromium of its own, without a debugger in it.

Playwright enables the DevTools protocol's `Runtime` in every page, as open developer tools do. V8 then takes a full stack trace
of every error, also of one that a script catches at once, which makes the start of plotly.js far longer. Here the page is only
asked for values.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse

from tests.web.chromium import OPTIONS, chromium_path

START_S = 30
POLL_S = 0.01
# What was done is on the screen after the second frame, and the page has answered.
PAINTED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def opening(address: str, done: str, size: tuple[int, int]) -> float:
    """Milliseconds from the navigation of a fresh browser until the expression `done` is true and the page has painted it.

    Raises NoChromium, TimeoutError.
    """
    return asyncio.run(_opening(address, done, size))


async def _opening(address: str, done: str, size: tuple[int, int]) -> float:
    async with _browser(size) as socket:
        calls = _Calls(socket)
        target = (await calls("Target.createTarget", url="about:blank"))["targetId"]
        await calls("Target.attachToTarget", targetId=target, flatten=True)
        await asyncio.sleep(1)  # the browser's own start is none of ours
        begin = time.perf_counter()
        await calls("Page.navigate", url=address)
        while not await calls.value(done):
            if time.perf_counter() - begin > START_S:
                raise TimeoutError(f"{address} shows nothing after {START_S} s")
            await asyncio.sleep(POLL_S)
        await calls.value(PAINTED)
        return 1000 * (time.perf_counter() - begin)


class _Calls:
    """The DevTools protocol, one call at a time; those after `attachToTarget` go to that page."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self._socket = socket
        self._count = 0
        self._page: dict[str, str] = {}

    async def __call__(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        await self._socket.send_json({"id": self._count, "method": method, "params": params, **self._page})
        while (answer := await self._socket.receive_json(timeout=START_S)).get("id") != self._count:
            pass  # an event
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        if "sessionId" in answer["result"]:
            self._page = {"sessionId": answer["result"]["sessionId"]}
        return answer["result"]

    async def value(self, expression: str) -> Any:
        found = await self("Runtime.evaluate", expression=expression, awaitPromise=True)
        return found["result"].get("value")


@asynccontextmanager
async def _browser(size: tuple[int, int]) -> AsyncIterator[ClientWebSocketResponse]:
    with tempfile.TemporaryDirectory(prefix="vgrpo-browser-", ignore_cleanup_errors=True) as profile:
        own = ("--headless", "--remote-debugging-port=0", f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([chromium_path(), *own, *OPTIONS, "about:blank"], **quiet)
        try:
            port, path = await _address(Path(profile) / "DevToolsActivePort")
            async with ClientSession() as session, session.ws_connect(f"ws://127.0.0.1:{port}{path}") as socket:
                yield socket
                await socket.send_json({"id": 0, "method": "Browser.close"})
                await asyncio.to_thread(process.wait, START_S)
        finally:
            process.kill()
            process.wait()


async def _address(file: Path) -> list[str]:
    """Port and path of the protocol, which the browser writes down once it listens."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if file.is_file() and len(lines := file.read_text().split("\n")) == 2:
            return lines
        await asyncio.sleep(0.05)
    raise TimeoutError(f"Chromium has not started within {START_S} s")
