"""Optimiser and random states as named tensors and JSON, without pickle, bit for bit. Imports torch.

A resumed run must continue with the raw weights' own moments and every generator where it stood.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError, one_line


def optimizer_to_tensors(optimizer: torch.optim.Optimizer, names: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The optimiser's whole state as (tensors "<parameter>/<key>", JSON for the rest).

    `names` names the parameters in the order of `optimizer.param_groups`. The tensors are the live ones, not copies. Raises
    ValueError if the names do not fit, TypeError for a state that neither a tensor nor JSON can hold.
    """
    tensors: dict[str, Tensor] = {}
    state: dict[str, Any] = {}
    groups = []
    for index, group in enumerate(_named_groups(optimizer, names)):
        options = {
            key: _pack(value, f"/group{index}/{key}", tensors)
            for key, value in optimizer.param_groups[index].items()
            if key != "params"
        }
        groups.append({"parameters": list(group), "options": options})
        for name, parameter in group.items():
            entry = optimizer.state.get(parameter, {})
            packed = {key: _pack(value, f"{name}/{key}", tensors) for key, value in entry.items()}
            state[name] = {"shape": list(parameter.shape), "state": packed}
    return tensors, {"optimizer": type(optimizer).__name__, "groups": groups, "parameters": state}


def optimizer_from_tensors(
    optimizer: torch.optim.Optimizer, names: Sequence[str], tensors: Mapping[str, Tensor], meta: Mapping[str, Any]
) -> None:
    """Puts a saved state into an optimiser over the same parameters, on their present devices, every dtype as it was saved.

    Options (learning rate, betas) come from the checkpoint too. Raises UserError if the checkpoint belongs to another optimiser
    or to other parameters, or lacks a tensor; the optimiser is then unchanged.
    """
    groups = _named_groups(optimizer, names)
    _check_fit(optimizer, groups, meta)
    index = {name: number for number, name in enumerate(names)}
    try:
        state = {
            index[name]: {key: _unpack(value, tensors) for key, value in entry["state"].items()}
            for name, entry in meta["parameters"].items()
            if entry["state"]
        }
        param_groups = [
            {
                **{key: _unpack(value, tensors) for key, value in group["options"].items()},
                "params": [index[name] for name in here],  # load_state_dict pairs by position
            }
            for group, here in zip(meta["groups"], groups, strict=True)
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"The optimiser state in the checkpoint is incomplete: {one_line(error)} is missing; use another."
        ) from error
    optimizer.load_state_dict({"state": state, "param_groups": param_groups})
    # load_state_dict casts moments to the parameter's dtype (float32 moments of bfloat16 weights lose bits): put them back.
    for group in groups:
        for name, parameter in group.items():
            for key, saved in state.get(index[name], {}).items():
                loaded = optimizer.state[parameter][key]
                if isinstance(saved, Tensor) and loaded.dtype != saved.dtype:
                    optimizer.state[parameter][key] = saved.to(loaded.device)


def rng_to_tensors() -> dict[str, Tensor]:
    """The global generators of torch (CPU, every CUDA device), Python and numpy (float, int64 and uint8 tensors)."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    if kind != "MT19937":
        raise ValueError(f"numpy's global generator is {kind}; only MT19937 can be saved")
    tensors = {
        "torch.cpu": torch.get_rng_state(),
        "python.words": torch.tensor([version, *words], dtype=torch.int64),
        "python.gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy.words": torch.tensor([*(int(key) for key in keys), position, has_gauss], dtype=torch.int64),
        "numpy.gauss": torch.tensor([cached], dtype=torch.float64),
    }
    if torch.cuda.is_available():
        for device, state in enumerate(torch.cuda.get_rng_state_all()):
            tensors[f"torch.cuda.{device}"] = state
    return tensors


def rng_from_tensors(tensors: Mapping[str, Tensor]) -> list[str]:
    """Sets the generators as `rng_to_tensors` found them; returns the names of saved ones that this machine has no device for.

    Raises UserError if a CPU generator's state is missing or malformed.
    """
    try:
        version, *words = tensors["python.words"].tolist()
        gauss = tensors["python.gauss"].tolist()
        *keys, position, has_gauss = tensors["numpy.words"].tolist()
        random.setstate((version, tuple(words), gauss[0] if gauss else None))
        np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, tensors["numpy.gauss"].item()))
        torch.set_rng_state(tensors["torch.cpu"])
    except (LookupError, ArithmeticError, ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"The random state in the checkpoint is damaged: {one_line(error)}; use another checkpoint.") from error
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    missing = []
    for name, state in tensors.items():
        if name.startswith("torch.cuda."):
            device = int(name.removeprefix("torch.cuda."))
            if device < devices:
                torch.cuda.set_rng_state(state, device)
            else:
                missing.append(name)
    return missing


def _named_groups(optimizer: torch.optim.Optimizer, names: Sequence[str]) -> list[dict[str, Tensor]]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if len(names) != len(parameters):
        raise ValueError(f"{len(names)} names for {len(parameters)} parameters of the optimiser")
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"parameter names repeat: {', '.join(repeated[:3])}")
    left = iter(names)
    return [{next(left): parameter for parameter in group["params"]} for group in optimizer.param_groups]


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """JSON for one value: a scalar as itself, a list or tuple tagged, a tensor as a reference to its name in `tensors`."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, (list, tuple)):
        items = [_pack(item, f"{name}.{number}", tensors) for number, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"the optimiser's {name} is a {type(value).__name__}, which a checkpoint cannot hold")


def _unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content].clone()  # load_state_dict would take the caller's tensor and step it in place
    items = [_unpack(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items


def _check_fit(optimizer: torch.optim.Optimizer, groups: list[dict[str, Tensor]], meta: Mapping[str, Any]) -> None:
    kind = type(optimizer).__name__
    try:
        if meta["optimizer"] != kind:
            raise UserError(
                f"The checkpoint was saved by optimiser {meta['optimizer']}, the configuration asks for {kind}; use the same."
            )
        saved = {name: tuple(entry["shape"]) for name, entry in meta["parameters"].items()}
        saved_groups = [list(group["parameters"]) for group in meta["groups"]]
    except (KeyError, TypeError) as error:
        raise UserError(
            f"The optimiser state in the checkpoint is malformed: {one_line(error)}; use another checkpoint."
        ) from error
    here = {name: tuple(parameter.shape) for group in groups for name, parameter in group.items()}
    if differing := sorted(name for name in saved.keys() | here.keys() if saved.get(name) != here.get(name)):
        first = differing[0]
        raise UserError(
            f"The checkpoint's optimiser is for other parameters: {len(differing)} differ, '{first}' is"
            f" {saved.get(first, 'absent')} there and {here.get(first, 'absent')} here; resume with the run's own config.yaml."
        )
    if [sorted(names) for names in saved_groups] != [sorted(group) for group in groups]:
        raise UserError(
            "The checkpoint's optimiser divides the parameters into other groups; resume with the run's own config.yaml."
        )
