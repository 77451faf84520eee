"""The UNet families: schedules, predictions, zero terminal signal, and what is refused."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.family_bench import CPU, PROMPTS, SAMPLERS, SAMPLING, SEEDS, seen_by_network, watch_scheduler
from tests.tiny_families import make_folder, rename_pipeline, vp_scheduler
from trainer.errors import UserError
from trainer.policies.sd15 import SD15Policy
from trainer.policies.sdxl import SDXLPolicy
from trainer.policies.vp_samplers import Schedule, ladder

# The noise schedule of Stable Diffusion 1.x and XL, as their scheduler_config.json say it.
BETAS = {"num_train_timesteps": 1000, "beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


@pytest.fixture(scope="module")
def sdxl(tmp_path_factory):
    return make_folder("sdxl", tmp_path_factory.mktemp("sdxl") / "model")


@pytest.fixture(scope="module")
def noob(tmp_path_factory):
    """As NoobAI's v-prediction models: zero terminal signal, and the scheduler says so."""
    scheduler = vp_scheduler(prediction_type="v_prediction", rescale_betas_zero_snr=True, timestep_spacing="trailing")
    return make_folder("sdxl", tmp_path_factory.mktemp("noob") / "model", scheduler=scheduler)


# The ladder of timesteps


@pytest.mark.parametrize("steps", [1, 2, 7, 20, 61, 103, 999, 1000])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_solver_walks_the_same_timesteps_from_the_noisiest(sampler, steps):
    """61 and 103 are among those for which diffusers' trailing spacing has one too many."""
    scheduler = Schedule(BETAS, "epsilon", False).scheduler(sampler)
    scheduler.set_timesteps(steps)
    walked = torch.unique_consecutive(scheduler.timesteps.double()).tolist()
    assert walked == ladder(steps, 1000).tolist()
    assert walked[0] == 999 and len(set(walked)) == steps and min(walked) >= 0
    assert scheduler.sigmas[-1] == 0 and len(scheduler.timesteps) == (2 * steps - 1 if sampler == "heun" else steps)
    signal = np.cumprod(1 - np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2)
    sigma = torch.unique_consecutive(scheduler.sigmas[:-1].double()).numpy()
    expected = np.sqrt((1 - signal) / signal)[np.array(walked, dtype=int)]
    np.testing.assert_allclose(sigma, expected, rtol=2e-5)


def test_what_is_mended_is_broken_in_diffusers():
    """If this fails diffusers' trailing spacing is right for all, and ours may go."""
    from diffusers import EulerDiscreteScheduler

    scheduler = EulerDiscreteScheduler(**BETAS, timestep_spacing="trailing")
    scheduler.set_timesteps(61)
    assert len(scheduler.timesteps) == 62 and scheduler.timesteps[-1] == -1


@pytest.mark.parametrize("steps", [0, 1001])
def test_a_ladder_that_cannot_be(steps):
    with pytest.raises(ValueError, match=f"{steps} steps on 1000 trained timesteps; allowed: 1 to 1000"):
        ladder(steps, 1000)


def _solve(scheduler, prediction: str, steps: int, z: torch.Tensor, mean: float, spread: float) -> torch.Tensor:
    """Denoise N(mean, spread^2), whose exact network is known, as a pipeline would."""
    scheduler.set_timesteps(steps)
    z = z * scheduler.init_noise_sigma
    for index, timestep in enumerate(scheduler.timesteps):
        seen = scheduler.scale_model_input(z, timestep).double()
        sigma = float(scheduler.sigmas[index])
        a, b = 1 / math.sqrt(sigma**2 + 1), sigma / math.sqrt(sigma**2 + 1)
        variance = a**2 * spread**2 + b**2
        x = mean + a * spread**2 / variance * (seen - a * mean)
        eps = b / variance * (seen - a * mean)
        output = eps if prediction == "epsilon" else a * eps - b * x
        z = scheduler.step(output.float(), timestep, z.float(), return_dict=False)[0]
    return z


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_solvers_reach_the_exact_end(sampler, prediction):
    """The flow carries noise xi to about mean + spread * xi; more steps come nearer, second order faster."""
    xi = torch.linspace(-2, 2, 9).view(1, 1, 3, 3)
    errors = {}
    for steps in (10, 40, 160):
        schedule = Schedule(BETAS, prediction, False)
        z = _solve(schedule.scheduler(sampler), prediction, steps, xi, 0.7, 0.5)
        a, b = (float(c) for c in schedule.coefficients(torch.tensor([999])))
        start = (xi - a * 0.7) / math.sqrt(a**2 * 0.25 + b**2)  # the noise is taken for z at the last timestep
        errors[steps] = float((z - (0.7 + 0.5 * start)).abs().max())
    assert errors[40] < errors[10] and errors[160] < (0.03 if sampler == "euler" else 0.012)


# Coefficients and x_theta


def test_coefficients_are_the_schedules_own(sdxl, tmp_path):
    policy = SDXLPolicy(sdxl, CPU, cache=tmp_path)
    signal = np.cumprod(1 - np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2)
    k = torch.tensor([0, 123, 999])
    a, b = policy.coefficients((k + 1) / 1000)
    np.testing.assert_allclose(a.numpy(), np.sqrt(signal[k.numpy()]), rtol=1e-5)
    np.testing.assert_allclose(b.numpy(), np.sqrt(1 - signal[k.numpy()]), rtol=5e-5)  # the schedulers' float32


@pytest.mark.parametrize(("prediction", "zero_terminal"), [("epsilon", False), ("v_prediction", False), ("v_prediction", True)])
def test_a_perfect_network_is_scored_as_perfect(sdxl, tmp_path, monkeypatch, prediction, zero_terminal):
    """x_theta of the true output is x0 itself, at every level, in the very precision that training uses."""
    policy = SDXLPolicy(sdxl, CPU, cache=tmp_path, prediction=prediction, zero_terminal_snr=zero_terminal)
    generator = torch.Generator().manual_seed(0)
    t = policy.visible_time(torch.tensor([0.001, 0.1, 0.5, 0.9, 0.999, 1.0]))
    x0, eps = torch.randn(2, 6, 4, 8, 8, generator=generator)
    a, b = (c.view(-1, 1, 1, 1) for c in policy.coefficients(t))
    target = eps if prediction == "epsilon" else a * eps - b * x0
    monkeypatch.setattr(policy, "output", lambda *arguments: target)
    clean = policy.predict_clean(a * x0 + b * eps, t, policy.encode(PROMPTS[:1]).rows([0] * 6))
    torch.testing.assert_close(clean, x0, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_zero_terminal_signal_is_replayed_and_finite(noob, tmp_path, sampler):
    policy = SDXLPolicy(noob, CPU, cache=tmp_path)
    assert policy.schedule.prediction == "v_prediction" and policy.schedule.zero_terminal
    a, b = policy.coefficients(torch.tensor([1.0]))
    assert float(a) == 2**-12 and float(b) == pytest.approx(1.0, abs=1e-7)
    conditioning = policy.encode(PROMPTS)
    with watch_scheduler(policy) as steps:
        policy.sample(conditioning, SEEDS[:3], replace(SAMPLING, sampler=sampler))
    assert steps[0].sigma == pytest.approx(4096, rel=1e-3)
    for step in steps:
        z, t, clean, _ = seen_by_network(policy, step, sampler)
        with torch.no_grad():
            ours = policy.predict_clean(z, t, conditioning)
        torch.testing.assert_close(ours, clean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_noisiest_level_does_not_overflow_in_half_precision(noob, sdxl, tmp_path, sampler, dtype):
    """Sigma is 4096 there, and float16 ends at 65504."""
    for folder in (noob, sdxl):
        policy = SDXLPolicy(folder, CPU, dtype, cache=tmp_path)
        conditioning = policy.encode(PROMPTS)
        latents = policy.sample(conditioning, SEEDS[:3], replace(SAMPLING, sampler=sampler))
        assert torch.isfinite(latents).all() and float(latents.std()) < 60
        t = torch.ones(3)
        a, b = policy.coefficients(t)
        z = a.view(3, 1, 1, 1) * latents + b.view(3, 1, 1, 1) * torch.randn(
            latents.shape, generator=torch.Generator().manual_seed(0)
        )
        with torch.no_grad():
            assert torch.isfinite(policy.predict_clean(z, t, conditioning)).all()


def test_the_decoder_that_overflows_in_float16_runs_in_float32(sdxl, tmp_path):
    """SDXL's own decoder says force_upcast; others may be halved."""
    half = SDXLPolicy(sdxl, CPU, torch.float16, cache=tmp_path)
    assert half._pipe.vae.dtype == torch.float32 and half.denoiser.dtype == torch.float16
    assert SDXLPolicy(sdxl, CPU, torch.bfloat16, cache=tmp_path)._pipe.vae.dtype == torch.bfloat16


def test_sizes_are_told_to_the_network_as_the_pipeline_tells_them(sdxl, tmp_path):
    policy = SDXLPolicy(sdxl, CPU, torch.bfloat16, cache=tmp_path)
    conditioning, seen = policy.encode(PROMPTS[:1]), []
    policy.denoiser.register_forward_pre_hook(lambda _module, _args, kw: seen.append(kw["added_cond_kwargs"]), with_kwargs=True)
    latents = policy.sample(conditioning, [1], replace(SAMPLING, width=96, height=32, steps=1))
    with torch.no_grad():
        policy.predict_clean(latents, torch.ones(1), conditioning)
    assert seen[0].keys() == seen[1].keys() == {"text_embeds", "time_ids"}
    for key in seen[0]:
        assert torch.equal(seen[0][key], seen[1][key]) and seen[0][key].dtype == seen[1][key].dtype
    assert seen[1]["time_ids"].tolist() == [[32, 96, 0, 0, 32, 96]]


# What the configuration may say against the scheduler


def test_a_v_prediction_model_whose_scheduler_does_not_say_so(sdxl, tmp_path):
    plain, told = SDXLPolicy(sdxl, CPU, cache=tmp_path), SDXLPolicy(sdxl, CPU, cache=tmp_path, prediction="v_prediction")
    assert plain.schedule.prediction == "epsilon" and told.schedule.prediction == "v_prediction"
    assert plain.lora_facts() == {"prediction": "epsilon"} and told.lora_facts() == {"prediction": "v_prediction"}
    conditioning = plain.encode(PROMPTS)
    assert not torch.allclose(plain.sample(conditioning, [1, 2, 3], SAMPLING), told.sample(conditioning, [1, 2, 3], SAMPLING))


def test_a_predicted_noise_with_zero_terminal_signal_is_refused(sdxl, tmp_path):
    with pytest.raises(UserError, match=r"^policy\.zero_terminal_snr: .*set policy\.prediction to v_prediction"):
        SDXLPolicy(sdxl, CPU, cache=tmp_path, zero_terminal_snr=True)


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [
        ({"prediction_type": "sample"}, "predicts 'sample'; family sdxl trains epsilon and v_prediction"),
        ({"beta_schedule": "exp"}, "the noise schedule of"),
    ],
)
def test_other_schedules_are_refused(tmp_path, scheduler, said):
    from diffusers import HeunDiscreteScheduler

    folder = make_folder("sdxl", tmp_path / "other", scheduler=HeunDiscreteScheduler(**scheduler))
    with pytest.raises(UserError, match=rf"^policy\.model: .*{said}") as caught:
        SDXLPolicy(folder, CPU, cache=tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"in_channels": 9}, "takes 9 channels and gives 4, as inpainting"), ({"time_cond_proj_dim": 8}, "consistency model")],
)
def test_other_networks_are_refused(tmp_path, changes, said):
    folder = make_folder("sd15", tmp_path / "other", **changes)
    with pytest.raises(UserError, match=said):
        SD15Policy(folder, CPU, cache=tmp_path)


@pytest.mark.parametrize(
    ("pipeline", "right"),
    [
        ("StableDiffusionPipeline", "set policy.family to sd15"),
        ("FluxPipeline", "set policy.family to flux"),
        ("Other", "famil"),
    ],
)
def test_the_right_family_is_named(sdxl, tmp_path, pipeline, right):
    folder = shutil.copytree(sdxl, tmp_path / "other")
    rename_pipeline(folder, pipeline)
    with pytest.raises(UserError, match=rf"^policy\.family: .*holds a {pipeline}, but family sdxl needs .*{right}"):
        SDXLPolicy(folder, CPU, cache=tmp_path)
