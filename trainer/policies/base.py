"""The protocol that a model family implements, and nothing else; everything above it is the same for every family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from ..memory import PhaseBatches


@dataclass(frozen=True)
class Sampling:
    """How pictures are made: `steps` of `sampler`, `guidance` (1 = off), size in pixels, at most `batch_size` at a time.

    `shift`: of a flow family's timesteps; None = the model's own.
    """

    sampler: str
    steps: int
    guidance: float
    width: int
    height: int
    batch_size: int
    shift: float | None = None

    def at(self, size: tuple[int, int]) -> Sampling:
        """The same at another (width, height)."""
        return replace(self, width=size[0], height=size[1])


@dataclass(frozen=True)
class Conditioning:
    """Encoded prompts: tensors with one row a distinct prompt, and `index` int64[N], the row of each of N outputs.

    Rows are copied only when they go to the network, since a group repeats its prompt and encoded prompts are large.
    `unconditional` is the negative prompt (first dimension 1), for guidance.
    """

    tensors: dict[str, torch.Tensor]
    index: torch.Tensor
    unconditional: dict[str, torch.Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.index)

    def rows(self, outputs: Sequence[int] | torch.Tensor) -> Conditioning:
        """The conditioning of some outputs, repeats allowed."""
        return replace(self, index=self.index[torch.as_tensor(outputs, dtype=torch.long)])

    def gather(self, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """The tensors [N, ...] as the network takes them."""
        return {k: v[self.index.to(v.device)].to(device, dtype) for k, v in self.tensors.items()}

    def gather_unconditional(self, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """The negative prompt's tensors, repeated to [N, ...]."""
        return {k: v.to(device, dtype).expand(len(self), *v.shape[1:]) for k, v in self.unconditional.items()}


class Policy(Protocol):
    """A denoising generative model under training. Latents and predictions are float32 on `device` unless said otherwise."""

    family: str
    device: torch.device
    denoiser: torch.nn.Module
    """The frozen network that the LoRA is attached to."""
    title: str
    """The base's name for people and for LoRA metadata."""
    batches: PhaseBatches
    """How much each phase does at once, where memory was too short for what was asked."""
    weights_stay: bool
    """Whether the base's weights are always where they are used, so that they may be changed for a while."""

    def encode(self, prompts: Sequence[str], negative: str = "") -> Conditioning:
        """Conditioning of each prompt, and of the one that guidance leads away from, on the CPU.

        Cached on disk by content; text encoders leave memory afterwards.
        """

    def notes(self) -> list[str]:
        """What a user should know about training this base, one line each."""

    def lora_facts(self) -> dict[str, str]:
        """What a LoRA file of this base should say of it besides its name, such as `prediction`."""

    def check(self, sampling: Sampling, negative: str, key: str) -> None:
        """Raises UserError naming `key` (a section) where this base can't sample so: a size (then with the nearest that
        fits), or a negative prompt where guidance is no second pass.
        """

    def check_size(self, width: int, height: int, where: str) -> None:
        """The same for a size alone; `where` begins the text of the UserError."""

    def passes(self, guidance: float) -> int:
        """Network evaluations that one guided prediction takes: 2 where a second one sees the negative prompt, else 1."""

    def scored_guidance(self, guidance: float, same: bool) -> float:
        """The guidance at which outputs made at `guidance` are scored: 1, unless `same`, or unless the network has it as an
        input, which must then be the one that made the outputs.
        """

    def noise_levels(self, sampling: Sampling) -> tuple[torch.Tensor, int]:
        """The sampler's noise levels float32[S] without the final 0, and network evaluations per image."""

    def first_noise(self, seeds: Sequence[int], sampling: Sampling) -> torch.Tensor:
        """Where `sample` starts: standard normal float32 [B, ...] on the CPU, each output's from its own seed alone."""

    def sample(
        self, conditioning: Conditioning, seeds: Sequence[int], sampling: Sampling, on_step: Callable[[], None] | None = None
    ) -> torch.Tensor:
        """Finished latents [B, ...], one for each row of the conditioning, each from its own seed alone.

        `on_step` is called after each solver step and may raise to abort.
        """

    def predict_clean(
        self, z_t: torch.Tensor, t: torch.Tensor, conditioning: Conditioning, guidance: float = 1.0
    ) -> torch.Tensor:
        """x_theta(z_t, t, c) for z_t [B, ...] and t [B] in (0, 1], differentiable in the LoRA factors, at a guidance scale
        (1 = the conditional prediction alone).
        """

    def visible_time(self, t: torch.Tensor) -> torch.Tensor:
        """t rounded to what the network will be shown, so that z_t can be made at that very level."""

    def coefficients(self, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(a_t, b_t) of z_t = a_t x + b_t eps."""

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Pictures uint8[B, H, W, 3] on the CPU: one rounding, shared by scoring and saving."""

    def to(self, device: torch.device) -> None:
        """Move the weights off the run's device, or back to it (a paused run gives the accelerator back)."""
