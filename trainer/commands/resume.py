"""`resume`: go on with a run from its newest complete checkpoint."""

from __future__ import annotations

from ..device import choose_device
from ..runs import require_idle
from . import train
from .common import run_of


def run(args) -> int:
    run_dir = run_of(args.run)
    require_idle(run_dir, "resumed")
    if (run_dir.summary_file).is_file():
        print(f"the run {run_dir.id} is finished already; its results are in {run_dir.path}")
        return 0
    return train.work(run_dir, choose_device(args.device))
