"""Group-relative advantages (GRPO, and arXiv 2604.23380 for several rewards and the soft clip).

Standard deviations are population ones (divided by the count, as numpy's default), so a group's z-scores have mean square 1.
Rewards are a few numbers per output: all arithmetic is float64 on the CPU, two-pass, and returns to the rewards' device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ._tensors import at_least_float32

SCALES = ("group", "batch", "none")
COMBINATIONS = ("normalize_then_sum", "sum_then_normalize")

# Equal rewards that took different roads through float32 differ by a few units in the last place (1.2e-7 relative). A spread
# under these floors is such a residue; divided by its own std it would become advantages of size 1 (NeMo-RL#4161).
RELATIVE_FLOOR = 1e-6
ABSOLUTE_FLOOR = 1e-7


class _Groups(NamedTuple):
    centred: Tensor  # float64 [B]; exactly 0 for failed outputs and in groups without variance
    valid: Tensor  # bool [B]
    index: Tensor  # long [B], group of each output
    std: Tensor  # float64 [groups]
    flat: Tensor  # bool [groups], no variance


def group_advantages(rewards: Tensor, group_ids: Tensor | Sequence[int], scale: str = "group") -> Tensor:
    """Rewards [B] relative to the mean of their group.

    Args:
        rewards: [B]; a non-finite one (a scorer that failed) gets advantage 0 and counts in no mean or std.
        group_ids: [B], equal numbers for the outputs of one prompt, in any order.
        scale: "group" divides by the group's population std, "batch" by the population std of all centred rewards of the
            batch, "none" only centres.

    Returns: [B], at least float32. A group without variance (also one with a single valid reward) has advantage exactly 0.
    Raises: ValueError for an unknown scale or shapes that do not fit.
    """
    return _advantages(_to_float64(rewards), group_ids, scale).to(_result_dtype(rewards)).to(rewards.device)


def zero_variance_groups(rewards: Tensor, group_ids: Tensor | Sequence[int]) -> float:
    """Share of groups that teach nothing, in [0, 1]: all valid rewards equal (within float32), or fewer than two valid."""
    return float(_group(_to_float64(rewards), group_ids).flat.double().mean())


def combine_advantages(
    rewards: Mapping[str, Tensor],
    weights: Mapping[str, float],
    group_ids: Tensor | Sequence[int],
    combine: str = "normalize_then_sum",
    scale: str = "group",
) -> Tensor:
    """One advantage [B] from several rewards [B] each.

    combine: "normalize_then_sum" (the paper) takes `group_advantages` of each reward and adds them by weight, so the unit of
    a reward does not matter (flow_grpo#142); "sum_then_normalize" adds the raw rewards by weight first.

    An output that any reward failed to score gets advantage 0 and is left out of the mean and std of every reward, so that
    all rewards compare the same outputs. A reward of weight 0 plays no part, its failures included.
    The advantage of an output is a weighted sum of z-scores and is not normalised again.

    Raises: ValueError for no rewards, names that differ between rewards and weights, a non-finite weight, rewards of
    different shapes, or an unknown `combine` or `scale`.
    """
    if combine not in COMBINATIONS:
        raise ValueError(f"combine is {combine!r}; allowed: {', '.join(COMBINATIONS)}")
    if not rewards or set(rewards) != set(weights):
        raise ValueError(f"rewards {sorted(rewards)} and weights {sorted(weights)} must name the same rewards, at least one")
    bad = [name for name, weight in weights.items() if not math.isfinite(weight)]
    if bad:
        raise ValueError(f"the weight of {bad[0]!r} is {weights[bad[0]]}; it must be finite")
    if len({reward.shape for reward in rewards.values()}) > 1:
        raise ValueError("rewards differ in shape: " + ", ".join(f"{name} {list(r.shape)}" for name, r in rewards.items()))
    first = next(iter(rewards.values()))
    used = {name: _to_float64(reward) for name, reward in rewards.items() if weights[name] != 0}
    failed = ~scored(rewards, weights)
    total = torch.zeros(first.shape, dtype=torch.float64)
    for name, reward in used.items():
        reward = reward.masked_fill(failed, math.nan)
        total += weights[name] * (_advantages(reward, group_ids, scale) if combine == "normalize_then_sum" else reward)
    if combine == "sum_then_normalize":
        total = _advantages(total, group_ids, scale)
    return total.to(_result_dtype(*rewards.values())).to(first.device)


def scored(rewards: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """bool [B] on the CPU: the outputs that every reward of a weight other than 0 has scored."""
    good = torch.ones(next(iter(rewards.values())).shape, dtype=torch.bool)
    for name, reward in rewards.items():
        if weights[name] != 0:
            good &= torch.isfinite(reward).cpu()
    return good


def soft_clip(advantages: Tensor, eta: float | None) -> Tensor:
    """`eta tanh(A / eta)` [B], within (-eta, eta) and nearly A while |A| is small; unchanged if eta is None.

    The paper uses eta 3 to 5 with one gradient step per iteration.
    """
    if eta is None:
        return advantages
    if not (math.isfinite(eta) and eta > 0):
        raise ValueError(f"eta is {eta}; it must be a finite number above 0 (typical: 3 to 5), or None for no soft clip")
    (advantages,) = at_least_float32(advantages)
    return eta * (advantages / eta).tanh()


def hard_clip(advantages: Tensor, bound: float | None) -> Tensor:
    """The advantages [B] within [-bound, bound], as Flow-GRPO's code and its descendants have them (5); None leaves them be."""
    return advantages if bound is None else advantages.clamp(-bound, bound)


def down_sample(advantages: Tensor, group_ids: Tensor | Sequence[int], share: float) -> Tensor:
    """Advantages [B] of the outputs that tell most: of each group the `share` whose advantages vary most, the others 0.

    The subset of largest variance consists of the group's best and worst (max-variance down-sampling, PODS, arXiv 2504.13818);
    it is centred anew, so that what its outputs have in common still cancels. Outputs whose advantage is 0 already are none to
    choose from; at least 2 of the others are kept. Raises ValueError for a share outside (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}; it must lie above 0 and be at most 1")
    kept = torch.zeros_like(advantages)
    ids = torch.as_tensor(group_ids).to(advantages.device)
    for group in ids.unique():
        members = ((ids == group) & (advantages != 0)).nonzero().flatten()
        members = members[advantages[members].argsort(stable=True)]
        count = min(len(members), max(2, math.ceil(share * len(members))))
        splits = [torch.cat([members[:low], members[len(members) - count + low :]]) for low in range(count + 1)]
        best = max(splits, key=lambda chosen: float(advantages[chosen].double().var(correction=0))) if count else members
        kept[best] = advantages[best] - advantages[best].mean()
    return kept


def _advantages(rewards: Tensor, group_ids: Tensor | Sequence[int], scale: str) -> Tensor:
    """`group_advantages` in float64 on the CPU."""
    if scale not in SCALES:
        raise ValueError(f"scale is {scale!r}; allowed: {', '.join(SCALES)}")
    groups = _group(rewards, group_ids)
    if scale == "none" or not bool(groups.centred.any()):
        return groups.centred
    if scale == "group":
        return groups.centred / groups.std.masked_fill(groups.flat, 1.0)[groups.index]
    # The centred rewards have mean 0 group by group, hence over the batch.
    return groups.centred / groups.centred[groups.valid].square().mean().sqrt()


def _group(rewards: Tensor, group_ids: Tensor | Sequence[int]) -> _Groups:
    if rewards.ndim != 1 or rewards.shape[0] == 0:
        raise ValueError(f"rewards has shape {list(rewards.shape)}; one number per output, [B], is needed")
    ids = torch.as_tensor(group_ids).cpu()
    if ids.shape != rewards.shape:
        raise ValueError(f"group_ids has shape {list(ids.shape)} but rewards has {list(rewards.shape)}; they must agree")
    unique, index = torch.unique(ids, return_inverse=True)
    valid = torch.isfinite(rewards)
    known = rewards.masked_fill(~valid, 0.0)

    def per_group(values: Tensor) -> Tensor:
        return torch.zeros(len(unique), dtype=torch.float64).index_add_(0, index, values)

    count = per_group(valid.double()).clamp_min(1.0)
    centred = (known - (per_group(known) / count)[index]).masked_fill(~valid, 0.0)
    std = (per_group(centred.square()) / count).sqrt()
    largest = torch.zeros(len(unique), dtype=torch.float64).scatter_reduce_(0, index, known.abs(), "amax")
    flat = std <= (RELATIVE_FLOOR * largest).clamp_min(ABSOLUTE_FLOOR)
    return _Groups(centred.masked_fill(flat[index], 0.0), valid, index, std, flat)


def _to_float64(rewards: Tensor) -> Tensor:
    # To the CPU first: some devices have no float64.
    return rewards.detach().cpu().double()


def _result_dtype(*rewards: Tensor) -> torch.dtype:
    return at_least_float32(*rewards)[0].dtype
