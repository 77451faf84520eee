"""The embedded model as it lies in the repository: what it is, what it can, and that it learns."""

from __future__ import annotations

import json

import pytest
import torch

from trainer import cli
from trainer.demo import MODEL_DIR
from trainer.demo.build import measure
from trainer.demo.scenes import Scenes

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def pipe():
    from diffusers import StableDiffusion3Pipeline

    return StableDiffusion3Pipeline.from_pretrained(MODEL_DIR)


def test_the_weights_are_small_safetensors():
    files = [f for f in MODEL_DIR.rglob("*") if f.is_file()]
    weights = [f for f in files if f.suffix == ".safetensors"]
    assert sum(f.stat().st_size for f in weights) <= 15 * MEGABYTE
    others = [f for f in files if f.suffix not in (".safetensors", ".json")]
    assert not others, "nothing but safetensors and JSON"


def test_plain_from_pretrained_loads_a_float32_sd3_that_comfyui_would_recognise(pipe):
    config = pipe.transformer.config
    assert type(pipe.transformer).__name__ == "SD3Transformer2DModel"
    assert (config.in_channels, config.patch_size, config.attention_head_dim) == (16, 2, 64)
    assert config.num_attention_heads == config.num_layers, "the hidden size is 64 x depth"
    assert type(pipe.vae).__name__ == "AutoencoderTiny" and pipe.vae.config.latent_channels == 16
    for name in ("transformer", "vae", "text_encoder", "text_encoder_2", "text_encoder_3"):
        assert getattr(pipe, name).dtype == torch.float32, name


def test_a_plain_call_makes_a_picture_of_its_world(pipe):
    pipe.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(0)
    image = pipe("a red circle on a white background", num_inference_steps=10, guidance_scale=1.0, generator=generator).images[
        0
    ]
    assert image.size == (64, 64)
    border = torch.tensor([image.getpixel((x, 0)) for x in range(64)]).float()
    assert border.mean() > 200, "the background that was asked for"


def test_the_third_text_encoder_says_nothing(pipe):
    ids = pipe.tokenizer_3(["a red circle"], return_tensors="pt").input_ids
    assert not pipe.text_encoder_3(ids)[0].any()


@pytest.mark.slow
def test_the_base_is_fair_but_far_from_perfect(pipe):
    """It obeys part of the time, so that there is something to win; docs/embedded-model.md has its figures."""
    names = ("transformer", "vae", "text_encoder", "text_encoder_2", "text_encoder_3", "tokenizer", "tokenizer_3")
    model = {name: getattr(pipe, name) for name in names}
    score, accuracy = measure(Scenes(), model, seed=2, samples=192)
    assert 0.45 <= score <= 0.65 and 0.15 <= accuracy <= 0.4
    guided_score, guided_accuracy = measure(Scenes(), model, seed=2, samples=192, guidance=3.0)
    assert guided_score > score + 0.05 and 0.4 <= guided_accuracy <= 0.7


SMALLER = ["--set", "rollout.group_size=8", "--set", "rollout.prompts_per_iteration=12", "--set", "evaluation.prompts=24"]


def finished_demo(tmp_path, *more):
    code = cli.main(["demo", "--output", str(tmp_path / "läufe mit raum"), *SMALLER, *more])
    assert code == 0
    (run,) = (tmp_path / "läufe mit raum").iterdir()
    return run, json.loads((run / "summary.json").read_text())


@pytest.mark.slow
def test_a_dense_reward_rises_on_held_out_prompts(tmp_path):
    """The same prompts and seeds before and after, so the difference is what was learned, not luck of the draw."""
    rewards = ["--set", "rewards={brightness: {}}", "--set", "monitors={}"]
    _, summary = finished_demo(tmp_path, *rewards, "--iterations", "10", "--set", "policy.lora.targets=attention")
    assert summary["eval_reward_after"] - summary["eval_reward_before"] > 0.01


@pytest.mark.slow
def test_the_verifiable_reward_rises_on_held_out_prompts(tmp_path):
    """A third of the demo; the whole of it is measured by benchmarks/demo_seeds.py."""
    shorter = ["--iterations", "12", "--set", "evaluation.prompts=64", "--set", "rollout.group_size=16"]
    _, summary = finished_demo(tmp_path, *shorter, "--set", "rollout.prompts_per_iteration=8", "--set", "monitors={}")
    assert summary["eval_reward_after"] - summary["eval_reward_before"] > 0.05


@pytest.mark.slow
def test_the_demo_leaves_what_it_promises(tmp_path, capsys):
    """A shortened demo through the command line; the full one is measured by benchmarks/demo_seeds.py."""
    run, summary = finished_demo(tmp_path, "--seed", "3", "--iterations", "3")
    assert summary["iterations"] == 3 and summary["seed"] == 3
    assert 0 < summary["eval_reward_before"] < 1 and 0 < summary["eval_reward_after"] < 1
    assert 0 <= summary["eval_accuracy_before"] < summary["eval_reward_before"]
    printed = capsys.readouterr().out
    for part in (summary["lora_path"], "curve.png", "before-after.png"):
        assert part in printed
    for name in ("curve.png", "before-after.png"):
        assert (run / name).stat().st_size > 5000
