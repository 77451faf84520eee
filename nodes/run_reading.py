"""What a run directory says, for the nodes that show runs. Imports nothing of ComfyUI and no torch."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..trainer import runs
from ..trainer.config import RunConfig, load_config
from ..trainer.errors import UserError
from ..trainer.runs import RunDir, RunNotFound
from ..trainer.runs.checkpoints import POSITION, list_checkpoints
from ..trainer.runs.evaluations import INDEX, saved_means
from ..trainer.runs.state import state_or_none as state_of

LATEST, BEST, ITERATION = "latest", "best", "iteration"
_NAMED = 8  # how many runs an error names


@dataclass(frozen=True)
class View:
    """What there is of the checkpoint that was asked for: its iteration, and the newest evaluation that is not later."""

    checkpoint: int | None
    evaluation: int | None


def run_ids(root: Path) -> list[str]:
    """The runs in `root`, newest first."""
    return [run.id for run in runs.list_runs(root)]


def open_run(root: Path, run_id: str) -> RunDir:
    """The run of that id. Raises UserError naming those that are there."""
    try:
        return runs.find_run(root, run_id)
    except RunNotFound as error:
        text = f"there is no run '{run_id}' in {root} (was it deleted or renamed?)"
        raise UserError(f"{text}; {_there_are(root)}") from error


def nothing_chosen(root: Path) -> str:
    """What to say to somebody who has not chosen a run."""
    return f"no run is chosen; in {root} {_there_are(root)} (press R to see new ones in the list)"


def _there_are(root: Path) -> str:
    known = run_ids(root)
    more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    return f"there are: {', '.join(known[:_NAMED])}{more}" if known else "there is none yet: V-GRPO Train LoRA makes one"


def config_of(run: RunDir) -> RunConfig:
    """The run's configuration. Raises UserError. A base model or LoRA that is gone does not matter for looking at a run."""
    return load_config(run.config_file, check_files=False)


def evaluations(run: RunDir) -> list[int]:
    """The iterations whose evaluation is saved whole, rising."""
    return sorted(int(file.parent.name) for file in run.samples.glob(f"*/{INDEX}") if file.parent.name.isdecimal())


def checkpoints(run: RunDir) -> list[int]:
    """The iterations of the complete checkpoints, rising."""
    return [info.iteration for info in list_checkpoints(run)[0]]


def best_checkpoint(run: RunDir) -> int | None:
    """The iteration of the best checkpoint by held-out reward, the newest where none was judged yet, None without any.

    Reads what the newest checkpoint remembers, and none of its tensors.
    """
    complete, _ = list_checkpoints(run)
    if not complete:
        return None
    try:
        best = json.loads((complete[-1].path / POSITION).read_text(encoding="utf-8"))["best"]
        if best and int(best[0]) in {info.iteration for info in complete}:
            return int(best[0])
    except (OSError, ValueError, KeyError, TypeError, IndexError):  # pruned or damaged meanwhile: the newest is no lie
        pass
    return complete[-1].iteration


def view(run: RunDir, word: str) -> View:
    """What `latest`, `best` or an iteration's number means now. Raises UserError for a number that the run has nothing of."""
    evaluated = evaluations(run)
    if word == LATEST:
        saved = checkpoints(run)
        return View(saved[-1] if saved else None, evaluated[-1] if evaluated else None)
    if word == BEST:
        best = best_checkpoint(run)
        return View(best, _newest_until(evaluated, best))
    if not word.isdecimal():
        raise UserError(f"checkpoint {word!r} of the run '{run.id}'; allowed: {LATEST}, {BEST}, or an iteration's number")
    number, saved = int(word), checkpoints(run)
    if number not in saved and number not in evaluated:
        raise UserError(
            f"the run '{run.id}' has nothing of iteration {number}; it has checkpoints of {_listed(saved)} "
            f"and pictures of {_listed(evaluated)}"
        )
    return View(number if number in saved else None, _newest_until(evaluated, number))


def fingerprint(run: RunDir) -> tuple[Any, ...]:
    """Changes whenever the run has something new to show: a state, an iteration, a checkpoint, pictures."""
    state = state_of(run)
    evaluated, saved = evaluations(run), checkpoints(run)
    return (
        run.id,
        (state.status, state.iteration, state.message) if state else None,
        saved[-1] if saved else None,
        (evaluated[-1], _written(run.evaluation(evaluated[-1]) / INDEX)) if evaluated else None,
    )


def digest(value: Any) -> str:
    """A short text that differs when the value's repr does."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def means(run: RunDir, iteration: int | None) -> dict[str, float]:
    """The held-out means of an evaluation (`eval/<name>/mean` and details), {} where there are none."""
    return {} if iteration is None else saved_means(run, iteration)


def last_error(run: RunDir) -> str | None:
    """The newest error event's text."""
    text = None
    for event in runs.read_events(run.events_file, types=("error",)):
        text = str(event.get("message") or "") or text
    return text


def status_line(run: RunDir) -> str:
    """For example `running, iteration 3 of 16 on cpu`; with the trainer's own message behind it."""
    state = state_of(run)
    if state is None:
        return "unknown (state.json cannot be read)"
    text = f"{state.status}, iteration {state.iteration} of {state.iterations}"
    text += f" on {state.device}" if state.device else ""
    return f"{text}: {state.message}" if state.message else text


def metrics_text(run: RunDir, config: RunConfig, shown: View, notes: tuple[str, ...] = ()) -> str:
    """A table for people: what the run is, and each held-out mean before training and at the evaluation shown."""
    facts = [
        ("run", run.id),
        ("state", status_line(run)),
        ("base", config.policy.model),
        ("checkpoint", "none yet" if shown.checkpoint is None else f"iteration {shown.checkpoint}"),
        ("best", _number_or_none(best_checkpoint(run))),
        ("pictures", _pictures_line(shown, config)),
        *(("note", note) for note in notes),
    ]
    if error := _current_error(run):
        facts.append(("error", error))
    lines = [f"{title:<11} {text}" for title, text in facts]
    if rows := _rows(config, means(run, 0), means(run, shown.evaluation)):
        lines += ["", f"{'held-out mean':<28} {'iteration 0':>12} {f'iteration {shown.evaluation}':>14} {'change':>9}", *rows]
    if training := _training_rows(run, config):
        lines += ["", *training]
    return "\n".join(lines)


def _rows(config: RunConfig, before: dict[str, float], after: dict[str, float]) -> list[str]:
    weights = config.reward_weights()
    order = ["total", *weights, *(name for name in config.monitors if name not in weights)]

    def place(metric: str) -> tuple[int, str]:
        name = metric.split("/")[1]
        return (order.index(name) if name in order else len(order)), metric.replace("/mean", "/")  # the mean leads its details

    rows = []
    for metric in sorted({*before, *after}, key=place):
        name = metric.removeprefix("eval/").removesuffix("/mean")
        if name in weights:
            name += f" (weight {weights[name]:g})"
        elif name in config.monitors:
            name += " (monitor)"
        left, right = before.get(metric), after.get(metric)
        change = f"{right - left:+9.4f}" if left is not None and right is not None else f"{'-':>9}"
        rows.append(f"{name:<28} {_cell(left, 12)} {_cell(right, 14)} {change}")
    return rows


def _training_rows(run: RunDir, config: RunConfig) -> list[str]:
    """The newest iteration's means on training prompts."""
    series = runs.metric_series(runs.read_events(run.events_file, types=("iteration", "resumed")))
    names = [f"reward/{name}/mean" for name in config.rewards]
    newest = {name: series[name][-1] for name in (*names, "grad_norm", "advantage/frac_zero_std") if series.get(name)}
    return [f"{name:<28} {value:12.4g}  (training, iteration {iteration})" for name, (iteration, value) in newest.items()]


def _current_error(run: RunDir) -> str | None:
    state = state_of(run)
    return last_error(run) if state is not None and state.status == runs.FAILED else None


def _pictures_line(shown: View, config: RunConfig) -> str:
    if shown.evaluation is None:
        return "no evaluation yet"
    count = min(config.evaluation.prompts, len(config.prompts.evaluate))
    return f"iteration {shown.evaluation}: {count} prompts x {config.evaluation.seeds} seeds"


def _number_or_none(iteration: int | None) -> str:
    return "none yet" if iteration is None else f"iteration {iteration}"


def _cell(value: float | None, width: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width}.4f}"


def _newest_until(evaluated: list[int], iteration: int | None) -> int | None:
    fitting = [number for number in evaluated if iteration is None or number <= iteration]
    return fitting[-1] if fitting else None


def _listed(numbers: list[int]) -> str:
    shown = [str(number) for number in numbers[-20:]]
    return f"iteration {', '.join(shown)}" if shown else "no iteration"


def _written(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
