"""The rectified-flow families: z_t = (1 - t) x + t eps, and the scheduler is told v = eps - x."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..errors import UserError
from ..objective import clean_from_velocity
from .base import Sampling
from .pipeline import PipelinePolicy, Rows
from .samplers import TRAIN_TIMESTEPS, flow_scheduler, noise_levels

PLAIN_TOKENS = 256  # image and text tokens up to which plain attention is taken on a CPU


class FlowPolicy(PipelinePolicy):
    """Grid, coefficients and x_theta of a rectified flow; a family adds its network's inputs."""

    def prepare(self, index: dict[str, Any]) -> None:
        self._schedule = self._pipe.scheduler.config
        self._grows = bool(self._schedule.get("use_dynamic_shifting"))
        self.shift = 0.0 if self._grows else _timestep_shift(self._pipe.scheduler, self._source.model, self.family)
        self._terminal = self._schedule.get("shift_terminal")

    def tokens(self, height: int, width: int) -> int:
        """Image tokens of latents of height x width."""
        return height * width // 4

    def shift_of(self, sampling: Sampling) -> float:
        """The shift of the timesteps: what the sampling asks for, else the model's own, which may grow with the size."""
        if sampling.shift is not None:
            return sampling.shift
        if self._grows:
            mu = self.log_shift(self.tokens(*self._latent_size(sampling)), sampling.steps)
            # diffusers' "linear" time shift is mu itself, its "exponential" one e^mu; both shift by t / (1 - t) alike.
            return mu if self._schedule.get("time_shift_type") == "linear" else math.exp(mu)
        return self.shift

    def log_shift(self, tokens: int, steps: int) -> float:
        """mu at so many image tokens: a line through two sizes, from the scheduler's configuration (FLUX.1's rule)."""
        get = self._schedule.get
        few, many = get("base_image_seq_len", 256), get("max_image_seq_len", 4096)
        low, high = get("base_shift", 0.5), get("max_shift", 1.15)
        return low + (high - low) * (tokens - few) / (many - few)

    def scheduler(self, sampling: Sampling) -> Any:
        return flow_scheduler(sampling.sampler, self.shift_of(sampling), self._terminal)

    def noise_levels(self, sampling: Sampling) -> tuple[torch.Tensor, int]:
        levels, evaluations = noise_levels(sampling.sampler, sampling.steps, self.shift_of(sampling), self._terminal)
        return levels, evaluations * self.passes(sampling.guidance)

    def visible_time(self, t: torch.Tensor) -> torch.Tensor:
        # Exact unless the family says otherwise: the timestep is embedded in float32 whatever the weights' dtype.
        return (t.float() * TRAIN_TIMESTEPS) / TRAIN_TIMESTEPS

    def coefficients(self, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return 1 - t, t

    def clean(self, z_t: torch.Tensor, t: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        return clean_from_velocity(z_t, output, t)

    def attention(self, tokens: int) -> AbstractContextManager[Any]:
        """Plain attention for short sequences on a CPU, where the fused kernel's backward pass is the slower one.

        Not with checkpointing: the recomputation would run outside and save other tensors.
        """
        if self.device.type != "cpu" or tokens > PLAIN_TOKENS or self._checkpointing:
            return nullcontext()
        return sdpa_kernel(SDPBackend.MATH)


class RoundedTimeFlowPolicy(FlowPolicy):
    """Networks that round their timestep to their own dtype, and see patches of 2 x 2 latents.

    bfloat16 has 129 values in [0.5, 1]. So t is rounded before the noise is mixed in, or x_theta would be biased.
    """

    TOLD_IN_THOUSANDTHS = True
    """Whether the network multiplies by 1000 after the rounding, and so rounds once more."""

    @property
    def size_step(self) -> int:
        return 2 * self._pipe.vae_scale_factor

    def told_time(self, t: torch.Tensor) -> torch.Tensor:
        """The `timestep` argument, in the network's dtype and by the pipeline's own steps."""
        return (t.float() * TRAIN_TIMESTEPS).to(self.dtype) / TRAIN_TIMESTEPS

    def visible_time(self, t: torch.Tensor) -> torch.Tensor:
        told = self.told_time(t)
        return (told * TRAIN_TIMESTEPS).float() / TRAIN_TIMESTEPS if self.TOLD_IN_THOUSANDTHS else told.float()


class PackedFlowPolicy(RoundedTimeFlowPolicy):
    """Networks that take latents as [B, tokens, 4 C], each 2 x 2 patch in a row."""

    @property
    def latent_channels(self) -> int:
        return self.denoiser.config.in_channels // 4

    def pack(self, latents: torch.Tensor) -> torch.Tensor:
        b, c, h, w = latents.shape
        patches = latents.reshape(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5)
        return patches.reshape(b, h // 2 * (w // 2), 4 * c)

    def unpack(self, latents: torch.Tensor, height: int, width: int) -> torch.Tensor:
        b, _, channels = latents.shape
        patches = latents.reshape(b, height // 2, width // 2, channels // 4, 2, 2).permute(0, 3, 1, 4, 2, 5)
        return patches.reshape(b, channels // 4, height, width)

    def image_ids(self, z_t: torch.Tensor) -> torch.Tensor:
        """Position of each image token, as FLUX.1 and Chroma number them."""
        height, width = z_t.shape[-2:]
        return self._pipe._prepare_latent_image_ids(len(z_t), height // 2, width // 2, z_t.device, self.dtype)


def valid_text(rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """(context [B, L, D], mask bool[B, L]) of prompts of different length, cut to the longest of them.

    True where a prompt has a token. What a text token is does not depend on what follows it, so the cut changes nothing.
    """
    mask = rows["mask"] > 0
    longest = int(mask.sum(1).max())
    return rows["context"][:, :longest], mask[:, :longest]


def _timestep_shift(scheduler: Any, model: str, family: str) -> float:
    """The shift of the timesteps that the model was trained for; diffusers' schedulers keep it under two names."""
    shift = scheduler.config.get("shift", scheduler.config.get("flow_shift"))
    if shift is None:
        raise UserError(
            f"policy.model: the {type(scheduler).__name__} of {model} states no timestep shift; "
            f"family {family} needs a flow-matching scheduler such as FlowMatchEulerDiscreteScheduler"
        )
    return float(shift)
