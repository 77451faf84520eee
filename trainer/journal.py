"""The run's events and state while it works. A full disk costs lines, never the run."""

from __future__ import annotations

import logging
import time
from typing import Any

import torch

from . import runs
from .config import RunConfig
from .errors import one_line
from .runs import RunDir, RunState

log = logging.getLogger("vgrpo")
BEAT_S = 5.0


class Journal:
    def __init__(self, run: RunDir, config: RunConfig, device: torch.device):
        self.run = run
        try:
            old = runs.read_state(run)
        except runs.RunNotFound:
            old = RunState()
        except Exception:  # a damaged state.json is written anew
            old = RunState()
        self._state = RunState(
            status=runs.STARTING,
            iteration=old.iteration,
            iterations=config.iterations,
            name=config.name,
            device=str(device),
            started=old.started or time.time(),
            lora=old.lora,
            **runs.own_process(),
        )
        self._events = runs.EventWriter(run.events_file)
        self.continues = self._events.last_seq > 0  # whether a process before this one has written events
        self._seen: set[str] = set()
        self._beaten = 0.0
        self._write()

    def event(self, kind: str, /, **fields: Any) -> None:
        try:
            self._events.write(kind, **fields)
        except OSError as error:
            log.error("event %s could not be written: %s", kind, one_line(error))

    def warning(self, iteration: int, text: str) -> bool:
        """Each text becomes an event once a process, so that a lasting condition floods nothing; returns whether it was new."""
        log.warning("iteration %d: %s", iteration, text)
        if new := text not in self._seen:
            self._seen.add(text)
            self.event("warning", iteration=iteration, message=text)
        return new

    def status(self, status: str, iteration: int, message: str, lora: str | None = None) -> None:
        self._state.status, self._state.iteration, self._state.message = status, iteration, message
        self._state.lora = lora or self._state.lora
        log.info("%s, iteration %d%s", status, iteration, f": {message}" if message else "")
        self._write()

    def beat(self) -> None:
        """A sign of life, at most every BEAT_S seconds."""
        if time.monotonic() - self._beaten > BEAT_S:
            self._write()

    def close(self) -> None:
        self._events.close()

    def _write(self) -> None:
        self._beaten = time.monotonic()
        try:
            runs.write_state(self.run, self._state)
        except OSError as error:
            log.error("state could not be written: %s", one_line(error))
