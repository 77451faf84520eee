"""The surrogate's weightings and the predictions it is fed with: closed forms and gradients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trainer.objective import add_noise, clean_from_eps, clean_from_v_prediction, clean_from_velocity, surrogate

B, LATENT = 3, (2, 3, 3)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (B, *LATENT)), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def finite_difference(function, x: torch.Tensor, step: float = 1e-6) -> torch.Tensor:
    """Central differences of a scalar function of x."""
    gradient = torch.zeros_like(x)
    for place in range(x.numel()):
        shift = torch.zeros_like(x).flatten()
        shift[place] = step
        shift = shift.reshape(x.shape)
        gradient.view(-1)[place] = (function(x + shift) - function(x - shift)) / (2 * step)
    return gradient


def gradient_of(function, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(x), x)
    return gradient


def test_closed_forms_by_hand():
    x_pred, x0 = torch.tensor([[1.0, -3.0], [0.5, 0.5]]), torch.zeros(2, 2)
    torch.testing.assert_close(surrogate(x_pred, x0), torch.tensor([5.0 / 2.0, 0.25 / 0.5]))
    torch.testing.assert_close(surrogate(x_pred, x0, "x"), torch.tensor([5.0, 0.25]))
    torch.testing.assert_close(surrogate(x_pred, x0, "v", a_t=0.6, b_t=0.5), torch.tensor([20.0, 1.0]))
    torch.testing.assert_close(surrogate(x_pred, x0, "eps", a_t=0.5, b_t=0.25), torch.tensor([20.0, 1.0]))


@pytest.mark.parametrize("t", [0.04, 0.5, 0.97])
def test_v_and_eps_weightings_are_the_errors_in_those_spaces_for_rectified_flow(t):
    x0, eps, error = normal(1), normal(2), normal(3)
    z = add_noise(x0, eps, 1 - t, t)
    velocity = (eps - x0) + error
    x_pred = clean_from_velocity(z, velocity, t)
    torch.testing.assert_close(surrogate(x_pred, x0, "v", 1 - t, t), error.square().flatten(1).mean(1))
    eps_implied = (z - (1 - t) * x_pred) / t
    torch.testing.assert_close(surrogate(x_pred, x0, "eps", 1 - t, t), (eps_implied - eps).square().flatten(1).mean(1))


@pytest.mark.parametrize("angle", [0.1, 0.8, 1.4])
def test_v_and_eps_weightings_are_the_errors_in_those_spaces_for_variance_preserving_noise(angle):
    a, b = torch.tensor(angle, dtype=torch.float64).cos(), torch.tensor(angle, dtype=torch.float64).sin()
    x0, eps, error = normal(1), normal(2), normal(3)
    z = add_noise(x0, eps, a, b)
    mean_error = error.square().flatten(1).mean(1)
    from_v = clean_from_v_prediction(z, a * eps - b * x0 + error, a, b)
    torch.testing.assert_close(surrogate(from_v, x0, "v", a, b), mean_error)
    from_eps = clean_from_eps(z, eps + error, a, b)
    torch.testing.assert_close(surrogate(from_eps, x0, "eps", a, b), mean_error)


def test_a_perfect_prediction_returns_the_output_in_every_parametrisation():
    x0, eps = normal(1), normal(2)
    t = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)  # one per output
    torch.testing.assert_close(clean_from_velocity(add_noise(x0, eps, 1 - t, t), eps - x0, t), x0)
    a, b = t.cos(), t.sin()
    z = add_noise(x0, eps, a, b)
    torch.testing.assert_close(clean_from_eps(z, eps, a, b), x0)
    wide = (-1, 1, 1, 1)
    torch.testing.assert_close(clean_from_v_prediction(z, a.reshape(wide) * eps - b.reshape(wide) * x0, a, b), x0)


def test_coefficients_per_output_equal_one_call_per_output():
    x_pred, x0 = normal(4), normal(5)
    a, b = torch.tensor([0.9, 0.5, 0.2]), torch.tensor([0.1, 0.5, 0.8])
    for weighting in ("v", "eps"):
        whole = surrogate(x_pred, x0, weighting, a, b)
        rows = [surrogate(x_pred[i : i + 1], x0[i : i + 1], weighting, a[i], b[i]) for i in range(B)]
        torch.testing.assert_close(whole, torch.cat(rows))


@pytest.mark.parametrize("weighting", ["x", "v", "eps"])
def test_gradient_matches_finite_differences(weighting):
    x0, x_pred, weight = normal(5), normal(6), normal(7, B)

    def total(x):
        return (weight * surrogate(x, x0, weighting, a_t=torch.tensor([0.3, 0.6, 0.9]), b_t=0.4)).sum()

    torch.testing.assert_close(gradient_of(total, x_pred), finite_difference(total, x_pred), rtol=1e-7, atol=1e-7)


def test_adaptive_gradient_matches_finite_differences_with_the_denominator_held():
    x0, x_pred, weight = normal(5), normal(6), normal(7, B)
    held = (x_pred - x0).abs().flatten(1).mean(1)

    def frozen(x):
        return (weight * (x - x0).square().flatten(1).mean(1) / held).sum()

    def total(x):
        return (weight * surrogate(x, x0)).sum()

    torch.testing.assert_close(total(x_pred), frozen(x_pred))
    analytic = gradient_of(total, x_pred)
    torch.testing.assert_close(analytic, finite_difference(frozen, x_pred), rtol=1e-7, atol=1e-7)
    # The test can fail: without holding the denominator the differences are other numbers.
    assert (analytic - finite_difference(total, x_pred)).abs().max() > 0.05 * analytic.abs().max()


def test_adaptive_value_moves_half_as_fast_as_its_gradient_says():
    x0, error = normal(5), normal(6)
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    loss = surrogate(x0 + scale * error, x0).sum()
    (slope,) = torch.autograd.grad(loss, scale)
    torch.testing.assert_close(surrogate(x0 + 1.01 * error, x0).sum() - loss.detach(), 0.01 * slope / 2)


def test_adaptive_size_is_about_a_quarter_above_the_error_for_normal_errors():
    error = torch.randn(4, 20_000, generator=torch.Generator().manual_seed(0))
    loss = surrogate(0.2 * error, torch.zeros_like(error))
    torch.testing.assert_close(loss, torch.full((4,), 0.2 * (torch.pi / 2) ** 0.5), rtol=0.03, atol=0)


@pytest.mark.parametrize("weighting", ["adaptive", "x", "v", "eps"])
def test_an_exact_prediction_costs_zero_with_zero_gradient(weighting):
    x0 = torch.randn(B, *LATENT)
    x_pred = x0.clone().requires_grad_()
    loss = surrogate(x_pred, x0, weighting, 0.5, 0.5)
    loss.sum().backward()
    assert torch.equal(loss.detach(), torch.zeros(B)) and torch.equal(x_pred.grad, torch.zeros_like(x0))


def test_adaptive_does_not_inflate_a_rounding_residue():
    x_pred = torch.full((1, 4), 1e-8, requires_grad=True)
    surrogate(x_pred, torch.zeros(1, 4)).sum().backward()
    assert x_pred.grad.abs().max() < 0.01  # an error of 0.1 has 0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weighting", ["adaptive", "x", "v", "eps"])
def test_half_precision_inputs_are_computed_in_float32(dtype, weighting):
    x_pred, x0 = normal(1, 2, 4096).to(dtype), normal(2, 2, 4096).to(dtype)
    loss = surrogate(x_pred, x0, weighting, 0.6, 0.4)
    assert loss.dtype == torch.float32
    exact = surrogate(x_pred.double(), x0.double(), weighting, 0.6, 0.4)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=0)


def test_half_precision_predictions_are_computed_in_float32():
    z, v = normal(1).bfloat16(), normal(2).bfloat16()
    for function, coefficients in (
        (clean_from_velocity, (0.3,)),
        (clean_from_eps, (0.7, 0.3)),
        (clean_from_v_prediction, (0.7, 0.3)),
    ):
        result = function(z, v, *coefficients)
        assert result.dtype == torch.float32
        torch.testing.assert_close(result.double(), function(z.double(), v.double(), *coefficients), rtol=1e-5, atol=1e-6)
    assert add_noise(z, v, 0.7, 0.3).dtype == torch.float32


@pytest.mark.parametrize("function", [add_noise, clean_from_eps, clean_from_v_prediction])
def test_prediction_gradients_match_finite_differences(function):
    z, v, weight = normal(1), normal(2), normal(3)
    a, b = torch.tensor([0.9, 0.5, 0.3], dtype=torch.float64), torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)

    def total(prediction):
        return (weight * function(z, prediction, a, b)).sum()

    torch.testing.assert_close(gradient_of(total, v), finite_difference(total, v), rtol=1e-6, atol=1e-8)


def test_velocity_prediction_gradient_is_minus_t():
    t = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
    gradient = gradient_of(lambda v: clean_from_velocity(normal(1), v, t).sum(), normal(2))
    torch.testing.assert_close(gradient, -t.reshape(-1, 1, 1, 1).expand(B, *LATENT))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weighting": "snr"}, "adaptive, x, v, eps"),
        ({"weighting": "v"}, "a_t and b_t"),
        ({"weighting": "v", "a_t": 0.5}, "needs b_t"),
        ({"weighting": "eps", "b_t": 0.5}, "needs a_t"),
        ({"weighting": "v", "a_t": 1.0, "b_t": 0.0}, "b_t is 0"),
        ({"weighting": "eps", "a_t": torch.ones(2), "b_t": 0.5}, "a_t has shape"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        surrogate(normal(1), normal(2), **arguments)


def test_shapes_that_do_not_fit_are_refused_not_broadcast():
    with pytest.raises(ValueError, match="must agree"):
        surrogate(normal(1), normal(2)[:1])
    with pytest.raises(ValueError, match="at least one axis"):
        surrogate(torch.ones(3), torch.ones(3))
    with pytest.raises(ValueError, match="must agree"):
        clean_from_velocity(normal(1), normal(2)[:, :1], 0.5)
    with pytest.raises(ValueError, match="t has shape"):
        clean_from_velocity(normal(1), normal(2), torch.ones(2))
    with pytest.raises(ValueError, match="a is 0"):
        clean_from_eps(normal(1), normal(2), 0.0, 1.0)


def test_importing_the_objective_loads_no_model_library():
    libraries = ("diffusers", "transformers", "peft", "pydantic")
    code = f"import sys, trainer.objective; print([m for m in {libraries} if m in sys.modules])"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
