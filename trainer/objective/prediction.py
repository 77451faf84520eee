"""Noising, and the clean output that a network's prediction implies (arXiv 2604.23380, x-prediction).

`z = a x0 + b eps`. Coefficients are one number or one per output [B]; results are at least float32.
"""

from __future__ import annotations

from torch import Tensor

from ._tensors import at_least_float32, nonzero, per_output, same_shape


def add_noise(x0: Tensor, eps: Tensor, a: float | Tensor, b: float | Tensor) -> Tensor:
    """`a x0 + b eps` [B, ...]. Rectified flow has a = 1 - t, b = t.

    Where a network casts its timestep to half precision, give the coefficients of the rounded one, or the prediction is biased.
    """
    same_shape(x0, "x0", eps, "eps")
    x0, eps = at_least_float32(x0, eps)
    return per_output(a, "a", x0) * x0 + per_output(b, "b", x0) * eps


def clean_from_velocity(z: Tensor, v: Tensor, t: float | Tensor) -> Tensor:
    """`z - t v` [B, ...], for rectified flow: z = (1 - t) x0 + t eps, v = eps - x0."""
    same_shape(z, "z", v, "v")
    z, v = at_least_float32(z, v)
    return z - per_output(t, "t", z) * v


def velocity_from_clean(z: Tensor, x: Tensor, t: float | Tensor) -> Tensor:
    """`(z - x) / t` [B, ...], for rectified flow: the inverse of `clean_from_velocity`. ValueError where t is 0."""
    same_shape(z, "z", x, "x")
    z, x = at_least_float32(z, x)
    return (z - x) / nonzero(per_output(t, "t", z), "t", "the finished output has no noise to move away from")


def clean_from_eps(z: Tensor, eps: Tensor, a: float | Tensor, b: float | Tensor) -> Tensor:
    """`(z - b eps) / a` [B, ...], for a network that predicts the noise. ValueError where a is 0 (pure noise)."""
    same_shape(z, "z", eps, "eps")
    z, eps = at_least_float32(z, eps)
    signal = nonzero(per_output(a, "a", z), "a", "pure noise holds no clean output to solve for")
    return (z - per_output(b, "b", z) * eps) / signal


def clean_from_v_prediction(z: Tensor, v: Tensor, a: float | Tensor, b: float | Tensor) -> Tensor:
    """`a z - b v` [B, ...], for v = a eps - b x0 and a^2 + b^2 = 1."""
    same_shape(z, "z", v, "v")
    z, v = at_least_float32(z, v)
    return per_output(a, "a", z) * z - per_output(b, "b", z) * v
