"""Ratio, clipped objective and KL of the policy step (arXiv 2604.23380, Algorithm 1)."""

from __future__ import annotations

from torch import Tensor

from ._tensors import at_least_float32, same_shape


def importance_ratio(loss: Tensor, loss_old: Tensor) -> Tensor:
    """rho [B] = exp(mean_j loss_old - mean_j loss): the mean over the J pairs first, then one exp per output.

    Args:
        loss: [B, J], surrogate of the policy that trains, with gradient.
        loss_old: [B, J], surrogate of theta_old on the same pairs, a constant here. theta_old stays frozen for the whole
            iteration: refreshed at each optimiser step it makes rho 1 for ever (flow_grpo#131).
    """
    same_shape(loss, "loss", loss_old, "loss_old", ndim=2)
    loss, loss_old = at_least_float32(loss, loss_old)
    # Subtracting before the mean is the same number, with less cancellation.
    return (loss_old.detach() - loss).mean(1).exp()


def on_policy_ratio(loss: Tensor) -> Tensor:
    """rho [B] of the first gradient step, from loss [B, J]: exactly 1, with gradient -grad mean_j loss.

    With one step per iteration theta is theta_old, so no forward pass of theta_old is needed.
    """
    return importance_ratio(loss, loss)


def policy_loss(ratio: Tensor, advantages: Tensor, clip_eps: float | None = None) -> Tensor:
    """The scalar to minimise: -mean(min(rho A, clip(rho, 1 - eps, 1 + eps) A)), or -mean(rho A) without `clip_eps`.

    Args:
        ratio: [B]. advantages: [B]. clip_eps: in (0, 1), or None.

    A micro-batch of b out of B outputs contributes b / B of its own loss to that of the whole.
    """
    same_shape(ratio, "ratio", advantages, "advantages", ndim=1)
    ratio, advantages = at_least_float32(ratio, advantages.detach())
    gain = ratio * advantages
    if clip_eps is not None:
        gain = gain.minimum(_clip(ratio, clip_eps) * advantages)
    return -gain.mean()


def clip_fraction(ratio: Tensor, advantages: Tensor, clip_eps: float | None) -> float:
    """Share of outputs whose gradient the clip takes away: rho above 1 + eps with A > 0, or under 1 - eps with A < 0."""
    same_shape(ratio, "ratio", advantages, "advantages", ndim=1)
    if clip_eps is None:
        return 0.0
    ratio, advantages = at_least_float32(ratio.detach(), advantages.detach())
    # The very comparison that the loss makes, so that both agree at the edge.
    return float((_clip(ratio, clip_eps) * advantages < ratio * advantages).float().mean())


def simple_kl(x_pred: Tensor, x_old: Tensor) -> Tensor:
    """Scalar mean of (x_pred - x_old)^2 over outputs and latent axes; both [B, ...], x_old a constant.

    The paper writes E||x_theta - x_theta_old||^2. Like the surrogate, this takes the mean over the latent's numbers, not their
    sum, so beta does not depend on the resolution.
    """
    same_shape(x_pred, "x_pred", x_old, "x_old")
    x_pred, x_old = at_least_float32(x_pred, x_old.detach())
    return (x_pred - x_old).square().mean()


def _clip(ratio: Tensor, clip_eps: float) -> Tensor:
    if not 0 < clip_eps < 1:
        raise ValueError(f"clip_eps is {clip_eps}; it must lie between 0 and 1 (typical: 6e-3 to 1e-2), or be None for no clip")
    return ratio.clamp(1 - clip_eps, 1 + clip_eps)
