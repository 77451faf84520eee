"""ODE solvers for networks of the DDPM kind (variance-preserving, 1000 trained timesteps), all from diffusers, on one ladder.

z_k = a_k x + b_k eps with a_k^2 = prod(1 - beta), a_k^2 + b_k^2 = 1, at the trained timesteps k = 0..999 (arXiv 2006.11239).
All solvers walk the same timesteps: S of them, evenly spaced downwards from the last one ("trailing", arXiv 2305.08891, table
2), where the noise is strongest and where ComfyUI starts too; diffusers' own trailing spacing has one too many for some S. They
start from noise of the same scale, and the network is shown whole timesteps only, as in its training.
"""

from __future__ import annotations

import numpy as np
import torch
from diffusers import (
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    HeunDiscreteScheduler,
    UniPCMultistepScheduler,
)
from diffusers.schedulers.scheduling_euler_discrete import rescale_zero_terminal_snr
from diffusers.schedulers.scheduling_utils import SchedulerOutput

EPSILON, V_PREDICTION = "epsilon", "v_prediction"
# What diffusers puts for 0 at the end of a schedule with zero terminal signal: sigma is 4096 there, which float16 can hold.
_LAST_SIGNAL = 2**-24
_SCHEDULE = ("num_train_timesteps", "beta_start", "beta_end", "beta_schedule", "trained_betas")


class Schedule:
    """The noise schedule that a network was trained with.

    prediction: "epsilon" or "v_prediction", what the network's output is.
    signal: float64[T], a_k^2 (alphas_cumprod), falling; the last one is 2^-24 for a schedule with zero terminal signal.
    """

    def __init__(self, config: dict, prediction: str, zero_terminal: bool) -> None:
        """config: a diffusers scheduler's configuration, of which the betas are taken."""
        self._betas = {key: config[key] for key in _SCHEDULE if config.get(key) is not None}
        self.prediction, self.zero_terminal = prediction, zero_terminal
        euler = EulerDiscreteScheduler(**self._betas, prediction_type=prediction)
        betas = rescale_zero_terminal_snr(euler.betas) if zero_terminal else euler.betas
        signal = torch.cumprod(1 - betas, dim=0)
        if zero_terminal:
            signal[-1] = _LAST_SIGNAL
        self._signal32 = signal
        self.signal = signal.double()
        self.timesteps = len(signal)

    def coefficients(self, timestep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(a_k, b_k) float32, on the device of the timesteps int64[B]."""
        signal = self.signal[timestep.cpu()]
        return signal.sqrt().float().to(timestep.device), (1 - signal).sqrt().float().to(timestep.device)

    def scheduler(self, sampler: str):
        """A fresh diffusers scheduler: `euler`, `heun`, `dpmsolver++` (second order) or `unipc`. Raises ValueError else."""
        if sampler not in _SOLVERS:
            raise ValueError(f"unknown sampler {sampler!r}; allowed: {', '.join(_SOLVERS)}")
        solver, options = _SOLVERS[sampler]
        scheduler = solver(**self._betas, prediction_type=self.prediction, **options)
        scheduler.alphas_cumprod = self._signal32.clone()
        return scheduler


def ladder(steps: int, timesteps: int) -> np.ndarray:
    """int64[steps]: T - 1 first, then downwards in even steps, all different. ValueError if there are not that many."""
    if not 1 <= steps <= timesteps:
        raise ValueError(f"{steps} steps on {timesteps} trained timesteps; allowed: 1 to {timesteps}")
    return np.round(np.linspace(timesteps, timesteps / steps, steps)).astype(np.int64) - 1


class VPEuler(EulerDiscreteScheduler):
    def set_timesteps(self, num_inference_steps=None, device=None):
        super().set_timesteps(timesteps=ladder(num_inference_steps, len(self.alphas_cumprod)).tolist(), device=device)


class VPHeun(HeunDiscreteScheduler):
    def set_timesteps(self, num_inference_steps=None, device=None, num_train_timesteps=None):
        super().set_timesteps(timesteps=ladder(num_inference_steps, len(self.alphas_cumprod)).tolist(), device=device)

    def step(self, model_output, timestep, sample, return_dict=True):
        # The parent computes in the latents' dtype: at sigma 4096 a step in bfloat16 leaves an error larger than the picture.
        after = super().step(model_output.float(), timestep, sample.float(), return_dict=False)[0].to(model_output.dtype)
        return SchedulerOutput(prev_sample=after) if return_dict else (after,)


class VPDPMSolver(DPMSolverMultistepScheduler):
    def set_timesteps(self, num_inference_steps=None, device=None):
        super().set_timesteps(timesteps=ladder(num_inference_steps, len(self.alphas_cumprod)).tolist(), device=device)


class VPUniPC(UniPCMultistepScheduler):
    def set_timesteps(self, num_inference_steps=None, device=None):
        super().set_timesteps(num_inference_steps, device)
        # This one takes no timesteps from outside.
        steps = torch.from_numpy(ladder(num_inference_steps, len(self.alphas_cumprod)))
        signal = self.alphas_cumprod[steps]
        self.sigmas = torch.cat([((1 - signal) / signal).sqrt(), torch.zeros(1)])  # on the CPU, as in diffusers
        self.timesteps, self.num_inference_steps = steps.to(device), len(steps)


# "leading" only decides how the first noise is scaled: to unit variance in the network's eyes, as by ComfyUI.
_SINGLE = {"timestep_spacing": "leading"}
_SOLVERS = {
    "euler": (VPEuler, _SINGLE),
    "heun": (VPHeun, _SINGLE),
    "dpmsolver++": (VPDPMSolver, {"algorithm_type": "dpmsolver++", "solver_order": 2}),
    "unipc": (VPUniPC, {"solver_order": 2}),
}
