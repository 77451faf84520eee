"""The `(t, eps)` pairs of one iteration and which outputs share them (arXiv 2604.23380, group-shared pairs).

Every draw comes from (run seed, iteration, owner, pair) alone, so it is the same for any batch split, rank and device.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..seeds import derive_seed
from .timesteps import sample_timesteps

SHARES = ("group", "batch", "none")
GroupKey = int | str


@dataclass(frozen=True, eq=False)
class PairDraw:
    """The pairs of P groups of G outputs; outputs are ordered by prompt, then member.

    t: float32 [P*G, J] on the CPU, the noise level of each output's J pairs.
    owners: for each output the seed parts that its draws come from; outputs with equal owners share t and noise.
    weights: float32 [P*G, J] on the CPU, how much the loss of each pair counts; None = 1.
    """

    t: Tensor
    run_seed: int
    iteration: int
    owners: tuple[tuple[GroupKey, ...], ...] = field(repr=False)
    weights: Tensor | None = None

    @property
    def pairs(self) -> int:
        """J, the number of pairs per output."""
        return self.t.shape[1]

    def noise(self, rows: Tensor | Sequence[int], pair: int, shape: Sequence[int]) -> Tensor:
        """Standard normal noise of pair `pair` for the outputs `rows`.

        Args:
            rows: indices of outputs, each in 0 .. P*G - 1.
            pair: j in 0 .. J - 1.
            shape: the latent's shape without the batch axis.

        Returns: float32 [len(rows), *shape] on the CPU.
        Raises: ValueError for an output or a pair that does not exist.
        """
        if not 0 <= pair < self.pairs:
            raise ValueError(f"pair {pair} does not exist; this draw has pairs 0 to {self.pairs - 1}")
        result = torch.empty(len(rows), *shape, dtype=torch.float32)
        drawn: dict[Hashable, Tensor] = {}  # once per owner: a group costs one draw, not G
        for place, row in enumerate(rows.tolist() if isinstance(rows, Tensor) else rows):
            if not 0 <= row < len(self.owners):
                raise ValueError(f"output {row} does not exist; this draw has outputs 0 to {len(self.owners) - 1}")
            owner = self.owners[row]
            if owner not in drawn:
                seed = derive_seed(self.run_seed, "pair-noise", self.iteration, *owner, int(pair))
                drawn[owner] = torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
            result[place] = drawn[owner]
        return result


def draw_pairs(
    sigmas: Tensor,
    pairs: int,
    share: str,
    run_seed: int,
    iteration: int,
    group_keys: Sequence[GroupKey],
    group_size: int,
    stratified: bool = True,
) -> PairDraw:
    """Draw J = `pairs` pairs for each of P * `group_size` outputs.

    Args:
        sigmas: [S], the sampler's noise levels without the final 0 (see `sample_timesteps`); or [P, S], those of each group,
            where they depend on the size of its pictures.
        share: "group" (the paper: one draw per prompt group), "batch" (one for all outputs) or "none" (one per output).
        group_keys: P keys, one per prompt group, that name the group inside the iteration on every rank (for example its
            position in the iteration). Equal keys would silently share a draw and are refused.
        group_size: G, outputs per group.

    Raises: ValueError for an unknown `share`, no or repeated keys, a group size under 1, or a bad grid.
    """
    if share not in SHARES:
        raise ValueError(f"share is {share!r}; allowed: {', '.join(SHARES)}")
    if group_size < 1:
        raise ValueError(f"group_size is {group_size}; at least 1 output per group is needed")
    # numpy and torch integers name the same group as the plain int.
    keys = [key if isinstance(key, str) else operator.index(key) for key in group_keys]
    if not keys or len(set(keys)) < len(keys):
        raise ValueError("group_keys must name at least one group, each by a key of its own")
    grids = sigmas.detach().to("cpu", torch.float32)
    grids = list(grids) if grids.ndim == 2 else [grids] * len(keys)
    if len(grids) != len(keys):
        raise ValueError(f"sigmas has {len(grids)} rows for {len(keys)} groups; one row a group is needed")
    owners = tuple(_owner(share, key, member) for key in keys for member in range(group_size))
    places = [place for place in range(len(keys)) for _ in range(group_size)]
    times: dict[Hashable, Tensor] = {}  # a seed that is shared by groups draws the same place in each one's grid
    for owner, place in dict.fromkeys(zip(owners, places, strict=True)):
        generator = torch.Generator().manual_seed(derive_seed(run_seed, "pair-time", iteration, *owner))
        times[owner, place] = sample_timesteps(grids[place], pairs, generator, stratified)
    levels = torch.stack([times[each] for each in zip(owners, places, strict=True)])
    return PairDraw(t=levels, run_seed=run_seed, iteration=iteration, owners=owners)


def _owner(share: str, key: GroupKey, member: int) -> tuple[GroupKey, ...]:
    return {"group": (key,), "batch": ("batch",), "none": (key, member)}[share]
