"""state.json: what a run is doing, written whole each time, and `lost` when its process is gone without a word."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..errors import UserError, one_line
from .atomic import read_bytes, write_json
from .layout import RunDir
from .processes import process_alive, process_start_time

STARTING = "starting"
RUNNING = "running"
PAUSED = "paused"
STOPPING = "stopping"
FINISHED = "finished"
STOPPED = "stopped"
FAILED = "failed"
LOST = "lost"
STATUSES = (STARTING, RUNNING, PAUSED, STOPPING, FINISHED, STOPPED, FAILED, LOST)
ACTIVE_STATUSES = (STARTING, RUNNING, PAUSED, STOPPING)  # a process should be behind these

# A launcher may write `starting` before it knows the pid; without a pid after this time nobody is coming.
_NO_PID_GRACE_S = 120.0
_BEING_MADE_S = 10.0


@dataclass
class RunState:
    """One run's state. Times are seconds since 1970, except `process_start` (see `process_start_time`)."""

    status: str = STARTING
    pid: int | None = None
    process_start: float | None = None
    iteration: int = 0  # iterations done
    iterations: int = 0  # iterations asked for
    heartbeat: float | None = None  # the trainer process's last sign of life
    message: str = ""
    lora: str | None = None  # the newest exported file
    device: str = ""
    name: str = ""
    started: float | None = None  # when the run was first made
    updated: float | None = None  # when anyone last wrote this file

    @property
    def active(self) -> bool:
        """Whether a process is (as `read_state` found it) behind this run."""
        return self.status in ACTIVE_STATUSES

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def own_process() -> dict[str, Any]:
    """`pid` and `process_start` of the calling process, for `RunState(**own_process(), ...)`."""
    return {"pid": os.getpid(), "process_start": process_start_time(os.getpid())}


def write_state(run: RunDir, state: RunState) -> None:
    """Replaces state.json in one step and stamps `updated`; the run's own process stamps `heartbeat` too.

    Raises OSError (the old file stays), and ValueError for an unknown status or `lost`, which is only ever found by a reader.
    """
    if state.status not in STATUSES or state.status == LOST:
        raise ValueError(f"status {state.status!r} cannot be written; allowed: {', '.join(s for s in STATUSES if s != LOST)}")
    state.updated = time.time()
    if state.pid == os.getpid():
        state.heartbeat = state.updated
    write_json(run.state_file, state.to_dict())


def read_state(run: RunDir) -> RunState:
    """The run's state, with `lost` in place of an active status whose process is gone. Never writes.

    Raises UserError if state.json is missing or damaged.
    """
    try:
        found = json.loads(read_bytes(run.state_file).decode())
        if not isinstance(found, dict) or found.get("status") not in STATUSES:
            raise ValueError("no known status in it")
        known = {field.name for field in fields(RunState)}  # a later version may write more
        state = RunState(**{key: value for key, value in found.items() if key in known})
        _check_types(state)
    except FileNotFoundError as error:
        raise UserError(f"The run {run.path} has no state.json; it was never started or is not a run.") from error
    except (OSError, ValueError) as error:
        raise UserError(f"Cannot read {run.state_file}: {one_line(error)}. Resume the run to write it anew.") from error
    return replace(state, status=LOST, message=_last_words(state)) if state.active and not _process_behind(state) else state


def state_or_none(run: RunDir) -> RunState | None:
    """The run's state, None where state.json is torn or missing."""
    try:
        return read_state(run)
    except UserError:
        return None


def lora_left(run: RunDir, state: RunState) -> Path | None:
    """The LoRA file of a finished run, None where it is gone.

    The run's own folder first: the path in state.json is an absolute one, and folders move.
    """
    paths = (run.lora_file, *([Path(state.lora)] if state.lora else []))
    return next((path for path in paths if path.is_file()), None)


def state_or_lost(run: RunDir) -> RunState:
    """The run's state; `lost`, with the reason as its message, where state.json is torn or missing.

    A folder without one that was made just now is `starting`: its launcher has not come to that file yet.
    """
    try:
        return read_state(run)
    except UserError as error:
        if not run.state_file.exists() and abs(_age(run)) < _BEING_MADE_S:
            return RunState(status=STARTING, message="being made")
        return RunState(status=LOST, message=str(error))


def require_idle(run: RunDir, purpose: str, unless_mine: bool = False) -> None:
    """Raises UserError if a process is behind the run; `purpose` ends the words "so it cannot be" (resumed, deleted).

    `unless_mine` passes a run that this very process claimed, or whose launcher wrote `starting` for it without a pid.
    """
    try:
        state = read_state(run)
    except UserError:  # no readable state: nobody claims it
        return
    if state.active and not (unless_mine and state.pid in (None, os.getpid())):
        process = f" (process {state.pid})" if state.pid is not None else ""
        raise UserError(
            f"The run '{run.id}' is {state.status}{process}, so it cannot be {purpose}; stop it and wait until it ends."
        )


def _age(run: RunDir) -> float:
    """Seconds since something was last made in the run's folder; infinite if that cannot be known."""
    try:
        return time.time() - run.path.stat().st_mtime
    except OSError:
        return float("inf")


def _check_types(state: RunState) -> None:
    for key in ("pid", "process_start", "heartbeat", "started", "updated"):
        if not isinstance(getattr(state, key), (int, float, type(None))):
            raise ValueError(f"{key} is not a number")
    if not isinstance(state.iteration, int) or not isinstance(state.iterations, int):
        raise ValueError("iteration or iterations is not a whole number")


def _process_behind(state: RunState) -> bool:
    if state.pid is not None:
        return process_alive(state.pid, state.process_start)
    return state.status == STARTING and state.updated is not None and time.time() - state.updated < _NO_PID_GRACE_S


def _last_words(state: RunState) -> str:
    process = f"process {state.pid}" if state.pid is not None else "no process"
    ended = f"The trainer ({process}) is gone without a word while {state.status}, after iteration {state.iteration}."
    return f"{ended} Its last message: {state.message}" if state.message else ended
