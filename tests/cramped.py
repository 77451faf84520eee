"""Devices with too little memory for large batches, pretended around real networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def cuda_error() -> torch.OutOfMemoryError:
    """A new one each time: an exception keeps the frames that it passed, and these their tensors."""
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB")


@contextmanager
def cramped(network: Any, most: int, when: Callable[[int], bool] = lambda call: True) -> Iterator[list[int]]:
    """Inside, a forward pass of more than `most` rows runs out of memory; yields the batches that were tried.

    `network`: a policy, whose denoiser is meant, or a module. `when`: for which calls, counted from 0, memory is short.
    """
    tried: list[int] = []

    def limited(_module, args, kw) -> None:
        rows = next(value for value in (*args, *kw.values()) if isinstance(value, torch.Tensor) and value.ndim > 2)
        tried.append(len(rows))
        if len(rows) > most and when(len(tried) - 1):
            raise cuda_error()

    handle = getattr(network, "denoiser", network).register_forward_pre_hook(limited, with_kwargs=True)
    try:
        yield tried
    finally:
        handle.remove()
