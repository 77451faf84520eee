"""What a finished run leaves: the LoRA, summary.json, the reward curve and the before/after grid."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import runs
from .config import RunConfig
from .errors import one_line
from .evaluation import Evaluation
from .lora import export_lora, layer_shapes
from .report import save_before_after, save_curve
from .runs import RunDir
from .samples import load_evaluation, null_for_nan
from .sizes import size_text

if TYPE_CHECKING:
    from .policies.base import Policy
    from .setup import Bench
    from .training import Position


def finish(
    run: RunDir, bench: Bench, before: Evaluation | None, position: Position, wall_s: float, warn: Callable[[str], None]
) -> dict[str, Any]:
    """Write everything and return the summary. The LoRA comes first: no run is finished without one.

    Raises UserError if the LoRA can't be written. What else can't be written or drawn is a warning.
    """
    learner, config = bench.learner, bench.config
    base = before.means if before else first_means(run)
    metadata = export_metadata(
        run,
        config,
        bench.policy,
        position.iteration,
        base.get("eval/total/mean"),
        position.evaluated.get("eval/total/mean"),
    )
    path = export_lora(
        learner.average or learner.adapter.snapshot(),
        run.lora_file,
        network=layer_shapes(bench.policy.denoiser),
        family=bench.policy.family,
        metadata=metadata,
    )
    summary = _summary(run, bench, base, position, wall_s, path)
    try:
        draw_report(run, bench, before)
    except Exception as error:
        warn(f"the curve and the before/after grid could not be drawn: {type(error).__name__}: {one_line(error)}")
    try:
        runs.write_json(run.summary_file, summary)
    except OSError as error:
        warn(f"summary.json could not be written: {one_line(error)}; resume writes it")
    return summary


def first_means(run: RunDir) -> dict[str, float]:
    """The held-out means of iteration 0 as the events tell them, where its pictures are gone; {} where they don't."""
    series = runs.metric_series(runs.read_events(run.events_file, types=("evaluation", "resumed")))
    return {name: points[0][1] for name, points in series.items() if points and points[0][0] == 0}


def export_metadata(
    run: RunDir, config: RunConfig, policy: Policy, iteration: int, before: float | None, after: float | None
) -> dict[str, str]:
    """What an exported file says about its run; rewards are held-out means of the weighted total."""
    rewards = ", ".join(f"{name} x {weight:g}" for name, weight in config.reward_weights().items())
    metadata = {
        "base": policy.title,
        "resolution": size_text(config.rollout.sizes[0]),  # ModelSpec has room for one
        **policy.lora_facts(),
        "config_hash": config.digest(),
        "iteration": str(iteration),
        "run": run.id,
        "name": config.name,
        "rewards": rewards,
    }
    known = {"reward_before": before, "reward_after": after}
    return metadata | {key: f"{value:.6g}" for key, value in known.items() if value is not None}


def draw_report(run: RunDir, bench: Bench, before: Evaluation | None) -> None:
    """curve.png and, if both evaluations are there, before-after.png in the run directory."""
    series = runs.metric_series(runs.read_events(run.events_file))
    config = bench.config
    save_curve(run.path / "curve.png", series, list(config.rewards), f"{config.name}: {bench.policy.title}, seed {config.seed}")
    after = load_evaluation(run, config.iterations, bench.held_out)
    if before and after:
        first = next(iter(config.rewards))
        save_before_after(
            run.path / "before-after.png",
            [p.text for p in before.prompts],
            before.images,
            after.images,
            before.seeds_per_prompt,
            before.scores[first],
            after.scores[first],
        )


def _summary(
    run: RunDir, bench: Bench, base: dict[str, float], position: Position, wall_s: float, path: Path
) -> dict[str, Any]:
    first = next(iter(bench.config.rewards))
    after = position.evaluated
    summary: dict[str, Any] = {
        "run": run.id,
        "seed": bench.config.seed,
        "iterations": position.iteration,
        "wall_s": round(wall_s, 2),
        "lora_path": str(path),
        "reward": first,
        "eval_reward_before": base.get(f"eval/{first}/mean"),
        "eval_reward_after": after.get(f"eval/{first}/mean"),
        "eval_accuracy_before": base.get(f"eval/{first}/accuracy"),
        "eval_accuracy_after": after.get(f"eval/{first}/accuracy"),
        "best_iteration": position.best[0] if position.best else None,
        "config_hash": bench.config.digest(),
        "before": base,
        "after": after,
    }
    return {k: null_for_nan(v) for k, v in summary.items()}
