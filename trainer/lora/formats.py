"""Canonical factors -> the LoRA files of other tools.

`comfyui`    (the default) diffusers' key names, alpha / rank folded into B. One file serves both: ComfyUI maps
             `transformer.<diffusers name>` and takes scale 1 where there is no `.alpha`, and diffusers infers alpha = rank.
             (diffusers' SD3 loader refuses a file with `.alpha` keys, and ComfyUI does not read diffusers' own alpha.)
`diffusers`  the untouched factors, the alpha in diffusers' `lora_adapter_metadata`. ComfyUI would ignore that alpha.
`kohya`      sd-scripts' names (`lora_unet_joint_blocks_0_x_block_attn_qkv`), q, k, v fused block-diagonally, with `.alpha`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..errors import UserError
from .factors import LoraFactors
from .families import Family, Network, get_family
from .files import write_tensors

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

    `network` is `linear_shapes(denoiser)`. A module that is not in it, has another shape there, or that ComfyUI would not map
    is a UserError, and nothing is written (ComfyUI itself only logs a warning and then does nothing, ComfyUI#1144).
    """
    if format not in _WRITERS:
        raise UserError(f"LoRA format {format!r} is not known; known formats: {', '.join(_WRITERS)}")
    if path.suffix != ".safetensors":
        raise UserError(f"a LoRA is written as .safetensors, got the name {path.name!r}")
    names = get_family(family)
    _check(factors, network)
    tensors, extra = _WRITERS[format](factors.to(device="cpu"), names, network)
    facts = {"format": "pt", "family": names.name, "rank": str(factors.rank), "alpha": f"{factors.alpha:g}"}
    return write_tensors(path, tensors, {**facts, **(metadata or {}), **extra})


def _check(factors: LoraFactors, network: Network) -> None:
    if not factors.factors:
        raise UserError("this LoRA has no modules; nothing to export")
    for name, (a, b) in factors.factors.items():
        if name not in network:
            raise UserError(f"LoRA module {name} is not a Linear of this model; it cannot be exported")
        shape = (a.shape[1], b.shape[0])
        if shape != tuple(network[name]):
            raise UserError(
                f"LoRA module {name} has (in, out) = {shape}, this model's has {tuple(network[name])}; not exported"
            )
        if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
            raise UserError(f"LoRA module {name} holds NaN or infinite values; it is not exported")


def _require_mapped(factors: LoraFactors, family: Family, network: Network) -> None:
    if reason := family.refusal(network):
        raise UserError(f"ComfyUI would not load a LoRA for this model: {reason}; use format 'diffusers'")
    mapped = {part for module in family.native_modules(network).values() for part in module.parts}
    unmapped = [name for name in factors.factors if name not in mapped]
    if unmapped:
        which = f"{len(unmapped)} trained modules ({', '.join(unmapped[:3])})"
        raise UserError(f"ComfyUI has no {family.label} key for {which}; leave them out of the targets")


def _comfyui(factors: LoraFactors, family: Family, network: Network) -> tuple[dict[str, Tensor], dict[str, str]]:
    _require_mapped(factors, family, network)
    return comfyui_tensors(factors, family), {}


def comfyui_tensors(factors: LoraFactors, family: Family) -> dict[str, Tensor]:
    """The content of a file of the format `comfyui`, unchecked: for a model that may not be the one that was trained."""
    # Folded in float32: a half-precision B would otherwise be rounded twice.
    folded = factors.to(torch.float32).with_alpha(factors.rank)
    dtype = next(iter(factors.factors.values()))[0].dtype
    return _diffusers_keys(folded.to(dtype), family)


def _diffusers(factors: LoraFactors, family: Family, network: Network) -> tuple[dict[str, Tensor], dict[str, str]]:
    alpha = int(factors.alpha) if float(factors.alpha).is_integer() else factors.alpha
    config = {"r": factors.rank, "lora_alpha": alpha, "target_modules": sorted(factors.factors)}
    packed = {f"{family.prefix}.{key}": value for key, value in config.items()}
    return _diffusers_keys(factors, family), {_DIFFUSERS_METADATA: json.dumps(packed, sort_keys=True)}


def _diffusers_keys(factors: LoraFactors, family: Family) -> dict[str, Tensor]:
    out = {}
    for name, (a, b) in factors.factors.items():
        out[f"{family.prefix}.{name}.lora_A.weight"] = a
        out[f"{family.prefix}.{name}.lora_B.weight"] = b
    return out


def _kohya(factors: LoraFactors, family: Family, network: Network) -> tuple[dict[str, Tensor], dict[str, str]]:
    _require_mapped(factors, family, network)
    out = {}
    for native, module in family.native_modules(network).items():
        trained = [part for part in module.parts if part in factors.factors]
        if not trained:
            continue
        # A part that was not trained has no columns, so its rows stay 0.
        blocks = [factors.factors[p][1] if p in factors.factors else torch.zeros(network[p][1], 0) for p in module.parts]
        b = torch.block_diag(*blocks).to(blocks[module.parts.index(trained[0])].dtype)
        key = f"lora_unet_{native.replace('.', '_')}"
        out[f"{key}.lora_down.weight"] = torch.cat([factors.factors[part][0] for part in trained])
        out[f"{key}.lora_up.weight"] = b.roll(b.shape[0] // 2, dims=0) if module.swap_halves else b
        out[f"{key}.alpha"] = torch.tensor(factors.alpha * len(trained), dtype=torch.float32)
    return out, {"ss_network_dim": str(factors.rank), "ss_network_alpha": f"{factors.alpha:g}"}


_WRITERS: dict[str, Callable[[LoraFactors, Family, Network], tuple[dict[str, Tensor], dict[str, str]]]] = {
    "comfyui": _comfyui,
    "diffusers": _diffusers,
    "kohya": _kohya,
}
FORMATS = tuple(_WRITERS)
