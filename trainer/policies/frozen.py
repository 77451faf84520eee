"""The frozen tensors of a network: what they are, and how they are moved, quantised ones too.

bitsandbytes keeps part of a weight outside of its tensor, and torchao's tensors are made of several.
"""

from __future__ import annotations

import copy as copying
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

CPU = torch.device("cpu")


def blocks_of(network: nn.Module) -> list[nn.Module]:
    """The blocks that a diffusers network repeats, in its own order: the smallest that it says must stay in one piece.

    They are what gradient checkpointing recomputes as a whole. All but a few percent of the weights are in them.
    """
    kinds = set(getattr(network, "_no_split_modules", None) or ())
    found = [module for module in network.modules() if type(module).__name__ in kinds]
    return [module for module in found if not any(inner is not module and inner in found for inner in module.modules())]


class FrozenTensors:
    """The parameters and buffers of a network as it is now; a LoRA that is attached later is not among them."""

    def __init__(self, network: nn.Module, without: Collection[nn.Module] = ()) -> None:
        """`without`: modules inside of it that are left out."""
        left_out = {inner for module in without for inner in module.modules()}
        self._slots = [
            (owner, name, place)
            for owner in network.modules()
            if owner not in left_out
            for place in (owner._parameters, owner._buffers)
            for name, tensor in place.items()
            if tensor is not None
        ]
        self._homes: list[Tensor] | None = None  # while copies are lent

    def tensors(self) -> Iterator[Tensor]:
        """What the network computes with now."""
        return (place[name] for _, name, place in self._slots)

    def is_plain(self) -> bool:
        return all(map(is_plain, self.tensors()))

    def move(self, device: torch.device) -> None:
        """For good: nothing stays behind."""
        self._put(self._copies(device, keep=False))

    def settle(self, pinned: bool) -> None:
        """Make the CPU their home, in memory that a device copies from by itself where there is enough of it."""
        self.move(CPU)
        if pinned:
            with suppress(RuntimeError):  # the system locks only so much; unpinned copies are slower
                for tensor in self.tensors():
                    if is_plain(tensor):
                        tensor.data = tensor.data.pin_memory()

    def copies(self, device: torch.device) -> list[Tensor]:
        """Copies on the device, for `lend`; what the network computes with stays."""
        return self._copies(device, keep=True)

    def lend(self, copies: list[Tensor]) -> None:
        """Let the network compute with copies."""
        if self._homes is None:
            self._homes = list(self.tensors())
        self._put(copies)

    def take_back(self) -> None:
        """Let go of the copies; where a backward pass needs them it still has them."""
        if self._homes is not None:
            self._put(self._homes)
            self._homes = None

    def _copies(self, device: torch.device, keep: bool) -> list[Tensor]:
        made: dict[int, Tensor] = {}  # a tensor that two modules share is copied once
        out = []
        for owner, name, place in self._slots:
            tensor = at_home(owner, place[name])
            if id(tensor) not in made:
                made[id(tensor)] = moved(tensor, device, copy=keep)
            out.append(made[id(tensor)])
        return out

    def _put(self, tensors: Sequence[Tensor]) -> None:
        for (owner, name, place), tensor in zip(self._slots, tensors, strict=True):
            place[name] = tensor
            reset_layer(owner)


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is all there is of a weight."""
    return type(tensor) in (Tensor, nn.Parameter)


def moved(tensor: Tensor, device: torch.device, copy: bool) -> Tensor:
    """A frozen tensor on a device; `copy`: a plain one is another tensor even if it is there already."""
    if not is_plain(tensor):
        there = tensor.detach() if hasattr(tensor, "tensor_data_names") else tensor
        there = there.to(device)
        return there if isinstance(there, nn.Parameter) else nn.Parameter(there, requires_grad=False)
    if tensor.device == device and not copy:
        return tensor
    value = tensor.detach().to(device, non_blocking=device.type == "cuda", copy=copy)
    return nn.Parameter(value, requires_grad=False) if isinstance(tensor, nn.Parameter) else value


def at_home(owner: nn.Module, tensor: Tensor) -> Tensor:
    """The tensor, whole: an int8 layer takes its scales out of the weight when it first computes."""
    state: Any = getattr(owner, "state", None)
    if hasattr(tensor, "SCB") and tensor.SCB is None and getattr(state, "SCB", None) is not None:
        tensor.CB, tensor.SCB = state.CB, state.SCB
    return tensor


def reset_layer(owner: nn.Module) -> None:
    """An int8 layer computes with what it noted of its weight; after the weight was put elsewhere it must look again.

    A backward pass that is still to come keeps the old notes.
    """
    state: Any = getattr(owner, "state", None)
    if hasattr(state, "SCB"):
        owner.state = copying.copy(state)
        owner.state.CB = owner.state.SCB = None
