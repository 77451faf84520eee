"""Requests to a running trainer, each an empty file in control/ whose name says when, by whom and what."""

from __future__ import annotations

import itertools
import os
import re
import time
from pathlib import Path

from ..errors import UserError
from .layout import RunDir

ACTIONS = ("pause", "resume", "stop", "checkpoint", "sample")
_REQUEST = re.compile(r"(\d{20})-(\d+)-(\d{6,})-(" + "|".join(ACTIONS) + r")\.request")
_counter = itertools.count()  # orders requests of one process within one tick of a coarse clock


def request(run: RunDir, action: str) -> Path:
    """Leaves a request for the trainer; it exists whole from the start, because its name is its content.

    Raises UserError for an unknown action or if the folder cannot be written. Does not ask whether anyone will read it.
    """
    if action not in ACTIONS:
        raise UserError(f"Unknown action {str(action)[:40]!r} for run '{run.id}'; allowed: {', '.join(ACTIONS)}.")
    path = run.control / f"{time.time_ns():020d}-{os.getpid()}-{next(_counter):06d}-{action}.request"
    try:
        run.control.mkdir(exist_ok=True)
        path.touch(exist_ok=False)
    except OSError as error:
        raise UserError(
            f"Cannot write a request to {run.control}: {error.strerror}; is the run's folder still there?"
        ) from error
    return path


def pending(run: RunDir) -> list[str]:
    """What the trainer would be asked to do now, in order of arrival, settled as in `take_requests`; consumes nothing."""
    return _settle([action for _, action in _arrived(run)])


def take_requests(run: RunDir) -> list[str]:
    """The actions asked for since the last call, in order of arrival; each request is given out once.

    Settled: a repeated action counts once; of pause and resume only the later counts; a stop cannot be taken back, so pause and
    resume beside it are dropped. A trainer that starts calls this once and ignores the answer: what was asked of the process
    before it (a stop of a lost run) is not meant for this one.
    """
    taken = []
    for path, action in _arrived(run):
        try:
            path.unlink()
        except FileNotFoundError:  # another taker was faster
            continue
        except PermissionError:
            if os.name != "nt":
                raise
            continue  # somebody looks at it just now; it comes with the next call
        taken.append(action)
    return _settle(taken)


def _arrived(run: RunDir) -> list[tuple[Path, str]]:
    try:
        names = os.listdir(run.control)
    except FileNotFoundError:
        return []
    matches = [match for match in map(_REQUEST.fullmatch, names) if match]
    matches.sort(key=lambda match: (match[1], int(match[2]), int(match[3])))
    return [(run.control / match[0], match[4]) for match in matches]


def _settle(actions: list[str]) -> list[str]:
    switches = [action for action in actions if action in ("pause", "resume")]
    settled: list[str] = []
    for action in actions:
        if action in ("pause", "resume") and ("stop" in actions or action != switches[-1]):
            continue
        if action not in settled:
            settled.append(action)
    return settled
