"""The first half of an iteration: groups of outputs, their rewards and their advantages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from .algorithms.base import Algorithm
from .dynamic_sampling import PromptMemory, first_picks, spare_picks
from .lora import LoraFactors
from .objective import combine_advantages, down_sample, hard_clip, scored, simplex_advantages, soft_clip
from .policies.base import Conditioning, Sampling
from .prompts import Prompt
from .rewards.phase import ScoringPhase
from .rewards.scoring import ScoreTable
from .rewards.shaping import shape_all
from .rollout import PromptPick, Rollout


@dataclass(frozen=True)
class Collected:
    """What an iteration learns from. B outputs, group after group."""

    picks: list[PromptPick]
    """The prompt of each group."""
    rollout: Rollout
    scores: ScoreTable
    trained: dict[str, torch.Tensor]
    """The rewards that are trained on, shaped, float64 [B]."""
    advantages: torch.Tensor
    """float32 [B], after the soft or hard clip."""

    @property
    def useful(self) -> list[bool | None]:
        """Of each group, whether it teaches anything; None where that is not known, as fewer than two outputs were scored."""
        scored, found = sum(self.trained.values()).isfinite(), []
        for group in range(len(self.picks)):
            members = self.rollout.group_ids == group
            teaches = bool(self.advantages[members].any())
            found.append(teaches if teaches or int(scored[members].sum()) >= 2 else None)
        return found


Ahead = Callable[[Sequence[PromptPick], Rollout], None]
"""Called with all outputs while their rewards are still being found."""


def collect(
    algorithm: Algorithm,
    behaviour: LoraFactors,
    prompts: Sequence[Prompt],
    conditioning: Conditioning,
    sampling: Sampling,
    memory: PromptMemory,
    scoring: ScoringPhase,
    clock: dict[str, float],
    on_step: Callable[[], None] | None = None,
    ahead: Ahead | None = None,
) -> Collected:
    """Sample `prompts_per_iteration` groups and score them. Groups that teach nothing are replaced in up to `rollout.refill`
    further rounds; they stay among what is collected, where their advantages are 0.
    """
    config, iteration = algorithm.config, algorithm.iteration
    wanted, sizes, members = config.rollout.prompts_per_iteration, config.rollout.sizes, config.rollout.group_size
    # With something to do meanwhile the scorer begins as early as it can: a batch's worth of groups at a time.
    at_once = max(1, sampling.batch_size // members) if ahead is not None else wanted

    def sampled(picks: Sequence[PromptPick], before: Rollout | None) -> Rollout:
        with timed(clock, "rollout"), algorithm.acting(behaviour):
            for start in range(0, len(picks), at_once):
                part = picks[start : start + at_once]
                more = algorithm.sample(
                    algorithm.learner.policy,
                    part,
                    conditioning,
                    members,
                    sampling,
                    config.seed,
                    iteration,
                    on_step,
                    scoring.add,
                )
                before = more if before is None else before.joined(more)
        return before

    def judged(picks: list[PromptPick], rollout: Rollout) -> Collected:
        with timed(clock, "reward"):
            scores = scoring.result(on_step)
        trained, advantages = advantages_of(algorithm, scores, rollout.group_ids)
        return Collected(picks, rollout, scores, trained, advantages)

    picks = first_picks(prompts, wanted, config.seed, iteration, sizes, memory)
    rollout = sampled(picks, None)
    if ahead is not None:
        ahead(picks, rollout)
    found = judged(picks, rollout)
    for turn in range(1, config.rollout.refill + 1):
        missing = wanted - found.useful.count(True)
        # Where a reward could score none of the newest outputs, it could not score more of them either.
        newest = slice(-len(picks) * members, None)
        failed = any(found.trained[name][newest].isnan().all() for name, weight in config.reward_weights().items() if weight)
        taken = {pick.index for pick in found.picks}
        if not missing or failed:
            break
        if not (picks := spare_picks(prompts, missing, config.seed, iteration, sizes, memory, taken, turn)):
            break
        found = judged([*found.picks, *picks], sampled(picks, found.rollout))
    return found


def advantages_of(
    algorithm: Algorithm, scores: ScoreTable, group_ids: torch.Tensor
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """(shaped training rewards float64 [B], group-relative advantages float32 [B], optionally bounded)."""
    config, objective = algorithm.config, algorithm.config.objective
    trained = shape_all(scores.scores, config.reward_shapes())
    weights = config.reward_weights()
    advantages = combine_advantages(trained, weights, group_ids, objective.advantage.combine, objective.advantage.scale)
    advantages = simplex_advantages(advantages, group_ids, objective.advantage.simplex, scored(trained, weights))
    advantages = hard_clip(soft_clip(advantages, objective.soft_clip_eta), algorithm.setting("objective.advantage.clip"))
    if objective.advantage.keep < 1:
        advantages = down_sample(advantages, group_ids, objective.advantage.keep)
    return trained, advantages.float()  # some devices have no float64


@contextmanager
def timed(clock: dict[str, float], name: str) -> Iterator[None]:
    """Add the seconds that this takes, the device's work included, to those of `name`."""
    started = time.perf_counter()
    yield
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    clock[name] = clock.get(name, 0.0) + time.perf_counter() - started
