"""What several commands share: runs by path or id, checkpoints by word, a policy with a run's LoRA."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..runs import RunDir, find_run, valid_run_id
from ..runs.checkpoints import CheckpointInfo, list_checkpoints, load_checkpoint
from ..runs.device_queue import Place


def run_of(text: str) -> RunDir:
    """A run given as its folder, or as its id in ./runs. Raises UserError."""
    path = Path(text)
    if path.is_dir():
        run = RunDir(path)
        if run.config_file.is_file():
            return run
        raise UserError(f"{path} is not a run: it has no config.yaml; `runs FOLDER` lists the runs of a folder")
    if valid_run_id(text):
        return find_run(Path("runs"), text)
    raise UserError(f"there is no run folder {text}; give a run's folder, or its id in ./runs")


def program() -> str:
    """How this program is called from any folder, as it was called now."""
    started = Path(sys.argv[0])
    return f'python "{started.absolute()}"' if started.suffix == ".py" else started.name or "vgrpo"


@contextmanager
def at_device(run: RunDir, device: Any) -> Iterator[None]:
    """Around a training in a terminal: runs in line wait for it. It never waits itself: who is at the device already is told in
    one line, and the person decides."""
    place: Place | None = None
    try:
        place = Place(run, str(device))
    except UserError as error:
        print(f"note: {error} Runs in line will not wait for this one.", flush=True)
    with place or nullcontext():
        if place is not None and not place.holds():
            before = place.before()
            who = f"the run {before[0].run_id} (process {before[0].pid})" if before else "another trainer"
            place.leave()
            print(f"note: {who} is on {device} already; this one trains beside it, both slower. Ctrl-C stops it.", flush=True)
        yield


def checkpoint_of(run: RunDir, word: str) -> CheckpointInfo:
    """`latest`, `best` (by held-out reward) or an iteration number. Raises UserError naming those that exist."""
    complete, _ = list_checkpoints(run)
    have = ", ".join(str(c.iteration) for c in complete) or "none"
    if not complete:
        raise UserError(f"the run {run.path} has no complete checkpoint yet")
    if word == "latest":
        return complete[-1]
    if word == "best":
        # Every checkpoint knows the best one so far, and the best one is never pruned.
        best = load_checkpoint(complete[-1].path)[1].get("best")
        word = str(best[0]) if best else str(complete[-1].iteration)
    for info in complete:
        if word.isdecimal() and info.iteration == int(word):
            return info
    raise UserError(f"the run {run.path} has no checkpoint {word!r}; there are: latest, best, {have}")


def factors_of(run: RunDir, word: str, raw: bool = False):
    """(LoraFactors, iteration) of a checkpoint: the moving average if there is one, unless `raw`."""
    from ..lora import LoraFactors

    info = checkpoint_of(run, word)
    tensors, _ = load_checkpoint(info.path)
    name = "ema" if "ema" in tensors and not raw else "lora"
    return LoraFactors.from_tensors(tensors[name]), info.iteration
