"""Load Demo Model and Sample Prompt Group in a real ComfyUI's code, against the trainer's own diffusers pipeline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.comfy_process import in_comfyui
from tests.lora_models import random_factors
from trainer.demo import EMBEDDED_MODELS, LETTERS, MODEL_DIR
from trainer.lora import LoraFactors, export_lora, layer_shapes
from trainer.policies.base import Sampling
from trainer.policies.sd3 import SD3Policy
from trainer.seeds import derive_seed

PROBE = Path(__file__).with_name("demo_probe.py")
PROMPTS = (
    "a drawing of two red circles",
    "",
    "a picture of one blue cross above one blue triangle, white background",
    "Ünknown wörds 日本, and 3 x's!",
    "red circle " * 30,  # cut after 18 tokens, by both alike
)
ODD_PROMPTS = (
    "(a red circle:1.3)",
    "((a)) [b] (c:0",
    "\\(x\\) :1.2)",
    "(red:0) " * 40,
    "embedding:none here",
    "\n\t",
    "🎉" * 50,
)
WORDS = ('the word "APE"', 'a sign: "TAP"', 'the word "TOMATO"')  # the last is cut, by both alike
STEPS = 8
SEEDS = (11, 12, 2**63 - 1, 14, 15)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return SD3Policy(MODEL_DIR, torch.device("cpu"), cache=tmp_path_factory.mktemp("cache"), use_t5=False)


@pytest.fixture(scope="module")
def report(policy, tmp_path_factory):
    """What ComfyUI made: {"answer": plain figures, "given": ..., "found": tensors}."""
    base = tmp_path_factory.mktemp("comfyui démo")
    generator = torch.Generator().manual_seed(0)
    conditioning = policy.encode(PROMPTS)
    given = {
        "z": torch.randn(3, 16, 8, 8, generator=generator),
        "t": torch.tensor([0.05, 0.5, 1.0]),
        "latents": torch.randn(3, 16, 8, 8, generator=generator) * 0.6,
        "pictures": torch.rand(2, 64, 64, 3, generator=generator),
        **conditioning.rows(range(3)).gather(torch.device("cpu"), torch.float32),
    }
    save_file({name: value.contiguous() for name, value in given.items()}, base / "given.safetensors")
    (base / "models" / "loras").mkdir(parents=True)
    export_lora(lora(policy), base / "models" / "loras" / "test.safetensors", network=layer_shapes(policy.denoiser))
    save_file(an_sd15_unet(), base / "unet.safetensors")
    job = {
        "inputs": str(base / "given.safetensors"),
        "outputs": str(base / "found.safetensors"),
        "prompts": list(PROMPTS),
        "odd_prompts": list(ODD_PROMPTS),
        "words": list(WORDS),
        "lora": "test.safetensors",
        "steps": STEPS,
        "seeds": list(SEEDS),
        "unet": str(base / "unet.safetensors"),
    }
    answer = in_comfyui(base, PROBE.read_text(encoding="utf-8") + "\nanswer = report(**job)\n", job=job)
    return {"answer": answer, "given": given, "found": load_file(base / "found.safetensors"), "conditioning": conditioning}


def lora(policy):
    shapes = {
        name: (torch.ones(4, inside), torch.ones(outside, 4))
        for name, (inside, outside, *_) in layer_shapes(policy.denoiser).items()
        if "attn" in name
    }
    return random_factors(LoraFactors(shapes, 4, 8.0), 3)


def an_sd15_unet():
    """The smallest weights that ComfyUI takes for an SD1.5."""
    from diffusers import UNet2DConditionModel

    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        block_out_channels=(320,),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D",),
        up_block_types=("CrossAttnUpBlock2D",),
        cross_attention_dim=768,
        attention_head_dim=8,
    )
    return {name: value.contiguous() for name, value in unet.state_dict().items()}


def largest(a, b):
    return float((a.double() - b.double()).abs().max())


def trainer_pictures(policy, conditioning, seeds, height=64):
    """uint8[B, H, W, 3] that the trainer makes with the same solver, levels and noise."""
    sampling = Sampling(sampler="euler", steps=STEPS, guidance=1.0, width=64, height=height, batch_size=len(seeds))
    return policy.decode(policy.sample(conditioning, seeds, sampling))


def same_pictures(images, expected):
    """ComfyUI's float pictures against the trainer's uint8 ones: equal but for what rounding leaves of a step of 1/255."""
    off = (images.double() * 255 - expected.double()).abs()
    assert float(off.max()) < 1.5 and float(off.mean()) < 0.3, (float(off.max()), float(off.mean()))


def test_the_objects_are_comfyuis_own(report):
    assert report["answer"]["types"] == ["comfy.model_base.SD3", "comfy.sd.CLIP", "comfy.sd.VAE"]
    assert report["answer"]["shift"] == 3.0
    assert report["answer"]["warnings"] == []


def test_prompts_are_encoded_as_the_trainer_encodes_them(report):
    rows = report["conditioning"].gather(torch.device("cpu"), torch.float32)
    assert report["found"]["context"].shape == (len(PROMPTS), 20, 192)
    assert largest(report["found"]["context"], rows["context"]) < 1e-4
    assert largest(report["found"]["pooled"], rows["pooled"]) < 1e-4


def test_weights_and_long_prompts_work(report):
    answer = report["answer"]
    assert answer["odd"] == [[[1, 20, 192], [1, 192]]] * len(ODD_PROMPTS) and answer["odd_finite"]
    assert answer["weight_1_changes"] == 0 and answer["weight_1.4_changes"] > 1e-3 and answer["clip_skip_changes"] > 1e-3


def test_one_call_of_the_denoiser_is_the_same(report, policy):
    given = report["given"]
    with torch.no_grad():
        expected = policy.denoiser(
            hidden_states=given["z"],
            timestep=given["t"] * 1000,
            encoder_hidden_states=given["context"],
            pooled_projections=given["pooled"],
            return_dict=False,
        )[0]
    assert float(expected.abs().max()) > 0.1
    assert largest(report["found"]["velocity"], expected) < 1e-4


def test_the_autoencoder_is_the_same(report, policy):
    given, vae = report["given"], policy._pipe.vae
    with torch.no_grad():
        decoded = (vae.decode(given["latents"], return_dict=False)[0] / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1)
        encoded = vae.encode(given["pictures"].permute(0, 3, 1, 2) * 2 - 1, return_dict=False)[0]
    assert largest(report["found"]["decoded"], decoded) < 1e-5
    assert largest(report["found"]["encoded"], encoded) < 1e-4


def test_stock_ksampler_makes_the_trainers_pictures_from_the_same_noise(report, policy):
    same_pictures(report["found"]["pictures"], trainer_pictures(policy, report["conditioning"], SEEDS))
    assert report["answer"]["either_latent"]


def test_the_model_of_letters_is_the_trainers_too(report, tmp_path):
    folder = EMBEDDED_MODELS[LETTERS].model
    writer = SD3Policy(folder, torch.device("cpu"), cache=tmp_path, use_t5=False)
    seeds = SEEDS[: len(WORDS)]
    same_pictures(report["found"]["letters"], trainer_pictures(writer, writer.encode(WORDS), seeds, height=32))
    kind, text = report["answer"]["no such model"]
    assert kind == "UserError" and "model = 'another'; allowed: demo (embedded model), letters (embedded model)" in text


def test_a_lora_from_stock_loader_acts_as_in_the_trainer(report, policy):
    answer = report["answer"]
    assert answer["strength_0_is_none"] and answer["base_is_left_alone"]
    with_lora, without = report["found"]["with_lora"], report["found"]["pictures"][:1]
    assert largest(with_lora, without) > 2 / 255
    weights = {name: value.clone() for name, value in policy.denoiser.state_dict().items()}
    factors = lora(policy)
    try:
        changed = {f"{name}.weight": weights[f"{name}.weight"] + factors.delta(name) for name in factors.factors}
        policy.denoiser.load_state_dict({**weights, **changed})
        expected = trainer_pictures(policy, report["conditioning"].rows([0]), SEEDS[:1])
    finally:
        policy.denoiser.load_state_dict(weights)
    same_pictures(with_lora, expected)


def test_a_sampled_group_is_the_trainers_evaluation(report, policy):
    group = report["answer"]["group"]
    seeds = [derive_seed(5, "evaluation", prompt, member) for prompt in range(2) for member in range(3)]
    assert group == {
        "prompts": [PROMPTS[0]] * 3 + [PROMPTS[1]] * 3,
        "prompt_index": [0, 0, 0, 1, 1, 1],
        "seeds": [str(seed) for seed in seeds],
        "same_images": True,
    }
    images = report["found"]["group"]
    assert images.shape == (6, 64, 64, 3) and 0 <= float(images.min()) <= float(images.max()) <= 1
    same_pictures(images, trainer_pictures(policy, report["conditioning"].rows([0, 0, 0, 1, 1, 1]), seeds))
    assert len(np.unique((images * 255).round().numpy().reshape(6, -1), axis=0)) == 6


def test_the_batch_size_does_not_matter(report):
    answer = report["answer"]
    assert answer["one_by_one_is_ksampler"]
    assert answer["batch_differs"] < 1e-4


def test_samplers_that_are_batched_give_each_picture_as_if_alone(report):
    """The list of deterministic samplers is right: a picture is the same whatever is sampled beside it."""
    differences = report["answer"]["samplers"]
    assert len(differences) > 15 and report["answer"]["unknown"] == []
    assert {name: d for name, d in differences.items() if not d < 1e-3} == {}


def test_the_sampling_node_in_other_settings(report):
    answer = report["answer"]
    assert answer["negative_changes"] > 1e-3
    assert answer["sizes"] == [[1, 64, 128, 3], [1, 96, 64, 3]]
    assert answer["preview"] == [128, 128]


def test_a_model_of_another_family_is_sampled(report):
    assert report["answer"]["sd15"] == {"kind": "SD15", "shape": [3, 64, 64, 3], "different": 3}


def test_what_does_not_fit_is_said_before_sampling(report):
    errors = {name: error for name, error in report["answer"]["errors"].items()}
    assert all(kind == "UserError" and "\n" not in text for kind, text in errors.values()), errors
    assert "at most 256 pixels" in errors["too large"][1]
    assert "latents of 16 channels, but this VAE decodes 4" in errors["another's VAE"][1]
    assert "first_prompt is 99" in errors["no such prompt"][1]
