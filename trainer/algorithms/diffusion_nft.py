"""DiffusionNFT (arXiv 2509.16117): the outputs are noised anew, and a positive and an implicit negative policy are matched to
them by how good they are. The behaviour policy follows the trained one with a lag.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..estimate import RowBatch, SurrogateEstimate
from ..lora import LoraFactors
from ..objective import PairDraw, contrast_loss, optimality
from ..rollout import Rollout
from .base import Algorithm, Reference, as_velocity, base_predictions
from .lagging import follow


class ContrastEstimate(SurrogateEstimate):
    """The contrast of every (output, pair) row. The behaviour policy is asked in the very same row batches."""

    compares_velocity = True

    def __init__(self, algorithm: DiffusionNFT, rollout: Rollout, draw: PairDraw, r: torch.Tensor) -> None:
        """r: float32 [B] in [0, 1], how good each output is."""
        super().__init__(*algorithm.estimate_arguments(rollout, draw))
        self.algorithm, self.r = algorithm, r

    def rows(self, batch: RowBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """(losses [R], x_theta / b_t [R, ...]): differences of the latter are differences of velocity."""
        x0, z, t, a, b = self.noised(batch)
        before = self.evaluations
        with self.algorithm.learner.adapter.using(self.algorithm.learner.lagged):
            x_old = self.predict(batch, z, t)
        self.evaluations, self.evaluations_old = before, self.evaluations_old + self.evaluations - before
        x_theta = self.predict(batch, z, t)
        r = self.r[batch.output].to(x0.device)
        loss = contrast_loss(x_theta, x_old, x0, r, self.algorithm.config.forward.strength, self.weighting, a, b)
        return loss, as_velocity(x_theta, b)

    def compared(self, batch: RowBatch) -> torch.Tensor:
        _, z, t, _, b = self.noised(batch)
        return as_velocity(self.predict(batch, z, t), b)


class DiffusionNFT(Algorithm):
    name = "diffusion_nft"
    measured = "contrast"

    def behaviour(self) -> LoraFactors:
        return self.learner.lagged

    @contextmanager
    def acting(self, behaviour: LoraFactors) -> Iterator[None]:
        with self.learner.adapter.using(behaviour), super().acting(behaviour):
            yield

    def frozen_passes(self) -> int:
        return 1 + (self.kl_coef() > 0)

    def estimate(self, rollout: Rollout, draw: PairDraw, advantages: torch.Tensor) -> ContrastEstimate:
        return ContrastEstimate(self, rollout, draw, optimality(advantages, self.setting("objective.advantage.clip")))

    def reference(self, estimate: ContrastEstimate, outputs: torch.Tensor, behaviour: LoraFactors) -> Reference:
        return Reference(None, base_predictions(self, estimate, outputs, self.kl_coef() > 0))

    def ratio(self, losses: torch.Tensor, old: torch.Tensor | None) -> None:
        return None

    def loss(self, losses: torch.Tensor, old: torch.Tensor | None, advantages: torch.Tensor) -> torch.Tensor:
        # An output without advantage is neither good nor bad; with a KL term it is here for that alone.
        return self.setting("objective.advantage.clip") * (losses.mean(1) * (advantages != 0)).mean()

    def after(self) -> None:
        follow(self)
