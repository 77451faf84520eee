"""Advantage-weighted matching (arXiv 2509.25050): minus the pre-training loss is the likelihood, on noise of each output's own,
under a robust power; held to the base and, as in the authors' code, to a lagging copy of the policy.
"""

from __future__ import annotations

import torch

from ..estimate import RowBatch, SurrogateEstimate
from ..lora import LoraFactors
from ..objective import PairDraw, matching_loss, policy_loss
from ..rollout import Rollout
from .base import Algorithm, Reference, as_velocity, base_predictions
from .lagging import follow


class MatchingEstimate(SurrogateEstimate):
    """AWM's loss of every (output, pair) row."""

    compares_velocity = True

    def __init__(self, algorithm: AWM, rollout: Rollout, draw: PairDraw) -> None:
        super().__init__(*algorithm.estimate_arguments(rollout, draw))
        self.power = algorithm.config.forward.power

    def rows(self, batch: RowBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """(losses [R], x_theta / b_t [R, ...]): differences of the latter are differences of velocity."""
        x0, z, t, _, b = self.noised(batch)
        x_theta = self.predict(batch, z, t)
        return matching_loss(x_theta, x0, t, b, self.power), as_velocity(x_theta, b)


class AWM(Algorithm):
    name = "awm"

    def frozen_passes(self) -> int:
        anchors = (self.config.objective.kl_coef > 0) + bool(self.setting("forward.lag_kl_coef"))
        return super().frozen_passes() + anchors

    def estimate(self, rollout: Rollout, draw: PairDraw, advantages: torch.Tensor) -> MatchingEstimate:
        return MatchingEstimate(self, rollout, draw)

    def kl_coef(self) -> float:
        return self.config.objective.kl_coef + self.setting("forward.lag_kl_coef")

    def reference(self, estimate: MatchingEstimate, outputs: torch.Tensor, behaviour: LoraFactors) -> Reference:
        """Two anchors as one: k1 |v - v1|^2 + k2 |v - v2|^2 is (k1 + k2) |v - (k1 v1 + k2 v2) / (k1 + k2)|^2 and a constant."""
        to_base, to_copy = self.config.objective.kl_coef, self.setting("forward.lag_kl_coef")
        predictions = base_predictions(self, estimate, outputs, to_base > 0)
        if to_copy:
            with self.learner.adapter.using(self.learner.lagged):
                copy = estimate.predictions(outputs)
            predictions = copy if predictions is None else _between(predictions, copy, to_copy / (to_base + to_copy))
        return Reference(self.old_losses(estimate, outputs, behaviour), predictions)

    def loss(self, losses: torch.Tensor, old: torch.Tensor | None, advantages: torch.Tensor) -> torch.Tensor:
        # The authors' code divides the bounded advantages by their bound; the weights of the KL terms count on it.
        scaled = advantages / self.setting("objective.advantage.clip")
        return policy_loss(self.ratio(losses, old), scaled, self.config.objective.clip_eps)

    def after(self) -> None:
        follow(self)


def _between(first: list[torch.Tensor], second: list[torch.Tensor], share: float) -> list[torch.Tensor]:
    return [one.lerp(other, share) for one, other in zip(first, second, strict=True)]
