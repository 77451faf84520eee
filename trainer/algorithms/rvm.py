"""Reward-based velocity matching (arXiv 2608.23664): each output's velocity, times its advantage, is what the policy's moves
towards; no likelihood, so no ratio and no clip. The anchor is the KL to the base.
"""

from __future__ import annotations

import torch

from ..estimate import RowBatch, SurrogateEstimate
from ..lora import LoraFactors
from ..objective import PairDraw, velocity_matching_loss
from ..rollout import Rollout
from .base import Algorithm, Reference, as_velocity, base_predictions


class VelocityMatchingEstimate(SurrogateEstimate):
    """RVM's loss of every (output, pair) row."""

    compares_velocity = True

    def __init__(self, algorithm: RVM, rollout: Rollout, draw: PairDraw, advantages: torch.Tensor) -> None:
        super().__init__(*algorithm.estimate_arguments(rollout, draw))
        self.advantages = advantages

    def rows(self, batch: RowBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """(losses [R], x_theta / b_t [R, ...]): differences of the latter are differences of velocity."""
        x0, z, t, _, b = self.noised(batch)
        x_theta = self.predict(batch, z, t)
        loss = velocity_matching_loss(x_theta, x0, self.advantages[batch.output].to(x0.device), b)
        return loss, as_velocity(x_theta, b)


class RVM(Algorithm):
    name = "rvm"
    measured = "matching"

    def frozen_passes(self) -> int:
        return int(self.kl_coef() > 0)

    def estimate(self, rollout: Rollout, draw: PairDraw, advantages: torch.Tensor) -> VelocityMatchingEstimate:
        return VelocityMatchingEstimate(self, rollout, draw, advantages)

    def reference(self, estimate: SurrogateEstimate, outputs: torch.Tensor, behaviour: LoraFactors) -> Reference:
        return Reference(None, base_predictions(self, estimate, outputs, self.kl_coef() > 0))

    def ratio(self, losses: torch.Tensor, old: torch.Tensor | None) -> None:
        return None

    def loss(self, losses: torch.Tensor, old: torch.Tensor | None, advantages: torch.Tensor) -> torch.Tensor:
        return losses.mean()  # an output without advantage has the loss 0
