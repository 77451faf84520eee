"""What single flow families do differently: embedded guidance, growing shifts, masks, norms, patches, distilled bases."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tests.family_bench import CPU, PROMPTS, SAMPLING, SEEDS, watch_scheduler
from tests.tiny_families import make_folder
from trainer.errors import UserError
from trainer.policies import policy_class
from trainer.policies.pipeline import Guidance
from trainer.policies.samplers import shifted_grid


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    cache = {}

    def policy(family, name="plain", **changes):
        if (family, name) not in cache:
            folder = make_folder(family, tmp_path_factory.mktemp(family) / name, **changes)
            cache[family, name] = policy_class(family)(folder, CPU, cache=folder.parent / "cache")
        return cache[family, name]

    return policy


# FLUX.1


def test_flux_sees_the_rollouts_guidance_when_it_is_scored(made):
    policy = made("flux")
    conditioning, seen = policy.encode(PROMPTS), []
    policy.denoiser.register_forward_pre_hook(lambda _m, _a, kw: seen.append(kw["guidance"]), with_kwargs=True)
    latents = policy.sample(conditioning, SEEDS[:3], replace(SAMPLING, guidance=3.5, steps=1))
    scale = policy.scored_guidance(3.5, same=False)
    with torch.no_grad():
        policy.predict_clean(latents, torch.full((3,), 0.5), conditioning, scale)
    assert [value.tolist() for value in seen] == [[3.5] * 3] * 2
    assert policy.passes(3.5) == 1 and policy.noise_levels(replace(SAMPLING, guidance=3.5))[1] == SAMPLING.steps


def test_flux_has_no_negative_prompt(made):
    with pytest.raises(UserError, match=r"^rollout\.negative_prompt: .*takes its guidance scale as an input"):
        made("flux").check(SAMPLING, "ugly", "rollout")
    assert made("flux").notes() == []


def test_schnell_is_warned_about_and_guided_by_two_passes(made):
    policy = made("flux", "schnell", guidance_embeds=False)
    (note,) = policy.notes()
    assert "DiffusionNFT#45" in note and "kl_coef" in note and "\n" not in note
    assert policy.guidance_kind() is Guidance.TWO_PASSES and policy.passes(2.0) == 2
    policy.check(SAMPLING, "ugly", "rollout")
    conditioning = policy.encode(PROMPTS, "ugly")
    with watch_scheduler(policy) as steps:
        policy.sample(conditioning, SEEDS[:3], replace(SAMPLING, guidance=2.0))
    t = torch.full((3,), steps[1].timestep / 1000)
    with torch.no_grad():
        ours = policy.predict_clean(steps[1].latents, t, conditioning, 2.0)
    torch.testing.assert_close(ours, steps[1].latents - steps[1].sigma * steps[1].output, rtol=0, atol=1e-5)


def test_the_shift_of_flux_grows_with_the_size_as_in_its_pipeline(made):
    from diffusers.pipelines.flux.pipeline_flux import calculate_shift

    policy = made("flux")
    for side, tokens in ((64, 16), (512, 1024), (720, 2025), (1024, 4096)):
        sampling = replace(SAMPLING, width=side, height=side)
        assert policy.shift_of(sampling) == pytest.approx(math.exp(calculate_shift(tokens)), rel=1e-9)
    assert policy.shift_of(replace(SAMPLING, shift=3.0)) == 3.0  # the paper's
    levels, _ = policy.noise_levels(replace(SAMPLING, shift=3.0, sampler="dpmsolver++"))
    torch.testing.assert_close(levels, shifted_grid(4, 3.0), rtol=0, atol=1.1e-6)


# Qwen-Image


def test_qwen_stretches_its_levels_to_the_end_that_its_scheduler_states(made):
    policy = made("qwen_image")
    for sampler in ("euler", "heun", "dpmsolver++", "unipc"):
        levels, _ = policy.noise_levels(replace(SAMPLING, sampler=sampler, steps=8))
        assert float(levels[-1]) == pytest.approx(0.02, abs=1e-6) and float(levels[0]) == pytest.approx(1.0, abs=2e-6)
    theirs = policy._pipe.scheduler.from_config(policy._schedule)  # diffusers' own grid
    import numpy as np

    theirs.set_timesteps(sigmas=np.linspace(1, 1 / 8, 8), mu=policy.log_shift(16, 8))
    torch.testing.assert_close(levels, theirs.sigmas[:-1], rtol=0, atol=2e-6)
    one, _ = policy.noise_levels(replace(SAMPLING, steps=1))
    assert one.tolist() == [1.0]


def test_qwens_guidance_keeps_each_tokens_norm(made):
    policy = made("qwen_image")
    generator = torch.Generator().manual_seed(0)
    positive, negative = torch.randn(2, 3, 16, 8, 8, generator=generator)
    guided = policy.guided(positive, negative, 4.0)
    norm = policy.pack(guided).norm(dim=-1)
    torch.testing.assert_close(norm, policy.pack(positive).norm(dim=-1), rtol=1e-5, atol=0)
    plain = negative + 4 * (positive - negative)
    cosine = torch.nn.functional.cosine_similarity(policy.pack(guided), policy.pack(plain), dim=-1)
    assert float(cosine.min()) > 0.99999


@pytest.mark.parametrize("family", ["flux", "chroma", "qwen_image"])
def test_packing_is_the_pipelines(made, family):
    policy = made(family)
    latents = torch.randn(2, 16, 6, 10, generator=torch.Generator().manual_seed(0))
    packed = policy.pack(latents)
    assert torch.equal(packed, policy._pipe._pack_latents(latents, 2, 16, 6, 10))
    assert torch.equal(policy.unpack(packed, 6, 10), latents)


# Prompts of different length


@pytest.mark.parametrize("family", ["chroma", "qwen_image", "z_image"])
def test_a_prompt_does_not_depend_on_the_longer_ones_beside_it(made, family):
    policy = made(family)
    together, alone = policy.encode(PROMPTS), policy.encode(PROMPTS[:1])
    assert together.tensors["context"].shape[1] > alone.tensors["context"].shape[1]
    z = torch.randn(1, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    t = torch.tensor([0.6])
    with torch.no_grad():
        one = policy.predict_clean(z, t, alone)
        batch = policy.predict_clean(z.expand(3, -1, -1, -1), t.expand(3), together)
        long = policy.predict_clean(z, t, together.rows([2]))
    torch.testing.assert_close(batch[:1], one, rtol=0, atol=1e-5)
    torch.testing.assert_close(batch[2:], long, rtol=0, atol=1e-5)
    assert float((batch[0] - batch[2]).abs().max()) > 1e-4


def test_chromas_mask_hides_and_is_no_number(made):
    """diffusers makes its mask a number, which attention adds (diffusers#12116); ours reaches attention as a truth value."""
    policy = made("chroma")
    conditioning, seen = policy.encode(PROMPTS), []
    policy.denoiser.register_forward_pre_hook(lambda _m, _a, kw: seen.append(kw["attention_mask"]), with_kwargs=True)
    latents = policy.sample(conditioning, SEEDS[:3], replace(SAMPLING, steps=1))
    with torch.no_grad():
        policy.predict_clean(latents, torch.full((3,), 0.5), conditioning)
    assert [mask.dtype for mask in seen] == [torch.bool] * 2 and torch.equal(*seen)
    lengths = (conditioning.tensors["mask"] > 0).sum(1) + 16
    assert seen[0].sum(1).tolist() == lengths.tolist() and len(set(lengths.tolist())) == 3


# FLUX.2 klein


def test_a_distilled_klein_is_warned_about_and_takes_no_guidance(made):
    policy = made("flux2_klein", "distilled", distilled=True)
    (note,) = policy.notes()
    assert "DiffusionNFT#45" in note and "klein base" in note
    assert policy.passes(4.0) == 1 and policy.scored_guidance(4.0, same=False) == 1.0
    with pytest.raises(UserError, match=r"^rollout\.guidance = 4: .*is distilled and takes no guidance; set it to 1$"):
        policy.check(replace(SAMPLING, guidance=4.0), "", "rollout")
    with pytest.raises(UserError, match="negative_prompt"):
        policy.check(SAMPLING, "ugly", "rollout")
    assert made("flux2_klein").notes() == []


def test_the_shift_of_klein_is_its_pipelines(made):
    from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu

    policy = made("flux2_klein")
    sampling = replace(SAMPLING, width=1024, height=1024, steps=50)
    assert policy.shift_of(sampling) == pytest.approx(math.exp(compute_empirical_mu(4096, 50)), rel=1e-9)


# Z-Image


def test_z_images_guidance_is_the_usual_scale(made):
    """Its pipeline adds `guidance_scale` times the difference to the conditional output."""
    policy = made("z_image")
    rows = {"context": torch.zeros(2, 5, 48), "mask": torch.ones(2, 5)}
    assert policy.call_arguments(rows, rows, replace(SAMPLING, guidance=4.0))["guidance_scale"] == 3.0
    assert policy.call_arguments(rows, None, SAMPLING)["guidance_scale"] == 0.0
