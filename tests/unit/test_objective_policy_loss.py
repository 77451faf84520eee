"""Ratio, clip and KL: closed forms, gradients, and what the first step does."""

from __future__ import annotations

import pytest
import torch

from trainer.objective import clip_fraction, importance_ratio, on_policy_ratio, policy_loss, simple_kl, surrogate

EPS = 0.01


def normal(seed: int, *shape: int, dtype=torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_ratio_is_one_exp_of_the_mean_over_pairs():
    loss, loss_old = torch.tensor([[0.5, 1.5], [2.0, 0.0]]), torch.tensor([[1.5, 1.5], [0.0, 0.0]])
    ratio = importance_ratio(loss, loss_old)
    torch.testing.assert_close(ratio, torch.tensor([0.5, -1.0]).exp())
    exp_first = (loss_old - loss).exp().mean(1)
    assert ((exp_first - ratio).abs() > 0.1).all(), "the two orders must differ here, or this test shows nothing"


def test_ratio_gradient_matches_finite_differences_and_theta_old_is_a_constant():
    loss, loss_old = normal(1, 3, 4).requires_grad_(), normal(2, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: importance_ratio(x, loss_old.detach()), loss)
    importance_ratio(loss, loss_old).sum().backward()
    assert loss_old.grad is None and loss.grad is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_first_step_ratio_is_exactly_one_with_gradient_minus_the_losses(dtype):
    loss = (1e3 * normal(3, 5, 4)).to(dtype).requires_grad_()
    for ratio in (on_policy_ratio(loss), importance_ratio(loss, loss.detach())):
        assert ratio.dtype == torch.float32 and torch.equal(ratio.detach(), torch.ones(5))
        (gradient,) = torch.autograd.grad(ratio.sum(), loss)
        assert torch.equal(gradient, torch.full_like(gradient, -1 / 4))


def test_on_policy_gradient_matches_finite_differences_with_the_constant_held():
    loss = normal(4, 3, 2).requires_grad_()
    held = loss.detach().mean(1)
    assert torch.autograd.gradcheck(lambda x: (held - x.mean(1)).exp(), loss)
    analytic, expected = (
        torch.autograd.grad((normal(5, 3) * ratio).sum(), loss)[0]
        for ratio in (on_policy_ratio(loss), (held - loss.mean(1)).exp())
    )
    torch.testing.assert_close(analytic, expected)


@pytest.mark.parametrize("clip_eps", [None, EPS])
def test_first_step_lowers_the_error_of_good_outputs_and_raises_that_of_bad_ones(clip_eps):
    x0 = normal(6, 2, 8)
    x_pred = (x0 + 0.3 * normal(7, 2, 8)).requires_grad_()
    advantages = torch.tensor([1.0, -1.0], dtype=torch.float64)
    loss = surrogate(x_pred, x0)[:, None]
    policy_loss(on_policy_ratio(loss), advantages, clip_eps).backward()
    after = surrogate((x_pred - 0.01 * x_pred.grad).detach(), x0)
    assert after[0] < loss[0, 0] and after[1] > loss[1, 0]


def test_loss_closed_form_with_and_without_clip():
    ratio = torch.tensor([0.5, 0.5, 1.0, 1.5, 1.5])
    advantages = torch.tensor([2.0, -2.0, 3.0, 2.0, -2.0])
    torch.testing.assert_close(policy_loss(ratio, advantages), -torch.tensor([1.0, -1.0, 3.0, 3.0, -3.0]).mean())
    torch.testing.assert_close(policy_loss(ratio, advantages, 0.1), -torch.tensor([1.0, -1.8, 3.0, 2.2, -3.0]).mean())


def test_without_clip_the_loss_is_odd_in_the_advantage_with_clip_it_is_not():
    ratio, advantages = normal(8, 16).exp(), normal(9, 16)
    assert torch.equal(policy_loss(ratio, advantages), -policy_loss(ratio, -advantages))
    assert (policy_loss(ratio, advantages, EPS) + policy_loss(ratio, -advantages, EPS)).abs() > 0.01


@pytest.mark.parametrize("clip_eps", [None, 0.2])
def test_loss_gradient_matches_finite_differences(clip_eps):
    ratio = torch.tensor([0.5, 0.5, 0.9, 1.0, 1.1, 1.6, 1.6], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([1.5, -1.5, 0.7, -0.4, 2.0, 1.1, -1.1], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda r: policy_loss(r, advantages, clip_eps), ratio)


@pytest.mark.parametrize(
    ("ratio", "advantage", "clipped"),
    [
        (1 + 2 * EPS, 1.0, True),
        (1 + 2 * EPS, -1.0, False),
        (1 - 2 * EPS, 1.0, False),
        (1 - 2 * EPS, -1.0, True),
        (1 + EPS / 2, 1.0, False),
        (1 - EPS / 2, -1.0, False),
        (1.0, 1.0, False),
        (1.0, -1.0, False),
        (1 + 2 * EPS, 0.0, False),
    ],
)
def test_the_clip_takes_the_gradient_away_only_where_the_step_has_gone_far_enough(ratio, advantage, clipped):
    rho, advantages = torch.tensor([ratio], requires_grad=True), torch.tensor([advantage])
    policy_loss(rho, advantages, EPS).backward()
    assert rho.grad.item() == (0.0 if clipped else -advantage)
    assert clip_fraction(rho, advantages, EPS) == float(clipped)


def test_clip_fraction_counts_outputs_and_is_zero_without_clip():
    ratio, advantages = torch.tensor([1.5, 1.5, 0.5, 0.5]), torch.tensor([1.0, -1.0, 1.0, 0.0])
    assert clip_fraction(ratio, advantages, 0.1) == 0.25
    assert clip_fraction(ratio, advantages, None) == 0.0


def test_clip_fraction_is_the_share_of_lost_gradients_also_at_the_edge():
    edge = torch.tensor(1 + EPS)
    ratio = torch.stack([edge, edge.nextafter(torch.tensor(2.0)), edge.nextafter(torch.tensor(0.0))]).requires_grad_()
    advantages = torch.ones(3)
    policy_loss(ratio, advantages, EPS).backward()
    assert clip_fraction(ratio, advantages, EPS) == pytest.approx((ratio.grad == 0).float().mean().item())


@pytest.mark.parametrize("clip_eps", [None, EPS])
@pytest.mark.parametrize("sizes", [[12], [1] * 12, [5, 4, 3], [11, 1]])
def test_any_micro_batch_split_has_the_loss_and_gradient_of_the_whole(clip_eps, sizes):
    theta = normal(10, 6).requires_grad_()
    inputs, loss_old, advantages = normal(11, 12, 3, 6), normal(12, 12, 3), normal(13, 12)

    def part(rows: slice) -> torch.Tensor:
        return policy_loss(importance_ratio(0.1 * inputs[rows] @ theta, 0.1 * loss_old[rows]), advantages[rows], clip_eps)

    whole = part(slice(None))
    (expected,) = torch.autograd.grad(whole, theta)
    total, start = 0.0, 0
    for size in sizes:
        share = part(slice(start, start + size)) * (size / 12)
        share.backward()
        total, start = total + share.detach(), start + size
    torch.testing.assert_close(total, whole.detach())
    torch.testing.assert_close(theta.grad, expected)


def test_advantages_are_constants():
    advantages = torch.ones(3, requires_grad=True)
    policy_loss(torch.ones(3, requires_grad=True), advantages, EPS).backward()
    assert advantages.grad is None


def test_simple_kl_is_the_mean_square_with_a_constant_reference():
    x_pred, x_old = torch.tensor([[1.0, 3.0], [0.0, 0.0]], requires_grad=True), torch.zeros(2, 2, requires_grad=True)
    kl = simple_kl(x_pred, x_old)
    kl.backward()
    assert kl.item() == 2.5 and x_old.grad is None
    torch.testing.assert_close(x_pred.grad, x_pred.detach() / 2)
    assert simple_kl(x_pred.bfloat16(), x_old.bfloat16()).dtype == torch.float32


def test_simple_kl_gradient_matches_finite_differences():
    x_old = normal(14, 2, 3, 2)
    assert torch.autograd.gradcheck(lambda x: simple_kl(x, x_old), normal(15, 2, 3, 2).requires_grad_())


@pytest.mark.parametrize("clip_eps", [0.0, -0.1, 1.0, float("nan")])
def test_a_clip_that_cannot_be_meant_is_refused(clip_eps):
    with pytest.raises(ValueError, match="clip_eps is"):
        policy_loss(torch.ones(2), torch.ones(2), clip_eps)


def test_shapes_that_do_not_fit_are_refused_not_broadcast():
    with pytest.raises(ValueError, match="must agree"):
        policy_loss(torch.ones(3), torch.ones(3, 1))
    with pytest.raises(ValueError, match="must agree"):
        importance_ratio(torch.ones(3, 4), torch.ones(3))
    with pytest.raises(ValueError, match="2 are needed"):
        on_policy_ratio(torch.ones(3))
    with pytest.raises(ValueError, match="must agree"):
        simple_kl(torch.ones(3, 4), torch.ones(1, 4))
    with pytest.raises(ValueError, match="empty"):
        policy_loss(torch.ones(0), torch.ones(0))
