"""Requests to a running training, from the control folder and from Ctrl-C alike."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from . import runs
from .errors import UserError
from .runs import RunDir

LOOK_S = 0.5  # how often a busy run looks for requests
WAIT_S = 0.2  # how often a paused one does
GONE_S = 10.0  # a disk may be away for a moment; a folder that is away for so long was deleted or renamed


class Interrupted(Exception):
    """A stop or pause was asked for in the middle of a rollout or evaluation, which is dropped."""


class RequestDesk:
    def __init__(self, run: RunDir, on_beat: Callable[[], None] = lambda: None):
        self.run, self.on_beat = run, on_beat
        self._waiting: list[str] = []
        self._looked = 0.0
        self._gone_since: float | None = None

    @contextmanager
    def signals(self) -> Iterator[None]:
        """While inside, the first Ctrl-C (or SIGTERM) asks for a stop, the second one ends at once.

        Signals can only be taken in the main thread; elsewhere this does nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [
            n for n in (signal.SIGINT, getattr(signal, "SIGTERM", None), getattr(signal, "SIGBREAK", None)) if n is not None
        ]
        old = {n: signal.signal(n, self._on_signal) for n in numbers}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set from Python

    def _on_signal(self, number, _frame) -> None:
        if "stop" in self._waiting:
            raise KeyboardInterrupt
        self._waiting.append("stop")

    def check(self) -> None:
        """Called often while the network works. Raises Interrupted if the run is to stop or pause, UserError if its folder is
        gone."""
        self.on_beat()
        if time.monotonic() - self._looked > LOOK_S:
            self._looked = time.monotonic()
            self._waiting += runs.take_requests(self.run)
            self._look_for_folder()
        if "stop" in self._waiting or "pause" in self._waiting:
            raise Interrupted

    def take(self) -> list[str]:
        """Everything asked for since the last call, in order. Raises UserError if the run's folder is gone."""
        self._look_for_folder()
        # Taken over, not copied: a signal that comes in between adds to this very list.
        asked, self._waiting = self._waiting, []
        return asked + runs.take_requests(self.run)

    def wait(self) -> None:
        self.on_beat()
        time.sleep(WAIT_S)

    def _look_for_folder(self) -> None:
        """A trainer that nobody can see or stop any more must not keep the device."""
        if self.run.path.is_dir():
            self._gone_since = None
            return
        self._gone_since = self._gone_since or time.monotonic()
        if time.monotonic() - self._gone_since > GONE_S:
            raise UserError(
                f"the run's folder {self.run.path} is gone, so nobody can watch or stop this training; it ends here"
            )
