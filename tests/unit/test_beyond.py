"""The options beyond the paper through the loop on a tiny model, and which settings of them are refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tests.bench import bright, factors, iterate, same, shake, tiny_bench, watch_denoiser, watch_estimates, watch_steps
from tests.unit.test_algorithms_config import load, refusal
from trainer.config import load_config
from trainer.loop import sampling_of
from trainer.objective import group_advantages, velocity_norm

SGD = {"name": "sgd", "lr": 1e-2, "max_grad_norm": None}
NOISED = ("vgrpo", "diffusion_nft", "awm", "rvm")  # those that noise the outputs anew


def steps_of(folder, reward=bright, size=0.3, **changes):
    """(gradients of each step, metrics) of one iteration."""
    bench = tiny_bench(folder, reward, optimizer=SGD, **changes)
    shake(bench, size)
    seen = watch_steps(bench)
    return seen, iterate(bench).metrics


def close(one, two, factor=1.0, **kw):
    assert max(float(g.abs().max()) for g in one.values()) > 1e-6
    for name, gradient in one.items():
        torch.testing.assert_close(two[name], factor * gradient, **{"rtol": 1e-3, "atol": 1e-7, **kw})


# Configuration


def test_off_is_the_default_and_changes_no_digest():
    plain, spelt = load(), load("surrogate.timestep_weight.start=0", "objective.advantage.simplex=null")
    assert plain == spelt and plain.digest() == spelt.digest()
    for change in ("surrogate.timestep_weight.start=1", "objective.norm_guard.weight=1", "objective.advantage.simplex=1"):
        changed = load(change)
        assert changed.digest() != plain.digest() and load_config(changed.to_yaml()) == changed


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("surrogate.timestep_weight.schedule=cosine",), "can never act: the lean is 0 throughout; set"),
        (("surrogate.timestep_weight.start=11",), "surrogate.timestep_weight.start = 11"),
        (("objective.norm_guard.margin=0.1",), "margin = 0.1 can never act with objective.norm_guard.weight = 0"),
        (("objective.norm_guard.weight=1", "policy.family=sdxl"), "and family sdxl has none; set it to 0"),
        (("objective.advantage.simplex=0",), "objective.advantage.simplex = 0"),
        (("algorithm=mix_grpo", "surrogate.timestep_weight.end=1"), "can never act with algorithm = mix_grpo; leave it at "
         "null, or choose another algorithm (vgrpo, diffusion_nft, awm, rvm)"),
        (("algorithm=flow_grpo", "objective.norm_guard.weight=1"), "can never act with algorithm = flow_grpo; leave it at 0.0"),
        (("algorithm=rvm", "surrogate.weighting=x"), "surrogate.weighting = x can never act with algorithm = rvm"),
        (("algorithm=rvm", "objective.gradient_steps=2", "objective.clip_eps=0.01"), "can never act with algorithm = rvm"),
    ],
)  # fmt: skip
def test_what_can_never_act_is_refused(overrides, said):
    assert said in refusal(*overrides)


def test_a_base_with_a_noise_schedule_takes_all_but_the_guard():
    load("policy.family=sdxl", "surrogate.timestep_weight.start=1", "objective.advantage.simplex=1")


# Timestep weights


@pytest.mark.parametrize("algorithm", NOISED)
def test_the_weights_multiply_the_losses_of_their_levels(tiny_sd3, algorithm):
    """With one level the run of a lean is the run of none, since the only level's weight is 1; with four it is another."""
    plain, _ = steps_of(tiny_sd3, algorithm=algorithm, rollout={"steps": 1})
    leaning, _ = steps_of(tiny_sd3, algorithm=algorithm, rollout={"steps": 1}, surrogate={"timestep_weight": {"start": 3.0}})
    close(plain[0], leaning[0])
    many, _ = steps_of(tiny_sd3, algorithm=algorithm)
    noisy, _ = steps_of(tiny_sd3, algorithm=algorithm, surrogate={"timestep_weight": {"start": 3.0}})
    assert any(not torch.allclose(many[0][name], noisy[0][name], rtol=1e-2) for name in many[0])


def test_the_surrogate_is_the_plain_one_times_the_tilt_of_each_level(tiny_sd3):
    bench = tiny_bench(
        tiny_sd3, bright, surrogate={"timestep_weight": {"start": 2.0}}, objective={"gradient_steps": 2, "clip_eps": 0.01}
    )
    with watch_estimates() as (made, _):
        metrics = iterate(bench).metrics
    assert metrics["ratio/noise"] < 1e-6  # theta_old's losses have the weights too
    (estimate,) = made
    levels, _ = bench.policy.noise_levels(sampling_of(bench.config))
    expected = (2.0 * estimate.draw.t).exp() / (2.0 * levels).exp().mean()
    torch.testing.assert_close(estimate.draw.weights, expected, rtol=1e-4, atol=0)
    weighted, _ = estimate.values(torch.arange(8))
    estimate.draw = replace(estimate.draw, weights=None)
    torch.testing.assert_close(weighted, estimate.values(torch.arange(8))[0] * expected, rtol=1e-4, atol=0)


def test_a_schedule_moves_the_weights_over_the_run(tiny_sd3):
    """In the middle of the way from lean to counter-lean the weights are equal."""
    weight = {"start": 2.0, "end": -2.0}
    plain = tiny_bench(tiny_sd3, bright, iterations=3, optimizer=SGD)
    moving = tiny_bench(tiny_sd3, bright, iterations=3, optimizer=SGD, surrogate={"timestep_weight": weight})
    for iteration, alike in ((0, False), (1, True), (2, False)):
        seen = []
        for bench in (plain, moving):
            shake(bench)
            gradients = watch_steps(bench)
            iterate(bench, iteration)
            seen.append(gradients[0])
            with torch.no_grad():
                for parameter, kept in zip(bench.learner.adapter.parameters(), factors(plain).values(), strict=True):
                    parameter.copy_(kept)
        assert all(torch.allclose(seen[0][n], seen[1][n], rtol=1e-3, atol=1e-7) for n in seen[0]) == alike


@pytest.mark.parametrize("algorithm", NOISED)
def test_the_split_into_batches_changes_no_weight_and_no_guard(tiny_sd3, algorithm):
    changes = {"objective": {"norm_guard": {"weight": 0.5}, "gradient_steps": 2}, "algorithm": algorithm}
    seen = [
        steps_of(tiny_sd3, surrogate={"timestep_weight": {"start": 2.0}, "batch_size": size}, **changes) for size in (64, 5, 2)
    ]
    for gradients, metrics in seen[1:]:
        for one, two in zip(seen[0][0], gradients, strict=True):
            close(one, two, rtol=2e-3, atol=1e-6)
        assert metrics["norm_guard"] == pytest.approx(seen[0][1]["norm_guard"], rel=1e-3) and metrics["norm_guard"] > 0


# The norm guard


@pytest.mark.parametrize("algorithm", NOISED)
def test_the_guard_adds_a_gradient_in_proportion_to_its_weight(tiny_sd3, algorithm):
    (off, plain), (half, _), (whole, metrics) = (
        steps_of(tiny_sd3, algorithm=algorithm, objective={"norm_guard": {"weight": weight}}) for weight in (0.0, 0.5, 1.0)
    )
    assert metrics["norm_guard"] > 0 and "norm_guard" not in plain
    added = {name: whole[0][name] - off[0][name] for name in off[0]}
    close(added, {name: half[0][name] - off[0][name] for name in off[0]}, 0.5, atol=1e-6)


def test_a_guard_that_is_not_touched_changes_nothing_but_costs_the_base_s_evaluations(tiny_sd3):
    (off, plain), (on, metrics) = (
        steps_of(tiny_sd3, objective={"norm_guard": guard}) for guard in ({}, {"weight": 1.0, "margin": 10.0})
    )
    assert metrics["norm_guard"] == 0 and all(torch.equal(off[0][name], on[0][name]) for name in off[0])
    assert metrics["nfe/behaviour"] == plain["nfe/behaviour"] + 3 and metrics["nfe/policy"] == plain["nfe/policy"]


@pytest.mark.parametrize("algorithm", NOISED)
def test_the_guard_compares_velocities_of_the_policy_with_the_base_s(tiny_sd3, algorithm):
    """The network's own output is the velocity: the hinge that is reported is what a watcher of the network computes."""
    bench = tiny_bench(tiny_sd3, bright, algorithm=algorithm, objective={"norm_guard": {"weight": 1.0}})
    shake(bench)
    with watch_denoiser(bench.policy) as calls:
        metrics = iterate(bench).metrics
    policy = next(call for call in calls if call.with_gradient)
    shown = [c for c in calls if not c.with_gradient and c.hidden.shape == policy.hidden.shape]
    base = next(c for c in shown if torch.equal(c.hidden, policy.hidden) and not torch.equal(c.output, policy.output))
    growth = velocity_norm(policy.output) / velocity_norm(base.output) - 1
    if algorithm != "diffusion_nft":  # which asks theta_old on the same rows as well
        assert metrics["norm_guard"] == pytest.approx(float(growth.clamp_min(0).mean()), rel=1e-4)
    assert metrics["norm_guard"] > 0


def test_at_the_base_itself_the_guard_is_silent(tiny_sd3):
    assert steps_of(tiny_sd3, size=0.0, objective={"norm_guard": {"weight": 1.0}})[1]["norm_guard"] == 0


# Simplex projection


def test_the_advantages_are_projected_before_they_are_clipped(tiny_sd3):
    bench = tiny_bench(
        tiny_sd3,
        lambda images, call: torch.tensor([0.0, 5.0, 5.0, 5.0, 0.0, 1.0, 2.0, 3.0]),
        objective={"soft_clip_eta": None, "advantage": {"simplex": 1.0}},
    )
    found = iterate(bench).advantages.double()
    plain = group_advantages(torch.tensor([0.0, 5.0, 5.0, 5.0, 0.0, 1.0, 2.0, 3.0]).double(), [0] * 4 + [1] * 4)
    assert float(plain.min()) < -1.7
    torch.testing.assert_close(found[:4], torch.tensor([-1.0, 1 / 3, 1 / 3, 1 / 3], dtype=torch.float64), rtol=1e-6, atol=0)
    assert float(found.min()) >= -1 and float(found[4:].mean()) == pytest.approx(0, abs=1e-7)


def test_an_unscored_output_stays_out_of_the_projection(tiny_sd3):
    bench = tiny_bench(
        tiny_sd3,
        lambda images, call: torch.tensor([math.nan, 0.0, 5.0, 5.0, 5.0, 1.0, 2.0, 3.0]),
        objective={"soft_clip_eta": None, "advantage": {"simplex": 0.5}},
    )
    found = iterate(bench).advantages
    assert found[0] == 0
    torch.testing.assert_close(found[1:4], torch.tensor([-0.5, 0.25, 0.25]))


def test_a_bound_that_binds_nowhere_changes_no_bit(tiny_sd3):
    made = []
    for simplex in (None, 100.0):
        bench = tiny_bench(tiny_sd3, bright, objective={"advantage": {"simplex": simplex}})
        iterate(bench)
        made.append(factors(bench))
    assert same(*made)


# Velocity matching


def test_one_step_of_velocity_matching_is_half_of_vgrpo_s_on_the_velocity(tiny_sd3):
    """No ratio is needed for it: at theta_old the policy gradient of the plain error in velocity is the same update."""
    vgrpo, _ = steps_of(tiny_sd3, surrogate={"weighting": "v"})
    rvm, metrics = steps_of(tiny_sd3, algorithm="rvm")
    close(vgrpo[0], rvm[0], 0.5)
    assert metrics["matching/mean"] > 0 and "ratio/noise" not in metrics


def test_velocity_matching_asks_no_behaviour_policy_in_later_steps(tiny_sd3):
    _, vgrpo = steps_of(tiny_sd3, objective={"gradient_steps": 4})
    _, rvm = steps_of(tiny_sd3, algorithm="rvm", objective={"gradient_steps": 4})
    assert vgrpo["nfe/behaviour"] - rvm["nfe/behaviour"] == 3 and rvm["nfe/policy"] == vgrpo["nfe/policy"]


def test_the_anchor_of_velocity_matching_pulls_to_the_base(tiny_sd3):
    (off, _), (on, metrics) = (steps_of(tiny_sd3, algorithm="rvm", objective={"kl_coef": k}) for k in (0.0, 0.1))
    assert metrics["kl"] > 0
    assert any(not torch.allclose(off[0][name], on[0][name], rtol=1e-2) for name in off[0])
