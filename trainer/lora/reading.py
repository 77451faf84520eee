"""LoRA files of other tools -> canonical factors, to continue training from them."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError, one_line
from .factors import LoraFactors, padded, scaled
from .families import Family, NativeModule, Network, columns, get_family
from .files import read_tensors
from .keys import KeyMap, Target, describe_unmatched, is_text_encoder, refuse_other_kinds, split_key


@dataclass(frozen=True)
class _Piece:
    """One module as the file has it."""

    a: Tensor
    b: Tensor
    alpha: float

    @property
    def scale(self) -> float:
        return self.alpha / self.a.shape[0]


def read_lora(path: Path, known_modules: Network, family: str = "sd3") -> LoraFactors:
    """The factors in a LoRA file or folder; float32, in the order of `known_modules` (`layer_shapes(denoiser)`).

    Reads diffusers, ComfyUI, kohya / sd-scripts, OneTrainer and peft keys; fused modules are split. The strength is what the
    maker's own loader applies: a module's `.alpha`, else diffusers' or peft's configuration, else alpha = rank. Ranks and
    alphas that differ from module to module are brought to one: ranks by zero padding, alphas into B.

    Raises UserError when the file is missing, damaged or of another kind, or when any key fits no module: a LoRA is read whole
    or not at all (flow_grpo#156). Text-encoder parts are left out with a warning, since only the denoiser is trained.
    """
    names = get_family(family)
    tensors, config = _open(path, names)
    where = f"LoRA {path}"
    refuse_other_kinds(tensors, where)
    denoiser = {key: tensor for key, tensor in tensors.items() if not is_text_encoder(key)}
    parts = _by_target(denoiser, names, known_modules, where)
    if left_out := len(tensors) - len(denoiser):
        warnings.warn(f"{where} also changes text encoders ({left_out} keys); only the rest is continued", stacklevel=2)
    native = names.native_modules(known_modules)
    pieces: dict[str, _Piece] = {}
    for target, tensors_of in parts.items():
        for name, piece in _pieces(target, tensors_of, native, config, known_modules, where).items():
            if name in pieces:
                raise UserError(f"{where} changes {name} twice, under two key styles; it is damaged")
            pieces[name] = piece
    return _canonical({name: pieces[name] for name in known_modules if name in pieces})


def _open(path: Path, family: Family) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the peft configuration that goes with them ({} if there is none)."""
    if not path.is_dir():
        tensors, metadata = read_tensors(path)
        return tensors, _diffusers_config(metadata, family, path)
    if (path / "adapter_config.json").is_file():
        config = _json_object((path / "adapter_config.json"), None)
        if config.get("peft_type", "LORA") != "LORA":
            raise UserError(f"{path} holds a peft adapter of type {config['peft_type']}; only LORA can be read")
        weights = path / "adapter_model.safetensors"
        return read_tensors(weights if weights.is_file() else path / "adapter_model.bin")[0], config
    if (path / "pytorch_lora_weights.safetensors").is_file():
        return _open(path / "pytorch_lora_weights.safetensors", family)
    looked_for = "adapter_config.json (peft) nor pytorch_lora_weights.safetensors (diffusers)"
    raise UserError(f"folder {path} holds no LoRA: neither {looked_for}; give a .safetensors file or such a folder")


def _diffusers_config(metadata: Mapping[str, str], family: Family, path: Path) -> dict[str, Any]:
    if "lora_adapter_metadata" not in metadata:
        return {}
    config = _json_object(path, metadata["lora_adapter_metadata"])
    # Pipelines write `transformer.r`, a bare model writes `r`.
    prefix = f"{family.prefix}."
    return {key.removeprefix(prefix): value for key, value in config.items() if key.startswith(prefix)} or config


def _json_object(path: Path, text: str | None) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8") if text is None else text)
    except (OSError, ValueError) as error:
        raise UserError(f"the LoRA configuration in {path} cannot be read ({one_line(error)})") from error
    if not isinstance(content, dict):
        raise UserError(f"the LoRA configuration in {path} is not a JSON object")
    return content


def _by_target(tensors: Mapping[str, Tensor], family: Family, network: Network, where: str) -> dict[Target, dict[str, Tensor]]:
    keys = KeyMap(family, network)
    parts: dict[Target, dict[str, Tensor]] = {}
    unmatched = []
    for key, tensor in tensors.items():
        split = split_key(key)
        target = keys.find(split[0]) if split else None
        if split is None or target is None:
            unmatched.append(key)
        elif split[1] in parts.setdefault(target, {}):
            raise UserError(f"{where} holds {target.name} twice (key {key}); it is damaged")
        else:
            parts[target][split[1]] = tensor
    if unmatched:
        raise UserError(describe_unmatched(unmatched, len(tensors), family, where))
    if not parts:
        raise UserError(f"{where} holds no LoRA weights for the denoiser")
    return parts


def _pieces(
    target: Target,
    tensors: Mapping[str, Tensor],
    native: Mapping[str, NativeModule],
    config: Mapping[str, Any],
    network: Network,
    where: str,
) -> dict[str, _Piece]:
    """The diffusers modules that one module of the file changes."""
    if "down" not in tensors or "up" not in tensors:
        raise UserError(f"{where} has only one of the two factors of {target.name}; it is damaged")
    module = native[target.name] if target.native else NativeModule((target.name,))
    shape = network[module.parts[0]]
    a = _matrix(tensors["down"], shape[2:], target.name, where)
    b = _matrix(tensors["up"], (), target.name, where)
    if a.shape[0] != b.shape[1]:
        raise UserError(f"{where}: the factors of {target.name} have ranks {a.shape[0]} and {b.shape[1]}; it is damaged")
    outs = [network[part][1] for part in module.parts]
    size, needed = (a.shape[1], b.shape[0]), (columns(shape), sum(outs))
    if size != needed:
        raise UserError(
            f"{where} is for a model of another size: its {target.name} has (in, out) = {size}, this model's {needed}"
        )
    if "alpha" in tensors and tensors["alpha"].numel() == 1:
        alpha = float(tensors["alpha"])
    else:
        alpha = _configured_alpha(config, target.name, a.shape[0], where)
    if not (math.isfinite(alpha) and alpha > 0):
        raise UserError(f"{where}: the alpha of {target.name} is {alpha}; a positive number is needed")
    if module.swap_halves:
        b = b.roll(b.shape[0] // 2, dims=0)
    return {part: _Piece(*pair) for part, pair in _parted(a, b, alpha, module.parts, outs).items()}


def _matrix(tensor: Tensor, kernel: tuple[int, ...], name: str, where: str) -> Tensor:
    """A factor as a float32 matrix, a convolution's kernel laid flat; LyCORIS stores a Linear's as 1x1 convolutions."""
    plain = tensor.ndim >= 2 and (tensor.shape[2:].numel() == 1 or tuple(tensor.shape[2:]) == tuple(kernel))
    if not tensor.is_floating_point() or not plain or tensor.numel() == 0:
        raise UserError(f"{where}: a factor of {name} is {tensor.dtype} {tuple(tensor.shape)}, not a floating-point matrix")
    matrix = tensor.to(torch.float32).flatten(1)
    if not torch.isfinite(matrix).all():
        raise UserError(f"{where}: {name} holds NaN or infinite values")
    return matrix


def _parted(
    a: Tensor, b: Tensor, alpha: float, parts: Sequence[str], outs: list[int]
) -> dict[str, tuple[Tensor, Tensor, float]]:
    """(A, B, alpha) of each part of a fused module.

    Parts that were trained apart were stacked block-diagonally, perhaps not all of them: each gets its own block back. Else
    all share A. Either way the change of the weights is exact.
    """
    rows = dict(zip(parts, b.split(outs), strict=True))
    changed = {part: row for part, row in rows.items() if row.any()}
    if len(parts) == 1 or not changed:
        return {part: (a, row, alpha) for part, row in rows.items()}
    for count in range(len(parts), len(changed) - 1, -1):
        if a.shape[0] % count:
            continue
        blocks = {part: [i for i, block in enumerate(row.chunk(count, dim=1)) if block.any()] for part, row in changed.items()}
        places = [found[0] for found in blocks.values()]
        if any(len(found) > 1 for found in blocks.values()) or places != sorted(set(places)):
            continue
        where = dict(zip(changed, places, strict=True))
        if count == len(parts):
            if any(where[part] != parts.index(part) for part in where):
                continue
            where = {part: i for i, part in enumerate(parts)}  # with a part whose B is still 0
        return {p: (a.chunk(count)[i], rows[p].chunk(count, dim=1)[i], alpha / count) for p, i in where.items()}
    return {part: (a, row, alpha) for part, row in changed.items()}


def _configured_alpha(config: Mapping[str, Any], name: str, rank: int, where: str) -> float:
    """Alpha by peft's rules: `alpha_pattern` before `lora_alpha`, rank-stabilised scaling divides by the root of the rank."""
    if "lora_alpha" not in config:
        return float(rank)
    alpha = config["lora_alpha"]
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        plain = pattern.removeprefix("^").removesuffix("$")
        if set(plain) & set("*+?[](){}|\\"):
            raise UserError(f"{where}: alpha_pattern {pattern!r} is a regular expression; only module names are read")
        if name == plain or (pattern[:1] != "^" and name.endswith(f".{plain}")):
            alpha = value
            break
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise UserError(f"{where}: its configuration gives {name} the alpha {alpha!r}; a number is needed")
    return alpha * math.sqrt(rank) if config.get("use_rslora") else float(alpha)


def _canonical(pieces: Mapping[str, _Piece]) -> LoraFactors:
    """One rank (the largest) and one alpha (the commonest scale, so that most modules are kept to the bit)."""
    rank = max(piece.a.shape[0] for piece in pieces.values())
    scale = Counter(piece.scale for piece in pieces.values()).most_common(1)[0][0]
    common = next(piece for piece in pieces.values() if piece.scale == scale)
    factors = {}
    for name, piece in pieces.items():
        a, b = padded(piece.a, scaled(piece.b, piece.scale / scale), rank)
        factors[name] = (a.contiguous(), b.contiguous())
    return LoraFactors(factors, rank, common.alpha if common.a.shape[0] == rank else scale * rank)
