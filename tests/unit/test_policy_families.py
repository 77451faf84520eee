"""What every family must do, on small models of the real classes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.family_bench import CPU, PROMPTS, ROWS, SAMPLERS, SAMPLING, SEEDS, seen_by_network, watch_scheduler
from tests.tiny_families import MAKERS
from trainer.errors import UserError
from trainer.families import FAMILIES
from trainer.lora import attach
from trainer.policies import policy_class

NEW = [name for name in FAMILIES if name != "sd3"]  # sd3 has a file of tests of its own


@pytest.fixture(scope="module")
def policies(folders, tmp_path_factory):
    made, cache = {}, tmp_path_factory.mktemp("conditioning")

    def policy(family):
        if family not in made:
            base = policy_class(family)(folders(family), CPU, cache=cache)
            made[family] = base, base.encode(PROMPTS, "a blurry green square").rows(ROWS)
        return made[family]

    return policy


def test_every_family_has_a_small_model():
    assert set(MAKERS) == set(FAMILIES)


# The replay check: the surrogate sees the network exactly as the sampler did.


@pytest.mark.parametrize("guidance", [1.0, 4.0])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_predict_clean_replays_what_the_pipeline_computed(policies, family, sampler, guidance):
    """At the sampler's own (z_t, t), with the sampler's own guidance, x_theta is what the solver made of the output."""
    policy, conditioning = policies(family)
    sampling = replace(SAMPLING, sampler=sampler, guidance=guidance)
    with watch_scheduler(policy) as steps:
        policy.sample(conditioning, SEEDS, sampling)
    levels, evaluations = policy.noise_levels(sampling)
    assert len(steps) * policy.passes(guidance) == evaluations
    seen = []
    for step in steps:
        z, t, clean, enlarged = seen_by_network(policy, step, sampler)
        with torch.no_grad():
            ours = policy.predict_clean(z, policy.visible_time(t), conditioning, guidance)
        torch.testing.assert_close(ours, clean, rtol=1e-5, atol=1e-5 * enlarged)
        assert float(step.output.abs().mean()) > 0.01  # a network that says nothing would pass
        seen.append(t[0])
    torch.testing.assert_close(torch.unique_consecutive(torch.stack(seen)), levels, rtol=1e-6, atol=0)
    assert len(levels) == sampling.steps


@pytest.mark.parametrize("family", FAMILIES)
def test_guidance_changes_what_is_scored_only_where_it_is_asked_for(policies, family):
    policy, conditioning = policies(family)
    z = torch.randn(2, *_latents(policy).shape[1:], generator=torch.Generator().manual_seed(0))
    t, rows = policy.visible_time(torch.tensor([0.4, 0.8])), conditioning.rows([0, 2])
    with torch.no_grad():
        plain, guided = policy.predict_clean(z, t, rows), policy.predict_clean(z, t, rows, 3.0)
    assert float((guided - plain).abs().max()) > 1e-4
    embedded = policy.passes(3.0) == 1
    assert policy.scored_guidance(3.0, same=True) == 3.0
    assert policy.scored_guidance(3.0, same=False) == (3.0 if embedded else 1.0)
    assert embedded == (family == "flux")


# Sampling


def _latents(policy, sampling=SAMPLING):
    height, width = policy._latent_size(sampling)
    return torch.zeros(1, policy.latent_channels, height, width)


@pytest.mark.parametrize("guidance", [1.0, 4.0])
@pytest.mark.parametrize("family", NEW)
def test_outputs_do_not_depend_on_the_batch_split(policies, family, guidance):
    policy, conditioning = policies(family)
    sampling = replace(SAMPLING, sampler="dpmsolver++", guidance=guidance)
    whole = policy.sample(conditioning, SEEDS, sampling)
    assert whole.shape[1:] == _latents(policy).shape[1:] and whole.dtype == torch.float32
    for size in (1, 3):
        split = policy.sample(conditioning, SEEDS, replace(sampling, batch_size=size))
        # A UNet's guided noise enters the picture enlarged by guidance and b / a, up to 60 times, at the first level.
        torch.testing.assert_close(split, whole, rtol=0, atol=2e-4 if family in ("sd15", "sdxl") else 2e-5)
    assert all((whole[i] - whole[j]).abs().max() > 0.1 for i in range(5) for j in range(i))


@pytest.mark.parametrize("family", NEW)
def test_an_output_comes_from_its_own_seed_and_prompt(policies, family):
    policy, conditioning = policies(family)
    first = policy.sample(conditioning, SEEDS, SAMPLING)
    torch.manual_seed(5)  # the global state plays no part
    again = policy.sample(conditioning.rows([4, 3, 2, 1, 0]), SEEDS[::-1], SAMPLING)
    torch.testing.assert_close(again.flip(0), first, rtol=0, atol=2e-5)
    other = policy.sample(conditioning.rows([2, 2, 2, 2, 2]), SEEDS, SAMPLING)
    assert (other[0] - first[0]).abs().max() > 1e-4
    torch.testing.assert_close(other[2], first[2], rtol=0, atol=2e-5)


@pytest.mark.parametrize("family", [name for name in NEW if name != "flux"])
def test_the_negative_prompt_is_what_guidance_leads_away_from(policies, family):
    policy, _ = policies(family)
    conditionings = [policy.encode(PROMPTS[:1], negative) for negative in ("", "a red square", "two blue circles")]
    sampling = replace(SAMPLING, guidance=5.0, steps=2)
    pictures = [policy.sample(c, [7], sampling) for c in conditionings]
    plain = policy.sample(conditionings[0], [7], replace(sampling, guidance=1.0))
    torch.testing.assert_close(pictures[1], plain, rtol=0, atol=1e-4)  # away from itself: nowhere
    assert min(float((pictures[i] - plain).abs().max()) for i in (0, 2)) > 1e-3
    assert float((pictures[0] - pictures[2]).abs().max()) > 1e-3


@pytest.mark.parametrize("family", NEW)
def test_on_step_is_called_and_may_abort(policies, family):
    class Stop(Exception):
        pass

    policy, conditioning = policies(family)
    seen = []
    whole = policy.sample(conditioning, SEEDS, replace(SAMPLING, batch_size=3), lambda: seen.append(1))
    assert len(seen) == 2 * SAMPLING.steps

    def stop():
        raise Stop

    with pytest.raises(Stop):
        policy.sample(conditioning, SEEDS, SAMPLING, stop)
    torch.testing.assert_close(policy.sample(conditioning, SEEDS, SAMPLING), whole, rtol=0, atol=2e-5)


@pytest.mark.parametrize("family", NEW)
def test_sizes(policies, family):
    policy, conditioning = policies(family)
    latents = policy.sample(conditioning.rows([0]), [1], replace(SAMPLING, width=96, height=32, steps=2))
    assert policy.decode(latents).shape == (1, 32, 96, 3)
    step = policy.size_step
    with pytest.raises(UserError, match=rf"^rollout.*: {64 + step // 2 - 1} x 64 does not fit .*nearest size is 64 x 64$"):
        policy.check(replace(SAMPLING, width=64 + step // 2 - 1), "", "rollout")
    policy.check(replace(SAMPLING, width=64 + step), "", "rollout")


# Encoding and decoding


@pytest.mark.parametrize("family", NEW)
def test_pictures_are_the_pipelines_own(folders, policies, family):
    """Bit for bit what diffusers would have made and saved, from the same prompt, noise and solver, at its own interface."""
    import diffusers

    policy, conditioning = policies(family)
    sampling = replace(SAMPLING, guidance=3.0)
    ours = policy.decode(policy.sample(conditioning, SEEDS, sampling))
    assert ours.dtype == torch.uint8 and ours.shape == (5, 64, 64, 3) and ours.is_contiguous() and ours.float().std() > 2

    pipe = getattr(diffusers, FAMILIES[family].pipeline).from_pretrained(folders(family))
    pipe.set_progress_bar_config(disable=True)
    pipe.scheduler = policy.scheduler(sampling)
    shape = _latents(policy).shape[1:]
    noise = torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in SEEDS])
    negative = {"negative_prompt": ["a blurry green square"] * 5}
    guided = {
        "flux": {"guidance_scale": 3.0},
        "qwen_image": {"true_cfg_scale": 3.0, **negative},
        "z_image": {"guidance_scale": 2.0, **negative},
        "flux2_klein": {
            "guidance_scale": 3.0,
            "negative_prompt_embeds": conditioning.gather_unconditional(CPU, torch.float32)["context"],
        },
    }.get(family, {"guidance_scale": 3.0, **negative})
    if family == "chroma":  # see the test of its mask: the pipeline's own is wrong
        given = policy.call_arguments(
            conditioning.gather(CPU, torch.float32), conditioning.gather_unconditional(CPU, torch.float32), sampling
        )
        prompts = given
    else:
        prompts = {"prompt": [PROMPTS[row] for row in ROWS], **guided}
    theirs = pipe(**prompts, num_inference_steps=4, width=64, height=64, latents=policy.pack(noise), output_type="np").images
    difference = np.abs(ours.numpy().astype(int) - (theirs * 255).round().astype(int))
    # Encoding three prompts and five is not the same to the last bit, so one picture value in many may round otherwise.
    assert difference.max() <= 1 and (difference > 0).mean() < 1e-3


@pytest.mark.parametrize("family", NEW)
def test_encoders_leave_memory_and_prompts_are_found_on_disk(folders, tmp_path, family, monkeypatch):
    from transformers import PreTrainedModel

    policy = policy_class(family)(folders(family), CPU, cache=tmp_path)
    first = policy.encode(PROMPTS)
    held = {type(part).__name__ for part in policy._pipe.components.values() if isinstance(part, PreTrainedModel)}
    assert held == set()
    again = policy_class(family)(folders(family), CPU, cache=tmp_path)
    monkeypatch.setattr(type(again), "encode_prompts", lambda *args: pytest.fail("encoded again"))
    second = again.encode(PROMPTS)
    for key, value in first.tensors.items():
        assert torch.equal(second.tensors[key], value) and not value.requires_grad
        assert torch.equal(second.unconditional[key], first.unconditional[key])


# Training


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", NEW)
def test_the_prediction_has_a_gradient_in_the_factors_and_nothing_else(folders, tmp_path, family, checkpointing):
    policy = policy_class(family)(folders(family), CPU, cache=tmp_path, gradient_checkpointing=checkpointing)
    conditioning = policy.encode(PROMPTS)
    adapter = attach(policy.denoiser, 4, 8.0, "attention", 0, family)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    z = torch.randn(2, *_latents(policy).shape[1:], generator=generator)
    t = policy.visible_time(torch.tensor([0.3, 0.9]))
    rows = conditioning.rows([0, 2])
    clean = policy.predict_clean(z, t, rows)
    with torch.no_grad():  # recomputation aside, checkpointing changes nothing
        torch.testing.assert_close(policy.predict_clean(z, t, rows), clean.detach(), rtol=1e-5, atol=1e-5)
    clean.square().mean().backward()
    named = dict(adapter.named_parameters())
    assert all(torch.isfinite(p.grad).all() for p in named.values() if p.grad is not None)
    silent = [name for name, p in named.items() if p.grad is None or not p.grad.any()]
    assert len(silent) < len(named) / 4  # a text stream's last layers may lead nowhere
    ours = {id(p) for p in named.values()}
    assert all(p.grad is None for p in policy.denoiser.parameters() if id(p) not in ours)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_noises_at_the_very_level_that_the_network_is_told(folders, policies, tmp_path, family, dtype):
    """Some transformers round their timestep to their own dtype: then the noise must be mixed at the rounded level."""
    policy = policy_class(family)(folders(family), CPU, dtype, cache=tmp_path)
    t = torch.linspace(0.001, 1, 977)
    visible = policy.visible_time(t)
    assert torch.equal(policy.visible_time(visible), visible)  # what is once rounded stays
    told = _told(policy, family, visible)
    torch.testing.assert_close(told, visible, rtol=3e-7, atol=1e-7)
    coarse = dtype == torch.bfloat16 and family in ("flux", "chroma", "qwen_image", "flux2_klein")
    if family not in ("sd15", "sdxl"):
        assert (len(visible[t >= 0.5].unique()) <= 130) == coarse
    conditioning = policy.encode(PROMPTS[:1])
    latents = policy.sample(conditioning, [3], replace(SAMPLING, steps=3))
    assert latents.dtype == torch.float32 and torch.isfinite(latents).all()
    a, b = policy.coefficients(visible[-1:])
    z = a.view(1, 1, 1, 1) * latents + b.view(1, 1, 1, 1) * torch.randn(
        latents.shape, generator=torch.Generator().manual_seed(1)
    )
    with torch.no_grad():
        clean = policy.predict_clean(z, visible[-1:], conditioning)  # the highest level
    assert clean.dtype == torch.float32 and torch.isfinite(clean).all()


def _told(policy, family, t):
    """t as the network's own time embedding gets it, read off by a hook on the embedding."""
    seen = []
    embedding = {
        "sd15": "time_proj",
        "sdxl": "time_proj",
        "sd3": "time_text_embed.time_proj",
        "flux": "time_text_embed.time_proj",
        "chroma": "time_text_embed.time_proj",
        "qwen_image": "time_text_embed.time_proj",
        "z_image": "t_embedder",
        "flux2_klein": "time_guidance_embed.time_proj",
    }[family]
    handle = policy.denoiser.get_submodule(embedding).register_forward_pre_hook(
        lambda _module, inputs: seen.append(inputs[0].detach().double())
    )
    conditioning = policy.encode(PROMPTS[:1]).rows([0] * len(t))
    with torch.no_grad():
        policy.predict_clean(_latents(policy).expand(len(t), -1, -1, -1), t, conditioning)
    handle.remove()
    told = seen[0]
    unit = {"sd15": lambda k: (k + 1) / 1000, "sdxl": lambda k: (k + 1) / 1000, "qwen_image": lambda k: k}
    unit["z_image"] = lambda k: 1 - k / 1000
    return unit.get(family, lambda k: k / 1000)(told).float()
