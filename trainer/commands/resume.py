"""`resume`: go on with a run from its newest complete checkpoint; with `--in-line` behind those that came before.

`--iterations` sets to how many: also a run that is finished goes on then.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

from .. import runs
from ..config import load_config
from ..device import choose_device
from ..errors import UserError, one_line
from ..requests import RequestDesk
from ..runs import RunDir, RunState
from ..runs.checkpoints import list_checkpoints
from ..runs.device_queue import LOADING, Place
from ..runs.state import state_or_none
from . import train
from .common import at_device, run_of

BEAT_S = 5.0


def run(args) -> int:
    run_dir = run_of(args.run)
    if args.iterations is not None:
        set_iterations(run_dir, args.iterations)
    if not args.in_line:
        return go_on(run_dir, args.device)
    runs.require_idle(run_dir, "resumed", unless_mine=True)
    old = state_or_none(run_dir)
    return 0 if _ended(run_dir, old) else _InLine(run_dir, args.device, old or RunState()).work()


def go_on(run_dir: RunDir, device_name: str) -> int:
    """Resume in the foreground; a run that is finished stays as it is. Returns the exit code."""
    runs.require_idle(run_dir, "resumed")
    if _ended(run_dir, state_or_none(run_dir)):
        return 0
    device = choose_device(device_name)
    with at_device(run_dir, device):
        return train.work(run_dir, device)


def set_iterations(run_dir: RunDir, iterations: int) -> None:
    """Change to how many iterations a run goes; what is done stays. A finished run that has some left counts as stopped.

    Raises UserError, and then changes nothing, for fewer than are saved, and for a run that trains or has nothing saved.
    """
    runs.require_idle(run_dir, "given other iterations")
    complete, _ = list_checkpoints(run_dir)
    done = complete[-1].iteration if complete else 0
    state = state_or_none(run_dir)
    if state is not None and state.status == runs.FINISHED and not complete:
        raise UserError(f"--iterations: the run {run_dir.id} is finished and has no complete checkpoint left to go on from")
    if iterations < max(1, done):
        raise UserError(f"--iterations {iterations}: the run {run_dir.id} has done {done}; allowed: {max(1, done)} or more")
    old = load_config(run_dir.config_file)
    if iterations != old.iterations:
        new = load_config({**old.to_dict(), "iterations": iterations}, check_files=False)
        runs.write_atomic(run_dir.config_file, new.to_yaml())
    if state is not None and state.status == runs.FINISHED and iterations > done:
        left = iterations - done
        message = f"finished after iteration {done}, and {left} more asked for; resume trains them"
        runs.write_state(run_dir, replace(state, status=runs.STOPPED, iterations=iterations, message=message))


def _ended(run_dir: RunDir, state: RunState | None) -> bool:
    # A run that was killed between its summary and its last word is ended properly.
    ended = run_dir.summary_file.is_file() and state is not None and state.status == runs.FINISHED
    if ended:
        print(f"the run {run_dir.id} is finished already; its results are in {run_dir.path}")
    return ended


class _InLine:
    """A trainer that nobody watches in a terminal: it waits for its device, and says everything in the state and the log."""

    def __init__(self, run_dir: RunDir, device: str, old: RunState) -> None:
        self.run = run_dir
        self.device = str(choose_device(device)) if device == "auto" else device
        launched = old.status == runs.STARTING and old.pid is None
        if not launched:
            runs.take_requests(run_dir)  # what the process before this one was asked
        self.asked_at = old.updated if launched else None
        self.state = RunState(
            iteration=old.iteration,
            iterations=old.iterations,
            lora=old.lora,
            device=self.device,
            name=old.name,
            started=old.started or time.time(),
            **runs.own_process(),
        )
        self._beaten = 0.0
        self._said: tuple[str, str] | None = None

    def work(self) -> int:
        place: Place | None = None
        with train.logging_to(self.run):
            try:
                desk = RequestDesk(self.run)
                with desk.signals():
                    place = self._wait(desk)
                    return 0 if place is None else self._train(desk)
            except BaseException as error:
                self._failed(error)
                raise
            finally:
                if place is not None:
                    place.leave()

    def _wait(self, desk: RequestDesk) -> Place | None:
        """The place at the device, or None after a stop. A run that pauses in line lets the others pass."""
        place: Place | None = None
        paused = False
        try:
            while True:
                for action in desk.take():
                    if action == "stop":
                        self._say(runs.STOPPED, "stopped while it waited in line; resume continues it")
                        if place is not None:
                            place.leave()
                        return None
                    paused = action == "pause" or (paused and action != "resume")
                if paused:
                    if place is not None:
                        place.leave()
                    place = None
                    self._say(runs.PAUSED, "paused while it waited in line")
                    desk.wait()
                    continue
                if place is None:
                    place = Place(self.run, self.device, self.asked_at)
                    self.asked_at = None
                if not place.holds():
                    self._say(runs.STARTING, place.message())
                    desk.wait()
                    continue
                if self._said == (runs.STARTING, LOADING):  # all is imported, and nobody wants anything else
                    return place
                self._say(runs.STARTING, LOADING)
                from .. import training  # noqa: F401 - takes seconds, in which a request may come
        except BaseException:
            if place is not None:
                place.leave()
            raise

    def _train(self, desk: RequestDesk) -> int:
        from ..training import train as train_run

        device = choose_device(self.device)
        _print(f"run {self.run.id} on {device}, in {self.run.path}")
        try:
            summary = train_run(self.run, device, _Messages(), desk=desk)  # what came in since the wait is not lost
        except (UserError, ModuleNotFoundError):
            raise
        except Exception as error:
            raise UserError(f"the run failed: {type(error).__name__}: {one_line(error)}; see {self.run.log_file}") from error
        if summary.get("stopped"):
            _print(f"stopped after iteration {summary['iteration']} of {summary['iterations']}")
            return 0 if summary["saved"] else 2
        with suppress(OSError):
            train.print_summary(self.run, summary)
        return 0

    def _say(self, status: str, message: str) -> None:
        """Write the state if it says something new, or as a sign of life."""
        if self._said == (status, message) and time.monotonic() - self._beaten < BEAT_S:
            return
        self._said, self._beaten = (status, message), time.monotonic()
        self.state.status, self.state.message = status, message
        with suppress(OSError):  # a full disk costs the message
            runs.write_state(self.run, self.state)

    def _failed(self, error: BaseException) -> None:
        """The run's last word, unless the training has said it itself."""
        state = state_or_none(self.run)
        if state is not None and not state.active:
            return
        message = one_line(error) if not isinstance(error, KeyboardInterrupt) else "interrupted"
        with suppress(OSError), runs.EventWriter(self.run.events_file) as events:
            events.write("error", iteration=self.state.iteration, message=message, kind=type(error).__name__)
        self._say(runs.FAILED, message)


def _print(text: str) -> None:
    with suppress(OSError):  # the log of a trainer in line; a full disk costs the line
        print(text, flush=True)


class _Messages:
    """Progress for a log, where iterations and warnings stand already."""

    def begin(self, done: int, total: int) -> None:
        pass

    def iteration(self, done: int, total: int, metrics: dict[str, float]) -> None:
        pass

    def message(self, text: str) -> None:
        if not text.startswith("warning: "):
            _print(text)
