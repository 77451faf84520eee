from __future__ import annotations

import math

import pytest
import torch

from trainer.objective import ddim_step, flow_noise, flow_sde_step, gaussian_log_prob, ode_step


def batch(seed: int = 0, outputs: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(outputs, 2, 4, 4, generator=generator, dtype=torch.float64) for _ in range(2))


T, NEXT = torch.tensor([0.9, 0.5, 0.2], dtype=torch.float64), torch.tensor([0.7, 0.45, 0.1], dtype=torch.float64)


def wide(values: torch.Tensor) -> torch.Tensor:
    return values.view(-1, 1, 1, 1)


def test_the_flow_s_sde_is_flow_grpo_s_formula():
    """x + [v + sigma^2 / (2 t) (x + (1 - t) v)] dt + sigma sqrt(-dt) eps, arXiv 2505.05470."""
    z, x_hat = batch()
    sigma = flow_noise(T, NEXT, 0.7)
    torch.testing.assert_close(sigma, 0.7 * (T / (1 - T)).sqrt())
    mean, std = flow_sde_step(z, x_hat, T, NEXT, sigma)
    v, t, dt, s = (z - x_hat) / wide(T), wide(T), wide(NEXT - T), wide(sigma)
    torch.testing.assert_close(mean, z + (v + s**2 / (2 * t) * (z + (1 - t) * v)) * dt)
    torch.testing.assert_close(std, sigma * (T - NEXT).sqrt())


def test_the_flow_s_sde_without_noise_is_euler():
    z, x_hat = batch()
    mean, std = flow_sde_step(z, x_hat, T, NEXT, 0.0)
    torch.testing.assert_close(mean, z + (z - x_hat) / wide(T) * wide(NEXT - T))
    assert not std.any()
    for i in range(3):
        t, after = float(T[i]), float(NEXT[i])
        torch.testing.assert_close(ode_step(z[i : i + 1], x_hat[i : i + 1], 1 - t, t, 1 - after, after), mean[i : i + 1])


@pytest.mark.parametrize("constant", [True, False])
def test_the_flow_s_sde_keeps_the_flow_s_marginals(constant):
    """Of data that is one point, 0, the flow has z_t ~ N(0, t^2), and x_hat = 0: after a small step the variance is t'^2."""
    t, dt = torch.tensor([0.6], dtype=torch.float64), 1e-5
    after = t - dt
    noise = torch.tensor([0.3], dtype=torch.float64) if constant else flow_noise(t, after, 0.7)
    one = torch.ones(1, 1, dtype=torch.float64)
    mean, std = flow_sde_step(one, torch.zeros_like(one), t, after, noise)
    variance = float(mean) ** 2 * float(t) ** 2 + float(std) ** 2
    assert variance - float(after) ** 2 == pytest.approx(0, abs=10 * dt**2)
    assert abs(variance - float(t) ** 2) > dt / 2  # a change of the first order, which the line above would have seen


def test_the_noise_is_finite_at_pure_noise():
    first = flow_noise(torch.ones(1), torch.tensor([0.75]), 0.7)
    assert float(first) == pytest.approx(0.7 * math.sqrt(1 / 0.25))
    nearly = flow_noise(torch.tensor([1 - 1e-6]), torch.tensor([0.75]), 0.7)
    assert float(nearly) == pytest.approx(float(first), rel=1e-5)
    with pytest.raises(ValueError, match="t = 1"):
        flow_noise(torch.ones(1), torch.ones(1), 0.7)


def test_ddim_with_eta_one_is_ddpm_s_posterior():
    """q(x_{t-1} | x_t, x_0) of arXiv 2006.11239, equations 6 and 7."""
    z, x_hat = batch()
    signal, signal_next = torch.tensor([0.1, 0.4, 0.8]).double(), torch.tensor([0.3, 0.5, 0.9]).double()
    mean, std = ddim_step(z, x_hat, signal.sqrt(), (1 - signal).sqrt(), signal_next.sqrt(), (1 - signal_next).sqrt(), 1.0)
    alpha = signal / signal_next
    beta = 1 - alpha
    from_x0 = signal_next.sqrt() * beta / (1 - signal)
    from_z = alpha.sqrt() * (1 - signal_next) / (1 - signal)
    torch.testing.assert_close(mean, wide(from_x0) * x_hat + wide(from_z) * z)
    torch.testing.assert_close(std.square(), (1 - signal_next) / (1 - signal) * beta)


def test_ddim_without_noise_is_the_ode_s_step():
    z, x_hat = batch()
    a, b, a_next, b_next = 0.6, 0.8, 0.8, 0.6
    mean, std = ddim_step(z, x_hat, *(torch.full((3,), v).double() for v in (a, b, a_next, b_next)), 0.0)
    torch.testing.assert_close(mean, ode_step(z, x_hat, a, b, a_next, b_next))
    assert not std.any()


def test_the_second_order_step_is_exact_where_the_first_is_not():
    """x_hat linear in lambda = log(a / b): the exponential integral of DPM-Solver++ has a closed form, and order two comes
    closer to it than order one as the step shrinks (by its order)."""
    errors = {1: [], 2: []}
    for h in (0.1, 0.05):
        lambdas = [0.3 - h, 0.3, 0.3 + h]
        (a0, b0), (a1, b1), (a2, b2) = [(1 / (1 + math.exp(-v)), 1 / (1 + math.exp(v))) for v in lambdas]
        z = torch.full((1, 1), 0.7, dtype=torch.float64)
        x = [torch.full((1, 1), 2.0 * v, dtype=torch.float64) for v in lambdas]
        # z' = b'/b z + b' int e^l x(l) dl with x = 2 l, whose antiderivative is 2 e^l (l - 1).
        area = 2 * (math.exp(lambdas[2]) * (lambdas[2] - 1) - math.exp(lambdas[1]) * (lambdas[1] - 1))
        exact = b2 / b1 * float(z) + b2 * area
        errors[1].append(abs(float(ode_step(z, x[1], a1, b1, a2, b2)) - exact))
        errors[2].append(abs(float(ode_step(z, x[1], a1, b1, a2, b2, (x[0], a0, b0))) - exact))
    assert errors[1][0] / errors[1][1] == pytest.approx(4, rel=0.2)
    assert errors[2][0] / errors[2][1] == pytest.approx(8, rel=0.2)
    assert errors[2][0] < errors[1][0] / 5


def test_second_order_from_pure_noise_and_to_the_end_is_first_order():
    z, x_hat = batch()
    earlier = x_hat + 1
    after_noise = ode_step(z, x_hat, 0.2, 0.8, 0.4, 0.6, (earlier, 0.0, 1.0))
    torch.testing.assert_close(after_noise, ode_step(z, x_hat, 0.2, 0.8, 0.4, 0.6))
    torch.testing.assert_close(ode_step(z, x_hat, 0.4, 0.6, 1.0, 0.0, (earlier, 0.2, 0.8)), x_hat)


def test_log_probability_is_the_normal_s_mean_over_the_latent():
    value, mean = batch()
    std = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64)
    expected = torch.distributions.Normal(mean, wide(std)).log_prob(value).flatten(1).mean(1)
    torch.testing.assert_close(gaussian_log_prob(value, mean, std), expected)
    mean.requires_grad_()
    value.requires_grad_()
    gaussian_log_prob(value, mean, std).sum().backward()
    torch.testing.assert_close(mean.grad, ((value - mean) / wide(std) ** 2 / 32).detach())
    assert value.grad is None
    with pytest.raises(ValueError, match="without noise"):
        gaussian_log_prob(value, mean, torch.zeros(3))


def test_half_precision_is_computed_in_float32():
    z, x_hat = (x.to(torch.bfloat16) for x in batch())
    mean, std = flow_sde_step(z, x_hat, T.float(), NEXT.float(), 0.3)
    assert mean.dtype == std.dtype == torch.float32
    assert gaussian_log_prob(z, mean, std).dtype == torch.float32
