"""Group sampling with any ODE solver: G outputs for each of P prompts, each from a seed of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .policies.base import Conditioning, Policy, Sampling
from .prompts import Prompt
from .seeds import derive_seed


@dataclass(frozen=True)
class PromptPick:
    """A prompt chosen for an iteration: its index in the prompt list is what seeds and conditioning go by."""

    index: int
    prompt: Prompt


@dataclass(frozen=True)
class Rollout:
    """The collected outputs of one iteration, ordered by prompt, then member. B = P * G."""

    latents: torch.Tensor  # float32 [B, ...] on the policy's device
    images: torch.Tensor  # uint8 [B, H, W, 3] on the CPU: the pixels that are scored and saved
    conditioning: Conditioning  # of each output
    group_ids: torch.Tensor  # int64 [B], the position of the output's prompt in this iteration
    prompts: tuple[Prompt, ...]  # of each output
    seeds: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.seeds)


def pick_prompts(prompts: Sequence[Prompt], count: int, run_seed: int, iteration: int) -> list[PromptPick]:
    """The prompts of an iteration (0-based), without repeats inside an epoch.

    The order is a function of (run seed, epoch) alone, so that a resumed run goes on exactly where it stopped. The last
    `len(prompts) % count` prompts of an epoch's order wait for another epoch's shuffle.
    """
    per_epoch = len(prompts) // count
    epoch, position = divmod(iteration, per_epoch)
    generator = torch.Generator().manual_seed(derive_seed(run_seed, "prompt-order", epoch))
    order = torch.randperm(len(prompts), generator=generator).tolist()
    return [PromptPick(i, prompts[i]) for i in order[position * count : (position + 1) * count]]


def rollout_seed(run_seed: int, iteration: int, prompt: int, member: int) -> int:
    """The seed of one output: independent of batch split, rank and device."""
    return derive_seed(run_seed, "rollout", iteration, prompt, member)


def sample_groups(
    policy: Policy,
    picks: Sequence[PromptPick],
    conditioning: Conditioning,
    group_size: int,
    sampling: Sampling,
    run_seed: int,
    iteration: int,
    on_step: Callable[[], None] | None = None,
    on_images: Callable[[torch.Tensor, tuple[Prompt, ...]], None] = lambda images, prompts: None,
) -> Rollout:
    """Algorithm 1, line "sample a group of G outputs" (arXiv 2604.23380), for every picked prompt.

    `conditioning` holds the whole prompt list; rows are taken by each pick's index. `on_images` is called with each batch of
    pictures and their prompts as soon as it is decoded.
    """
    owners = [position for position in range(len(picks)) for _ in range(group_size)]
    seeds = [rollout_seed(run_seed, iteration, pick.index, member) for pick in picks for member in range(group_size)]
    rows = conditioning.rows([picks[o].index for o in owners])
    latents = policy.sample(rows, seeds, sampling, on_step)
    prompts = tuple(picks[o].prompt for o in owners)
    return Rollout(
        latents=latents,
        images=decode_in_batches(policy, latents, prompts, sampling.batch_size, on_images),
        conditioning=rows,
        group_ids=torch.tensor(owners),
        prompts=prompts,
        seeds=tuple(seeds),
    )


def decode_in_batches(
    policy: Policy,
    latents: torch.Tensor,
    prompts: Sequence[Prompt],
    batch_size: int,
    on_images: Callable[[torch.Tensor, tuple[Prompt, ...]], None],
) -> torch.Tensor:
    """Pictures uint8[B, H, W, 3]; `on_images` is called with each batch of them and their prompts once it is there."""
    parts: list[torch.Tensor] = []
    for start in range(0, len(latents), batch_size):
        here = slice(start, start + batch_size)
        parts.append(policy.decode(latents[here]))
        on_images(parts[-1], tuple(prompts[here]))
    return torch.cat(parts)
