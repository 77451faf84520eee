"""Many JSON requests to one address: in parallel, with time-outs, retries with back-off, and an end to trying when it is down.

A picture whose request fails in the end has no score, never a made-up one; nothing here ends a run.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import random
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

T = TypeVar("T")

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0
_REST_S = 60.0  # how long an address that is down is left alone
_FEWEST_IN_A_ROW = 4  # failures without any success before the rest is given up
_LARGEST_ANSWER = 2**22
_ADDRESS = re.compile(r"https?://[^\s/?#]+", re.IGNORECASE)


@dataclass(frozen=True)
class Failed:
    """Why one request has no answer: a word for the count, and a line for people."""

    kind: str  # timeouts, dropped (no connection, or it broke), refused (the request itself is wrong), errors (5xx), unusable
    why: str


@dataclass
class Answers(Generic[T]):
    """One answer or failure for each request, in their order, and how many attempts failed in which way."""

    items: list[T | Failed]
    counts: Counter[str] = field(default_factory=Counter)

    def trouble(self) -> str | None:
        """The failures as one line, the most frequent first; None if there are none."""
        found = Counter(item.why for item in self.items if isinstance(item, Failed))
        return "; ".join(f"{why} ({number}x)" for why, number in found.most_common(3)) or None


class Endpoint:
    """One address. `retries` are further attempts; `timeout_s` is for one attempt as a whole."""

    def __init__(self, url: str, *, timeout_s: float, retries: int, parallel: int, key: str = "") -> None:
        self.url, self.timeout_s, self.retries, self.parallel = url, timeout_s, retries, parallel
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._down: tuple[float, Failed] | None = None  # since when, and how that showed
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None
        self._random = random.Random()  # of its own: the global one is seeded, so that rewards that use it repeat themselves

    def post(self, bodies: Sequence[Callable[[], Any]], read: Callable[[Any, int], T]) -> Answers[T]:
        """Send what each of `bodies` makes (it is called when its turn comes) as JSON.

        `read(answer, number)` takes the answer's JSON apart; its ValueError makes the answer unusable, which is tried again.
        Raises asyncio.CancelledError after `interrupt`.
        """
        answers: Answers[T] = Answers([Failed("dropped", "not tried")] * len(bodies))
        if not bodies:
            return answers
        if self._down and time.monotonic() - self._down[0] < _REST_S:
            last = self._down[1]
            answers.items = [Failed(last.kind, f"not tried again yet: {last.why}")] * len(bodies)
            answers.counts["skipped"] += len(bodies)
            return answers
        self._in_a_thread(self._post_all(bodies, read, answers))
        return answers

    def interrupt(self) -> None:
        """From another thread: end a `post` that is under way, whatever it is waiting for."""
        if running := self._running:
            loop, task = running
            with suppress(RuntimeError):  # it has just come to its end
                loop.call_soon_threadsafe(task.cancel)

    def _in_a_thread(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it to its end in a thread and loop of its own: the caller's thread may have a loop that is running already."""
        loop = asyncio.new_event_loop()
        task = loop.create_task(work)

        def run() -> None:
            try:
                loop.run_until_complete(asyncio.wait([task]))
                loop.run_until_complete(loop.shutdown_default_executor())
            finally:
                loop.close()

        thread = threading.Thread(target=run, name="vgrpo-requests", daemon=True)
        self._running = loop, task
        thread.start()
        try:
            while thread.is_alive():
                thread.join(1.0)
        except BaseException:
            self.interrupt()
            thread.join(5.0)
            raise
        finally:
            self._running = None
        task.result()

    async def _post_all(self, bodies, read, answers: Answers[T]) -> None:
        import aiohttp

        state = _Run(self.parallel)
        limits = aiohttp.ClientTimeout(total=self.timeout_s)
        connector = aiohttp.TCPConnector(limit=self.parallel)
        async with aiohttp.ClientSession(
            headers=self._headers, timeout=limits, connector=connector, trust_env=not is_local(self.url)
        ) as session:
            await asyncio.gather(*(self._one(session, n, body, read, answers, state) for n, body in enumerate(bodies)))
        silent = state.successes == 0 and state.failures > 0 and state.last.kind in ("timeouts", "dropped")
        self._down = (time.monotonic(), state.last) if silent or state.hopeless() else None

    async def _one(self, session, number: int, body, read, answers: Answers[T], state: _Run) -> None:
        async with state.slots:
            if state.hopeless():
                answers.items[number] = Failed(state.last.kind, f"not tried, as those before it failed: {state.last.why}")
                answers.counts["skipped"] += 1
                return
            data = await asyncio.to_thread(lambda: json.dumps(body()).encode())
            for attempt in range(self.retries + 1):
                outcome, wait_s = await self._attempt(session, data, lambda answer: read(answer, number))
                answers.items[number] = outcome
                if not isinstance(outcome, Failed):
                    state.successes += 1
                    return
                answers.counts[outcome.kind] += 1
                if wait_s is None or attempt == self.retries:
                    break
                answers.counts["retries"] += 1
                await asyncio.sleep(max(wait_s, self._back_off(attempt)))
            state.failures, state.last = state.failures + 1, outcome

    async def _attempt(self, session, data: bytes, read: Callable[[Any], T]) -> tuple[T | Failed, float | None]:
        """The answer or failure, and the seconds that the server asks to wait; None if another attempt is useless."""
        import aiohttp

        try:
            headers = {"Content-Type": "application/json"}
            async with session.post(self.url, data=data, headers=headers, allow_redirects=False) as response:
                text = await _text(response)
                if response.status >= 300:
                    return _refusal(response, text)
        except asyncio.TimeoutError:
            return Failed("timeouts", f"no answer within {self.timeout_s:g} s"), 0.0
        except (aiohttp.ClientError, OSError) as error:
            return Failed("dropped", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"), 0.0
        except ValueError as error:  # too long, or not text
            return Failed("unusable", str(error)), 0.0
        try:
            return read(json.loads(text)), None
        except RecursionError:
            return Failed("unusable", "the answer is nested too deeply"), 0.0
        except ValueError as error:
            why = "the answer is no JSON" if isinstance(error, json.JSONDecodeError) else str(error)
            return Failed("unusable", f"{why}: {_short(text)}"), 0.0

    def _back_off(self, attempt: int) -> float:
        return min(_FIRST_WAIT_S * 2**attempt, _LONGEST_WAIT_S) * self._random.uniform(0.75, 1.25)


@dataclass
class _Run:
    """What the requests of one call have come to so far."""

    parallel: int
    successes: int = 0
    failures: int = 0
    last: Failed = field(default_factory=lambda: Failed("dropped", "not tried"))

    def __post_init__(self) -> None:
        self.slots = asyncio.Semaphore(self.parallel)

    def hopeless(self) -> bool:
        return self.successes == 0 and self.failures >= max(_FEWEST_IN_A_ROW, self.parallel)


def url_problem(url: str) -> str | None:
    """Why an option can't be the address of a server, None if it can or is empty."""
    try:
        if not url or (_ADDRESS.match(url) and urlsplit(url).hostname and _port(url)):
            return None
    except ValueError:  # a port that is no number, or half an IPv6 address
        pass
    return "allowed: an address such as http://127.0.0.1:8000/score"


def unreachable(url: str, timeout_s: float = 5.0) -> str | None:
    """Why no connection can be made to a server, None if one can or if a proxy stands between."""
    host = urlsplit(url).hostname or ""
    if not is_local(url) and urlsplit(url).scheme.lower() in getproxies():
        return None
    try:
        socket.create_connection((host, _port(url)), timeout_s).close()
    except OSError as error:
        return f"nothing answers at {host}:{_port(url)} ({' '.join(str(error).split())})"
    return None


def _port(url: str) -> int:
    return urlsplit(url).port or (443 if url.lower().startswith("https") else 80)


def is_local(url: str) -> bool:
    """Whether the address is this machine's own, which no proxy can reach."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refusal(response, text: str) -> tuple[Failed, float | None]:
    status = f"{response.status} {response.reason or ''}".strip()
    if response.status < 400:
        return Failed("refused", f"{status}: it has moved to {response.headers.get('Location', '?')}; give that address"), None
    said = f"{status}: {_short(text)}" if text.strip() else status
    if response.status in (408, 425, 429):
        return Failed("errors", said), _seconds(response.headers.get("Retry-After"))
    return (Failed("errors", said), 0.0) if response.status >= 500 else (Failed("refused", said), None)


def _seconds(header: str | None) -> float:
    """Retry-After where it is a number, at most the longest wait."""
    return min(float(header), _LONGEST_WAIT_S) if header and header.strip().isdecimal() else 0.0


async def _text(response) -> str:
    data = bytearray()
    async for part in response.content.iter_chunked(2**16):
        data += part
        if len(data) > _LARGEST_ANSWER:
            raise ValueError(f"the answer is longer than {_LARGEST_ANSWER} bytes")
    return data.decode("utf-8", errors="replace")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 160 else text[:157] + "..."
