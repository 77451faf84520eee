"""Held-out evaluation: the same prompts and seeds at every evaluation of a run, the base's (iteration 0) included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .config import RunConfig
from .policies.base import Conditioning, Policy, Sampling
from .prompts import Prompt
from .rewards.base import Reward
from .rewards.phase import ScoringPhase
from .rewards.scoring import ScoreTable
from .rewards.shaping import shape_all
from .rollout import decode_in_batches, sample_by_size
from .seeds import derive_seed
from .sizes import Size, named_size


@dataclass(frozen=True)
class Evaluation:
    """Pictures ordered by prompt, then seed, each uint8[H, W, 3]; `scores` float64[P * K] by reward, NaN where failed."""

    prompts: tuple[Prompt, ...]
    seeds_per_prompt: int
    seeds: tuple[int, ...]
    images: tuple[torch.Tensor, ...]
    scores: dict[str, torch.Tensor]
    means: dict[str, float]  # eval/<name>/mean, eval/<name>/<detail>, eval/total/mean
    troubles: tuple[tuple[str, str], ...]  # (reward, what it could not score)


def evaluation_prompts(config: RunConfig) -> tuple[Prompt, ...]:
    """The held-out prompts that a run is measured on: the first `evaluation.prompts` of its evaluation set."""
    return tuple(config.prompts.evaluate[: config.evaluation.prompts])


def evaluation_sampling(config: RunConfig) -> Sampling:
    """How evaluations sample, at the first of their sizes."""
    e, r = config.evaluation, config.rollout
    return Sampling(r.sampler, e.steps, e.guidance, *(e.sizes or r.sizes)[0], r.batch_size, r.shift)


def evaluation_sizes(config: RunConfig, prompts: Sequence[Prompt]) -> list[Size]:
    """The size of each prompt's pictures: the evaluation's sizes in turn, else the prompt's own, else the rollout's first."""
    own = config.evaluation.sizes
    if own:
        return [own[i % len(own)] for i in range(len(prompts))]
    return [named_size(prompt) or config.rollout.sizes[0] for prompt in prompts]


def evaluate(
    policy: Policy,
    prompts: Sequence[Prompt],
    conditioning: Conditioning,
    rewards: dict[str, Reward],
    config: RunConfig,
    on_step: Callable[[], None] | None = None,
) -> Evaluation:
    """Sample and score every held-out prompt under the factors that are active now. `conditioning` has a row a prompt."""
    k = config.evaluation.seeds
    owners = [i for i in range(len(prompts)) for _ in range(k)]
    seeds = tuple(derive_seed(config.seed, "evaluation", i, member) for i in range(len(prompts)) for member in range(k))
    sizes = evaluation_sizes(config, prompts)
    order = sorted(range(len(owners)), key=lambda i: sizes[owners[i]])  # so that those of one size stand together
    shuffled, table = _sample_and_score(
        policy,
        conditioning.rows([owners[i] for i in order]),
        [seeds[i] for i in order],
        [prompts[owners[i]] for i in order],
        [sizes[owners[i]] for i in order],
        rewards,
        evaluation_sampling(config),
        on_step,
    )
    back = torch.tensor(order).argsort()
    images = tuple(shuffled[i] for i in back.tolist())
    scores = {name: values[back] for name, values in table.scores.items()}
    means = {f"eval/{name}/mean": _mean(values) for name, values in scores.items()}
    means |= {f"eval/{name}": _mean(values) for name, values in table.details.items()}
    shaped = shape_all(scores, config.reward_shapes())
    means["eval/total/mean"] = sum(_mean(shaped[name]) * weight for name, weight in config.reward_weights().items())
    return Evaluation(tuple(prompts), k, seeds, images, scores, means, (*table.failures, *table.warnings))


def _mean(values: torch.Tensor) -> float:
    good = values[values.isfinite()]
    return float(good.mean()) if len(good) else float("nan")


def _sample_and_score(
    policy: Policy,
    conditioning: Conditioning,
    seeds: Sequence[int],
    prompts: Sequence[Prompt],
    sizes: Sequence[Size],
    rewards: dict[str, Reward],
    sampling: Sampling,
    on_step: Callable[[], None] | None,
) -> tuple[list[torch.Tensor], ScoreTable]:
    latents = sample_by_size(policy, conditioning, seeds, sizes, sampling, on_step)
    with ScoringPhase(rewards, details=True) as scoring:
        return decode_in_batches(policy, latents, prompts, sampling.batch_size, scoring.add), scoring.result(on_step)
