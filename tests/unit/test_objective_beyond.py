"""The options beyond the paper as pure functions: timestep weights, the norm guard, simplex projection, velocity matching."""

from __future__ import annotations

import math

import pytest
import torch

from trainer.objective import (
    clean_from_velocity,
    group_advantages,
    is_uniform,
    lean_at,
    noise_share,
    norm_excess,
    scored,
    simplex_advantages,
    surrogate,
    timestep_weights,
    velocity_from_clean,
    velocity_matching_loss,
    velocity_norm,
)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slope(function, x: torch.Tensor, direction: torch.Tensor, step: float = 1e-6) -> float:
    """The central difference of a scalar function along a direction."""
    return float((function(x + step * direction) - function(x - step * direction)) / (2 * step))


# Timestep weights


def test_the_noise_share_is_the_flow_s_time_and_its_equal_in_signal_to_noise_elsewhere():
    t = torch.linspace(0, 1, 5, dtype=torch.float64)
    torch.testing.assert_close(noise_share(1 - t, t), t)
    angle = t[:-1] * math.pi / 2
    share = noise_share(angle.cos(), angle.sin())  # a^2 + b^2 = 1
    torch.testing.assert_close(share / (1 - share), angle.tan())


@pytest.mark.parametrize("lean", [-10.0, -1.5, 0.0, 1.5, 10.0])
def test_weights_are_the_tilt_with_mean_one_on_the_grid(lean):
    grid = torch.tensor([[1.0, 0.75, 0.5, 0.25], [0.9, 0.6, 0.3, 0.1]], dtype=torch.float64)
    weights = timestep_weights(grid, grid, lean)
    expected = (lean * grid).exp()
    torch.testing.assert_close(weights, expected / expected.mean(1, keepdim=True))
    drawn = timestep_weights(grid[:, [1, 3]], grid, lean)  # by the grid's mean, not the draw's
    assert torch.equal(drawn, weights[:, [1, 3]])


def test_no_lean_weighs_all_levels_by_one():
    grid = torch.rand(3, 7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(timestep_weights(grid, grid, 0.0), torch.ones(3, 7))
    assert is_uniform(0.0, None) and is_uniform(0.0, 0.0)
    assert not is_uniform(1.0, 0.0) and not is_uniform(0.0, 1.0) and not is_uniform(-1.0, None)


def test_the_lean_goes_from_start_to_end():
    assert [lean_at(2, -2, "linear", n, 5) for n in range(5)] == [2, 1, 0, -1, -2]
    cosine = [lean_at(2, -2, "cosine", n, 5) for n in range(5)]
    assert cosine == pytest.approx([2, math.sqrt(2), 0, -math.sqrt(2), -2])
    assert lean_at(2, None, "linear", 3, 5) == 2
    assert lean_at(2, -2, "linear", 0, 1) == 2 and lean_at(2, -2, "linear", 9, 5) == -2


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: timestep_weights(torch.ones(2, 3), torch.ones(3, 3), 1.0), "all but the last must agree"),
        (lambda: timestep_weights(torch.ones(3), torch.ones(3), math.nan), "must be a finite number"),
        (lambda: lean_at(1, 2, "step", 0, 2), "allowed: linear, cosine"),
    ],
)
def test_weights_that_cannot_be_meant(call, said):
    with pytest.raises(ValueError, match=said):
        call()


# The norm guard


def test_the_excess_is_the_norm_s_growth_above_the_margin():
    velocity = torch.tensor([[3.0, 4.0], [3.0, 4.0], [3.0, 4.0]])
    torch.testing.assert_close(velocity_norm(velocity), torch.full((3,), math.sqrt(12.5)))
    base = velocity_norm(velocity) * torch.tensor([1.0, 0.5, 2.0])
    torch.testing.assert_close(norm_excess(velocity, base), torch.tensor([0.0, 1.0, 0.0]))
    torch.testing.assert_close(norm_excess(velocity, base, 0.25), torch.tensor([0.0, 0.75, 0.0]))


def test_the_excess_does_not_depend_on_size_or_scale():
    small, large = normal(2, 3), normal(2, 3).repeat(1, 4)
    torch.testing.assert_close(velocity_norm(small), velocity_norm(large))
    base = torch.tensor([0.2, 0.3], dtype=torch.float64)
    torch.testing.assert_close(norm_excess(small, base), norm_excess(10 * small, 10 * base))


def test_the_gradient_of_the_excess_is_along_the_velocity_and_only_above_the_base():
    velocity = normal(2, 4).requires_grad_()
    base = velocity_norm(velocity.detach()) * torch.tensor([0.5, 2.0], dtype=torch.float64)
    norm_excess(velocity, base).sum().backward()
    assert not velocity.grad[1].any()
    direction = normal(2, 4, seed=1)
    expected = slope(lambda v: norm_excess(v, base).sum(), velocity.detach(), direction)
    assert float((velocity.grad * direction).sum()) == pytest.approx(expected, rel=1e-6)
    along = torch.nn.functional.cosine_similarity(velocity.grad[0], velocity.detach()[0], dim=0)
    assert float(along) == pytest.approx(1)


def test_a_velocity_of_zero_has_a_finite_gradient():
    velocity = torch.zeros(1, 4, requires_grad=True)
    norm_excess(velocity, torch.zeros(1)).sum().backward()
    assert torch.isfinite(velocity.grad).all()


def test_a_margin_under_zero_is_refused():
    with pytest.raises(ValueError, match="it must be 0 or more"):
        norm_excess(torch.ones(1, 2), torch.ones(1), -0.1)


def test_the_velocity_is_the_inverse_of_the_clean_prediction():
    z, v = normal(2, 3, 4), normal(2, 3, 4, seed=1)
    t = torch.tensor([0.2, 0.9], dtype=torch.float64)
    torch.testing.assert_close(velocity_from_clean(z, clean_from_velocity(z, v, t), t), v)
    with pytest.raises(ValueError, match="t is 0"):
        velocity_from_clean(z, v, torch.zeros(2))


# Simplex projection


def test_projection_by_hand():
    """A = (-2, 0, 2), lambda 1: weights (1 + A) / 3 = (-1, 1, 3) / 3 project to (0, 1/2, 5/2) / 3."""
    found = simplex_advantages(torch.tensor([-2.0, 0.0, 2.0]), [0, 0, 0], 1.0)
    torch.testing.assert_close(found, torch.tensor([-1.0, -0.5, 1.5]))


@pytest.mark.parametrize("bound", [0.1, 0.7, 1.0, 2.5])
def test_the_projection_is_the_nearest_point_of_the_simplex(bound):
    """By its optimality: weights sum to 1, none is negative, and those above 0 have all been shifted alike, others by less."""
    rewards, ids = torch.rand(24, generator=torch.Generator().manual_seed(1)).double(), torch.arange(24) % 3
    before = group_advantages(rewards, ids)
    after = simplex_advantages(before, ids, bound)
    for group in range(3):
        old, new = before[ids == group], after[ids == group]
        weights = (1 + new / bound) / 8
        assert float(weights.sum()) == pytest.approx(1) and float(weights.min()) > -1e-12
        shift = (old - new)[weights > 1e-9]
        torch.testing.assert_close(shift, shift[:1].expand(len(shift)))
        assert bool(((old - new)[weights <= 1e-9] <= shift[0] + 1e-9).all())
        assert float(new.mean()) == pytest.approx(0, abs=1e-12)
        assert bool((new[:, None] >= new[None] - 1e-12)[old[:, None] >= old[None]].all())  # the order stays


def test_where_no_weight_would_be_negative_nothing_changes():
    advantages = torch.tensor([-0.9, 0.2, 0.7, 0.0, 0.0, 0.0])
    assert torch.equal(simplex_advantages(advantages, [0, 0, 0, 1, 1, 1], 1.0), advantages)
    assert simplex_advantages(advantages, [0] * 6, None) is advantages


def test_outputs_without_a_score_are_in_no_group():
    advantages = torch.tensor([-2.0, 0.0, 0.0, 2.0])
    counted = torch.tensor([True, False, True, True])
    found = simplex_advantages(advantages, [0, 0, 0, 0], 1.0, counted)
    torch.testing.assert_close(found, torch.tensor([-1.0, 0.0, -0.5, 1.5]))


def test_only_rewards_that_count_decide_who_was_scored():
    rewards = {"a": torch.tensor([1.0, math.nan, 0.0]), "b": torch.tensor([math.inf, 0.0, 0.0])}
    assert scored(rewards, {"a": 1.0, "b": -1.0}).tolist() == [False, False, True]
    assert scored(rewards, {"a": 1.0, "b": 0.0}).tolist() == [True, False, True]


@pytest.mark.parametrize("bound", [0.0, -1.0, math.inf, math.nan])
def test_a_bound_that_cannot_be_meant(bound):
    with pytest.raises(ValueError, match="a finite number above 0, or None"):
        simplex_advantages(torch.zeros(2), [0, 0], bound)


# Velocity matching


def test_velocity_matching_has_the_gradient_of_the_signed_error_and_a_value_above_zero():
    x0, b, advantages = normal(3, 2, 4), torch.tensor([0.2, 0.5, 0.9]).double(), torch.tensor([-2.0, 0.5, 0.0]).double()
    first, second = (normal(3, 2, 4, seed=1).requires_grad_() for _ in range(2))
    loss = velocity_matching_loss(first, x0, advantages, b)
    error = surrogate(second, x0, "v", torch.ones_like(b), b)
    torch.testing.assert_close(loss, advantages.square() * error / 2)
    loss.sum().backward()
    (advantages * error / 2).sum().backward()
    torch.testing.assert_close(first.grad, second.grad)
    assert float(first.grad[0].abs().max()) > 0 and not first.grad[2].any()


def test_velocity_matching_holds_its_target_still():
    """The finite difference with the target frozen at x."""
    x0, b, advantages = normal(3, 4), torch.tensor([0.2, 0.5, 0.9]).double(), torch.tensor([-2.0, 0.5, 1.0]).double()
    x, direction = normal(3, 4, seed=1), normal(3, 4, seed=2)
    target = x - advantages[:, None] * (x - x0)
    leaf = x.clone().requires_grad_()
    velocity_matching_loss(leaf, x0, advantages, b).sum().backward()
    expected = slope(lambda p: (((p - target) / b[:, None]).square().mean(1) / 2).sum(), x, direction)
    assert float((leaf.grad * direction).sum()) == pytest.approx(expected, rel=1e-6)
