"""Group sampling with any ODE solver: G outputs for each of P prompts, each from a seed of its own."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch

from .policies.base import Conditioning, Policy, Sampling
from .prompts import Prompt
from .seeds import derive_seed
from .sizes import Size, drawn_size


@dataclass(frozen=True)
class PromptPick:
    """A prompt chosen for an iteration: its index in the prompt list is what seeds and conditioning go by."""

    index: int
    prompt: Prompt
    size: Size  # of its whole group


@dataclass(frozen=True)
class Rollout:
    """The collected outputs of one iteration, ordered by prompt, then member; prompts of one size that were sampled together
    stand together. B = P * G.
    """

    latents: tuple[torch.Tensor, ...]  # of each output, float32 [C, h, w] on the policy's device
    images: tuple[torch.Tensor, ...]  # of each output, uint8 [H, W, 3] on the CPU: the pixels that are scored
    conditioning: Conditioning  # of each output
    group_ids: torch.Tensor  # int64 [B], the position of the output's prompt in this iteration
    prompts: tuple[Prompt, ...]  # of each output
    seeds: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.seeds)

    @property
    def size_ids(self) -> torch.Tensor:
        """int64 [B]: equal for outputs of one size."""
        known: dict[torch.Size, int] = {}
        return torch.tensor([known.setdefault(latent.shape, len(known)) for latent in self.latents])

    def joined(self, more: Rollout) -> Rollout:
        """These outputs and then those of further groups, sampled from the same conditioning."""
        return replace(
            self,
            latents=self.latents + more.latents,
            images=self.images + more.images,
            conditioning=replace(self.conditioning, index=torch.cat([self.conditioning.index, more.conditioning.index])),
            group_ids=torch.cat([self.group_ids, more.group_ids + int(self.group_ids.max()) + 1]),
            prompts=self.prompts + more.prompts,
            seeds=self.seeds + more.seeds,
        )


def pick_prompts(
    prompts: Sequence[Prompt], count: int, run_seed: int, iteration: int, sizes: Sequence[Size]
) -> list[PromptPick]:
    """The prompts of an iteration (0-based), without repeats inside an epoch, each with a size; those of one size together.

    The order is a function of (run seed, epoch) alone, so that a resumed run goes on exactly where it stopped. The last
    `len(prompts) % count` prompts of an epoch's order wait for another epoch's shuffle.
    """
    per_epoch = len(prompts) // count
    epoch, position = divmod(iteration, per_epoch)
    generator = torch.Generator().manual_seed(derive_seed(run_seed, "prompt-order", epoch))
    order = torch.randperm(len(prompts), generator=generator).tolist()
    chosen = order[position * count : (position + 1) * count]
    picks = [PromptPick(i, prompts[i], drawn_size(sizes, prompts[i], i, run_seed, iteration)) for i in chosen]
    return sorted(picks, key=lambda pick: pick.size)  # stable: with a single size the order is the epoch's


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
    latents = sample_by_size(policy, rows, seeds, [picks[o].size for o in owners], sampling, on_step)
    prompts = tuple(picks[o].prompt for o in owners)
    return Rollout(
        latents=tuple(latents),
        images=tuple(decode_in_batches(policy, latents, prompts, sampling.batch_size, on_images)),
        conditioning=rows,
        group_ids=torch.tensor(owners),
        prompts=prompts,
        seeds=tuple(seeds),
    )


def sample_by_size(
    policy: Policy,
    conditioning: Conditioning,
    seeds: Sequence[int],
    sizes: Sequence[Size],
    sampling: Sampling,
    on_step: Callable[[], None] | None = None,
) -> list[torch.Tensor]:
    """The finished latents of each output; neighbours of one size are made together. The size of `sampling` plays no part."""
    latents: list[torch.Tensor] = []
    for here in runs_of_equal(sizes):
        part = policy.sample(conditioning.rows(here), seeds[here.start : here.stop], sampling.at(sizes[here.start]), on_step)
        latents += part.unbind()
    return latents


def decode_in_batches(
    policy: Policy,
    latents: Sequence[torch.Tensor],
    prompts: Sequence[Prompt],
    batch_size: int,
    on_images: Callable[[torch.Tensor, tuple[Prompt, ...]], None] = lambda images, prompts: None,
) -> list[torch.Tensor]:
    """The picture uint8[H, W, 3] of each output; neighbours of one size are decoded together.

    `on_images` is called with each batch uint8[B, H, W, 3] and its prompts once it is there.
    """
    pictures: list[torch.Tensor] = []
    for run in runs_of_equal([latent.shape for latent in latents]):
        for start in range(run.start, run.stop, batch_size):
            here = slice(start, min(start + batch_size, run.stop))
            batch = policy.decode(torch.stack(list(latents[here])))
            on_images(batch, tuple(prompts[here]))
            pictures += batch.unbind()
    return pictures


def runs_of_equal(items: Sequence[Hashable]) -> Iterator[range]:
    """The places of each run of equal neighbours."""
    start = 0
    for _, run in groupby(items):
        stop = start + sum(1 for _ in run)
        yield range(start, stop)
        start = stop
