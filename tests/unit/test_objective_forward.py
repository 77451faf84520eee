from __future__ import annotations

import pytest
import torch

from trainer.objective import add_noise, contrast_loss, lagging_decay, matching_loss, optimality, surrogate


def tensors(count: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(3, 2, 4, 4, generator=generator, dtype=torch.float64) for _ in range(count)]


R = torch.tensor([0.0, 0.5, 0.9], dtype=torch.float64)


def test_optimality_maps_bounded_advantages_to_zero_and_one():
    advantages = torch.tensor([-7.0, -5.0, -2.5, 0.0, 1.0, 9.0])
    torch.testing.assert_close(optimality(advantages, 5.0), torch.tensor([0.0, 0.0, 0.25, 0.5, 0.6, 1.0]))


@pytest.mark.parametrize("strength", [1.0, 0.1])
def test_at_the_old_policy_the_contrast_pushes_by_two_r_minus_one(strength):
    """d loss = (2 r - 1) d L there, whatever beta: an output of average quality has no pull."""
    x_old, x0 = tensors(2)
    x = x_old.clone().requires_grad_()
    contrast_loss(x, x_old, x0, R, strength, "x").sum().backward()
    expected = (2 * R - 1).view(-1, 1, 1, 1) * 2 * (x_old - x0) / 32
    torch.testing.assert_close(x.grad, expected)


def test_the_contrast_s_best_prediction_goes_toward_good_outputs_and_away_from_bad():
    """Its minimum in x is x_old + (2 r - 1) / beta (x0 - x_old), arXiv 2509.16117's policy improvement."""
    x_old, x0 = tensors(2)
    best = (x_old + (2 * R - 1).view(-1, 1, 1, 1) / 0.5 * (x0 - x_old)).requires_grad_()
    contrast_loss(best, x_old, x0, R, 0.5, "x").sum().backward()
    assert float(best.grad.abs().max()) < 1e-12


def test_the_contrast_in_x_is_the_paper_s_in_velocities():
    x, x_old, x0, eps = tensors(4)
    t = torch.tensor([0.3, 0.6, 0.9], dtype=torch.float64)
    wide = t.view(-1, 1, 1, 1)
    z = add_noise(x0, eps, 1 - t, t)
    v, v_old, target = (z - x) / wide, (z - x_old) / wide, eps - x0
    beta = 0.3
    positive = ((1 - beta) * v_old + beta * v - target).square().flatten(1).mean(1)
    negative = ((1 + beta) * v_old - beta * v - target).square().flatten(1).mean(1)
    expected = (R * positive + (1 - R) * negative) / beta
    torch.testing.assert_close(contrast_loss(x, x_old, x0, R, beta, "v", 1 - t, t), expected)


def test_the_contrast_is_self_normalised_branch_by_branch():
    x, x_old, x0 = tensors(3)
    good, bad = surrogate(x, x0), surrogate(2 * x_old - x, x0)
    torch.testing.assert_close(contrast_loss(x, x_old, x0, R, 1.0), R * good + (1 - R) * bad)
    x_old.requires_grad_()
    x.requires_grad_()
    contrast_loss(x, x_old, x0, R, 1.0).sum().backward()
    assert x_old.grad is None and x.grad.abs().max() > 0


@pytest.mark.parametrize("power", [1.0, 0.25])
def test_matching_is_a_power_of_the_velocity_s_error(power):
    x, x0, eps = tensors(3)
    t = torch.tensor([0.3, 0.6, 0.9], dtype=torch.float64)
    z = add_noise(x0, eps, 1 - t, t)
    error = ((z - x) / t.view(-1, 1, 1, 1) - (eps - x0)).square().flatten(1).mean(1)
    loss = matching_loss(x.requires_grad_(), x0, t, t, power)
    torch.testing.assert_close(loss, t * error.pow(power) / power, rtol=1e-6, atol=0.02)
    loss.sum().backward()
    plain = x.detach().clone().requires_grad_()
    matching_loss(plain, x0, t, t, 1.0).sum().backward()
    expected = plain.grad * error.pow(power - 1).view(-1, 1, 1, 1)
    torch.testing.assert_close(x.grad, expected, rtol=1e-6, atol=1e-12)


def test_an_exact_prediction_has_a_finite_gradient():
    (x0,) = tensors(1)
    x = x0.clone().requires_grad_()
    loss = matching_loss(x, x0, torch.full((3,), 0.5).double(), torch.full((3,), 0.5).double(), 0.25)
    loss.sum().backward()
    assert not loss.any() and torch.isfinite(x.grad).all()


def test_the_lag_grows_from_nothing_to_its_bound():
    """The schedules of DiffusionNFT's code: types 1 and 2; and AWM's."""
    assert [lagging_decay(n, 0, 0.001, 0.5) for n in (0, 1, 100, 500, 9999)] == pytest.approx([0, 0.001, 0.1, 0.5, 0.5])
    assert [lagging_decay(n, 75, 0.0075, 0.999) for n in (0, 74, 75, 85, 500)] == pytest.approx([0, 0, 0, 0.075, 0.999])
    assert lagging_decay(1000, 0, 0.001, 0.3) == 0.3
