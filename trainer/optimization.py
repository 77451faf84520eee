"""The optimiser, its learning rate, the guard against non-finite gradients, and the moving average of the factors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .errors import UserError
from .extras import require

if TYPE_CHECKING:
    from .config import OptimizerConfig
    from .lora import LoraFactors

MAX_SKIPPED = 5  # gradient steps in a row without a finite gradient, after which a run stops


def build_optimizer(config: OptimizerConfig, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    require("optimizer.name", config.name)
    if config.name == "adamw8bit":
        from bitsandbytes.optim import AdamW8bit as kind
    else:
        kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[config.name]
    return kind(list(parameters), lr=config.lr, weight_decay=config.weight_decay)


def move_optimizer(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Its moments to a device. What has no axis, such as a count of steps, stays: torch keeps it on the CPU everywhere."""
    for state in optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.ndim:
                state[key] = value.to(device)


def learning_rate(config: OptimizerConfig, iteration: int, iterations: int) -> float:
    """The learning rate of the 0-based `iteration` of `iterations`.

    Linear warm-up over the first `warmup` iterations; after it the schedule, which would be 0 in the iteration after the last.
    """
    if iteration < config.warmup:
        return config.lr * (iteration + 1) / config.warmup
    left = 1 - (iteration - config.warmup) / max(1, iterations - config.warmup)
    factor = {"constant": 1.0, "linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2}[config.schedule]
    return config.lr * factor


@dataclass(frozen=True)
class StepResult:
    """`grad_norm` is the norm before clipping; `skipped` says why no step was taken, or is None."""

    grad_norm: float
    skipped: str | None = None


class GuardedStepper:
    """Clips and applies gradients; a non-finite gradient or loss skips the step, names the culprit, and is counted."""

    def __init__(self, optimizer: torch.optim.Optimizer, named: dict[str, torch.nn.Parameter], max_norm: float | None):
        self.optimizer, self.named, self.max_norm = optimizer, named, max_norm
        self.skipped_in_a_row = 0
        self.steps = 0

    def step(self, loss_finite: bool) -> StepResult:
        """Raises UserError after MAX_SKIPPED skipped steps in a row. Gradients are cleared in any case."""
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.named.values() if p.grad is not None])
        # A finite norm has no other parts: only else is it worth looking for the culprit.
        bad = [] if norm.isfinite() else [name for name, p in self.named.items() if _broken(p.grad)]
        reason = None
        if not loss_finite:
            reason = "the surrogate is not finite"
        elif bad:
            reason = f"the gradient of {len(bad)} of {len(self.named)} LoRA factors is not finite, first {bad[0]}"
        if reason is None:
            if self.max_norm:
                torch.nn.utils.clip_grads_with_norm_(list(self.named.values()), self.max_norm, norm)
            self.optimizer.step()
            self.steps += 1
            self.skipped_in_a_row = 0
        else:
            self.skipped_in_a_row += 1
        self.optimizer.zero_grad(set_to_none=True)
        if self.skipped_in_a_row >= MAX_SKIPPED:
            raise UserError(
                f"{self.skipped_in_a_row} gradient steps in a row were skipped ({reason}); "
                "lower optimizer.lr, set policy.dtype to float32, or resume from an earlier checkpoint"
            )
        return StepResult(float(norm), reason)


def _broken(gradient: torch.Tensor | None) -> bool:
    return gradient is not None and not bool(torch.isfinite(gradient).all())


@torch.no_grad()
def update_average(average: LoraFactors, current: LoraFactors, decay: float) -> None:
    """Exponential moving average of the LoRA factors, in place: ema <- decay * ema + (1 - decay) * theta."""
    for name, (down, up) in average.factors.items():
        new_down, new_up = current.factors[name]
        down.lerp_(new_down, 1 - decay)
        up.lerp_(new_up, 1 - decay)
