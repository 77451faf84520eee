"""A policy of each family on its tiny model, and what a pipeline computed inside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from trainer.policies.base import Sampling
from trainer.policies.unet import UNetPolicy

CPU = torch.device("cpu")
PROMPTS = ["a red square", "two blue circles", "a green star above a yellow triangle"]  # of different length
ROWS = (0, 0, 1, 2, 1)  # the prompt of each output
SEEDS = (11, 12, 13, 14, 15)
SAMPLING = Sampling("euler", steps=4, guidance=1.0, width=64, height=64, batch_size=16)
SAMPLERS = ("euler", "heun", "dpmsolver++", "unipc")


@dataclass(frozen=True)
class Step:
    """What a pipeline handed to its scheduler: the (guided) output, the timestep, and the latents, all [B, C, h, w]."""

    output: torch.Tensor
    timestep: float
    latents: torch.Tensor
    sigma: float


@contextmanager
def watch_scheduler(policy: Any, height: int = 64, width: int = 64) -> Iterator[list[Step]]:
    """The steps of every sampling inside."""
    steps: list[Step] = []
    make = policy.scheduler
    size = policy._latent_size(Sampling("euler", 1, 1.0, width, height, 1))

    def watched(sampling: Sampling) -> Any:
        scheduler = make(sampling)
        step = scheduler.step

        def recorded(model_output, timestep, sample, *args, **kw):
            index = scheduler.step_index
            if index is None:
                scheduler._init_step_index(timestep)
                index = scheduler.step_index
            steps.append(
                Step(
                    policy.unpack(model_output.float(), *size).clone(),
                    float(timestep),
                    policy.unpack(sample.float(), *size).clone(),
                    float(scheduler.sigmas[index]),
                )
            )
            return step(model_output, timestep, sample, *args, **kw)

        scheduler.step = recorded
        return scheduler

    policy.scheduler = watched
    try:
        yield steps
    finally:
        del policy.scheduler


def seen_by_network(policy: Any, step: Step, sampler: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """(z_t, t[B], x_theta, how much x_theta enlarges an error of the output) of a scheduler's step, by the solver's own
    arithmetic and none of the policy's.
    """
    n = len(step.latents)
    if not isinstance(policy, UNetPolicy):
        t = torch.full((n,), step.timestep / 1000)
        return step.latents, t, step.latents - step.sigma * step.output, 1.0
    t = torch.full((n,), (step.timestep + 1) / 1000)
    a, b = 1 / (step.sigma**2 + 1) ** 0.5, step.sigma / (step.sigma**2 + 1) ** 0.5
    z = step.latents * a if sampler in ("euler", "heun") else step.latents  # these two work on x + sigma eps
    if policy.schedule.prediction == "epsilon":
        return z, t, (z - b * step.output) / a, max(1.0, b / a)
    return z, t, a * z - b * step.output, 1.0
