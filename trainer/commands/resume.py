"""`resume`: go on with a run from its newest complete checkpoint."""

from __future__ import annotations

from ..device import choose_device
from ..errors import UserError
from ..runs import FINISHED, read_state, require_idle
from . import train
from .common import run_of


def run(args) -> int:
    run_dir = run_of(args.run)
    require_idle(run_dir, "resumed")
    # A run that was killed between its summary and its last word is ended properly.
    if run_dir.summary_file.is_file() and _status(run_dir) == FINISHED:
        print(f"the run {run_dir.id} is finished already; its results are in {run_dir.path}")
        return 0
    return train.work(run_dir, choose_device(args.device))


def _status(run_dir) -> str | None:
    try:
        return read_state(run_dir).status
    except UserError:  # a damaged state.json is written anew
        return None
