"""Sampling steps as Gaussian transitions, whose log-probability trajectory methods train on.

z_t = a_t x + b_t eps. A step goes from level t to a lower one, given the predicted clean output x_hat at t. All functions take
and give at least float32; levels and coefficients are one number or one per output [B].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._tensors import at_least_float32, nonzero, per_output, same_shape

_PURE_NOISE = 1 - 1e-3  # from this level on Flow-GRPO's noise, which grows without bound at 1, is that of the next level


def flow_noise(t: Tensor, t_next: Tensor, scale: float) -> Tensor:
    """sigma_t = a sqrt(t / (1 - t)) of Flow-GRPO (arXiv 2505.05470); a is `scale`, t and t_next [B] in [0, 1].

    At t = 1, where it is infinite, 1 - t_next stands in for 1 - t, as in the authors' code.
    """
    t, t_next = at_least_float32(t, t_next)
    signal = 1 - torch.where(t > _PURE_NOISE, t_next, t)
    return scale * (t / nonzero(signal, "1 - t_next", "the first step of a flow must end below t = 1")).sqrt()


def flow_sde_step(z: Tensor, x_hat: Tensor, t: Tensor, t_next: Tensor, noise: float | Tensor) -> tuple[Tensor, Tensor]:
    """Euler-Maruyama on the SDE that has the rectified flow's own marginals: z = (1 - t) x + t eps, t falls to t_next.

    dz = (v - g^2/2 score) dt + g dw with v = (z - x_hat) / t and score = -(z - (1 - t) x_hat) / t^2. g is `noise`: Flow-GRPO's
    and MixGRPO's sigma_t (arXiv 2505.05470, 2507.21802; see `flow_noise`), or DanceGRPO's constant (arXiv 2505.07818).

    Returns: (mean [B, ...], std [B]) of the state at t_next.
    """
    same_shape(z, "z", x_hat, "x_hat")
    z, x_hat, t, t_next = at_least_float32(z, x_hat, t, t_next)
    g = torch.as_tensor(noise, dtype=z.dtype, device=z.device).expand(len(z))
    dt = t_next - t
    level, step, square = per_output(t, "t", z), per_output(dt, "t_next - t", z), per_output(g.square(), "noise", z)
    velocity = (z - x_hat) / level
    score = -(z - (1 - level) * x_hat) / level.square()
    return z + (velocity - square / 2 * score) * step, g * (-dt).sqrt()


def ddim_step(
    z: Tensor, x_hat: Tensor, a: Tensor, b: Tensor, a_next: Tensor, b_next: Tensor, eta: float
) -> tuple[Tensor, Tensor]:
    """DDIM's step with noise (arXiv 2010.02502, equations 12 and 16), which DanceGRPO trains diffusion models on.

    std = eta (b'/b) sqrt(1 - a^2/a'^2); eta 1 is DDPM's own posterior. Made for a^2 + b^2 = 1.

    Returns: (mean [B, ...], std [B]) of the state at the next level.
    """
    same_shape(z, "z", x_hat, "x_hat")
    z, x_hat, a, b, a_next, b_next = at_least_float32(z, x_hat, a, b, a_next, b_next)
    std = eta * (b_next / b) * (1 - (a / a_next).square()).clamp_min(0).sqrt()
    toward = per_output((b_next.square() - std.square()).clamp_min(0).sqrt(), "b_next", z)
    eps = (z - per_output(a, "a", z) * x_hat) / per_output(b, "b", z)
    return per_output(a_next, "a_next", z) * x_hat + toward * eps, std


def ode_step(
    z: Tensor,
    x_hat: Tensor,
    a: float,
    b: float,
    a_next: float,
    b_next: float,
    before: tuple[Tensor, float, float] | None = None,
) -> Tensor:
    """The state [B, ...] at the next level by the probability-flow ODE, in the data prediction's exponential form.

    Without `before` first order, which is DDIM, and Euler's step on a rectified flow. `before` = (x_hat, a, b) of the step
    before makes it DPM-Solver++(2M) (arXiv 2211.01095, algorithm 2). a, b, a_next, b_next: one number each.
    """
    same_shape(z, "z", x_hat, "x_hat")
    z, x_hat = at_least_float32(z, x_hat)
    if before is not None and b_next > 0:
        earlier, a_before, b_before = before
        # lambda = log(a / b); it is minus infinity at pure noise, and the correction is 0 then.
        ratio = (_log_snr(a_next, b_next) - _log_snr(a, b)) / (_log_snr(a, b) - _log_snr(a_before, b_before))
        x_hat = x_hat + ratio / 2 * (x_hat - earlier)
    return b_next / b * z + (a_next - a * b_next / b) * x_hat


def gaussian_log_prob(value: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """log N(value; mean, std^2) [B], the mean over the latent's numbers, not their sum (so in all three methods' code).

    value, mean: [B, ...]; std: [B], above 0. The value is a constant: no gradient goes into it.
    """
    same_shape(value, "value", mean, "mean")
    value, mean, std = at_least_float32(value.detach(), mean, std)
    spread = per_output(nonzero(std, "std", "a step without noise has no density"), "std", mean)
    return (-((value - mean) / spread).square() / 2).flatten(1).mean(1) - std.log() - math.log(2 * math.pi) / 2


def _log_snr(a: float, b: float) -> float:
    return math.log(a / b) if a > 0 else -math.inf
