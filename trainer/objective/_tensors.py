"""Dtype and shape rules that the objective's functions share."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in their common dtype, never below float32 (half precision has 8 to 11 bits, too few for a loss)."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return tuple(tensor.to(dtype) for tensor in tensors)


def per_output(value: float | Tensor, name: str, like: Tensor) -> Tensor:
    """A coefficient, one number or one per output [B], shaped to multiply `like` [B, ...]; ValueError for any other shape."""
    coefficient = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    if coefficient.ndim == 0:
        return coefficient
    if coefficient.shape != like.shape[:1]:
        raise ValueError(f"{name} has shape {list(coefficient.shape)}; give one number or one per output, [{like.shape[0]}]")
    return coefficient.reshape(-1, *[1] * (like.ndim - 1))


def nonzero(coefficient: Tensor, name: str, why: str) -> Tensor:
    """The coefficient itself; ValueError if any of it is 0."""
    if bool((coefficient == 0).any()):
        raise ValueError(f"{name} is 0: {why}")
    return coefficient


def same_shape(first: Tensor, first_name: str, second: Tensor, second_name: str, ndim: int | None = None) -> None:
    """ValueError unless both have one shape (broadcasting would pair outputs with the wrong numbers) and no empty axis."""
    if first.shape != second.shape:
        raise ValueError(
            f"{first_name} has shape {list(first.shape)} but {second_name} has {list(second.shape)}; they must agree"
        )
    if ndim is not None and first.ndim != ndim:
        raise ValueError(f"{first_name} has {first.ndim} axes (shape {list(first.shape)}); {ndim} are needed")
    if first.numel() == 0:
        raise ValueError(f"{first_name} is empty (shape {list(first.shape)})")
