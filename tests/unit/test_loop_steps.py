from __future__ import annotations

import math
from itertools import chain

import pytest
import torch

import trainer.estimate
from tests.bench import (
    bright,
    constant,
    factors,
    iterate,
    same,
    shake,
    tiny_bench,
    watch_denoiser,
    watch_estimates,
    watch_steps,
)
from trainer.errors import UserError
from trainer.estimate import SurrogateEstimate
from trainer.optimization import MAX_SKIPPED

SGD = {"name": "sgd", "lr": 1e-2, "max_grad_norm": None}


@pytest.fixture
def estimates():
    with watch_estimates() as watched:
        yield watched


# The guard


def _poison(monkeypatch, iterations: set[int]) -> dict[str, int]:
    """The surrogate is NaN in these iterations."""
    now, original = {"iteration": 0}, trainer.estimate.surrogate

    def surrogate(*args):
        loss = original(*args)
        return loss * math.nan if now["iteration"] in iterations else loss

    monkeypatch.setattr(trainer.estimate, "surrogate", surrogate)
    return now


def test_a_non_finite_step_is_skipped_counted_and_forgotten(tiny_sd3, monkeypatch):
    now = _poison(monkeypatch, {1})
    bench = tiny_bench(tiny_sd3)
    iterate(bench, 0)
    before, average = factors(bench), bench.learner.average.clone()
    state = str(bench.learner.stepper.optimizer.state_dict())
    now["iteration"] = 1
    result = iterate(bench, 1)
    assert same(factors(bench), before) and str(bench.learner.stepper.optimizer.state_dict()) == state
    assert (result.metrics["steps/skipped"], result.metrics["steps/taken"]) == (1, 0)
    assert any("skipped" in w and "not finite" in w for w in result.warnings)
    assert average.factors.keys() == bench.learner.average.factors.keys()
    assert all(torch.isfinite(x).all() for pair in bench.learner.average.factors.values() for x in pair)
    now["iteration"] = 2
    result = iterate(bench, 2)
    assert result.metrics["steps/taken"] == 1 and not same(factors(bench), before)
    assert all(torch.isfinite(x).all() for x in factors(bench).values())


def test_a_gradient_that_overflows_names_the_factor(tiny_sd3):
    bench = tiny_bench(tiny_sd3)
    shake(bench)
    before = factors(bench)
    name, parameter = bench.learner.adapter.named_parameters()[3]
    parameter.register_hook(lambda g: g * math.inf)
    result = iterate(bench)
    assert same(factors(bench), before)
    assert any(name in w for w in result.warnings)


def test_a_run_of_bad_steps_ends_with_advice(tiny_sd3, monkeypatch):
    now = _poison(monkeypatch, set(range(100)))
    bench = tiny_bench(tiny_sd3)
    before = factors(bench)
    for iteration in range(MAX_SKIPPED - 1):
        now["iteration"] = iteration
        iterate(bench, iteration)
    with pytest.raises(UserError, match=f"{MAX_SKIPPED} gradient steps in a row"):
        iterate(bench, MAX_SKIPPED - 1)
    assert same(factors(bench), before)


def test_an_abort_while_sampling_leaves_the_learner_as_it_was(tiny_sd3):
    bench = tiny_bench(tiny_sd3)
    iterate(bench, 0)
    before, average = factors(bench), bench.learner.average.checksum()

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        iterate(bench, 1, on_step=stop)
    assert same(factors(bench), before) and bench.learner.average.checksum() == average
    again = tiny_bench(tiny_sd3)
    iterate(again, 0)
    assert all(map(torch.equal, iterate(again, 1).rollout.latents, iterate(bench, 1).rollout.latents))
    assert same(factors(again), factors(bench))


# What changes and what does not


def test_only_the_lora_changes(tiny_sd3):
    bench = tiny_bench(tiny_sd3, objective={"gradient_steps": 2, "clip_eps": 0.01})

    def frozen():
        modules = {"denoiser": bench.policy.denoiser, "vae": bench.policy._pipe.vae}
        return {
            f"{part}.{name}": value.clone()
            for part, module in modules.items()
            for name, value in module.state_dict().items()
            if "lora_" not in name
        }

    base, lora = frozen(), factors(bench)
    for iteration in range(3):
        result = iterate(bench, iteration)
        assert result.metrics["steps/taken"] == 2
    assert len(base) > 50 and same(frozen(), base)
    still = [name for name, value in factors(bench).items() if torch.equal(value, lora[name])]
    # The text's queries of the last block lead nowhere in SD3, and this model has one block.
    assert all("add_q_proj" in name for name in still) and len(still) == 2 < len(lora)


def test_the_same_seed_gives_the_same_run_and_another_another(tiny_sd3):
    def run(seed, unrelated):
        torch.manual_seed(unrelated)  # the global state plays no part
        bench = tiny_bench(tiny_sd3, seed=seed, objective={"gradient_steps": 2, "clip_eps": 0.01})
        for iteration in range(2):
            result = iterate(bench, iteration)
        return factors(bench), {k: v for k, v in result.metrics.items() if not k.startswith("time/")}

    (one, metrics), (two, again), (three, _) = run(3, 0), run(3, 1), run(4, 0)
    assert same(one, two) and metrics == again
    assert not same(one, three)


def test_the_learning_rate_warms_up(tiny_sd3):
    bench = tiny_bench(tiny_sd3, optimizer={"lr": 0.01, "warmup": 4})
    rates, used = [], []
    for iteration in range(6):
        rates.append(iterate(bench, iteration).metrics["lr"])
        used.append(bench.learner.stepper.optimizer.param_groups[0]["lr"])
    assert rates == used == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])


def test_the_moving_average_follows_each_iteration_once(tiny_sd3):
    bench = tiny_bench(tiny_sd3, optimizer={"lr": 0.01, "ema_decay": 0.7}, objective={"gradient_steps": 2, "clip_eps": 0.01})
    expected = bench.learner.adapter.snapshot()
    for iteration in range(3):
        iterate(bench, iteration)
        now = bench.learner.adapter.snapshot()
        for name, pair in expected.factors.items():
            for old, new in zip(pair, now.factors[name], strict=True):
                old.mul_(0.7).add_(new, alpha=0.3)
            for ours, formula in zip(bench.learner.average.factors[name], pair, strict=True):
                torch.testing.assert_close(ours, formula, rtol=1e-5, atol=1e-8)
    assert bench.learner.average.checksum() != now.checksum()
    assert tiny_bench(tiny_sd3, optimizer={"ema_decay": 0.0}).learner.average is None


@pytest.mark.parametrize("batch_size", [2, 64])
def test_gradient_checkpointing_changes_no_gradient(tiny_sd3, batch_size):
    """It recomputes with whatever factors are active at backward time, and theta_old was active before."""

    def gradients(on):
        bench = tiny_bench(
            tiny_sd3,
            policy={"gradient_checkpointing": on},
            objective={"gradient_steps": 2, "clip_eps": 0.01, "kl_coef": 0.1},
            surrogate={"batch_size": batch_size},
            optimizer=SGD,
        )
        assert bench.policy.denoiser.is_gradient_checkpointing is on
        shake(bench)
        seen = watch_steps(bench)
        with watch_denoiser(bench.policy) as calls:
            blocks = []
            handle = bench.policy.denoiser.transformer_blocks[0].register_forward_pre_hook(lambda *_: blocks.append(1))
            iterate(bench)
            handle.remove()
        return seen, len(blocks) - len(calls)

    (plain, none), (checkpointed, recomputed) = gradients(False), gradients(True)
    assert none == 0 and recomputed > 0
    for one, other in zip(checkpointed, plain, strict=True):
        for name, gradient in other.items():
            torch.testing.assert_close(one[name], gradient, rtol=1e-5, atol=1e-7)


# Several gradient steps


@pytest.mark.parametrize("steps", [2, 3, 5])
def test_minibatches_are_disjoint_and_cover_what_teaches(tiny_sd3, estimates, steps):
    _, events = estimates

    def one_failed(images, call):
        scores = bright(images)
        scores[2] = math.nan
        return scores

    bench = tiny_bench(tiny_sd3, one_failed, objective={"gradient_steps": steps, "clip_eps": 0.01})
    orders = []
    for iteration in range(2):
        events.clear()
        iterate(bench, iteration)
        parts = [outputs.tolist() for name, outputs in events if name == "backward"]
        assert len(parts) == steps == len({tuple(p) for p in parts})
        assert sorted(chain.from_iterable(parts)) == [0, 1, 3, 4, 5, 6, 7]
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert parts == [outputs.tolist() for name, outputs in events if name == "values"]
        orders.append(list(chain.from_iterable(parts)))
    assert orders[0] != orders[1]
    assert bench.learner.stepper.steps == 2 * steps


def test_with_a_kl_every_output_counts(tiny_sd3, estimates):
    """Keeping what the policy can do is a matter of all outputs, those without an advantage included."""
    _, events = estimates

    def some_failed(images, call):
        scores = bright(images)
        scores[[2, 5]] = math.nan
        return scores

    bench = tiny_bench(tiny_sd3, some_failed, objective={"gradient_steps": 2, "kl_coef": 0.5})
    iterate(bench)
    seen = torch.cat([outputs for name, outputs in events if name == "backward"])
    assert sorted(seen.tolist()) == list(range(8))


def test_the_kl_has_a_gradient_that_pulls_back(tiny_sd3):
    """Computed without gradient it would do nothing (Flow-Factory#123). Equal rewards leave the KL alone to act."""
    bench = tiny_bench(tiny_sd3, constant, objective={"gradient_steps": 2, "kl_coef": 1.0}, optimizer={**SGD, "lr": 0.1})
    shake(bench, 0.2)
    theta_old = factors(bench)
    gradients = watch_steps(bench)
    optimizer = bench.learner.stepper.optimizer
    step, offset = optimizer.step, {}

    def pushed(*args, **kw):
        out = step(*args, **kw)
        if not offset:  # after the first step, as if the policy term had moved theta
            shake(bench, 0.02, seed=5)
            offset.update({name: value - theta_old[name] for name, value in factors(bench).items()})
        return out

    optimizer.step = pushed
    metrics = iterate(bench).metrics
    assert metrics["steps/taken"] == 2 and metrics["kl"] > 0
    assert not any(gradient.any() for gradient in gradients[0].values())  # at theta_old the KL has its minimum
    assert max(float(g.abs().max()) for g in gradients[1].values()) > 1e-4
    along = sum(float((gradients[1][name] * offset[name]).sum()) for name in offset)
    assert along > 0  # going back lowers it


def test_the_kl_adds_to_the_policy_gradient_from_the_second_step_on(tiny_sd3):
    def gradients(kl_coef):
        bench = tiny_bench(
            tiny_sd3,
            lambda images, call: bright(images),
            objective={"gradient_steps": 2, "kl_coef": kl_coef},
            optimizer={"name": "sgd", "lr": 1.0, "max_grad_norm": None},
        )
        shake(bench, 0.2)
        seen = watch_steps(bench)
        return seen, iterate(bench).metrics

    (off, _), (half, _), (whole, metrics) = gradients(0.0), gradients(0.5), gradients(1.0)
    assert metrics["kl"] > 0
    for name in off[0]:
        torch.testing.assert_close(whole[0][name], off[0][name], rtol=1e-5, atol=1e-8)
    difference = {name: whole[1][name] - off[1][name] for name in off[1]}
    assert max(float(d.abs().max()) for d in difference.values()) > 1e-5
    for name, d in difference.items():  # linear in kl_coef
        torch.testing.assert_close(half[1][name] - off[1][name], d / 2, rtol=1e-3, atol=1e-7)


def test_the_clip_takes_gradients_away(tiny_sd3):
    """With an eps that every later ratio exceeds, outputs that have moved their own way are left alone."""

    def run(clip_eps):
        bench = tiny_bench(
            tiny_sd3, objective={"gradient_steps": 2, "clip_eps": clip_eps}, optimizer={"name": "sgd", "lr": 1.0}
        )
        shake(bench, 0.2)
        seen = watch_steps(bench)
        return seen, iterate(bench).metrics

    (free, loose), (clipped, tight) = run(0.5), run(1e-7)
    assert loose["ratio/clip_frac"] == 0 < tight["ratio/clip_frac"] < 1
    assert all(torch.equal(free[0][name], clipped[0][name]) for name in free[0])
    assert any(not torch.allclose(free[1][name], clipped[1][name], rtol=1e-2) for name in free[1])


# Half precision


def test_an_iteration_in_bfloat16(tiny_sd3):
    bench = tiny_bench(tiny_sd3, policy={"dtype": "bfloat16"}, objective={"gradient_steps": 2, "clip_eps": 0.01})
    before = factors(bench)
    result = iterate(bench)
    assert {p.dtype for p in bench.learner.adapter.parameters()} == {torch.float32}
    base = {v.dtype for n, v in bench.policy.denoiser.named_parameters() if "lora_" not in n}
    assert base == {torch.bfloat16}
    assert result.metrics["steps/taken"] == 2 and not same(factors(bench), before)
    assert all(torch.isfinite(v).all() for v in factors(bench).values())
    assert 0 <= result.metrics["ratio/noise"] < 0.01 / 5 < 1 and result.warnings == []
    assert result.metrics["ratio/max_abs_dev"] > 0


def test_numerical_noise_in_the_ratio_is_warned_about(tiny_sd3, monkeypatch):
    """As when rollout and training see other batch shapes (DanceGRPO#57, verl-omni#280)."""
    values = SurrogateEstimate.values

    def noisy(self, *args, **kw):
        losses, predictions = values(self, *args, **kw)
        return losses + 0.003, predictions

    monkeypatch.setattr(SurrogateEstimate, "values", noisy)
    for clip_eps, warned in ((0.01, True), (0.02, False)):
        bench = tiny_bench(tiny_sd3, policy={"dtype": "bfloat16"}, objective={"gradient_steps": 2, "clip_eps": clip_eps})
        result = iterate(bench)
        assert result.metrics["ratio/noise"] == pytest.approx(0.003, rel=1e-2)
        assert [w for w in result.warnings if "before any update" in w and "3.0e-03" in w] == result.warnings
        assert bool(result.warnings) is warned
