"""What may be done to a reward's scores before they become advantages: bounds, a logarithm, a threshold. All elementwise.

The scores that are logged, plotted and saved stay as the scorer gave them. Importing this module loads no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Shape(NamedTuple):
    """How one reward's scores are shaped: first the bounds, then the logarithm or the threshold. The default changes nothing.

    low, high: scores beyond a bound count as the bound. Outputs of a group that all lie beyond the same bound thereby tie, and
        a group of ties has advantage 0: a penalty with a low bound acts only where an output exceeds it.
    log: the natural logarithm, for scores whose ratios matter (a size, a probability); it needs a low bound above 0.
    threshold: 1 where the score reaches it, else 0.
    """

    low: float | None = None
    high: float | None = None
    log: bool = False
    threshold: float | None = None


def problem_of(shape: Shape) -> str | None:
    """Why the shape cannot act as it says, in the words of the configuration's keys; None if it can."""
    low, high, threshold = shape.low, shape.high, shape.threshold
    if any(value is not None and not math.isfinite(value) for value in (low, high, threshold)):
        return "clip and threshold take finite numbers"
    if low is not None and high is not None and low >= high:
        return f"clip = [{low:g}, {high:g}]: the low bound must lie under the high one"
    if shape.log and threshold is not None:
        return "a score has either a log or a threshold, not both"
    if shape.log and (low is None or low <= 0):
        return "transform = log needs clip with a low bound above 0, such as clip: [0.001, null]"
    if threshold is not None and ((low is not None and threshold <= low) or (high is not None and threshold > high)):
        return f"threshold = {threshold:g} lies beyond clip, so that every output would get the same"
    return None


def shape_scores(scores: Tensor, shape: Shape) -> Tensor:
    """Scores [B] as the advantages see them, in their own dtype; NaN (not scored) stays NaN, and the input unchanged.

    Raises: ValueError for a shape with a problem.
    """
    if problem := problem_of(shape):
        raise ValueError(problem)
    if shape.low is not None or shape.high is not None:
        scores = scores.clamp(shape.low, shape.high)
    if shape.log:
        scores = scores.log()
    if shape.threshold is not None:
        scores = (scores >= shape.threshold).to(scores.dtype).masked_fill(scores.isnan(), math.nan)
    return scores


def shape_all(scores: Mapping[str, Tensor], shapes: Mapping[str, Shape]) -> dict[str, Tensor]:
    """The scores of each reward that `shapes` names, shaped, in its order."""
    return {name: shape_scores(scores[name], shape) for name, shape in shapes.items()}
