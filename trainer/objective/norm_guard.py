"""A hinge that holds the velocity's norm to the base's (NormGuard).

After the idea of arXiv 2606.27771: reinforcement learning makes |v_theta| grow above that of the base, which costs quality that
the reward does not see; a penalty that acts only above the base's norm stops it. The exact formula is ours: the excess is
relative, so that its weight depends neither on the latent's size nor on the noise level.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._tensors import at_least_float32, same_shape

_FLOOR = 1e-6  # latents have unit scale; a base that predicts no motion at all has no norm to divide by


def velocity_norm(velocity: Tensor) -> Tensor:
    """Root mean square [B] of a velocity [B, ...]."""
    (velocity,) = at_least_float32(velocity)
    flat = velocity.flatten(1)
    return torch.linalg.vector_norm(flat, dim=1) / flat.shape[1] ** 0.5  # its gradient at 0 is 0, a root's is not finite


def norm_excess(velocity: Tensor, base_norm: Tensor, margin: float = 0.0) -> Tensor:
    """max(0, |v| / |v_base| - 1 - margin) [B].

    Args:
        velocity: [B, ...], of the policy that trains.
        base_norm: [B], `velocity_norm` of the base at the same noised outputs, a constant.
        margin: share of the base's norm that may be added freely, 0 or more.

    Raises: ValueError for a margin under 0 or shapes that do not fit.
    """
    if not margin >= 0:
        raise ValueError(f"margin is {margin}; it must be 0 or more")
    norm = velocity_norm(velocity)
    same_shape(norm, "the norm of velocity", base_norm, "base_norm")
    return (norm / base_norm.detach().to(norm).clamp_min(_FLOOR) - 1 - margin).clamp_min(0)
