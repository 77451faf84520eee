"""ODE solvers in their flow-matching forms, all from diffusers, on one noise grid.

Any solver may make the outputs, since V-GRPO needs nothing of the path (arXiv 2604.23380). Two things are mended here:
all solvers walk the same levels, t_k = shift(1 - k/S), k = 0..S-1, and the network is shown each level exactly. diffusers'
multistep solvers have grids of their own and round the timestep to an integer, so that the network would see another level
than the solver uses. They work in the log of the signal-to-noise ratio, which is infinite at t = 1, so they start a hair below.
"""

from __future__ import annotations

import torch
from diffusers import (
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchHeunDiscreteScheduler,
    UniPCMultistepScheduler,
)

TRAIN_TIMESTEPS = 1000  # the unit in which flow transformers take their timestep
_BELOW_ONE = 1 - 1e-6  # diffusers' own bound, in its UniPC


def shifted_grid(steps: int, shift: float, terminal: float | None = None) -> torch.Tensor:
    """float32[steps], descending from 1: shift * u / (1 + (shift - 1) * u), u evenly spaced (arXiv 2403.03206, 5.3.2).

    `terminal`: the levels are then stretched so that the last of them is this one (Qwen-Image; LTX-Video before it).
    """
    u = torch.linspace(1, 1 / steps, steps, dtype=torch.float64)
    t = shift * u / (1 + (shift - 1) * u)
    if terminal and steps > 1:  # one step starts and ends at 1: there is nothing to stretch
        t = 1 - (1 - t) * ((1 - terminal) / (1 - t[-1]))
    return t.float()


class FlowEuler(FlowMatchEulerDiscreteScheduler):
    def set_timesteps(self, num_inference_steps=None, device=None, sigmas=None, mu=None, timesteps=None):
        steps = _steps(num_inference_steps, sigmas)
        # The parent shifts what it is given; diffusers' own grid shifts twice and spends its last step below t = 0.01.
        even = torch.linspace(1, 1 / steps, steps, dtype=torch.float64).numpy()
        super().set_timesteps(steps, device, even)

    def stretch_shift_to_terminal(self, t):
        return super().stretch_shift_to_terminal(t) if len(t) > 1 else t


class FlowHeun(FlowMatchHeunDiscreteScheduler):
    terminal: float | None = None

    def set_timesteps(self, num_inference_steps=None, device=None, sigmas=None, mu=None):
        steps = _steps(num_inference_steps, sigmas)
        super().set_timesteps(steps, device)
        grid = shifted_grid(steps, self.config.shift, self.terminal).to(self.sigmas.device)
        ends = torch.cat([grid, grid.new_zeros(1)])
        self.sigmas = torch.cat([ends[:1], ends[1:-1].repeat_interleave(2), ends[-1:]])
        self.timesteps = self.sigmas[:-1] * TRAIN_TIMESTEPS


class FlowDPMSolver(DPMSolverMultistepScheduler):
    terminal: float | None = None

    def set_timesteps(self, num_inference_steps=None, device=None, sigmas=None, mu=None, timesteps=None):
        super().set_timesteps(_steps(num_inference_steps, sigmas), device)
        _walk_grid(self)


class FlowUniPC(UniPCMultistepScheduler):
    terminal: float | None = None

    def set_timesteps(self, num_inference_steps=None, device=None, sigmas=None, mu=None):
        super().set_timesteps(_steps(num_inference_steps, sigmas), device)
        _walk_grid(self)


def _steps(num_inference_steps, sigmas) -> int:
    """Pipelines say how many steps, or pass an even grid of that many sigmas, and `mu`; shift and grid are ours in any case."""
    return len(sigmas) if num_inference_steps is None else num_inference_steps


def _walk_grid(scheduler) -> None:
    """Put a multistep solver, whose timesteps are set, on the common grid."""
    grid = shifted_grid(len(scheduler.timesteps), scheduler.config.flow_shift, scheduler.terminal).clamp(max=_BELOW_ONE)
    scheduler.sigmas = torch.cat([grid, grid.new_zeros(1)])  # on the CPU, as in diffusers
    scheduler.timesteps = (grid * TRAIN_TIMESTEPS).to(scheduler.timesteps.device)


_MULTISTEP = {
    "use_flow_sigmas": True,
    "prediction_type": "flow_prediction",
    "solver_order": 2,
    "num_train_timesteps": TRAIN_TIMESTEPS,
}


def flow_scheduler(sampler: str, shift: float, terminal: float | None = None):
    """A fresh diffusers scheduler: `euler`, `heun`, `dpmsolver++` (second order) or `unipc`. Raises ValueError else."""
    if sampler == "euler":
        return FlowEuler(num_train_timesteps=TRAIN_TIMESTEPS, shift=shift, shift_terminal=terminal)
    if sampler == "heun":
        scheduler = FlowHeun(num_train_timesteps=TRAIN_TIMESTEPS, shift=shift)
    elif sampler == "dpmsolver++":
        scheduler = FlowDPMSolver(flow_shift=shift, algorithm_type="dpmsolver++", **_MULTISTEP)
    elif sampler == "unipc":
        scheduler = FlowUniPC(flow_shift=shift, **_MULTISTEP)
    else:
        raise ValueError(f"unknown sampler {sampler!r}; allowed: euler, heun, dpmsolver++, unipc")
    scheduler.terminal = terminal
    return scheduler


def noise_levels(sampler: str, steps: int, shift: float, terminal: float | None = None) -> tuple[torch.Tensor, int]:
    """The levels the solver visits, float32[S] descending without the final 0, and its network evaluations per image."""
    scheduler = flow_scheduler(sampler, shift, terminal)
    scheduler.set_timesteps(steps)
    levels = torch.unique_consecutive(scheduler.sigmas[:-1].float().cpu())
    return levels, len(scheduler.timesteps)
