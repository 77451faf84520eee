"""Gradients that are taken before the rewards are known."""

from __future__ import annotations

import threading

import pytest
import torch

import trainer.setup
from tests.bench import bright, constant, factors, iterate, same, shake, tiny_bench, watch_denoiser, watch_steps
from trainer.deferred import check_memory
from trainer.errors import UserError

SGD = {"name": "sgd", "lr": 1e-2, "max_grad_norm": None}
G, PAIRS = 4, 3


def bench_of(folder, reward=bright, deferred=64, **changes):
    objective = {"deferred": deferred, **changes.pop("objective", {})}
    bench = tiny_bench(folder, reward, objective=objective, optimizer=SGD, **changes)
    shake(bench)
    return bench


def gradient(bench, **kw):
    seen = watch_steps(bench)
    result = iterate(bench, **kw)
    (found,) = seen
    return result, found


def one_failed_one_flat(images, call):
    values = bright(images)
    values[1] = float("nan")
    values[G:] = 0.5
    return values


@pytest.mark.parametrize("rows", [64, 2])
@pytest.mark.parametrize("reward", [bright, one_failed_one_flat], ids=["all", "some"])
def test_it_is_the_same_gradient(tiny_sd3, reward, rows):
    """To rounding: outputs go through the network one by one, and what counts for nothing takes no share."""
    surrogate = {"batch_size": rows}
    at_once = {"rollout": {"batch_size": 2 * G}}
    plain, expected = gradient(bench_of(tiny_sd3, reward, deferred=0, surrogate=surrogate))
    result, found = gradient(bench_of(tiny_sd3, reward, surrogate=surrogate, **at_once))
    assert torch.equal(result.advantages, plain.advantages) and found.keys() == expected.keys()
    largest = max(float(g.abs().max()) for g in expected.values())
    for name, each in expected.items():
        torch.testing.assert_close(found[name], each, rtol=1e-4, atol=1e-5 * largest)
    for name in ("surrogate/mean", "surrogate/cv_group", "grad_norm", "ratio/max_abs_dev"):
        assert result.metrics[name] == pytest.approx(plain.metrics[name], rel=1e-4)
    assert result.metrics.keys() == plain.metrics.keys()


def test_two_rewards_and_batches_of_single_groups(tiny_sd3):
    changes = {"rewards": {"brightness": {}, "colorfulness": {"weight": 0.5}}, "rollout": {"batch_size": G}}
    plain, expected = gradient(bench_of(tiny_sd3, None, deferred=0, **changes))
    result, found = gradient(bench_of(tiny_sd3, None, **changes))
    assert torch.equal(result.advantages, plain.advantages)
    for name, each in expected.items():
        torch.testing.assert_close(found[name], each, rtol=1e-3, atol=1e-7)


def test_weights_by_noise_level_are_in_it(tiny_sd3):
    weighted = {"surrogate": {"timestep_weight": {"start": 2.0}}}
    (_, plain), (_, expected) = gradient(bench_of(tiny_sd3, deferred=0)), gradient(bench_of(tiny_sd3, deferred=0, **weighted))
    found = gradient(bench_of(tiny_sd3, **weighted))[1]
    for name, each in expected.items():
        torch.testing.assert_close(found[name], each, rtol=1e-3, atol=1e-7)
    assert any(not torch.allclose(plain[name], each, rtol=0.05) for name, each in expected.items())


def test_how_many_wait_and_when_rewards_come_changes_no_bit(tiny_sd3):
    seen = []
    for deferred in (1, 3, 64):
        bench = bench_of(tiny_sd3, deferred=deferred, rollout={"batch_size": G})
        gradient(bench)
        seen.append(factors(bench))
    assert same(seen[0], seen[1]) and same(seen[0], seen[2])


def test_gradients_are_taken_while_the_reward_is_awaited(tiny_sd3):
    """The reward answers only when every output has had its backward pass."""
    done = threading.Event()

    def slow(images, call):
        assert done.wait(60)
        return bright(images)

    bench = bench_of(tiny_sd3, slow)
    with watch_denoiser(bench.policy) as calls:

        def look():
            if sum(len(call.hidden) for call in calls if call.with_gradient) >= (2 * G - 1) * PAIRS:
                done.set()

        result = iterate(bench, on_step=look)
    assert done.is_set() and result.metrics["steps/taken"] == 1
    assert result.metrics["nfe/policy"] == PAIRS and result.metrics["nfe/behaviour"] == 4


def test_what_waits_is_bounded(tiny_sd3):
    """With room for two, the third gradient is taken only after the first one's reward."""
    answered = []

    def slow(images, call):
        answered.append(len(images))
        return bright(images)

    bench = bench_of(tiny_sd3, slow, deferred=2, rollout={"batch_size": G})
    with watch_denoiser(bench.policy) as calls:

        def look():
            taken = sum(len(call.hidden) for call in calls if call.with_gradient) // PAIRS
            assert taken <= 2 or answered

        iterate(bench, on_step=look)
    assert answered == [G, G]


def test_no_advantage_no_step(tiny_sd3):
    bench = bench_of(tiny_sd3, constant)
    before = factors(bench)
    result = iterate(bench)
    assert same(factors(bench), before) and any("no gradient step" in w for w in result.warnings)
    assert result.metrics["nfe/policy"] == PAIRS  # spent before anybody could know


def test_an_abort_between_gradients_leaves_the_learner_as_it_was(tiny_sd3):
    bench = bench_of(tiny_sd3)
    before = factors(bench)
    with watch_denoiser(bench.policy) as calls:

        def stop():
            if any(call.with_gradient for call in calls):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            iterate(bench, on_step=stop)
    assert same(factors(bench), before) and all(p.grad is None for p in bench.learner.adapter.parameters())


def test_memory_that_is_not_there_is_refused(tiny_sd3, monkeypatch):
    check_memory(4, 100, None)
    check_memory(4, 100, 400)
    with pytest.raises(UserError, match=r"objective\.deferred: 4 gradients .* up to 3, or 0"):
        check_memory(4, 100, 399)
    monkeypatch.setattr(trainer.setup, "free_memory", lambda device: 1000)
    with pytest.raises(UserError, match="8 gradients"):
        bench_of(tiny_sd3, deferred=1000)
    bench_of(tiny_sd3, deferred=0)
