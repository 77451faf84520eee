"""What a model family tells the LoRA readers and writers: names, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

Network = Mapping[str, "tuple[int, int]"]
"""Every Linear of a denoiser: its diffusers name -> (in features, out features)."""


@dataclass(frozen=True)
class NativeModule:
    """One Linear of the family's original code (the names ComfyUI and sd-scripts use) in terms of diffusers' modules."""

    parts: tuple[str, ...]
    """The diffusers modules whose output rows it stacks, in order: (to_q, to_k, to_v) for a fused qkv."""

    swap_halves: bool = False
    """True where diffusers stores the rows as (scale, shift) and the original as (shift, scale)."""


class Family(Protocol):
    """The names of one model family."""

    name: str
    """As in the configuration, for example `sd3`."""

    label: str
    """For messages, for example `Stable Diffusion 3`."""

    prefix: str
    """What diffusers puts before the denoiser's modules in a LoRA file."""

    presets: Mapping[str, tuple[str, ...]]
    """Target presets: suffixes of module names."""

    def native_modules(self, network: Network) -> dict[str, NativeModule]:
        """Original name -> diffusers modules of this network; together they are all the modules that ComfyUI maps."""
        ...

    def refusal(self, network: Network) -> str | None:
        """Why ComfyUI would not take a network of this shape at all, or None."""
        ...
