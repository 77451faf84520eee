"""Where the algorithms differ inside one iteration of the loop: Algorithm 1's order is everybody's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ..estimate import NormGuard, SurrogateEstimate
from ..lora import LoraFactors
from ..objective import PairDraw, clip_fraction, importance_ratio, on_policy_ratio
from ..rollout import Rollout, sample_groups
from . import ALGORITHMS

if TYPE_CHECKING:
    from ..config import RunConfig
    from ..loop import Learner


@dataclass(frozen=True)
class Reference:
    """What a minibatch is compared with, fixed before the first gradient step.

    losses: [M, J] of the behaviour policy; None where it is the policy itself (one step an iteration), or not asked for.
    predictions: one a row batch, what the KL holds the policy to.
    """

    losses: torch.Tensor | None = None
    predictions: list[torch.Tensor] | None = None


class Algorithm(ABC):
    """One iteration's decisions. Made anew each iteration; what lasts is in the learner."""

    name: ClassVar[str]
    measured: ClassVar[str] = "surrogate"
    """What a row's loss is, in the names of metrics."""

    def __init__(self, config: RunConfig, learner: Learner, iteration: int) -> None:
        self.config, self.learner, self.iteration = config, learner, iteration
        self.traits = ALGORITHMS[self.name]
        self.on_policy = config.objective.gradient_steps == 1

    def setting(self, key: str) -> Any:
        """The value of a dotted key; null is the algorithm's own."""
        value: Any = self.config
        for name in key.split("."):
            value = getattr(value, name)
        return self.traits.own.get(key) if value is None else value

    # The rollout

    def behaviour(self) -> LoraFactors:
        """The factors that make the outputs, frozen for the whole iteration."""
        return self.learner.adapter.snapshot()

    def acting(self, behaviour: LoraFactors) -> AbstractContextManager[None]:
        """Around the rollout: the denoiser is the behaviour policy. `theta` is, unless an algorithm says otherwise."""
        return self.learner.adapter.for_sampling(self.learner.policy.weights_stay)

    def sample(self, *args: Any) -> Rollout:
        """`sample_groups` with its arguments, under `acting`."""
        return sample_groups(*args)

    def rollout_evaluations(self, solver: int) -> float:
        """Network evaluations that an output took; `solver`: those of the configured sampler."""
        return solver

    # The update

    def scored_guidance(self) -> float:
        """The guidance scale of the scored prediction."""
        same = self.traits.trajectory or self.config.surrogate.guidance == "same"
        return self.learner.policy.scored_guidance(self.config.rollout.guidance, same=same)

    def rows_an_output(self) -> int:
        """How many rows an output has: losses that the network is asked for, each with a gradient."""
        return self.config.surrogate.pairs

    def frozen_passes(self) -> int:
        """How often a row goes through the network without a gradient beside: as theta_old, the base, a copy."""
        return 0 if self.on_policy else 1

    @abstractmethod
    def estimate(self, rollout: Rollout, draw: PairDraw, advantages: torch.Tensor) -> SurrogateEstimate:
        """What gives every row of the collected outputs its loss. `draw`: pairs for those who noise the outputs."""

    def estimate_arguments(self, rollout: Rollout, draw: PairDraw) -> tuple[Any, ...]:
        """Those of `SurrogateEstimate`, as the configuration has them."""
        surrogate, guidance = self.config.surrogate, self.scored_guidance()
        return self.learner.policy, rollout, draw, surrogate.weighting, surrogate.batch_size, guidance

    @abstractmethod
    def reference(self, estimate: SurrogateEstimate, outputs: torch.Tensor, behaviour: LoraFactors) -> Reference:
        """For a minibatch, before the first gradient step: theta is still theta_old then."""

    def old_losses(self, estimate: SurrogateEstimate, outputs: torch.Tensor, behaviour: LoraFactors) -> torch.Tensor | None:
        """A minibatch's losses [M, J] of the behaviour policy; None with one gradient step, where theta is that policy."""
        if self.on_policy:
            return None
        with self.learner.adapter.using(behaviour):
            return estimate.values(outputs)[0]

    def norm_guard(self, estimate: SurrogateEstimate, outputs: torch.Tensor) -> NormGuard | None:
        """For a minibatch, before the first gradient step: how long the base's velocities are, where the guard is on."""
        guard = self.config.objective.norm_guard
        if not guard.weight:
            return None
        with self.learner.adapter.disabled():
            return NormGuard(guard.weight, guard.margin, estimate.velocity_norms(outputs))

    def kl_coef(self) -> float:
        """The weight of the KL to the reference's predictions."""
        return self.config.objective.kl_coef

    def ratio(self, losses: torch.Tensor, old: torch.Tensor | None) -> torch.Tensor | None:
        """The importance ratios of losses [m, J], `old` those of the behaviour policy: one an output [m], unless an algorithm
        has one a row [m, J], or none."""
        return on_policy_ratio(losses) if old is None else importance_ratio(losses, old.to(losses.device))

    @abstractmethod
    def loss(self, losses: torch.Tensor, old: torch.Tensor | None, advantages: torch.Tensor) -> torch.Tensor:
        """The scalar to minimise: a mean over the outputs of losses [m, J] with advantages [m]."""

    def clipped(self, ratio: torch.Tensor, advantages: torch.Tensor) -> float:
        """Share of the ratios [m] or [m, J] whose gradient the clip takes away."""
        each = ratio.numel() // len(advantages)
        return clip_fraction(ratio.flatten(), advantages.repeat_interleave(each), self.config.objective.clip_eps)

    def after(self) -> None:  # noqa: B027 - most have nothing to do
        """The iteration's gradient steps are done."""


def base_predictions(
    algorithm: Algorithm, estimate: SurrogateEstimate, outputs: torch.Tensor, wanted: bool
) -> list[torch.Tensor] | None:
    """What the base says on a minibatch's rows, if it is wanted."""
    if not wanted:
        return None
    with algorithm.learner.adapter.disabled():
        return estimate.predictions(outputs)


def as_velocity(x_theta: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """x_theta [R, ...] / b_t [R]: differences of it are differences of velocity, at one (z, t)."""
    return x_theta / b.view(-1, *[1] * (x_theta.ndim - 1))
