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
from .rollout import decode_in_batches
from .seeds import derive_seed


@dataclass(frozen=True)
class Evaluation:
    """Pictures uint8[P * K, H, W, 3] ordered by prompt, then seed; `scores` float64[P * K] by reward, NaN where failed."""

    prompts: tuple[Prompt, ...]
    seeds_per_prompt: int
    seeds: tuple[int, ...]
    images: torch.Tensor
    scores: dict[str, torch.Tensor]
    means: dict[str, float]  # eval/<name>/mean, eval/<name>/<detail>, eval/total/mean
    troubles: tuple[tuple[str, str], ...]  # (reward, what it could not score)


def evaluation_prompts(config: RunConfig) -> tuple[Prompt, ...]:
    """The held-out prompts that a run is measured on: the first `evaluation.prompts` of its evaluation set."""
    return tuple(config.prompts.evaluate[: config.evaluation.prompts])


def evaluation_sampling(config: RunConfig) -> Sampling:
    e, r = config.evaluation, config.rollout
    return Sampling(r.sampler, e.steps, e.guidance, r.width, r.height, r.batch_size, r.shift)


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
    images, table = _sample_and_score(
        policy, conditioning.rows(owners), seeds, [prompts[o] for o in owners], rewards, evaluation_sampling(config), on_step
    )
    means = {f"eval/{name}/mean": _mean(values) for name, values in table.scores.items()}
    means |= {f"eval/{name}": _mean(values) for name, values in table.details.items()}
    shaped = shape_all(table.scores, config.reward_shapes())
    means["eval/total/mean"] = sum(_mean(shaped[name]) * weight for name, weight in config.reward_weights().items())
    return Evaluation(tuple(prompts), k, seeds, images, table.scores, means, (*table.failures, *table.warnings))


def _mean(values: torch.Tensor) -> float:
    good = values[values.isfinite()]
    return float(good.mean()) if len(good) else float("nan")


def _sample_and_score(
    policy: Policy,
    conditioning: Conditioning,
    seeds: Sequence[int],
    prompts: Sequence[Prompt],
    rewards: dict[str, Reward],
    sampling: Sampling,
    on_step: Callable[[], None] | None,
) -> tuple[torch.Tensor, ScoreTable]:
    latents = policy.sample(conditioning, seeds, sampling, on_step)
    with ScoringPhase(rewards, details=True) as scoring:
        return decode_in_batches(policy, latents, prompts, sampling.batch_size, scoring.add), scoring.result(on_step)
