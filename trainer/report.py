"""What the end of a run shows: the reward curve and the before/after grid, as PNG."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from .pictures import grid, save_png, to_pil
from .runs.atomic import replace


def save_curve(path: Path, series: dict[str, list[tuple[int, float]]], rewards: Sequence[str], title: str) -> None:
    """Held-out means (points joined) over the training means of each iteration (thin), one panel a reward.

    `series` maps metric names to (iteration, value), as `trainer.runs.metric_series` gives them.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    names = [n for n in rewards if f"reward/{n}/mean" in series or f"eval/{n}/mean" in series]
    if not names:
        return
    figure = Figure(figsize=(7, 3.2 * len(names)), layout="constrained")
    axes = figure.subplots(len(names), 1, squeeze=False)[:, 0]
    for axis, name in zip(axes, names, strict=True):
        for metric, style in (
            (f"reward/{name}/mean", {"label": "training prompts", "color": "#8aa9c9", "linewidth": 1.2}),
            (f"eval/{name}/mean", {"label": "held-out prompts", "color": "#c2410c", "marker": "o", "linewidth": 2}),
            (
                f"eval/{name}/accuracy",
                {"label": "held-out, strictly correct", "color": "#15803d", "marker": "s", "linestyle": "--"},
            ),
        ):
            points = [(i, v) for i, v in series.get(metric, []) if v is not None]
            if points:
                axis.plot(*zip(*points, strict=True), **style)
        axis.set_xlabel("iteration")
        axis.set_ylabel(name)
        axis.grid(alpha=0.3)
        axis.legend(loc="lower right")
    figure.suptitle(title, parse_math=False)  # a name may hold a $
    part = path.with_suffix(".part")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # a box instead of a letter is all that happens
            figure.savefig(part, format="png", dpi=110)
        replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def save_before_after(
    path: Path,
    prompts: Sequence[str],
    before: Sequence[torch.Tensor],
    after: Sequence[torch.Tensor],
    per_prompt: int,
    scores_before: torch.Tensor,
    scores_after: torch.Tensor,
    rows: int = 8,
) -> None:
    """`before` and `after`, P * K pictures uint8[H, W, 3] each, of the same prompts and seeds; up to 2 seeds a prompt."""
    shown = min(2, per_prompt)
    chosen = range(min(rows, len(prompts)))
    index = [[p * per_prompt + k for k in range(shown)] for p in chosen]
    pictures = [[*(to_pil(before[i]) for i in row), *(to_pil(after[i]) for i in row)] for row in index]
    notes = [[*(_note(scores_before[i]) for i in row), *(_note(scores_after[i]) for i in row)] for row in index]
    titles = [*(f"before, seed {k + 1}" for k in range(shown)), *(f"after, seed {k + 1}" for k in range(shown))]
    save_png(grid(pictures, [prompts[p] for p in chosen], notes, titles), path)


def _note(score: torch.Tensor) -> str:
    return f"{float(score):.2f}" if torch.isfinite(score) else "not scored"
