"""Attention by another library, compiled blocks, tiles: what they change, and what refuses them."""

from __future__ import annotations

import shutil

import pytest
import torch

from tests.family_bench import CPU, PROMPTS, ROWS, SAMPLING, SEEDS
from tests.small_run import small_config
from trainer.config import load_config
from trainer.errors import UserError
from trainer.families import FAMILIES
from trainer.lora import LoraFactors, attach
from trainer.policies import decoding, load_policy, policy_class
from trainer.policies.frozen import blocks_of
from trainer.policies.resources import Resources


def config(folder, family: str, **policy):
    data = small_config(folder, policy={"family": family, **policy})
    return load_config(data)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_of_attentions_is_what_diffusers_dispatches(folders, family):
    """A family whose network does not ask the dispatcher would go on with torch's attention without a word."""
    policy = policy_class(family)(folders(family), CPU)
    processors = [getattr(module, "processor", None) for module in policy.denoiser.modules()]
    asks = any(hasattr(processor, "_attention_backend") for processor in processors)
    assert asks == bool(FAMILIES[family].attention)


def test_native_attention_is_torchs_own(folders):
    plain, native = (
        policy_class("flux")(folders("flux"), CPU, resources=Resources(attention=attention)) for attention in ("auto", "native")
    )
    latents = [policy.sample(policy.encode(PROMPTS).rows(ROWS), SEEDS, SAMPLING) for policy in (plain, native)]
    assert torch.equal(*latents)


@pytest.mark.parametrize(
    ("family", "policy", "message"),
    [
        ("sdxl", {"attention": "flash"}, r"policy.attention = flash.*family sdxl.*allowed: auto, native$"),
        ("qwen_image", {"attention": "sage"}, r"allowed: auto, native, xformers$"),
        ("flux", {"attention": "fast"}, r"policy.attention = fast; allowed: one of auto, native, flash"),
        ("sd3", {"offload": "blocks"}, r"set gradient_checkpointing to true, or offload to model"),
        ("sd3", {"compile": True, "quantization": "nf4"}, r"policy.compile and policy.quantization = nf4 exclude each other"),
        (
            "sd3",
            {"compile": True, "offload": "blocks", "gradient_checkpointing": True},
            r"policy.compile and policy.offload = blocks exclude each other",
        ),
        ("sd3", {"vae_tiling": "maybe"}, r"policy.vae_tiling = maybe; allowed: one of auto, on, off"),
    ],
)
def test_what_can_not_be_is_refused(folders, family, policy, message):
    with pytest.raises(UserError, match=message) as caught:
        config(folders(family), family, **policy)
    assert "\n" not in str(caught.value)


def test_a_library_that_can_not_be_used_is_one_line(folders, monkeypatch):
    """It is installed, but not in a version that diffusers takes, or not for this device."""
    monkeypatch.setattr("trainer.extras.installed", lambda module: True)
    with pytest.raises(UserError, match=r"policy.attention = flash can't be used here: .*set it to auto") as caught:
        load_policy(config(folders("flux"), "flux", attention="flash").policy, CPU)
    assert "\n" not in str(caught.value)


def test_a_library_without_a_backward_pass_serves_the_sampler_alone(folders, monkeypatch):
    """sage has none. A stand-in that is torch's own attention, as the library itself needs a GPU."""
    from diffusers.models import attention_dispatch as dispatch

    registry, calls = dispatch._AttentionBackendRegistry, []
    native = registry._backends[dispatch.AttentionBackendName.NATIVE]

    def counted(*args, **kw):
        calls.append(torch.is_grad_enabled())
        return native(*args, **kw)

    sage = dispatch.AttentionBackendName.SAGE
    monkeypatch.setattr(dispatch, "_CAN_USE_SAGE_ATTN", True)
    monkeypatch.setitem(registry._backends, sage, counted)
    monkeypatch.setitem(
        registry._supported_arg_names, sage, registry._supported_arg_names[dispatch.AttentionBackendName.NATIVE]
    )
    policy = policy_class("flux")(folders("flux"), CPU, resources=Resources(attention="sage"))
    assert not calls
    conditioning = policy.encode(PROMPTS).rows(ROWS)
    latents = policy.sample(conditioning, SEEDS, SAMPLING)
    sampled = len(calls)
    assert sampled and not any(calls)
    policy.predict_clean(latents.requires_grad_(), torch.full((5,), 0.5), conditioning).mean().backward()
    assert len(calls) == sampled and latents.grad.any()


def test_each_repeated_block_is_compiled(folders, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module, *args, **kw: compiled.append(module))
    policy = policy_class("flux")(folders("flux"), CPU, resources=Resources(compile=True))
    assert compiled == blocks_of(policy.denoiser)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, by which torch.compile makes code for a CPU")
def test_compiled_blocks_compute_the_same(folders):
    """With a LoRA whose values are swapped meanwhile, as for theta_old, and with recomputed blocks."""
    found = []
    for compiled in (False, True):
        policy = policy_class("flux")(folders("flux"), CPU, gradient_checkpointing=True, resources=Resources(compile=compiled))
        adapter = attach(policy.denoiser, 2, 4.0, "attention", 0, "flux", policy.device)
        start = adapter.snapshot()
        other = LoraFactors({name: (a, b + 0.1) for name, (a, b) in start.factors.items()}, start.rank, start.alpha)
        conditioning = policy.encode(PROMPTS).rows(ROWS)
        with adapter.using(other):
            latents = policy.sample(conditioning, SEEDS, SAMPLING)
        policy.predict_clean(latents, torch.full((5,), 0.5), conditioning).square().mean().backward()
        found.append((latents, {name: p.grad for name, p in adapter.named_parameters() if p.grad is not None}))
    (latents, gradients), (compiled_latents, compiled_gradients) = found
    assert torch.allclose(latents, compiled_latents, atol=1e-4) and gradients.keys() == compiled_gradients.keys()
    assert all(torch.allclose(gradients[name], value, atol=1e-5) for name, value in compiled_gradients.items())


@pytest.mark.parametrize("family", ["sdxl", "qwen_image", "flux2_klein"])
def test_tiles_change_pixels_by_little_and_only_when_asked(folders, family, monkeypatch):
    monkeypatch.setattr(decoding, "TILE", 64)
    policy = policy_class(family)(folders(family), CPU)
    channels = policy.latent_channels
    scale = policy._pipe.vae_scale_factor * (2 if family == "flux2_klein" else 1)
    latents = torch.randn(2, channels, 96 // scale, 96 // scale, generator=torch.Generator().manual_seed(0))
    whole = policy.decode(latents)
    assert whole.shape == (2, 96, 96, 3)
    policy._resources = Resources(vae_tiling="on")
    tiles = policy.decode(latents)
    assert tiles.shape == whole.shape and not torch.equal(tiles, whole)
    policy._resources = Resources(vae_tiling="off")
    assert torch.equal(policy.decode(latents), whole)
    policy._resources = Resources()
    assert torch.equal(policy.decode(latents), whole)
    monkeypatch.setattr(decoding, "DECODE_PIXELS", 96 * 96 - 1)
    assert torch.equal(policy.decode(latents), tiles)
