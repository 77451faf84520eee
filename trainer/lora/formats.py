"""Canonical factors -> the LoRA files of other tools.

`comfyui`    (the default) the one spelling of the family that ComfyUI maps and diffusers loads, at its true strength. Dotted
             keys have alpha / rank folded into B: ComfyUI takes scale 1 where there is no `.alpha`, diffusers infers alpha =
             rank, and diffusers' SD3 loader refuses a file with `.alpha` keys. UNets have sd-scripts' keys and the real alpha.
`diffusers`  the untouched factors under diffusers' names, the alpha in its `lora_adapter_metadata`. ComfyUI ignores that alpha,
             and for a UNet it maps none of these keys.
`kohya`      the names of sd-scripts and musubi-tuner (`lora_unet_joint_blocks_0_x_block_attn_qkv`), fused modules stacked
             block-diagonally, with `.alpha`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..errors import UserError
from .factors import LoraFactors
from .families import Family, Layout, Network, columns, get_family
from .files import write_tensors
from .layouts import inferred_network, spelled, unmapped
from .metadata import describe

_DIFFUSERS_METADATA = "lora_adapter_metadata"


def export_lora(
    factors: LoraFactors,
    path: Path,
    *,
    network: Network,
    family: str = "sd3",
    format: str = "comfyui",
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Writes the LoRA at its true strength, atomically, in the dtype of the factors; returns the path.

    `network` is `layer_shapes(denoiser)`; `metadata` are the caller's facts (see `metadata.describe`). A module that is not in
    the network, has another shape there, or that ComfyUI would not map is a UserError, and nothing is written (ComfyUI itself
    only logs a warning and then does nothing, ComfyUI#1144).
    """
    if format not in _FORMATS:
        raise UserError(f"LoRA format {format!r} is not known; known formats: {', '.join(_FORMATS)}")
    if path.suffix != ".safetensors":
        raise UserError(f"a LoRA is written as .safetensors, got the name {path.name!r}")
    names = get_family(family)
    _check(factors, network)
    layout = _FORMATS[format](names)
    on_cpu, extra = factors.to(device="cpu"), {}
    if format == "diffusers":
        extra = {_DIFFUSERS_METADATA: _diffusers_config(factors, names)}
    else:
        _require_mapped(factors, names, network, layout)
        on_cpu = _at_true_strength(on_cpu, layout)
    facts = describe(factors, on_cpu.alpha, names, network, layout, metadata or {})
    return write_tensors(path, spelled(on_cpu, names, network, layout), facts | extra)


def comfyui_tensors(factors: LoraFactors, family: Family) -> dict[str, Tensor]:
    """The content of a file of the format `comfyui`, unchecked: for a model that may not be the one that was trained.

    A convolution's factors stay matrices, which ComfyUI takes as well.
    """
    network = inferred_network(factors, family)
    return spelled(_at_true_strength(factors, family.comfyui), family, network, family.comfyui)


def _at_true_strength(factors: LoraFactors, layout: Layout) -> LoraFactors:
    """The factors as a file of this layout holds them: alpha / rank goes into B where the file cannot say it."""
    if layout.flat:
        return factors
    # Folded in float32: a half-precision B would otherwise be rounded twice.
    dtype = next(iter(factors.factors.values()))[0].dtype
    return factors.to(torch.float32).with_alpha(factors.rank).to(dtype)


def _check(factors: LoraFactors, network: Network) -> None:
    if not factors.factors:
        raise UserError("this LoRA has no modules; nothing to export")
    for name, (a, b) in factors.factors.items():
        if name not in network:
            raise UserError(f"LoRA module {name} is no Linear or Conv2d of this model; it cannot be exported")
        shape, needed = (a.shape[1], b.shape[0]), (columns(network[name]), network[name][1])
        if shape != needed:
            raise UserError(f"LoRA module {name} has (in, out) = {shape}, this model's has {needed}; not exported")
        if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
            raise UserError(f"LoRA module {name} holds NaN or infinite values; it is not exported")


def _require_mapped(factors: LoraFactors, family: Family, network: Network, layout: Layout) -> None:
    if reason := family.refusal(network):
        raise UserError(f"ComfyUI would not load a LoRA for this model: {reason}; use format 'diffusers'")
    if missing := unmapped(factors, family, network, layout):
        which = f"{len(missing)} trained modules ({', '.join(missing[:3])})"
        other = "" if unmapped(factors, family, network, family.kohya) else ", or use format 'kohya'"
        raise UserError(f"ComfyUI has no {family.label} key for {which}; leave them out of the targets{other}")


def _diffusers_config(factors: LoraFactors, family: Family) -> str:
    alpha = int(factors.alpha) if float(factors.alpha).is_integer() else factors.alpha
    config = {"r": factors.rank, "lora_alpha": alpha, "target_modules": sorted(factors.factors)}
    return json.dumps({f"{family.prefix}.{key}": value for key, value in config.items()}, sort_keys=True)


_FORMATS: dict[str, Callable[[Family], Layout]] = {
    "comfyui": lambda family: family.comfyui,
    "diffusers": lambda family: Layout("diffusers", f"{family.prefix}."),
    "kohya": lambda family: family.kohya,
}
FORMATS = tuple(_FORMATS)
