"""Which prompts an iteration draws when some groups teach nothing: their places are filled anew (dynamic sampling, DAPO,
arXiv 2503.14476), and prompts that taught nothing lately are drawn more rarely (after GRESO, arXiv 2506.02177; by how much is
ours).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence

import torch

from .prompts import Prompt
from .rollout import PromptPick, pick_prompts
from .seeds import derive_seed
from .sizes import Size, drawn_size

LONGEST_REST = 4  # doublings: even a prompt that never taught anything has its turn one time in 16, as the policy changes


class PromptMemory:
    """How many times in a row each prompt's group has taught nothing; of a run, and saved with it."""

    def __init__(self, flat: dict[int, int] | None = None) -> None:
        """flat: by the prompt's index; prompts that taught something, or never had a turn, are not in it."""
        self.flat = dict(flat or {})

    def rests(self, index: int, run_seed: int, iteration: int) -> bool:
        """Whether a prompt's turn is passed over: with probability 1 - 2^-n after n flat groups in a row."""
        times = min(self.flat.get(index, 0), LONGEST_REST)
        return times > 0 and random.Random(derive_seed(run_seed, "rest", iteration, index)).random() >= 0.5**times

    def update(self, picks: Iterable[PromptPick], useful: Iterable[bool | None]) -> None:
        """useful: of each pick's group; None where it was not scored, which says nothing about the prompt."""
        for pick, taught in zip(picks, useful, strict=True):
            if taught:
                self.flat.pop(pick.index, None)
            elif taught is not None:
                self.flat[pick.index] = self.flat.get(pick.index, 0) + 1


def first_picks(
    prompts: Sequence[Prompt], count: int, run_seed: int, iteration: int, sizes: Sequence[Size], memory: PromptMemory
) -> list[PromptPick]:
    """`pick_prompts`, but the places of prompts that rest go to spare ones."""
    picks = pick_prompts(prompts, count, run_seed, iteration, sizes)
    resting = [pick for pick in picks if memory.rests(pick.index, run_seed, iteration)]
    if not resting:
        return picks
    taken = {pick.index for pick in picks}
    instead = spare_picks(prompts, len(resting), run_seed, iteration, sizes, memory, taken, turn=0)
    awake = [pick for pick in picks if pick not in resting]
    return sorted([*awake, *resting[len(instead) :], *instead], key=lambda pick: pick.size)


def spare_picks(
    prompts: Sequence[Prompt],
    count: int,
    run_seed: int,
    iteration: int,
    sizes: Sequence[Size],
    memory: PromptMemory,
    taken: Collection[int],
    turn: int,
) -> list[PromptPick]:
    """At most `count` further prompts for an iteration, drawn by (run seed, iteration, turn) from those that are not `taken`
    and do not rest; those of one size together.
    """
    generator = torch.Generator().manual_seed(derive_seed(run_seed, "spare-prompts", iteration, turn))
    order = torch.randperm(len(prompts), generator=generator).tolist()
    free = [i for i in order if i not in taken and not memory.rests(i, run_seed, iteration)]
    picks = [PromptPick(i, prompts[i], drawn_size(sizes, prompts[i], i, run_seed, iteration)) for i in free[:count]]
    return sorted(picks, key=lambda pick: pick.size)
