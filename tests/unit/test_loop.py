from __future__ import annotations

import math

import pytest
import torch

import trainer.algorithms.base
import trainer.estimate
import trainer.loop
from tests.bench import (
    bright,
    constant,
    factors,
    iterate,
    same,
    shake,
    tiny_bench,
    tiny_config,
    watch_denoiser,
    watch_estimates,
    watch_steps,
)
from trainer.rollout import pick_prompts

SGD = {"name": "sgd", "lr": 1e-2, "max_grad_norm": None}
PAIRS = 3


@pytest.fixture
def estimates():
    with watch_estimates() as watched:
        yield watched


# theta_old


def test_theta_old_is_asked_once_before_any_step_and_never_again(tiny_sd3, estimates, monkeypatch):
    """Refreshed at each step the ratio is 1 for ever, and clip and KL do nothing (flow_grpo#131, Flow-Factory#157)."""
    made, events = estimates
    seen, original = [], trainer.algorithms.base.importance_ratio

    def recorded(losses, old):
        seen.append((losses.detach().clone(), old.detach().clone()))
        return original(losses, old)

    monkeypatch.setattr(trainer.algorithms.base, "importance_ratio", recorded)
    bench = tiny_bench(tiny_sd3, objective={"gradient_steps": 4, "clip_eps": 0.01}, optimizer={"name": "sgd", "lr": 1.0})
    shake(bench, 0.2)
    theta_old = bench.learner.adapter.snapshot()
    steps = watch_steps(bench)
    result = iterate(bench)
    assert [name for name, _ in events] == ["values"] * 4 + ["backward"] * 4
    assert len(steps) == 4
    # What the ratios were taken against is what theta_old says, also at the last step.
    with bench.learner.adapter.using(theta_old):
        for n in range(4):
            again, _ = made[0].values(events[n][1])
            ours = [old for _, old in seen[2 * n : 2 * n + 2]]  # in the loss, then for the metrics
            assert all(torch.equal(old, again) for old in ours)
    deviations = [float(((old - now).mean(1).exp() - 1).abs().max()) for now, old in seen[1::2]]
    assert deviations[0] == 0.0 == result.metrics["ratio/noise"]
    assert all(d > 1e-5 for d in deviations[1:])
    assert result.metrics["ratio/max_abs_dev"] == pytest.approx(max(deviations), rel=1e-3)


def test_the_next_iteration_starts_from_a_new_theta_old(tiny_sd3):
    bench = tiny_bench(tiny_sd3, objective={"gradient_steps": 2, "clip_eps": 0.01})
    for iteration in range(3):
        assert iterate(bench, iteration).metrics["ratio/noise"] == 0.0


def test_one_step_has_a_ratio_of_exactly_one_and_spends_nothing_on_theta_old(tiny_sd3, estimates):
    _, events = estimates
    bench = tiny_bench(tiny_sd3)
    shake(bench)
    with watch_denoiser(bench.policy) as calls:
        metrics = iterate(bench).metrics
    assert metrics["ratio/max_abs_dev"] == metrics["ratio/noise"] == 0.0
    assert [name for name, _ in events] == ["backward"]
    assert metrics["nfe/behaviour"] == 4 and metrics["nfe/policy"] == PAIRS
    assert sum(len(call.hidden) for call in calls) == 8 * (4 + PAIRS)


@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_network_evaluations_are_counted_as_they_are_spent(tiny_sd3, guidance):
    bench = tiny_bench(
        tiny_sd3, objective={"gradient_steps": 2, "clip_eps": 0.01}, rollout={"sampler": "heun", "guidance": guidance}
    )
    with watch_denoiser(bench.policy) as calls:
        metrics = iterate(bench).metrics
    spent = sum(len(call.hidden) for call in calls) / 8
    assert metrics["nfe/behaviour"] + metrics["nfe/policy"] == spent
    assert metrics["nfe/policy"] == sum(len(call.hidden) for call in calls if call.with_gradient) / 8 == PAIRS


# The direction of a step


@pytest.mark.parametrize("weighting", ["adaptive", "x", "v"])
def test_the_first_step_makes_good_outputs_likelier_than_bad_ones(tiny_sd3, estimates, weighting):
    """sum A_i L_i falls: the surrogate is the loss of an output, its negative the log-likelihood."""
    made, events = estimates
    lr = 1.0  # gradients of a random model are small, and the change has to stand out of float32's rounding
    bench = tiny_bench(tiny_sd3, bright, optimizer={**SGD, "lr": lr}, surrogate={"weighting": weighting})
    gradients = watch_steps(bench)
    result = iterate(bench)
    outputs = events[0][1]
    advantages = result.advantages[outputs]
    after, _ = made[0].values(outputs)
    with bench.learner.adapter.using(bench.learner.adapter.initial()):
        before, _ = made[0].values(outputs)
    change = (after - before).double().mean(1)
    gain = -float((advantages * change).mean())
    assert gain > 0
    assert change[advantages > 0].mean() < change[advantages < 0].mean()
    if weighting != "adaptive":  # whose value moves about half as fast as its gradient says
        squared = sum(float(g.double().square().sum()) for g in gradients[0].values())
        assert gain == pytest.approx(lr * squared, rel=0.1)


def test_the_opposite_rewards_give_the_opposite_gradient(tiny_sd3):
    """loss(A) = -loss(-A) where the ratio is 1."""
    seen = []
    for sign in (1, -1):
        bench = tiny_bench(tiny_sd3, lambda images, call, sign=sign: sign * bright(images))
        shake(bench)
        steps = watch_steps(bench)
        iterate(bench)
        seen.append(steps[0])
    assert max(float(g.abs().max()) for g in seen[0].values()) > 1e-4
    for name, gradient in seen[0].items():
        torch.testing.assert_close(seen[1][name], -gradient, rtol=1e-5, atol=1e-8)


def test_a_negative_weight_is_a_penalty(tiny_sd3):
    up, down = (iterate(tiny_bench(tiny_sd3, bright, rewards={"brightness": {"weight": w}})) for w in (1.0, -1.0))
    torch.testing.assert_close(up.advantages, -down.advantages)
    assert up.advantages.dtype == torch.float32 and up.advantages.abs().max() > 0.5


# The pairs as the network sees them


def _noise_seen(result, calls) -> tuple[torch.Tensor, torch.Tensor]:
    """(t [B, J], eps [B, J, ...]) recovered from the z_t that reached the network, z_t = (1 - t) x0 + t eps."""
    trained = [call for call in calls if call.with_gradient]
    z = torch.cat([call.hidden for call in trained]).view(8, PAIRS, 16, 8, 8)
    t = torch.cat([call.timestep for call in trained]).view(8, PAIRS) / 1000
    level = t[..., None, None, None]
    return t, (z - (1 - level) * torch.stack(result.rollout.latents)[:, None]) / level


def _equal(a, b) -> bool:
    return bool((a - b).abs().max() < 1e-4)


@pytest.mark.parametrize("share", ["group", "batch", "none"])
def test_noise_is_shared_as_configured_and_fresh_otherwise(tiny_sd3, share):
    bench = tiny_bench(tiny_sd3, surrogate={"share": share, "batch_size": 7})
    draws = []
    for iteration in range(2):
        with watch_denoiser(bench.policy) as calls:
            result = iterate(bench, iteration)
        assert len(result.rollout) == int((result.advantages != 0).sum())  # so that rows are outputs in order
        t, eps = _noise_seen(result, calls)
        levels, _ = bench.policy.noise_levels(trainer.loop.sampling_of(bench.config))
        assert float((t[..., None] - levels).abs().amin(-1).max()) < 1e-6  # every t is one that the sampler visits
        assert abs(float(eps.mean())) < 0.05 and abs(float(eps.std()) - 1) < 0.05
        draws.append((t, eps))
    (t, eps), (_, later) = draws
    for i in range(8):
        for k in range(i):
            together = share == "batch" or (share == "group" and i // 4 == k // 4)
            assert _equal(eps[i], eps[k]) == together
            assert not together or torch.equal(t[i], t[k])
    for j in range(PAIRS):
        for k in range(j):
            assert not _equal(eps[:, j], eps[:, k])
        assert not _equal(eps[:, j], later[:, j])
    assert len(t.unique()) > 1


def test_pictures_and_prompts_are_fresh_each_iteration(tiny_sd3):
    bench = tiny_bench(tiny_sd3)
    first, second = iterate(bench, 0), iterate(bench, 1)
    assert not set(first.rollout.seeds) & set(second.rollout.seeds)
    images = [*first.rollout.images, *second.rollout.images]
    assert len({bytes(image.numpy()) for image in images}) == 16
    for iteration, result in enumerate((first, second)):
        expected = pick_prompts(bench.train, 2, bench.config.seed, iteration, [(64, 64)])
        assert [p for p in result.rollout.prompts[::4]] == [pick.prompt for pick in expected]


# Rewards that are missing or say nothing


def test_an_output_that_could_not_be_scored_takes_no_part(tiny_sd3):
    """Not a reward of 0, which would poison its group (verl-omni#366)."""

    def broken(images, call):
        scores = bright(images) * 1000
        scores[1], scores[6] = math.nan, math.inf
        return scores

    bench = tiny_bench(tiny_sd3, broken)
    with watch_denoiser(bench.policy) as calls:
        result = iterate(bench)
    assert result.advantages[[1, 6]].tolist() == [0, 0]
    good, images = [0, 2, 3, 4, 5, 7], torch.stack(result.rollout.images)
    for group in (good[:3], good[3:]):  # z-scores of the others alone, then the soft clip at 3
        scores = bright(images[group]) * 1000
        z = (scores - scores.mean()) / scores.std(correction=0)
        torch.testing.assert_close(result.advantages[group], (3 * (z / 3).tanh()).float())
    assert result.metrics["reward/nan_outputs"] == 2 and result.metrics["nfe/policy"] == 6 * PAIRS / 8
    trained = torch.cat([call.hidden for call in calls if call.with_gradient])
    assert len(trained) == 6 * PAIRS
    assert result.metrics["reward/brightness/mean"] == pytest.approx(float((bright(images) * 1000)[good].mean()))
    assert bench.learner.stepper.steps == 1


def test_unscored_outputs_do_not_dilute_the_gradient(tiny_sd3):
    """The mean is over the outputs that teach: a group without variance beside them changes nothing (trl#6365)."""

    def second_group_equal(images, call):
        scores = bright(images)
        scores[4:] = 0.5
        return scores

    bench = tiny_bench(tiny_sd3, second_group_equal, optimizer=SGD)
    gradients = watch_steps(bench)
    result = iterate(bench)
    assert result.metrics["advantage/frac_zero_std"] == 0.5
    alone = tiny_bench(tiny_sd3, second_group_equal, optimizer=SGD, rollout={"prompts_per_iteration": 1, "group_size": 4})
    # The same first group: its prompt, its seeds and its pairs do not depend on the second.
    first = pick_prompts(bench.train, 2, 3, 0, [(64, 64)])[0].index
    assert pick_prompts(alone.train, 1, 3, 0, [(64, 64)])[0].index == first
    expected = watch_steps(alone)
    iterate(alone)
    for name, gradient in expected[0].items():
        torch.testing.assert_close(gradients[0][name], gradient, rtol=1e-4, atol=1e-8)


def test_equal_rewards_take_no_step_and_say_so(tiny_sd3):
    bench = tiny_bench(tiny_sd3, constant)
    before = factors(bench)
    result = iterate(bench)
    assert bench.learner.stepper.steps == 0 == result.metrics["steps/taken"]
    assert result.metrics["advantage/frac_zero_std"] == 1 and not result.advantages.any()
    assert same(factors(bench), before)
    (warning,) = result.warnings
    assert "no gradient step" in warning and "group_size" in warning
    assert result.metrics["nfe/policy"] == 0


def test_a_reward_that_fails_altogether_takes_no_step(tiny_sd3):
    def fails(images, call):
        raise RuntimeError("no such model")

    bench = tiny_bench(tiny_sd3, fails)
    result = iterate(bench)
    assert bench.learner.stepper.steps == 0 and result.warnings
    assert result.scores.failures == [("brightness", "8 of 8 outputs not scored: RuntimeError: no such model")]
    assert math.isnan(result.metrics["reward/total/mean"])


@pytest.mark.parametrize("combine", ["normalize_then_sum", "sum_then_normalize"])
def test_the_unit_of_a_reward(tiny_sd3, combine):
    """Rescaling one reward changes nothing where each is normalised first (flow_grpo#142), and much where it is not."""

    def run(scale):
        bench = tiny_bench(
            tiny_sd3,
            lambda images, call: bright(images) * scale,
            rewards={"brightness": {}, "colorfulness": {}},
            objective={"advantage": {"combine": combine}},
            optimizer={"name": "sgd", "lr": 1.0},
        )
        for iteration in range(2):
            iterate(bench, iteration)
        return factors(bench)

    # A power of two, which rounds no reward: by 1000 the advantages would differ in their last digit, and after an update a
    # pixel of the next rollout may be rounded the other way, which is 1/255 and no rounding any more.
    plain, scaled = run(1.0), run(1024.0)
    assert max(float(v.abs().max()) for k, v in plain.items() if k.endswith("B")) > 1e-4
    assert same(plain, scaled) == (combine == "normalize_then_sum")


def test_monitors_are_scored_and_never_trained_on(tiny_sd3):
    plain = tiny_bench(tiny_sd3)
    watched = tiny_bench(tiny_sd3, monitors={"saturation": {}})
    iterate(plain)
    assert "reward/saturation/mean" in iterate(watched).metrics
    assert same(factors(plain), factors(watched))


@pytest.mark.parametrize("steps", [1, 2])
def test_only_the_kept_share_of_a_group_is_paid_for(tiny_sd3, steps):
    several = {"gradient_steps": 2, "clip_eps": 0.01, "kl_coef": 0.3} if steps > 1 else {}
    bench = tiny_bench(tiny_sd3, objective={**several, "advantage": {"keep": 0.5}})
    with watch_denoiser(bench.policy) as calls:
        result = iterate(bench)
    assert (result.advantages.view(2, 4) != 0).sum(1).tolist() == [2, 2]
    assert sum(len(call.hidden) for call in calls if call.with_gradient) == 4 * PAIRS
    assert result.metrics["nfe/policy"] == 4 * PAIRS / 8 and result.metrics["steps/taken"] == steps
    assert result.metrics["nfe/behaviour"] == 4 + (steps - 1) * 4 * PAIRS / 8


# Metrics


def test_the_metrics_have_the_names_and_values_that_readers_rely_on(tiny_sd3):
    bench = tiny_bench(tiny_sd3, rewards={"brightness": {"weight": 2.0}, "saturation": {"weight": -0.5}})
    shake(bench)
    gradients = watch_steps(bench)
    result = iterate(bench)
    metrics, scores = result.metrics, result.scores.scores
    expected = {
        "reward/brightness/mean": scores["brightness"].mean(),
        "reward/brightness/std": scores["brightness"].std(correction=0),
        "reward/saturation/mean": scores["saturation"].mean(),
        "reward/total/mean": (2 * scores["brightness"] - 0.5 * scores["saturation"]).mean(),
        "advantage/max_abs": result.advantages.abs().max(),
        "grad_norm": math.sqrt(sum(float(g.square().sum()) for g in gradients[0].values())),
    }
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(float(value), rel=1e-5), name
    others = (
        "advantage/frac_zero_std surrogate/mean surrogate/cv surrogate/cv_group ratio/max_abs_dev ratio/clip_frac kl lr "
        "time/rollout time/reward time/update nfe/behaviour nfe/policy"
    )
    assert set(others.split()) <= set(metrics)
    assert all(math.isfinite(value) for value in metrics.values())
    assert 0 < metrics["surrogate/cv_group"] <= metrics["surrogate/cv"] * 1.5
    assert result.scores.scores.keys() == {"brightness", "saturation"}


def test_the_gradient_norm_is_the_one_before_clipping(tiny_sd3):
    """After clipping it would only ever read as its bound."""
    norms = []
    for bound in (None, 1e-6):
        bench = tiny_bench(tiny_sd3, optimizer={"name": "sgd", "lr": 1e-2, "max_grad_norm": bound})
        shake(bench)
        norms.append(iterate(bench).metrics["grad_norm"])
    assert norms[0] > 1e-5 and norms[1] == pytest.approx(norms[0], rel=1e-4)


def test_sampling_of_takes_the_rollouts_settings(tiny_sd3):
    settings = {"sampler": "unipc", "steps": 9, "guidance": 2.5, "width": 32, "height": 48, "batch_size": 5}
    assert vars(trainer.loop.sampling_of(tiny_config(tiny_sd3, rollout=settings))) == {**settings, "shift": None}
    assert trainer.loop.sampling_of(tiny_config(tiny_sd3, rollout={"shift": 2.5})).shift == 2.5
