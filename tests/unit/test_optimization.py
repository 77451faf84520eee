from __future__ import annotations

import math

import pytest
import torch

from trainer.config.update import OptimizerConfig
from trainer.errors import UserError
from trainer.lora import LoraFactors
from trainer.optimization import MAX_SKIPPED, GuardedStepper, build_optimizer, learning_rate, update_average


def make(name: str = "sgd", max_norm: float | None = None, lr: float = 0.5):
    named = {"one": torch.nn.Parameter(torch.tensor([1.0, 2.0])), "two": torch.nn.Parameter(torch.tensor([3.0]))}
    optimizer = build_optimizer(OptimizerConfig(name=name, lr=lr), named.values())
    return named, GuardedStepper(optimizer, named, max_norm)


def give(named, one, two) -> None:
    named["one"].grad, named["two"].grad = torch.tensor(one), torch.tensor(two)


def values(named) -> list[float]:
    return [x for p in named.values() for x in p.tolist()]


@pytest.mark.parametrize(("name", "kind"), [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam), ("sgd", torch.optim.SGD)])
def test_the_optimizer_is_the_named_one_with_its_settings(name, kind):
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = build_optimizer(OptimizerConfig(name=name, lr=0.01, weight_decay=0.25), [parameter])
    assert type(optimizer) is kind
    (group,) = optimizer.param_groups
    assert group["lr"] == 0.01 and group["weight_decay"] == 0.25 and group["params"] == [parameter]


def test_warm_up_is_linear_then_constant():
    config = OptimizerConfig(lr=0.4, warmup=4)
    assert [learning_rate(config, i, 6) for i in range(6)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    assert learning_rate(OptimizerConfig(lr=0.4), 0, 1) == 0.4


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [("linear", [0.2, 0.4, 0.4, 0.3, 0.2, 0.1]), ("cosine", [0.2, 0.4, 0.4, 0.2 + 0.2 * 0.5**0.5, 0.2, 0.2 - 0.2 * 0.5**0.5])],
)
def test_a_schedule_falls_after_the_warm_up_and_would_reach_zero_after_the_last_iteration(schedule, rates):
    config = OptimizerConfig(lr=0.4, warmup=2, schedule=schedule)
    assert [learning_rate(config, i, 6) for i in range(6)] == pytest.approx(rates)
    assert learning_rate(config, 6, 6) == pytest.approx(0)
    assert learning_rate(OptimizerConfig(lr=0.4, warmup=3, schedule=schedule), 2, 3) == pytest.approx(0.4)


def test_a_step_is_taken_counted_and_cleared():
    named, stepper = make()
    give(named, [1.0, -1.0], [2.0])
    result = stepper.step(loss_finite=True)
    assert values(named) == [0.5, 2.5, 2.0]
    assert result.skipped is None and result.grad_norm == pytest.approx(math.sqrt(6))
    assert stepper.steps == 1 and all(p.grad is None for p in named.values())


def test_clipping_scales_to_the_norm_and_reports_the_one_before():
    named, stepper = make(max_norm=1.0, lr=1.0)
    give(named, [0.0, 3.0], [4.0])
    assert stepper.step(True).grad_norm == pytest.approx(5.0)
    assert values(named) == pytest.approx([1.0, 2.0 - 0.6, 3.0 - 0.8], rel=1e-5)
    give(named, [0.0, 0.3], [0.4])  # under the norm: left alone
    before = values(named)
    assert stepper.step(True).grad_norm == pytest.approx(0.5)
    assert values(named) == pytest.approx([before[0], before[1] - 0.3, before[2] - 0.4])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_bad_gradient_is_skipped_whole_and_names_the_factor(name, bad):
    named, stepper = make(name, max_norm=1.0)
    give(named, [1.0, 1.0], [1.0])
    stepper.step(True)
    before, state = values(named), str(stepper.optimizer.state_dict())
    give(named, [1.0, 1.0], [bad])
    result = stepper.step(True)
    assert "1 of 2 LoRA factors" in result.skipped and "first two" in result.skipped
    assert values(named) == before and str(stepper.optimizer.state_dict()) == state
    assert (stepper.steps, stepper.skipped_in_a_row) == (1, 1)
    assert all(p.grad is None for p in named.values())


def test_a_bad_loss_is_skipped_even_with_good_gradients():
    named, stepper = make()
    give(named, [1.0, 1.0], [1.0])
    assert "surrogate is not finite" in stepper.step(loss_finite=False).skipped
    assert values(named) == [1, 2, 3]


def test_a_good_step_resets_the_count_and_too_many_bad_ones_end_the_run():
    named, stepper = make()

    def bad():
        give(named, [math.nan, 0.0], [0.0])
        stepper.step(True)

    for _ in range(MAX_SKIPPED - 1):
        bad()
    give(named, [0.0, 0.0], [0.0])
    stepper.step(True)
    assert stepper.skipped_in_a_row == 0
    for _ in range(MAX_SKIPPED - 1):
        bad()
    with pytest.raises(UserError, match=rf"{MAX_SKIPPED} gradient steps in a row.*first one.*optimizer.lr") as caught:
        bad()
    assert "\n" not in str(caught.value)
    assert all(p.grad is None for p in named.values())


def test_parameters_without_a_gradient_are_left_alone():
    named, stepper = make(max_norm=1.0)
    named["one"].grad = torch.tensor([1.0, 0.0])
    assert stepper.step(True).grad_norm == pytest.approx(1.0)
    assert values(named) == pytest.approx([0.5, 2.0, 3.0])


def test_the_moving_average_is_the_formula():
    def lora(value):
        return LoraFactors({"m": (torch.full((2, 3), value), torch.full((4, 2), -value))}, 2, 4.0)

    average, decay, expected = lora(1.0), 0.9, 1.0
    for theta in (2.0, 5.0, -3.0):
        update_average(average, lora(theta), decay)
        expected = decay * expected + (1 - decay) * theta
        a, b = average.factors["m"]
        torch.testing.assert_close(a, torch.full((2, 3), expected))
        torch.testing.assert_close(b, torch.full((4, 2), -expected))
