"""V-GRPO's peers, each through the loop on a tiny model. What holds for all comes first."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tests.bench import CPU, bright, factors, iterate, same, shake, tiny_bench, watch_denoiser, watch_steps
from tests.family_bench import PROMPTS, SAMPLING, SEEDS
from tests.tiny_families import make_folder
from trainer.algorithms import ALGORITHMS, load_algorithm
from trainer.algorithms.mix_grpo import window_start
from trainer.loop import sampling_of
from trainer.objective import ddim_step, draw_pairs, flow_noise, gaussian_log_prob, ode_step, optimality
from trainer.planning.plan import UPDATE, Planner
from trainer.policies import policy_class
from trainer.rollout import pick_prompts

PEERS = [name for name in ALGORITHMS if name != "vgrpo"]
TRAJECTORIES = [name for name in PEERS if ALGORITHMS[name].trajectory]
SGD = {"name": "sgd", "lr": 1e-2, "max_grad_norm": None}
STEPS, OUTPUTS = 4, 8
STOCHASTIC = {"flow_grpo": 3, "mix_grpo": 2, "dance_grpo": 3}
TRAINED = {"flow_grpo": 3, "mix_grpo": 2, "dance_grpo": 1}  # of dance_grpo int(0.6 x 3)
OWN = {"mix_grpo": {"trajectory": {"window": 2, "window_every": 1}}}


def peer(folder, name, reward=bright, **changes):
    """Sections of `changes` are merged with what the peer needs on a rollout of four steps."""
    pairs = {"surrogate": {"pairs": 4 if name in TRAJECTORIES else 3}}  # which have none, so it stays at its default
    for section, values in {**pairs, **OWN.get(name, {})}.items():
        changes[section] = {**values, **changes.get(section, {})}
    return tiny_bench(folder, reward, algorithm=name, **changes)


def two_steps(name):
    return {"gradient_steps": 2, **({} if "objective.clip_eps" in ALGORITHMS[name].idle else {"clip_eps": 1e-3})}


@pytest.fixture(scope="module")
def planner():
    return Planner(CPU)


def estimate_of(bench, iteration=0):
    """The algorithm of an iteration with its collected outputs, scored and not yet trained on."""
    config, learner = bench.config, bench.learner
    algorithm = load_algorithm(config.algorithm)(config, learner, iteration)
    picks = pick_prompts(bench.train, 2, config.seed, iteration, config.rollout.sizes)
    with algorithm.acting(algorithm.behaviour()):
        rollout = algorithm.sample(
            bench.policy, picks, bench.train_conditioning, 4, sampling_of(config), config.seed, iteration
        )
    levels, _ = bench.policy.noise_levels(sampling_of(config))
    draw = draw_pairs(levels, config.surrogate.pairs, config.surrogate.share, config.seed, iteration, range(2), 4)
    advantages = torch.linspace(-2, 2, OUTPUTS)
    return algorithm, rollout, algorithm.estimate(rollout, draw, advantages), advantages


# All of them


@pytest.mark.parametrize("name", PEERS)
def test_an_iteration_takes_its_steps_and_says_what_it_did(tiny_sd3, name):
    bench = peer(tiny_sd3, name, objective={**two_steps(name), "kl_coef": 0.1})
    shake(bench)
    before = factors(bench)
    result = iterate(bench)
    assert bench.learner.stepper.steps == 2 == result.metrics["steps/taken"] and not result.warnings
    assert not same(factors(bench), before)
    assert all(math.isfinite(value) for value in result.metrics.values())
    expected = {"kl", "grad_norm", "lr", "nfe/behaviour", "nfe/policy", f"{load_algorithm(name).measured}/mean"}
    if name not in ("diffusion_nft", "rvm"):
        expected |= {"ratio/max_abs_dev", "ratio/noise", "ratio/clip_frac"}
        assert 0 < result.metrics["ratio/max_abs_dev"] and result.metrics["ratio/noise"] < 1e-5
    assert expected <= set(result.metrics)
    assert result.metrics["kl"] > 0  # the LoRA was shaken, so the base is elsewhere


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("steps", [1, 2])
def test_network_evaluations_are_counted_as_they_are_spent_and_planned(tiny_sd3, planner, name, steps):
    objective = two_steps(name) if steps == 2 else {}
    bench = peer(
        tiny_sd3, name, objective={**objective, "kl_coef": 0.1}, rollout={"guidance": 2.0}, surrogate={"guidance": "same"}
    )
    with watch_denoiser(bench.policy) as calls:
        metrics = iterate(bench).metrics
    assert metrics["nfe/behaviour"] + metrics["nfe/policy"] == sum(len(call.hidden) for call in calls) / OUTPUTS
    with_gradient = sum(len(call.hidden) for call in calls if call.with_gradient) / OUTPUTS
    assert metrics["nfe/policy"] == with_gradient == 2 * TRAINED.get(name, 3)
    plan = planner.plan(bench.config)
    assert plan.evaluations / OUTPUTS == metrics["nfe/behaviour"] + metrics["nfe/policy"]
    (update,) = (phase for phase in plan.phases if phase.name == UPDATE)
    assert update.evaluations / OUTPUTS == metrics["nfe/policy"]


@pytest.mark.parametrize("name", PEERS)
def test_the_split_into_batches_changes_no_gradient(tiny_sd3, name):
    """Also where the rows of one output do not fit into a batch."""
    seen = []
    for batch_size in (64, 5, 2):
        bench = peer(
            tiny_sd3,
            name,
            surrogate={"batch_size": batch_size},
            rollout={"batch_size": 16 if batch_size == 64 else 3},
            objective={**two_steps(name), "kl_coef": 0.1},
            optimizer=SGD,
        )
        shake(bench)
        steps = watch_steps(bench)
        iterate(bench)
        seen.append(steps)
    assert max(float(g.abs().max()) for g in seen[0][0].values()) > 1e-5
    for other in seen[1:]:
        for one, two in zip(seen[0], other, strict=True):
            for key, gradient in one.items():
                torch.testing.assert_close(two[key], gradient, rtol=2e-3, atol=1e-6, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", PEERS)
def test_the_first_step_goes_from_bad_outputs_to_good_ones(tiny_sd3, name):
    """The opposite rewards give the opposite gradient at theta_old."""
    seen = []
    for sign in (1, -1):
        bench = peer(tiny_sd3, name, lambda images, call, sign=sign: sign * bright(images), optimizer=SGD)
        shake(bench)
        if bench.learner.lagged is not None:
            bench.learner.lagged = bench.learner.adapter.snapshot()  # theta_old is theta
        steps = watch_steps(bench)
        iterate(bench)
        seen.append(steps[0])
    assert max(float(g.abs().max()) for g in seen[0].values()) > 1e-5
    for key, gradient in seen[0].items():
        torch.testing.assert_close(seen[1][key], -gradient, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("name", PEERS)
def test_a_non_finite_step_changes_nothing(tiny_sd3, name):
    bench = peer(tiny_sd3, name)
    shake(bench)
    before = factors(bench)
    bench.learner.adapter.parameters()[1].register_hook(lambda g: g * math.nan)
    result = iterate(bench)
    assert same(factors(bench), before) and result.metrics["steps/skipped"] == 1


# The trajectory


@pytest.mark.parametrize("name", TRAJECTORIES)
def test_a_rollout_does_not_depend_on_its_batches(tiny_sd3, name):
    rollouts = [estimate_of(peer(tiny_sd3, name, rollout={"batch_size": size}))[1] for size in (16, 3)]
    torch.testing.assert_close(*(torch.stack(rollout.latents) for rollout in rollouts), rtol=1e-4, atol=1e-5)
    trajectories = [rollout.trajectory for rollout in rollouts]
    torch.testing.assert_close(trajectories[0].log_probs, trajectories[1].log_probs, rtol=1e-4, atol=1e-4)
    assert len({latent.numpy().tobytes() for latent in rollouts[0].latents}) == OUTPUTS  # every output is another


@pytest.mark.parametrize("name", TRAJECTORIES)
def test_what_was_recorded_is_what_was_sampled(tiny_sd3, name):
    """Each recorded step leads, with the algorithm's own density, to the next state, and the last of them to the output."""
    bench = peer(tiny_sd3, name)
    shake(bench)
    algorithm, rollout, estimate, _ = estimate_of(bench)
    trajectory = rollout.trajectory
    assert trajectory.log_probs.shape == (OUTPUTS, STOCHASTIC[name])
    levels, _ = bench.policy.noise_levels(sampling_of(bench.config))
    assert torch.equal(trajectory.levels[0], levels[: STOCHASTIC[name] + 1])
    states = torch.stack(trajectory.states)
    for k in range(STOCHASTIC[name]):
        t, after = trajectory.levels[:, k], trajectory.levels[:, k + 1]
        with torch.no_grad():
            x_hat = bench.policy.predict_clean(states[:, k], t, rollout.conditioning)
        mean, std = algorithm.transition(bench.policy, states[:, k], x_hat, t, after)
        noise = (states[:, k + 1] - mean) / std.view(-1, 1, 1, 1)
        assert abs(float(noise.mean())) < 0.1 and abs(float(noise.std()) - 1) < 0.1
        torch.testing.assert_close(
            gaussian_log_prob(states[:, k + 1], mean, std), trajectory.log_probs[:, k], rtol=1e-4, atol=1e-5
        )
    if name != "mix_grpo":  # one step is left, and it only takes noise away
        t = trajectory.levels[:, -1]
        with torch.no_grad():
            x_hat = bench.policy.predict_clean(states[:, -1], t, rollout.conditioning)
        torch.testing.assert_close(torch.stack(rollout.latents), x_hat, rtol=1e-4, atol=1e-5)
    values, _ = estimate.values(torch.arange(OUTPUTS))
    expected = -trajectory.log_probs.gather(1, estimate.steps)
    torch.testing.assert_close(values, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TRAJECTORIES)
def test_recomputed_log_probabilities_are_the_rollout_s(tiny_sd3, name):
    seen, spent = [], []
    for log_probs in ("rollout", "recomputed"):
        bench = peer(tiny_sd3, name, trajectory={"log_probs": log_probs}, objective=two_steps(name), optimizer=SGD)
        shake(bench)
        steps = watch_steps(bench)
        metrics = iterate(bench).metrics
        seen.append(steps)
        spent.append(metrics["nfe/behaviour"])
        assert metrics["ratio/noise"] <= (1e-5 if log_probs == "rollout" else 0.0)
    assert spent[0] == STEPS and spent[1] == STEPS + TRAINED[name]
    for key, gradient in seen[0][1].items():
        torch.testing.assert_close(seen[1][1][key], gradient, rtol=1e-3, atol=1e-7)


def test_the_gradient_is_the_policy_gradient_s(tiny_sd3):
    """-mean_i A_i mean_k grad log p_k, written out with the states that were recorded."""
    bench = peer(tiny_sd3, "flow_grpo", optimizer=SGD)
    shake(bench)
    algorithm, rollout, estimate, advantages = estimate_of(bench)
    outputs = torch.arange(OUTPUTS)
    estimate.backward(outputs, lambda losses, local: algorithm.loss(losses, None, advantages[local]) * len(local) / OUTPUTS)
    found = {n: p.grad.clone() for n, p in bench.learner.adapter.named_parameters()}
    bench.learner.stepper.optimizer.zero_grad()
    total = 0.0
    for k in range(3):
        z, after = (torch.stack([s[k + n] for s in rollout.trajectory.states]) for n in (0, 1))
        t, t_next = rollout.trajectory.levels[:, k], rollout.trajectory.levels[:, k + 1]
        x = bench.policy.predict_clean(z, t, rollout.conditioning)
        sigma, dt = flow_noise(t, t_next, 0.7).view(-1, 1, 1, 1), (t_next - t).view(-1, 1, 1, 1)
        level = t.view(-1, 1, 1, 1)
        v = (z - x) / level
        mean = z * (1 + sigma**2 / (2 * level) * dt) + v * (1 + sigma**2 * (1 - level) / (2 * level)) * dt
        total = total - ((after - mean) ** 2 / (2 * sigma**2 * -dt)).flatten(1).mean(1)
    (-(advantages * total / 3).mean()).backward()
    for key, parameter in bench.learner.adapter.named_parameters():
        torch.testing.assert_close(found[key], parameter.grad, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("name", ["flow_grpo", "dance_grpo"])
def test_the_kl_is_that_of_the_two_gaussians(tiny_sd3, name):
    """Flow-GRPO's times t - t_next, as in its code."""
    bench = peer(tiny_sd3, name, objective={"kl_coef": 0.1}, trajectory={"share": 1.0})
    shake(bench)
    algorithm, rollout, estimate, _ = estimate_of(bench)
    outputs = torch.arange(OUTPUTS)
    reference = algorithm.reference(estimate, outputs, algorithm.behaviour())
    assert reference.losses is None
    _, kl = estimate.backward(outputs, lambda losses, local: losses.sum() * 0, 0.1, reference.predictions)
    expected = []
    for k in range(3):
        z, t, t_next = torch.stack([s[k] for s in rollout.trajectory.states]), *rollout.trajectory.levels[:, k : k + 2].T
        with torch.no_grad():
            now = algorithm.transition(bench.policy, z, bench.policy.predict_clean(z, t, rollout.conditioning), t, t_next)
            with bench.learner.adapter.disabled():
                base = algorithm.transition(bench.policy, z, bench.policy.predict_clean(z, t, rollout.conditioning), t, t_next)
        pair = [torch.distributions.Normal(mean, std.view(-1, 1, 1, 1)) for mean, std in (now, base)]
        weight = t - t_next if name == "flow_grpo" else torch.ones(OUTPUTS)
        expected.append((torch.distributions.kl_divergence(*pair).mean((1, 2, 3)) * weight).mean())
    assert kl == pytest.approx(float(torch.stack(expected).mean()), rel=1e-3)


def test_a_group_starts_from_one_noise_where_asked(tiny_sd3):
    for same_start in (True, False):
        bench = peer(tiny_sd3, "flow_grpo", trajectory={"same_start": same_start})
        first = [state[0] for state in estimate_of(bench)[1].trajectory.states]
        assert torch.equal(first[0], first[3]) == same_start
        assert not torch.equal(first[0], first[4])
        later = estimate_of(bench, iteration=1)[1].trajectory.states
        assert not any(torch.equal(state[0], first[0]) for state in later)


def test_dance_grpo_trains_other_steps_of_each_output(tiny_sd3):
    bench = peer(tiny_sd3, "dance_grpo", rollout={"steps": 11})
    steps = estimate_of(bench)[2].steps
    assert steps.shape == (OUTPUTS, 6) and bool((steps.diff() > 0).all()) and int(steps.max()) < 10
    assert len({tuple(row.tolist()) for row in steps}) > 1
    assert torch.equal(steps, estimate_of(bench)[2].steps) and not torch.equal(steps, estimate_of(bench, 1)[2].steps)


@pytest.mark.parametrize("noise", [None, 0.5])
def test_dance_grpo_steps_a_unet_by_ddim_s_formula(tmp_path, noise):
    folder = make_folder("sd15", tmp_path / "model")
    bench = peer(folder, "dance_grpo", policy={"model": str(folder), "family": "sd15"}, trajectory={"noise": noise})
    algorithm, rollout, _, _ = estimate_of(bench)
    states, levels = torch.stack(rollout.trajectory.states), rollout.trajectory.levels
    t, after = levels[:, 0], levels[:, 1]
    with torch.no_grad():
        x_hat = bench.policy.predict_clean(states[:, 0], t, rollout.conditioning)
    given = algorithm.transition(bench.policy, states[:, 0], x_hat, t, after)
    coefficients = (*bench.policy.coefficients(t), *bench.policy.coefficients(after))
    for value, expected in zip(given, ddim_step(states[:, 0], x_hat, *coefficients, noise or 1.0), strict=True):
        torch.testing.assert_close(value, expected)
    metrics = iterate(bench).metrics
    assert metrics["steps/taken"] == 1 and metrics["grad_norm"] > 0


def test_outputs_of_several_sizes_are_stepped_and_trained_in_batches_of_one_size(tiny_sd3):
    bench = peer(tiny_sd3, "flow_grpo", rollout={"width": [64, 32], "height": [64, 96]}, objective=two_steps("flow_grpo"))
    shapes = set()
    for iteration in range(3):
        result = iterate(bench, iteration)
        shapes |= {latent.shape for latent in result.rollout.latents}
        assert all(
            latent.shape == state.shape[1:]
            for latent, state in zip(result.rollout.latents, result.rollout.trajectory.states, strict=True)
        )
        assert result.metrics["ratio/noise"] < 1e-5 and not result.warnings
    assert len(shapes) == 2


def test_out_of_memory_halves_the_steps_batch_and_the_update_s(tiny_sd3, monkeypatch):
    """The rollout, the base's predictions and the gradient: each is done anew in smaller batches, with the same result."""
    seen = []
    for most in (None, 3):
        bench = peer(tiny_sd3, "flow_grpo", objective={**two_steps("flow_grpo"), "kl_coef": 0.1}, optimizer=SGD)
        shake(bench)
        predict = bench.policy.predict_clean

        def limited(z, *args, most=most, predict=predict):
            if most and len(z) > most:
                raise torch.OutOfMemoryError("out of memory")
            return predict(z, *args)

        monkeypatch.setattr(bench.policy, "predict_clean", limited)
        steps = watch_steps(bench)
        metrics = iterate(bench).metrics
        seen.append((steps, metrics))
    assert set(bench.policy.batches.sizes) == {"sampling 64 x 64 step by step", "the update"}
    assert max(bench.policy.batches.sizes.values()) <= 3
    assert seen[0][1]["ratio/max_abs_dev"] > 0
    for one, two in zip(seen[0][0], seen[1][0], strict=True):
        for key, gradient in one.items():
            torch.testing.assert_close(two[key], gradient, rtol=2e-3, atol=1e-6)


# The window


def test_the_window_slides_and_begins_anew():
    starts = [window_start(n, steps=8, size=3, every=2, stride=2) for n in range(14)]
    assert starts == [0, 0, 2, 2, 4, 4, 0, 0, 2, 2, 4, 4, 0, 0]
    assert [window_start(n, 5, 4, 1, 1) for n in range(3)] == [0, 0, 0]
    assert {window_start(n, 25, 4, 25, 1) for n in range(2000)} == set(range(21))  # never over the last step, 24


def test_outside_the_window_the_rollout_is_the_ode_s(tiny_sd3):
    """Before it: as the sampler; inside: not; and the same outputs of a group part there."""
    bench = peer(tiny_sd3, "mix_grpo", rollout={"steps": 6}, trajectory={"window_every": 1})
    for iteration in (0, 2):
        algorithm, rollout, _, _ = estimate_of(bench, iteration)
        assert algorithm.stochastic(6) == range(iteration, iteration + 2)
        states = rollout.trajectory.states
        assert torch.equal(states[0][0], states[3][0]) and not torch.equal(states[0][1], states[3][1])
    levels, _ = bench.policy.noise_levels(sampling_of(bench.config))
    z = bench.policy.first_noise(algorithm.start_seeds([0] * OUTPUTS, rollout.conditioning), sampling_of(bench.config))
    t = levels.tolist()
    for k in range(2):
        with torch.no_grad():
            x_hat = bench.policy.predict_clean(z, levels[k].expand(OUTPUTS), rollout.conditioning)
        z = ode_step(z, x_hat, 1 - t[k], t[k], 1 - t[k + 1], t[k + 1])
    torch.testing.assert_close(z, torch.stack([s[0] for s in states]), rtol=1e-4, atol=1e-5)


def test_flash_takes_fewer_steps_after_the_window(tiny_sd3):
    bench = peer(
        tiny_sd3,
        "mix_grpo",
        rollout={"steps": 12, "sampler": "dpmsolver++"},
        trajectory={"compress": 0.4, "window_every": 5},
    )
    with watch_denoiser(bench.policy) as calls:
        metrics = iterate(bench).metrics
    assert metrics["nfe/behaviour"] == sum(len(c.hidden) for c in calls if not c.with_gradient) / OUTPUTS == 2 + 4
    algorithm, _, _, _ = estimate_of(bench)
    grid = algorithm.grid(bench.policy, sampling_of(bench.config))
    levels, _ = bench.policy.noise_levels(sampling_of(bench.config))
    assert len(grid) == 6 and torch.equal(grid[:3], levels[:3]) and set(grid.tolist()) <= set(levels.tolist())
    assert bool((grid.diff() < 0).all())


@pytest.mark.parametrize("family", ["sd3", "sd15"])
@pytest.mark.parametrize("sampler", ["euler", "dpmsolver++"])
def test_the_ode_s_steps_are_the_sampler_s(tmp_path, family, sampler):
    """What the own steps compute without noise is what diffusers' solver computes."""
    policy = policy_class(family)(make_folder(family, tmp_path / family), CPU, cache=tmp_path)
    sampling = replace(SAMPLING, sampler=sampler, steps=6)
    conditioning = policy.encode(PROMPTS).rows([0, 1, 2, 1, 0])
    expected = policy.sample(conditioning, SEEDS, sampling)
    levels, _ = policy.noise_levels(sampling)
    z, before = policy.first_noise(SEEDS, sampling), None
    a, b = (tuple(v.tolist()) for v in policy.coefficients(levels))
    a, b = (*a, 1.0), (*b, 0.0)
    for k in range(6):
        with torch.no_grad():
            x_hat = policy.predict_clean(z, levels[k].expand(5), conditioning)
        z = ode_step(z, x_hat, a[k], b[k], a[k + 1], b[k + 1], before)
        before = (x_hat, a[k], b[k]) if sampler == "dpmsolver++" else None
    torch.testing.assert_close(z, expected, rtol=2e-3, atol=2e-3)


# The forward process


def test_diffusion_nft_samples_from_a_policy_that_lags(tiny_sd3):
    bench = peer(tiny_sd3, "diffusion_nft", forward={"lag_rate": 0.25, "lag_most": 0.5}, optimizer={**SGD, "lr": 1.0})
    theta = []
    for iteration in range(4):
        before = bench.learner.lagged.clone()
        with watch_denoiser(bench.policy) as calls:
            result = iterate(bench, iteration)
        # What made the outputs is the copy: the same seeds under it give the same latents.
        with bench.learner.adapter.using(before):
            again = bench.policy.sample(result.rollout.conditioning, result.rollout.seeds, sampling_of(bench.config))
        torch.testing.assert_close(again, torch.stack(result.rollout.latents), rtol=1e-4, atol=1e-5)
        assert sum(len(c.hidden) for c in calls if c.with_gradient) == OUTPUTS * 3
        theta.append(bench.learner.adapter.snapshot())
        decay = min(0.5, 0.25 * (iteration + 1))
        for name, (a, b) in bench.learner.lagged.factors.items():
            for value, old, new in zip((a, b), before.factors[name], theta[-1].factors[name], strict=True):
                torch.testing.assert_close(value, decay * old + (1 - decay) * new)
    assert theta[-1].checksum() != bench.learner.lagged.checksum()


def test_the_contrast_is_the_paper_s_on_the_rows_that_are_shown(tiny_sd3):
    bench = peer(tiny_sd3, "diffusion_nft", forward={"strength": 0.5})
    shake(bench)
    _, rollout, estimate, advantages = estimate_of(bench)
    assert torch.equal(estimate.r, optimality(advantages, 5.0))
    values, _ = estimate.values(torch.arange(OUTPUTS))
    x0 = torch.stack(rollout.latents)
    for j in range(3):
        t = estimate.draw.t[:, j]
        z = (1 - t.view(-1, 1, 1, 1)) * x0 + t.view(-1, 1, 1, 1) * estimate.draw.noise(range(OUTPUTS), j, x0.shape[1:])
        with torch.no_grad():
            x = bench.policy.predict_clean(z, t, rollout.conditioning)
            with bench.learner.adapter.using(bench.learner.lagged):
                x_old = bench.policy.predict_clean(z, t, rollout.conditioning)
        good, bad = 0.5 * x_old + 0.5 * x - x0, 1.5 * x_old - 0.5 * x - x0
        parts = [e.square().flatten(1).mean(1) / e.abs().flatten(1).mean(1) for e in (good, bad)]
        expected = (estimate.r * parts[0] + (1 - estimate.r) * parts[1]) / 0.5
        torch.testing.assert_close(values[:, j], expected, rtol=1e-3, atol=1e-5)


def test_awm_is_held_to_two_anchors_at_once(tiny_sd3):
    """k1 |v - v_base|^2 + k2 |v - v_copy|^2: the same gradient from one KL to the point between."""
    gradients = []
    for coefs in ((0.3, 0.2), (0.3, 0.0), (0.0, 0.2)):
        bench = peer(
            tiny_sd3, "awm", lambda images, call: bright(images), objective={"kl_coef": coefs[0]},
            forward={"lag_kl_coef": coefs[1]}, optimizer=SGD,
        )  # fmt: skip
        shake(bench, seed=1)
        bench.learner.lagged = bench.learner.adapter.snapshot()
        shake(bench, 0.1, seed=2)
        algorithm, _, estimate, _ = estimate_of(bench)
        outputs = torch.arange(OUTPUTS)
        reference = algorithm.reference(estimate, outputs, algorithm.behaviour())
        assert reference.losses is None
        estimate.backward(outputs, lambda losses, local: losses.sum() * 0, algorithm.kl_coef(), reference.predictions)
        gradients.append({n: p.grad.clone() for n, p in bench.learner.adapter.named_parameters()})
    assert max(float(g.abs().max()) for g in gradients[0].values()) > 1e-4
    for key, both in gradients[0].items():
        torch.testing.assert_close(both, gradients[1][key] + gradients[2][key], rtol=1e-3, atol=1e-6)


def test_advantages_are_bounded_by_five_where_the_algorithm_scales_by_it(tiny_sd3):
    def one_far_off(images, call):
        return (torch.arange(OUTPUTS) % 4 == 0).double() * 1000 + bright(images)

    for name, bound in (("awm", 0.5), ("flow_grpo", None), ("flow_grpo", 0.5)):
        bench = peer(tiny_sd3, name, one_far_off, objective={"soft_clip_eta": None, "advantage": {"clip": bound}})
        assert (float(iterate(bench).advantages.abs().max()) > 0.5) == (bound is None)
