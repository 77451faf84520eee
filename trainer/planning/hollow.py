"""Modules whose weights have shape, type and place, and no storage: a model of any size is made in a second or two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode


def new_mode() -> FakeTensorMode:
    """Under which tensors without storage are made; those of one mode may meet each other, and meet real ones.

    It is never entered: what is real stays real (positions, masks, timesteps, whose values decide about shapes) until it meets
    a tensor without storage.
    """
    return FakeTensorMode(allow_non_fake_inputs=True)


class RealMasks(TorchDispatchMode):
    """Around code that picks rows by a truth value: what a real mask picks of a tensor without storage is known.

    FakeTensorMode takes the mask for one without storage too, and then can't tell how many rows there are.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.index.Tensor and isinstance(args[0], FakeTensor):
            args = (args[0], [place for index in args[1] for place in _places(index)])
        return func(*args, **(kwargs or {}))


def _places(index: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    if index is None or isinstance(index, FakeTensor) or index.dtype != torch.bool:
        return (index,)
    return index.nonzero(as_tuple=True)


def meta_module(kind: type, config: dict[str, Any], dtype: torch.dtype) -> torch.nn.Module:
    """A diffusers or transformers model of that class and configuration on the device `meta`, as
    `from_pretrained(torch_dtype=dtype)` gives it: floating weights in `dtype`, but for layers that the class keeps in float32.
    """
    from accelerate import init_empty_weights

    of_transformers = hasattr(kind, "config_class")
    with init_empty_weights(include_buffers=False):
        module = kind(kind.config_class(**config)) if of_transformers else kind.from_config(config)
    kept = getattr(module, "_keep_in_fp32_modules_strict", None) or ()
    if dtype == torch.float16 or not of_transformers:
        kept = (*kept, *(getattr(module, "_keep_in_fp32_modules", None) or ()))
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        saved = isinstance(tensor, torch.nn.Parameter) or not of_transformers
        if saved and tensor.is_floating_point() and not set(name.split(".")) & set(kept):
            tensor.data = tensor.data.to(dtype)
    return module.eval()


def hollow(module: torch.nn.Module, mode: FakeTensorMode) -> torch.nn.Module:
    """Replace what lies on the device `meta` by tensors that say they are on the CPU. Tied weights stay tied."""
    made: dict[int, torch.Tensor] = {}

    def replaced(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            with mode:
                value = torch.empty_like(tensor, device="cpu")
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            made[id(tensor)] = torch.nn.Parameter(value, requires_grad=tensor.requires_grad) if is_parameter else value
        return made[id(tensor)]

    for inner in module.modules():
        for tensors in (inner._parameters, inner._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and tensor.is_meta:
                    tensors[name] = replaced(tensor)
    return module


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration in a part's folder. Raises OSError or ValueError."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise ValueError("not a mapping")
    return config
