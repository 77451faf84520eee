"""A whole run in half a second: a tiny model, a few iterations, and what tests compare two runs by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

from trainer import runs
from trainer.config import load_config
from trainer.runs import RunDir
from trainer.runs.checkpoints import list_checkpoints, load_checkpoint
from trainer.training import start_run, train

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")
RUN_ID = "small"  # in the LoRA's metadata, so runs that are compared byte by byte share it

# Every part of the method that carries something from one iteration to the next.
EVERYTHING = {
    "objective": {"gradient_steps": 2, "clip_eps": 0.01, "kl_coef": 0.3},
    "optimizer": {"ema_decay": 0.5, "warmup": 3, "weight_decay": 0.01, "max_grad_norm": 0.5},
    "surrogate": {"share": "none"},
}


def small_config(model: Path, **changes: Any) -> dict[str, Any]:
    """A configuration as a file would hold it. Sections in `changes` are merged; a large lr makes the LoRA visible."""
    data: dict[str, Any] = {
        "name": "small",
        "seed": 5,
        "iterations": 3,
        "policy": {"model": str(model), "dtype": "float32", "vae_dtype": "float32", "lora": {"rank": 2}},
        "prompts": {"train": ["a red square", "a blue circle", "a green star"], "evaluate": ["a red star", "two blue circles"]},
        "rollout": {"group_size": 3, "prompts_per_iteration": 2, "steps": 2, "width": 64, "height": 64, "batch_size": 8},
        "surrogate": {"pairs": 2, "batch_size": 16},
        "optimizer": {"lr": 0.5, "ema_decay": 0.0},
        "rewards": {"brightness": {}},
        "monitors": {"colorfulness": {}},
        "evaluation": {"every": 2, "prompts": 2, "seeds": 2, "steps": 2},
        "checkpoint": {"every": 1, "keep": 10},
    }
    for key, value in changes.items():
        merge = isinstance(value, dict) and key not in ("rewards", "monitors")
        data[key] = {**data.get(key, {}), **value} if merge else value
    return data


def write_config(path: Path, data: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(data, allow_unicode=True), encoding="utf-8")
    return path


class Watcher:
    """A front end that remembers what it was told, and may do something then."""

    def __init__(
        self, on_iteration: Callable[[int], None] = lambda done: None, on_message: Callable[[str], None] = lambda text: None
    ) -> None:
        self.on_iteration, self.on_message = on_iteration, on_message
        self.done: list[int] = []
        self.messages: list[str] = []

    def begin(self, done: int, total: int) -> None:
        pass

    def iteration(self, done: int, total: int, metrics: dict[str, float]) -> None:
        self.done.append(done)
        self.on_iteration(done)

    def message(self, text: str) -> None:
        self.messages.append(text)
        self.on_message(text)


def new_run(root: Path, data: dict[str, Any], run_id: str = RUN_ID) -> RunDir:
    return start_run(load_config(data), root, run_id)


def go(run: RunDir, watcher: Watcher | None = None) -> dict[str, Any]:
    """Start or resume a run as a new process would: everything is built anew from its config.yaml."""
    return train(run, CPU, watcher or Watcher(), cache=run.path.parent / "conditioning")


def stop_after(run: RunDir, iteration: int) -> Watcher:
    """Asks for a stop at the end of an iteration; 0: when the pictures of the base are made."""

    def on_iteration(done: int) -> None:
        if done == iteration:
            runs.request(run, "stop")

    def on_message(text: str) -> None:
        if iteration == 0 and "after iteration 0" in text:
            runs.request(run, "stop")

    return Watcher(on_iteration, on_message)


def stopped_and_resumed(root: Path, data: dict[str, Any], iteration: int) -> RunDir:
    """A finished run that was stopped at the end of an iteration, and resumed."""
    run = new_run(root, data)
    go(run, stop_after(run, iteration))
    assert runs.read_state(run).status == runs.STOPPED
    go(run)
    assert events(run, "resumed")
    return run


def lora_bytes(run: RunDir) -> bytes:
    return (run.lora_dir / f"{run.id}.safetensors").read_bytes()


def events(run: RunDir, *kinds: str) -> list[dict[str, Any]]:
    return [e for e in runs.read_events(run.events_file) if not kinds or e["type"] in kinds]


def series(run: RunDir) -> dict[str, list[tuple[int, float]]]:
    """All curves but the times."""
    found = runs.metric_series(runs.read_events(run.events_file))
    return {name: points for name, points in found.items() if not name.startswith("time/")}


def saved(run: RunDir) -> dict[int, tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]]:
    """Every complete checkpoint, without what a clock says."""
    out = {}
    for info in list_checkpoints(run)[0]:
        tensors, position = load_checkpoint(info.path)
        position.pop("wall_s")
        out[info.iteration] = (tensors, position)
    return out


def same_tensors(left: dict[str, dict[str, torch.Tensor]], right: dict[str, dict[str, torch.Tensor]]) -> bool:
    """Equal to the bit: the same files, names, types and values."""
    if left.keys() != right.keys():
        return False
    return all(
        left[file].keys() == right[file].keys()
        and all(left[file][n].dtype == right[file][n].dtype and torch.equal(left[file][n], right[file][n]) for n in left[file])
        for file in left
    )


def assert_same_outcome(run: RunDir, other: RunDir) -> None:
    """Both are finished, and nothing but times tells them apart."""
    assert runs.read_state(run).status == runs.read_state(other).status == runs.FINISHED
    assert lora_bytes(run) == lora_bytes(other)
    assert series(run) == series(other)
    mine, theirs = saved(run), saved(other)
    last = max(theirs)
    assert max(mine) == last
    for iteration in mine.keys() & theirs.keys():
        assert same_tensors(mine[iteration][0], theirs[iteration][0]), f"checkpoint {iteration}"
    assert mine[last][1] == theirs[last][1]
    summaries = [yaml.safe_load(r.summary_file.read_text(encoding="utf-8")) for r in (run, other)]
    for summary in summaries:
        del summary["wall_s"], summary["lora_path"]
    assert summaries[0] == summaries[1]
