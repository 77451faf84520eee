"""Losses of the methods that train on the forward process: noised outputs, no trajectory (DiffusionNFT, AWM, RVM)."""

from __future__ import annotations

import torch
from torch import Tensor

from ._tensors import at_least_float32, per_output, same_shape
from .surrogate import surrogate

_ROOT_FLOOR = 1e-10  # as in AWM's code: the root of an error of 0 has no finite gradient


def optimality(advantages: Tensor, bound: float) -> Tensor:
    """DiffusionNFT's r [B] in [0, 1] (arXiv 2509.16117): 1/2 + clip(A / bound, -1, 1) / 2; bound 5 in the authors' code."""
    (advantages,) = at_least_float32(advantages)
    return 0.5 + (advantages / bound).clamp(-1, 1) / 2


def contrast_loss(
    x_pred: Tensor,
    x_old: Tensor,
    x0: Tensor,
    r: Tensor,
    strength: float,
    weighting: str = "adaptive",
    a_t: Tensor | None = None,
    b_t: Tensor | None = None,
) -> Tensor:
    """DiffusionNFT's loss [B] (arXiv 2509.16117): a positive and an implicit negative policy, both matched to the output.

    x+ = (1 - beta) x_old + beta x_pred,  x- = (1 + beta) x_old - beta x_pred,  loss = (r L(x+) + (1 - r) L(x-)) / beta.

    The paper writes it in velocities. At one (z, t) velocity, noise and clean output are affine functions of each other, and
    both mixtures have coefficients that add up to 1, so the mixtures are the same in x.

    Args:
        x_pred: [B, ...], of the policy that trains. x_old: [B, ...], of the behaviour policy, a constant. x0: [B, ...].
        r: [B] in [0, 1], see `optimality`. strength: beta, above 0.
        weighting: L, see `surrogate`; the authors' code has "adaptive".
    """
    same_shape(x_pred, "x_pred", x_old, "x_old")
    x_pred, x_old, r = at_least_float32(x_pred, x_old.detach(), r.detach())
    positive = (1 - strength) * x_old + strength * x_pred
    negative = (1 + strength) * x_old - strength * x_pred
    good, bad = (surrogate(x, x0, weighting, a_t, b_t) for x in (positive, negative))
    return (r * good + (1 - r) * bad) / strength


def matching_loss(x_pred: Tensor, x0: Tensor, t: Tensor, b_t: Tensor, power: float = 1.0) -> Tensor:
    """AWM's loss of an output [B] (arXiv 2509.25050), minus which stands for its log-likelihood.

    l = mean((x_pred - x0)^2) / b_t^2, the error in velocity; the loss is t l for power 1, and t (l^power - floor^power) / power
    below (the "generalised Huber" of the authors' code, power 0.25 there), which has the gradient t l^(power - 1) grad l.
    """
    square = surrogate(x_pred, x0, "v", torch.ones_like(b_t), b_t)
    level = per_output(t, "t", square)
    if power == 1:
        return level * square
    floor = torch.as_tensor(_ROOT_FLOOR, dtype=square.dtype, device=square.device)
    return level * ((square + floor) ** power - floor**power) / power


def velocity_matching_loss(x_pred: Tensor, x0: Tensor, advantages: Tensor, b_t: Tensor) -> Tensor:
    """RVM's loss [B] (arXiv 2608.23664, by the formula of its port in FastVideo): a velocity's way to a target held still.

    v* = stop_gradient(v - A (v - v0)), loss = mean((v - v*)^2) / 2, with v0 that of the output. The gradient is that of
    A mean((v - v0)^2) / 2, whose value would have no lower bound for A < 0. Errors in v are errors in x over b_t.

    Args:
        x_pred: [B, ...]. x0: [B, ...]. advantages: [B]. b_t: [B], above 0.
    """
    same_shape(x_pred, "x_pred", x0, "x0")
    x_pred, x0, advantages = at_least_float32(x_pred, x0, advantages.detach())
    now = x_pred.detach()
    target = now - per_output(advantages, "advantages", now) * (now - x0)
    return surrogate(x_pred, target, "v", torch.ones_like(b_t), b_t) / 2


def lagging_decay(steps: int, after: int, rate: float, most: float) -> float:
    """How much of the lagging copy stays when it follows the policy after `steps` gradient steps: a line from 0, bounded.

    DiffusionNFT's code: (after, rate, most) = (0, 0.001, 0.5), for OCR (75, 0.0075, 0.999); AWM's: (0, 0.001, 0.3).
    """
    return 0.0 if steps < after else min(most, rate * (steps - after))
