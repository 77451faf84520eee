"""The copy of the policy that follows it with a lag: DiffusionNFT's behaviour policy, AWM's second anchor."""

from __future__ import annotations

from ..objective import lagging_decay
from ..optimization import update_average
from .base import Algorithm


def follow(algorithm: Algorithm) -> None:
    """After an iteration: copy <- d copy + (1 - d) theta, d by the gradient steps so far (see `lagging_decay`)."""
    learner, forward = algorithm.learner, algorithm.config.forward
    steps = (algorithm.iteration + 1) * algorithm.config.objective.gradient_steps
    decay = lagging_decay(steps, forward.lag_after, forward.lag_rate, algorithm.setting("forward.lag_most"))
    update_average(learner.lagged, learner.adapter.snapshot(), decay)
