"""Which outputs Sample Prompt Group makes: prompts, members and their seeds. Imports nothing of ComfyUI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..trainer.errors import UserError
from ..trainer.prompts import Prompt
from ..trainer.seeds import derive_seed

NODE = "Sample Prompt Group"
TRAIN, HELD_OUT = "train", "held-out"
SPLITS = (TRAIN, HELD_OUT)

# Samplers that add no noise on the way and take the same steps for every picture: one picture's result does not depend on those
# beside it. All others draw noise for a whole batch, or choose step sizes by it, and get one picture at a time.
DETERMINISTIC = frozenset(
    "euler euler_cfg_pp heun heunpp2 dpm_2 lms dpmpp_2m dpmpp_2m_cfg_pp ipndm ipndm_v deis res_multistep res_multistep_cfg_pp "
    "gradient_estimation gradient_estimation_cfg_pp ddim uni_pc uni_pc_bh2".split()
)


@dataclass(frozen=True)
class PlannedGroup:
    """One prompt, its place in the prompt set (from 0), and a seed for each of its outputs."""

    prompt: Prompt
    place: int
    seeds: tuple[int, ...]


def plan_groups(
    prompts: Sequence[Prompt], split: str, first: int, count: int, group_size: int, seed: int
) -> tuple[PlannedGroup, ...]:
    """`count` prompts from number `first` (counted from 1) on, all of them if `count` is 0; fewer where the list ends.

    Each seed depends on (seed, split, place, member) alone. They are the trainer's own: a run with this seed starts its
    held-out evaluation, and its first iteration's outputs of a prompt, from the same noise. Raises UserError.
    """
    if split not in SPLITS:
        raise UserError(f"{NODE}: split is {split!r}; allowed: {', '.join(SPLITS)}")
    if not prompts:
        raise UserError(f"{NODE}: the prompt set has no {split} prompts; choose the other split, or add some in Prompt Set")
    if group_size < 1 or count < 0 or first < 1:
        raise UserError(f"{NODE}: group_size and first_prompt must be at least 1, and prompt_count at least 0 (0 = all)")
    if first > len(prompts):
        raise UserError(f"{NODE}: first_prompt is {first}, but there are {len(prompts)} {split} prompts")
    places = range(first - 1, min(len(prompts), first - 1 + count) if count else len(prompts))
    return tuple(
        PlannedGroup(prompts[place], place, tuple(output_seed(seed, split, place, member) for member in range(group_size)))
        for place in places
    )


def output_seed(seed: int, split: str, place: int, member: int) -> int:
    """The seed of one output, from 0 to 2**63 - 1. The trainer's words for it are in `evaluation` and `rollout`."""
    if split == HELD_OUT:
        return derive_seed(seed, "evaluation", place, member)
    return derive_seed(seed, "rollout", 0, place, member)


def batches(seeds: Sequence[int], sampler: str, batch_size: int) -> list[tuple[int, ...]]:
    """The seeds of one prompt in the batches that are sampled together."""
    size = max(1, batch_size) if sampler in DETERMINISTIC else 1
    return [tuple(seeds[start : start + size]) for start in range(0, len(seeds), size)]


def check_size(width: int, height: int, pixels_a_latent: int, largest_side: int | None) -> tuple[int, int]:
    """The latent's (width, height). UserError for a size that the model cannot take; `largest_side` in pixels, None: any."""
    if min(width, height) < pixels_a_latent:
        raise UserError(f"{NODE}: {width} x {height} is too small; a side is at least {pixels_a_latent} pixels for this VAE")
    if largest_side is not None and max(width, height) > largest_side:
        raise UserError(
            f"{NODE}: {width} x {height} is too large for this model; a side is at most {largest_side} pixels "
            "(the embedded model is made for 64 x 64)"
        )
    return width // pixels_a_latent, height // pixels_a_latent
