"""MixGRPO (arXiv 2507.21802): Flow-GRPO's SDE inside a window of steps that slides from noise to picture as training goes on,
an ODE solver outside of it, of any order; with `trajectory.compress`, in fewer steps after it (MixGRPO-Flash).
"""

from __future__ import annotations

import torch

from ..policies.base import Policy, Sampling
from .flow_grpo import FlowGRPO


def window_start(iteration: int, steps: int, size: int, every: int, stride: int) -> int:
    """The window's first step in the 0-based `iteration`: `stride` further every `every` iterations, from 0 anew at the end.

    Only whole windows before the last of `steps` steps count, which is deterministic.
    """
    places = (steps - 1 - size) // stride + 1
    return iteration // every % places * stride


class MixGRPO(FlowGRPO):
    name = "mix_grpo"

    def stochastic(self, steps: int) -> range:
        t = self.config.trajectory
        start = window_start(self.iteration, steps, t.window, t.window_every, t.window_stride)
        return range(start, start + t.window)

    def grid(self, policy: Policy, sampling: Sampling) -> torch.Tensor:
        levels, end = super().grid(policy, sampling), self.stochastic(sampling.steps).stop
        kept = torch.linspace(end, len(levels), self._steps_after(len(levels) - end) + 1)[:-1]
        return torch.cat([levels[:end], levels[kept.round().long()]])

    def rollout_evaluations(self, solver: int) -> float:
        steps = self.config.rollout.steps
        end = self.stochastic(steps).stop
        return solver * (end + self._steps_after(steps - end)) / steps

    def _steps_after(self, left: int) -> int:
        """In how many of the grid's `left` steps the rollout goes on after the window."""
        compress = self.config.trajectory.compress
        return left if compress is None else max(1, int(left * compress))
