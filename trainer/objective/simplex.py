"""Advantages as the exact solution of a bounded step: projected onto the probability simplex.

arXiv 2609.33444 shows regression methods to be divergence-constrained reward maximisation, and keeps the exact projection
(sparsemax) where others relax it. Its formulas are not known here; this one is ours, after that idea. Over the G outputs of a
group, the weights w that maximise `sum_i w_i A_i - (lambda / 2) sum_i (G w_i - 1)^2 / G` are the projection of
`(1 + A / lambda) / G` onto the simplex. What they ask for relative to the behaviour policy, `lambda (G w_i - 1)`, is the
advantage given back: A itself as long as no weight would be negative, else floored at -lambda, the rest shifted to mean 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ._tensors import at_least_float32, same_shape


def simplex_advantages(
    advantages: Tensor, group_ids: Tensor | Sequence[int], bound: float | None, counted: Tensor | None = None
) -> Tensor:
    """`lambda (G w - 1)` [B], w the projection of `(1 + A / lambda) / G` onto each group's simplex.

    Args:
        advantages: [B], of mean 0 in each group.
        group_ids: [B], equal numbers for the outputs of one prompt, in any order.
        bound: lambda, above 0: no output falls under -lambda. None leaves the advantages as they are, and so do groups in
            which none is under -lambda.
        counted: bool [B], the outputs that were scored; the others keep their advantage of 0 and are in no group.

    Returns: [B], at least float32; each group still has mean 0.
    Raises: ValueError for a bound that is not a finite number above 0, or shapes that do not fit.
    """
    if bound is None:
        return advantages
    if not (math.isfinite(bound) and bound > 0):
        raise ValueError(f"bound is {bound}; it must be a finite number above 0, or None for no projection")
    (advantages,) = at_least_float32(advantages)
    ids = torch.as_tensor(group_ids).cpu()
    same_shape(ids, "group_ids", advantages, "advantages", ndim=1)
    result = advantages.detach().cpu().double()
    kept = torch.ones(len(ids), dtype=torch.bool) if counted is None else counted.cpu()
    for group in ids[kept & (result < -bound)].unique():
        members = kept & (ids == group)
        result[members] = _projected(result[members], bound)
    return result.to(advantages)


def _projected(advantages: Tensor, bound: float) -> Tensor:
    """One group's; the projection by sorting (Held, Wolfe, Crowder 1974), scaled by lambda G."""
    mass = advantages + bound
    ordered = mass.sort(descending=True).values
    count = torch.arange(1, len(mass) + 1, dtype=mass.dtype)
    shift = (ordered.cumsum(0) - bound * len(mass)) / count
    last = int((ordered > shift).nonzero()[-1])  # the outputs up to here keep a weight above 0
    return (mass - shift[last]).clamp_min(0) - bound
