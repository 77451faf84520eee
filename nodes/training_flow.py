"""Train LoRA without ComfyUI: which run a queued graph means, waiting for it, what Cancel does. `training` has the node."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..trainer import runs
from ..trainer.config import RunConfig
from ..trainer.errors import UserError, one_line
from ..trainer.runs import RunDir, RunState
from ..trainer.runs.launch import DEVICE, DEVICE_WORDS, last_line
from .jobs import read_origin
from .run_reading import digest, evaluations, fingerprint, last_error, state_of, status_line

log = logging.getLogger("vgrpo.nodes")

BACKGROUND, WAIT = "background", "wait"
MODES = (BACKGROUND, WAIT)
DEVICES = ("auto", "cpu", "cuda", "cuda:0", "cuda:1", "cuda:2", "cuda:3", "mps", "xpu")

AS_IN_SETTINGS, DETACH, PAUSE, STOP = "as in settings", "detach", "pause", "stop and save"
ON_CANCEL = (AS_IN_SETTINGS, DETACH, PAUSE, STOP)
CANCEL_SETTING = "VGRPO.Cancel"  # detach | pause | stop
_ACTIONS = {"pause": "pause", "stop": "stop"}  # everything else detaches: the one answer that loses nothing

LOOK_S = 0.25  # Cancel is seen within this time
_GONE_S = 2.0  # a folder that is away for so long was deleted
_UNREADABLE_S = 30.0  # a run whose state cannot be read for so long will not be read again
_LOST_LOOKS = 6
_STOPPING_S = 120.0
_INTERRUPT = "InterruptProcessingException"

STARTED, ATTACHED, RESUMED, WAS_FINISHED = "started", "attached", "resumed", "finished before"


class Jobs(Protocol):
    """What is asked of `jobs`."""

    def find_same(self, digest: str, take: int) -> RunDir | None: ...
    def start(self, config: RunConfig, origin: dict[str, Any], device: str = "auto", take: int = 0) -> RunDir: ...
    def resume(self, run: RunDir, device: str = "auto") -> Any: ...
    def control(self, run: RunDir, action: str) -> Any: ...


class Bar(Protocol):
    def update_absolute(self, value: float, total: float | None = None, preview: Any = None) -> None: ...


@dataclass(frozen=True)
class Obtained:
    run: RunDir
    how: str  # STARTED, ATTACHED, RESUMED or WAS_FINISHED


def obtain(
    jobs: Jobs,
    config: RunConfig,
    take: int,
    device: str,
    origin: dict[str, Any],
    free: Callable[[], None],
    wait: bool,
    check_cancel: Callable[[], None] = lambda: None,
) -> Obtained:
    """The one run of this configuration and take: attached to, resumed where it ended early, made where there is none.

    free: empties the accelerator; called right before a process is to use it. A paused run goes on only if somebody `wait`s.
    One that is about to stop is awaited, then resumed: who queues it again wants it to go on.
    """
    digest = config.digest()
    run = jobs.find_same(digest, take)
    if run is None:
        free()
        return Obtained(jobs.start(config, {**origin, "digest": digest, "take": take}, device, take), STARTED)
    _await_stop(run, check_cancel)
    state = state_of(run)
    if state is not None and state.status == runs.FINISHED:
        return Obtained(run, WAS_FINISHED)
    if state is not None and state.active:
        if wait and state.status == runs.PAUSED:
            free()
            jobs.control(run, "resume")
        return Obtained(run, ATTACHED)
    free()
    jobs.resume(run, device)
    return Obtained(run, RESUMED)


def _await_stop(run: RunDir, check_cancel: Callable[[], None]) -> None:
    deadline = time.monotonic() + _STOPPING_S
    while time.monotonic() < deadline:
        state = state_of(run)
        if state is None or not state.active or not (state.status == runs.STOPPING or "stop" in runs.pending(run)):
            return
        check_cancel()
        time.sleep(LOOK_S)


def follow(
    run: RunDir,
    bar: Bar,
    check_cancel: Callable[[], None],
    preview: Callable[[RunDir, int], Any],
    say: Callable[[str], None] = lambda text: None,
    sleep: Callable[[float], None] = time.sleep,
) -> RunState:
    """Waits until the run ends, with its iterations on the bar and its newest pictures as the preview; returns the last state.

    check_cancel raises when the user pressed Cancel, and is asked every LOOK_S. say gets the status in words when it changes.
    """
    on_bar: tuple[int, int | None] | None = None
    pictured: int | None = None
    said, unreadable, lost_looks = "", 0.0, 0
    while True:
        check_cancel()
        state = state_of(run)
        if state is None:
            unreadable += LOOK_S
            if unreadable > _GONE_S and not run.path.is_dir():
                raise UserError(f"the training '{run.id}' was deleted while this node waited: {run.path} is gone")
            if unreadable > _UNREADABLE_S:
                raise UserError(f"the run '{run.id}' cannot be watched any more: {status_line(run)}, in {run.path}")
        else:
            unreadable, newest = 0.0, max(evaluations(run), default=None)
            if (state.iteration, newest) != on_bar:
                picture = preview(run, newest) if newest is not None and newest != pictured else None
                bar.update_absolute(state.iteration, max(1, state.iterations), picture)
                on_bar, pictured = (state.iteration, newest), newest
            if (text := status_line(run)) != said:
                say(text)
                said = text
            if state.status == runs.LOST and lost_looks < _LOST_LOOKS:  # its parent may be about to write what happened
                lost_looks += 1
            elif not state.active:
                return state
        sleep(LOOK_S)


def on_cancel_action(choice: str, setting: Any) -> str | None:
    """The request that Cancel sends to the trainer, None to leave it alone. `setting` counts where the node says so."""
    word = str(setting) if choice == AS_IN_SETTINGS else choice
    return _ACTIONS.get(word.split()[0].lower() if word.split() else "")


@contextmanager
def on_interrupt(act: Callable[[], Any]) -> Iterator[None]:
    """`act` before ComfyUI's exception for Cancel goes on; for no other one. An `act` that fails is only logged.

    It comes from whatever looks for Cancel: our own question, or the progress bar. It is an Exception in old versions and
    a BaseException in new ones, so it is known by its name.
    """
    try:
        yield
    except BaseException as error:
        if any(kind.__name__ == _INTERRUPT for kind in type(error).__mro__):
            try:
                act()
            except Exception as trouble:
                log.error("V-GRPO: Cancel could not reach the trainer: %s", one_line(trouble))
        raise


def ending_error(run: RunDir, state: RunState) -> UserError | None:
    """Why a run that ended gives no LoRA, in one line with the child's last error and its log; None if it finished."""
    if state.status == runs.FINISHED:
        return None
    where = f"iteration {state.iteration} of {state.iterations}"
    if state.status == runs.STOPPED:
        return UserError(
            f"the training '{run.id}' was stopped at {where}, so it has no finished LoRA; queue again to resume it, or use "
            "what it has with Load Run and Apply Run LoRA"
        )
    if state.status == runs.LOST:
        what, reason = "ended without a word", f"the last line of its log is: {_last_words(run)}"
    else:
        what, reason = "failed", state.message or last_error(run) or _last_words(run)
    return UserError(
        f"the training '{run.id}' {what} at {where}: {reason.rstrip('.')}. Its log: {run.log_file}; queue again to resume it"
    )


def take_fingerprint(root: Path, take: int | None) -> str:
    """Changes when a run appears or is deleted, or one of this take has something new to show; a finished one changes nothing.

    ComfyUI asks before it knows what comes over links, so other runs of the same take count too. None: take is one itself.
    """
    takes = ((run, read_origin(run).get("take")) for run in runs.list_runs(root))
    shown = [fingerprint(run) for run, own in takes if own is not None and take in (None, own)]
    # Without the folder's time a deletion would bring back an older value, and ComfyUI its kept answer about the deleted run.
    return digest([root.stat().st_mtime_ns if root.is_dir() else 0, *shown])


def device_problem(device: Any) -> str | None:
    """What is wrong with a device's name, None if nothing is; whether it is there is seen where it is used."""
    if isinstance(device, str) and DEVICE.fullmatch(device):
        return None
    return f"{device!r} is no device; allowed: {DEVICE_WORDS}"


def status_text(obtained: Obtained, lora: str) -> str:
    """What the node says at its end."""
    text = f"{obtained.run.id}: {obtained.how}; {status_line(obtained.run)}"
    return f"{text}; LoRA: {lora}" if lora else text


def _last_words(run: RunDir) -> str:
    return last_line(run.log_file).strip() or "no message"
