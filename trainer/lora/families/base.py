"""What a model family tells the LoRA readers and writers: names, nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

Network = Mapping[str, tuple[int, ...]]
"""Every Linear and Conv2d of a denoiser by its diffusers name: (in, out) features of a Linear, (in, out, kernel height, kernel
width) of a convolution."""

ATTENTION, ATTENTION_MLP = "attention", "attention+mlp"


def columns(shape: tuple[int, ...]) -> int:
    """How many columns a module's A has: a convolution's factor is its kernel laid flat."""
    return shape[0] * prod(shape[2:])


@dataclass(frozen=True)
class NativeModule:
    """One layer of the family's original code (the names ComfyUI and sd-scripts use) in terms of diffusers' modules."""

    parts: tuple[str, ...]
    """The diffusers modules whose output rows it stacks, in order: (to_q, to_k, to_v) for a fused qkv."""

    swap_halves: bool = False
    """True where diffusers stores the rows as (scale, shift) and the original as (shift, scale)."""


@dataclass(frozen=True)
class Layout:
    """How a LoRA file spells its modules."""

    names: Literal["diffusers", "native"]
    """Whose names they are; native ones stack a fused module's parts block-diagonally."""

    prefix: str

    flat: bool = False
    """sd-scripts' style: `lora_unet_a_b.lora_down.weight` with the real `.alpha`; else `a.b.lora_A.weight` without one."""


@dataclass(frozen=True)
class Identity:
    """How other tools name the base in a LoRA file's metadata; the values are those of the tools that train it most."""

    architecture: str
    """ModelSpec's architecture, without `/lora`."""
    implementation: str
    """ModelSpec's implementation: whose code the architecture is."""
    resolution: str
    """ModelSpec's resolution where the caller knows no better: what the base was made for."""
    base_version: str
    """sd-scripts' `ss_base_model_version`."""
    network_module: str
    """sd-scripts' `ss_network_module`: the module that reads such keys."""


KOHYA = Layout("native", "lora_unet_", flat=True)


class Family:
    """The names of one model family. A family sets what differs from these defaults."""

    name: str
    """As in the configuration, for example `sd3`."""

    label: str
    """For messages, for example `Stable Diffusion 3`."""

    presets: ClassVar[Mapping[str, tuple[str, ...]]]
    """Target presets: endings of the names of modules inside blocks."""

    prefix: str = "transformer"
    """What diffusers puts before the denoiser's modules in a LoRA file."""

    comfyui: Layout = Layout("diffusers", "transformer.")
    """The layout that every supported ComfyUI maps and diffusers loads: the default file."""

    kohya: Layout = KOHYA
    """The layout of sd-scripts, or of musubi-tuner for the newer families."""

    native_only: tuple[str, ...] = ()
    """Beginnings of diffusers names that ComfyUI maps under the native name alone."""

    def candidates(self, network: Network) -> dict[str, NativeModule]:
        """Original name -> diffusers modules, for every block that the network has; some parts may be absent."""
        raise NotImplementedError

    def identity(self, network: Network, prediction: str | None = None) -> Identity:
        """The base's names in metadata; a family of several models tells them apart by the network, or by what it predicts
        ("epsilon", "v_prediction"; None: unknown).
        """
        raise NotImplementedError

    def refusal(self, network: Network) -> str | None:
        """Why ComfyUI would not take a network of this shape at all, or None."""
        return None

    def native_modules(self, network: Network) -> dict[str, NativeModule]:
        """Original name -> diffusers modules of this network; together they are all the modules that ComfyUI maps."""
        found = self.candidates(network).items()
        return {native: module for native, module in found if all(part in network for part in module.parts)}


def blocks(network: Network, stack: str) -> range:
    """The numbers of the blocks in a stack such as `transformer_blocks`: 0 to the highest that occurs."""
    pattern = re.compile(rf"{re.escape(stack)}\.(\d+)\.")
    numbers = [int(found[1]) for name in network if (found := pattern.match(name))]
    return range(max(numbers, default=-1) + 1)


def expand(
    network: Network, native_stack: str, stack: str, table: Mapping[str, tuple[str, ...]]
) -> Iterable[tuple[str, NativeModule]]:
    """A table of one block's modules (native ending -> diffusers endings) for every block of the stack."""
    for block in blocks(network, stack):
        for native, parts in table.items():
            yield f"{native_stack}.{block}.{native}", NativeModule(tuple(f"{stack}.{block}.{part}" for part in parts))
