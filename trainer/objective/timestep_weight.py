"""A weight w(t) on the loss of each pair, by its noise level, and how it moves over a run.

After the idea of arXiv 2609.32665: which levels should count most depends on the reward and on the stage of learning, so a
fixed weight and one that moves are both worth having. The formula is ours: the tilt e^(k s) of equal weights, s from 0 (the
finished output) to 1 (pure noise).
"""

from __future__ import annotations

import math

from torch import Tensor

from ._tensors import at_least_float32, same_shape

SCHEDULES = ("linear", "cosine")


def noise_share(a_t: Tensor, b_t: Tensor) -> Tensor:
    """s = b / (a + b), of the same shape: the t of the rectified flow that has this ratio of signal to noise."""
    same_shape(a_t, "a_t", b_t, "b_t")
    a_t, b_t = at_least_float32(a_t, b_t)
    return b_t / (a_t + b_t)


def timestep_weights(share: Tensor, grid: Tensor, lean: float) -> Tensor:
    """w = e^(k s), over its mean on the sampler's grid, so that w has mean 1 over the levels that can be drawn.

    Args:
        share: [..., J], s of the drawn levels (see `noise_share`).
        grid: [..., S], s of all levels of the grid that they were drawn from; the same leading axes.
        lean: k; above 0 noisy levels count more, under 0 those near the finished output, 0 all alike.

    Returns: [..., J]. The mean is the grid's, not the draw's: a draw of noisy levels weighs more than one of clean ones.
    Raises: ValueError for a lean that is not finite, or leading axes that differ.
    """
    if not math.isfinite(lean):
        raise ValueError(f"lean is {lean}; it must be a finite number")
    if share.shape[:-1] != grid.shape[:-1]:
        raise ValueError(f"share has shape {list(share.shape)} but grid has {list(grid.shape)}; all but the last must agree")
    share, grid = at_least_float32(share, grid)
    mean = (lean * grid).logsumexp(-1, keepdim=True) - math.log(grid.shape[-1])
    return (lean * share - mean).exp()


def lean_at(start: float, end: float | None, schedule: str, iteration: int, iterations: int) -> float:
    """k in the 0-based `iteration` of `iterations`: from `start` in the first to `end` in the last; None stays at `start`."""
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule is {schedule!r}; allowed: {', '.join(SCHEDULES)}")
    if end is None:
        return start
    way = min(1.0, iteration / max(1, iterations - 1))
    return start + (end - start) * (way if schedule == "linear" else (1 - math.cos(math.pi * way)) / 2)


def is_uniform(start: float, end: float | None) -> bool:
    """Whether all levels count alike throughout."""
    return start == 0 and not end
