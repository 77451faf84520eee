"""Trainer processes as ComfyUI sees them: launched, watched and controlled, and found again after a restart of ComfyUI.

Nothing about a run is kept here that is not in its folder. A new instance therefore knows as much as the one that started the
run; only the exit code of a process is the privilege of its parent.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..trainer import runs
from ..trainer.errors import UserError, one_line
from ..trainer.runs import EventReader, RunDir, RunState
from ..trainer.runs.atomic import read_json
from ..trainer.runs.device_queue import LOADING, WAITING, default_root, device_key, tickets
from ..trainer.runs.launch import Child, launch
from ..trainer.runs.state import state_or_lost
from . import host

if TYPE_CHECKING:
    from ..trainer.config import RunConfig

log = logging.getLogger("vgrpo.nodes")

EVENT = "vgrpo.event"
TICK_S = 0.5
SCAN_S = 5.0  # how often the folder is searched for runs that others started or resumed
TORN_S = 20.0
MESSAGES_PER_TICK = 4  # 8 a second


@dataclass
class _Watched:
    run: RunDir
    reader: EventReader
    seq: int  # the newest event that was sent
    told: tuple[Any, ...] = ()  # the state that was sent
    in_line: bool = False  # whether it was seen waiting for its device, or was started while another had it
    torn_since: float | None = None


class Jobs:
    """All runs in `root()`. Safe to use from several threads."""

    def __init__(
        self,
        root: Callable[[], Path],
        device: Callable[[], str] = lambda: "auto",
        send: Callable[[str, dict[str, Any]], None] = lambda event, data: None,
        publish: Callable[[RunDir], str] | None = None,
        free: Callable[[], None] = lambda: None,
    ) -> None:
        """device: what `auto` stands for; send: tells every page; publish: puts a finished run's LoRA into `loras`; free: asks
        for ComfyUI's memory, when a run in line gets its accelerator (pictures may have been made while it waited)."""
        self.root, self.device, self.send, self.publish, self.free = root, device, send, publish, free
        self._children: dict[str, Child] = {}
        self._watched: dict[str, _Watched] = {}
        self._ended: dict[str, int] = {}  # run -> when its state, which is no active one, was written
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._scanned = float("-inf")
        self._turn = 0

    # Starting

    def start(self, config: RunConfig, origin: dict[str, Any], device: str = "auto", take: int = 0) -> RunDir:
        """A new run, in line for its device. Raises UserError of one line, and then no run is left behind.

        origin: JSON about where it comes from; a `workflow` in it is kept in a file of its own.
        """
        from ..trainer.preflight import preflight

        preflight(config, self.root())
        run = runs.create_run(self.root(), runs.new_run_id(config.name))
        try:
            known = {key: value for key, value in origin.items() if key != "workflow"}
            runs.write_json(run.origin_file, {**known, "digest": config.digest(), "take": take})
            if origin.get("workflow"):
                runs.write_json(run.workflow_file, origin["workflow"])
            runs.write_atomic(run.config_file, config.to_yaml())
            runs.write_state(run, RunState(iterations=config.iterations, name=config.name, started=time.time()))
            self._launch(run, device)
        except BaseException as error:
            shutil.rmtree(run.path, ignore_errors=True)
            if isinstance(error, OSError):
                raise UserError(f"cannot write the run {run.path}: {one_line(error)}; free disk space") from error
            raise
        return run

    def resume(self, run: RunDir, device: str = "auto") -> None:
        """Goes on with a run that stopped, failed or is lost. Raises UserError if it is active or finished, or can't start."""
        from ..trainer.preflight import check_resume

        with self._lock:
            check_resume(run, self.root())
            self._launch(run, device)

    def _launch(self, run: RunDir, device: str) -> None:
        device = self.device() if device == "auto" else device
        check_device(device)
        with self._lock:
            in_line = self.in_use(device)
            self._children[run.id] = launch(run, device)
            self._watch(run, in_line)
        self._wake.set()

    def in_use(self, device: str) -> bool:
        """Whether a trainer has the device, or waits for it, so that the next one joins a line."""
        return bool(tickets(default_root() / device_key(device)))

    def find_same(self, digest: str, take: int) -> RunDir | None:
        """The newest run, in any state, that was started for this configuration (`RunConfig.digest()`) and take."""
        for run in runs.list_runs(self.root()):
            origin = read_origin(run)
            if origin.get("digest") == digest and origin.get("take") == take:
                return run
        return None

    # Controlling

    def control(self, run: RunDir, action: str) -> None:
        """Asks the run's process for one of `runs.ACTIONS`. Raises UserError if the action is unknown or nobody is there."""
        if action not in runs.ACTIONS:
            raise UserError(f"Unknown action {action!r}; allowed: {', '.join(runs.ACTIONS)}.")
        state = state_or_lost(run)
        if not state.active:
            hint = "" if state.status == runs.FINISHED else "; resume it first"
            raise UserError(f"The run '{run.id}' is {state.status}, so nobody is there to {action} it{hint}.")
        runs.request(run, action)
        self._wake.set()

    def delete(self, run: RunDir) -> None:
        """Removes all of a run. Raises UserError if it is active or can't be removed."""
        with self._lock:
            runs.delete_run(run)
            self._forget(run.id)
        self.send(EVENT, {"run": run.id, "seq": 0, "type": "deleted"})

    def _forget(self, run_id: str) -> None:
        for known in (self._children, self._watched, self._ended):
            known.pop(run_id, None)

    # Watching

    def watch(self) -> None:
        """Starts the one thread that watches all active runs, those of an earlier ComfyUI too."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="vgrpo-watcher", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Ends the watching, never a run."""
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(10)

    def _loop(self) -> None:
        while not self._closed:
            try:
                self.tick()
            except Exception as error:  # a disk that is away for a moment must not end the watching
                log.warning("V-GRPO: runs could not be looked at: %s", one_line(error))
            self._wake.wait(TICK_S)
            self._wake.clear()
            time.sleep(0.05)

    def tick(self) -> int:
        """One look at all active runs: tells what is new, one message a run. Returns how many messages were sent."""
        with self._lock:
            for run_id, child in list(self._children.items()):
                if child.poll() is not None:
                    del self._children[run_id]
            if time.monotonic() - self._scanned > SCAN_S:
                self._scanned = time.monotonic()
                self._scan()
            order = list(self._watched.values())
        sent = 0
        for k in range(len(order)):  # begins each time with another run, so that none is left out for long
            if sent >= MESSAGES_PER_TICK:
                break
            sent += self._look(order[(k + self._turn) % len(order)])
        self._turn += sent
        return sent

    def _scan(self) -> None:
        for run in runs.list_runs(self.root()):
            try:
                written = run.state_file.stat().st_mtime_ns
            except OSError:
                written = -1
            if run.id in self._watched or self._ended.get(run.id) == written:
                continue
            state = state_or_lost(run)
            if state.active:
                self._watch(run)
            else:
                self._ended[run.id] = written
                if state.status == runs.FINISHED:
                    self._publish(run)

    def _watch(self, run: RunDir, in_line: bool = False) -> None:
        reader = EventReader(run.events_file)
        self._ended.pop(run.id, None)
        self._watched[run.id] = _Watched(run, reader, reader.last_seq(), in_line=in_line)

    def _look(self, watched: _Watched) -> bool:
        run = watched.run
        if not run.path.is_dir():
            with self._lock:
                self._forget(run.id)
            self.send(EVENT, {"run": run.id, "seq": 0, "type": "deleted"})
            return True
        state = state_or_lost(run)  # before the events: what it knows of is among them
        if read_json(run.state_file) is None:  # a living process writes it anew within seconds
            watched.torn_since = watched.torn_since or time.monotonic()
            if time.monotonic() - watched.torn_since < TORN_S:
                return False
        else:
            watched.torn_since = None
        events = watched.reader.window(after=watched.seq)
        if state.status == runs.FINISHED:  # before anybody is told that it is there
            self._publish(run)
        told = (state.status, state.iteration, state.message, state.lora)
        if state.status == runs.STARTING and state.message.startswith(WAITING):
            watched.in_line = True
        elif watched.in_line and (state.status == runs.RUNNING or state.message == LOADING):
            watched.in_line = False
            if state.device != "cpu":
                self.free()
        if not state.active:
            with self._lock:
                self._watched.pop(run.id, None)
        if not events and told == watched.told:
            return False
        if events:
            watched.seq = events[-1]["seq"]
        watched.told = told
        self.send(EVENT, message(run, state, watched.seq, events))
        return True

    def _publish(self, run: RunDir) -> None:
        """Once a run: a LoRA that its user has deleted from `loras` does not come back."""
        if self.publish is None or run.published_file.exists() or not run.origin_file.exists():
            return
        try:
            name = self.publish(run)
            runs.write_json(run.published_file, {"name": name})
            log.info("V-GRPO: the LoRA of '%s' is in loras as %s", run.id, name)
        except (UserError, OSError) as error:
            log.error("V-GRPO: %s", one_line(error))


def check_device(device: str) -> None:
    """Raises UserError for a device that this machine has not. ComfyUI has loaded torch already."""
    from ..trainer.device import choose_device

    choose_device(device)


def message(run: RunDir, state: RunState, seq: int, events: list[dict[str, Any]]) -> dict[str, Any]:
    """What pages are told: small, and enough to know what to fetch. `types` are the new events', `type` the newest's."""
    types = list(dict.fromkeys(event["type"] for event in events))
    return {
        "run": run.id,
        "seq": seq,
        "type": events[-1]["type"] if events else "state",
        "types": types,
        "status": state.status,
        "iteration": state.iteration,
        "iterations": state.iterations,
        "message": state.message[:300],
    }


def read_origin(run: RunDir) -> dict[str, Any]:
    """What `start` wrote about where the run comes from, {} for a run that was started elsewhere."""
    return read_json(run.origin_file) or {}


def published_name(run: RunDir) -> str | None:
    """The name that Load LoRA had for the run's LoRA when it was published."""
    name = (read_json(run.published_file) or {}).get("name")
    return name if isinstance(name, str) else None


def _publish_in_comfyui(run: RunDir) -> str:
    from .publish import publish

    return publish(run)


_default: Jobs | None = None
_making = threading.Lock()


def default() -> Jobs:
    """The instance of this ComfyUI."""
    global _default
    with _making:
        if _default is None:
            _default = Jobs(host.runs_root, host.device, host.send, _publish_in_comfyui, partial(host.ask_to_free_models, 0))
        return _default


def start(config: RunConfig, origin: dict[str, Any], device: str = "auto", take: int = 0) -> RunDir:
    return default().start(config, origin, device, take)


def resume(run: RunDir, device: str = "auto") -> None:
    default().resume(run, device)


def in_use(device: str) -> bool:
    return default().in_use(device)


def control(run: RunDir, action: str) -> None:
    default().control(run, action)


def find_same(digest: str, take: int) -> RunDir | None:
    return default().find_same(digest, take)
