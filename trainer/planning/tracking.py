"""Bytes alive and FLOPs done while some code runs, on real tensors and on those without storage alike.

torch's own `MemTracker` does the like for modules, but it is private, needs torch.distributed, and follows a whole training
step; here only the highest sum of live storages is asked for. The FLOP formulas are torch's.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count


def _attention(query, key, value, *_, **__) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_backward(gradient, query, key, value, *_, **__) -> int:
    return sdpa_backward_flop_count(gradient, query, key, value)


# torch has formulas for attention on accelerators only; the CPU's kernel does the same work.
_FORMULAS = FlopCounterMode(
    display=False,
    custom_mapping={
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    },
).flop_registry


class Usage(TorchDispatchMode):
    """Around a piece of code: `peak` is the most bytes that tensors made inside it held at once, `flops` what they cost.

    `known`: tensors and modules that were there before (weights, inputs); a view of one of them is nothing new. Tensors that
    outlive the context are forgotten when it ends, so one object is used once.
    """

    def __init__(self, *known: torch.Tensor | torch.nn.Module) -> None:
        super().__init__()
        self.peak = self.now = 0
        self.flops = 0
        self._live: dict[int, int] = {}
        self._known = {tensor.untyped_storage()._cdata for tensor in _tensors(known)}
        self._holding = list(known)  # a freed storage's address could be given to a new one

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf)
        if formula := _FORMULAS.get(func._overloadpacket):
            self.flops += formula(*args, **(kwargs or {}), out_val=out)
        return out

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live or key in self._known:
            return
        size = storage.nbytes()
        self._live[key] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self.now -= self._live.pop(key, 0)


def _tensors(known: Iterable[Any]) -> Iterable[torch.Tensor]:
    for item in known:
        if isinstance(item, torch.nn.Module):
            yield from item.parameters()
            yield from item.buffers()
            yield from (p.grad for p in item.parameters() if p.grad is not None)
        else:
            yield item
