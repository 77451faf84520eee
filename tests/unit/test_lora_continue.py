"""A LoRA goes out and comes in: other programs draw what the trainer drew, and a new run starts where the old one ended."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from tests.small_run import EVERYTHING, Watcher, events, go, new_run, saved, small_config
from trainer import cli
from trainer.config import load_config
from trainer.evaluation import evaluation_prompts
from trainer.lora import LoraFactors
from trainer.policies.samplers import flow_scheduler
from trainer.samples import load_evaluation


@pytest.fixture(autouse=True)
def no_curve(monkeypatch):
    from trainer import ending

    monkeypatch.setattr(ending, "save_curve", lambda *args: None)


@pytest.fixture(scope="module")
def model(tiny_sd3, tmp_path_factory):
    """The tiny model as people have SD3 without T5."""
    folder = tmp_path_factory.mktemp("no-t5") / "model"
    shutil.copytree(tiny_sd3, folder)
    index = json.loads((folder / "model_index.json").read_text())
    index["text_encoder_3"] = index["tokenizer_3"] = [None, None]
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


def plan(model, **changes):
    return small_config(
        model, **{"evaluation": {"every": 3, "steps": 3}, "rollout": {"batch_size": 4}, **EVERYTHING, **changes}
    )


@pytest.fixture(scope="module")
def source(model, tmp_path_factory):
    """A finished run: rank 2, alpha 4, so that a strength that gets lost is seen."""
    run = new_run(tmp_path_factory.mktemp("source"), plan(model))
    go(run)
    return run


def evaluated(run, iteration):
    return load_evaluation(run, iteration, evaluation_prompts(load_config(run.config_file)))


def difference(left, right):
    """The largest difference between two sets of pictures, in 255ths."""
    return int((torch.stack(left.images).int() - torch.stack(right.images).int()).abs().max())


# --- going out


def pipeline(model):
    from diffusers import StableDiffusion3Pipeline

    pipe = StableDiffusion3Pipeline.from_pretrained(model, text_encoder_3=None, tokenizer_3=None)
    pipe.set_progress_bar_config(disable=True)
    pipe.transformer.requires_grad_(False)
    return pipe


def draw(pipe, config, evaluation):
    """What a diffusers user gets for the same prompts and noise."""
    shape = (16, config.rollout.height // 8, config.rollout.width // 8)
    noise = torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in evaluation.seeds])
    prompts = [p.text for p in evaluation.prompts for _ in range(evaluation.seeds_per_prompt)]
    with torch.no_grad():
        embeds, _, pooled, _ = pipe.encode_prompt(prompts, None, None, do_classifier_free_guidance=False, max_sequence_length=0)
        images = pipe(
            prompt_embeds=embeds,
            pooled_prompt_embeds=pooled,
            latents=noise,
            guidance_scale=1.0,
            num_inference_steps=config.evaluation.steps,
            width=config.rollout.width,
            height=config.rollout.height,
        ).images
    return np.stack([np.asarray(image) for image in images])


@pytest.mark.parametrize("sampler", ["euler", "dpmsolver++"])
@pytest.mark.parametrize("format", ["comfyui", "diffusers"])
def test_diffusers_draws_the_pictures_of_the_evaluation(model, source, tmp_path, format, sampler):
    """Exported, loaded by diffusers, drawn with the same solver: not one pixel differs."""
    run = source
    if sampler != "euler":
        run = new_run(tmp_path, plan(model, rollout={"sampler": sampler, "batch_size": 4}, iterations=3))
        go(run)
    config, trained = load_config(run.config_file), evaluated(run, 3)
    path = tmp_path / "mein LoRA ü.safetensors"
    assert cli.main(["export", str(run.path), "--format", format, "--output", str(path)]) == 0
    pipe = pipeline(model)
    pipe.scheduler = flow_scheduler(sampler, pipe.scheduler.config.shift)
    base = draw(pipe, config, trained)
    assert np.array_equal(base, torch.stack(evaluated(run, 0).images).numpy())
    pipe.load_lora_weights(str(path.parent), weight_name=path.name)
    assert np.array_equal(draw(pipe, config, trained), torch.stack(trained.images).numpy())
    assert np.abs(base.astype(int) - torch.stack(trained.images).numpy()).max() > 5  # the LoRA is seen


def test_the_saved_png_is_the_evaluated_picture(source):
    trained = evaluated(source, 3)
    with Image.open(source.samples / "000003" / "p001-s0.png") as picture:
        assert np.array_equal(np.asarray(picture), trained.images[2].numpy())


# --- coming in


def diffusers_folder(source, model, folder):
    """Saved by diffusers itself, with the metadata that holds its alpha."""
    from diffusers import StableDiffusion3Pipeline
    from diffusers.training_utils import _collate_lora_metadata
    from peft import LoraConfig
    from peft.utils import get_peft_model_state_dict

    transformer = pipeline(model).transformer
    factors = LoraFactors.from_tensors(saved(source)[3][0]["ema"])
    names = list(factors.factors)
    transformer.add_adapter(LoraConfig(r=factors.rank, lora_alpha=factors.alpha, target_modules=names))
    fill(transformer, factors)
    layers = get_peft_model_state_dict(transformer)
    metadata = _collate_lora_metadata({"transformer": transformer})
    StableDiffusion3Pipeline.save_lora_weights(folder, transformer_lora_layers=layers, **metadata)
    return folder / "pytorch_lora_weights.safetensors"


def peft_folder(source, model, folder):
    from peft import LoraConfig, get_peft_model

    factors = LoraFactors.from_tensors(saved(source)[3][0]["ema"])
    config = LoraConfig(r=factors.rank, lora_alpha=factors.alpha, target_modules=list(factors.factors))
    network = get_peft_model(pipeline(model).transformer, config)
    fill(network.base_model.model, factors)
    network.save_pretrained(folder)
    return folder


@torch.no_grad()
def fill(network, factors):
    for name, (a, b) in factors.factors.items():
        layer = network.get_submodule(name)
        layer.lora_A["default"].weight.copy_(a)
        layer.lora_B["default"].weight.copy_(b)


def exported(format):
    def make(source, model, folder):
        path = folder / "a.safetensors"
        assert cli.main(["export", str(source.path), "--format", format, "--output", str(path)]) == 0
        return path

    return make


MAKERS = {
    "its own": lambda source, model, folder: source.lora_dir / "small.safetensors",
    "comfyui": exported("comfyui"),
    "diffusers": exported("diffusers"),
    "kohya": exported("kohya"),
    "diffusers' own": diffusers_folder,
    "peft folder": peft_folder,
}


def continued(model, init, root, rank, **changes):
    policy = {"model": str(model), "dtype": "float32", "lora": {"rank": rank, "init": str(init)}}
    return new_run(root, plan(model, policy=policy, **{"iterations": 1, "optimizer": {"lr": 0.01}, **changes}))


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("rank", [2, 5])
def test_a_run_continues_from_a_lora(model, source, tmp_path, maker, rank):
    """The first pictures of the new run are the last of the old one, whoever wrote the file (flow_grpo#156)."""
    (tmp_path / "von ü").mkdir()
    run = continued(model, MAKERS[maker](source, model, tmp_path / "von ü"), tmp_path, rank)
    watcher = Watcher()
    go(run, watcher)
    start, end, base = evaluated(run, 0), evaluated(source, 3), evaluated(source, 0)
    assert start.seeds == end.seeds
    assert difference(start, end) <= 1 < 5 < difference(start, base)
    assert any("continuing from" in m and "7 modules" in m for m in watcher.messages)
    assert not any("reduced" in m for m in watcher.messages)
    assert difference(evaluated(run, 1), start) > 0  # and it goes on learning
    tensors = saved(run)[1][0]["lora"]
    assert all(torch.isfinite(t).all() for t in tensors.values())


def test_directions_that_a_larger_rank_adds_are_trained_too(model, source, tmp_path):
    run = continued(model, source.lora_dir / "small.safetensors", tmp_path, 5)
    go(run)
    tensors = saved(run)[1][0]["lora"]
    key = next(k for k in tensors if k.endswith("to_q.lora_B"))
    assert tensors[key].shape[1] == 5 and (tensors[key].abs().amax(0) > 0).all()


def test_a_smaller_rank_is_an_approximation_and_says_so(model, source, tmp_path):
    run = continued(model, source.lora_dir / "small.safetensors", tmp_path, 1)
    go(run)
    note = next(e["message"] for e in events(run, "warning") if "reduced" in e["message"])
    assert "rank 2 was reduced to 1" in note and "%" in note
    start, end, base = (evaluated(*which) for which in ((run, 0), (source, 3), (source, 0)))
    mean = lambda a, b: float((torch.stack(a.images).int() - torch.stack(b.images).int()).abs().float().mean())  # noqa: E731
    assert 0 < mean(start, end) < mean(base, end)


def test_a_continued_run_that_was_stopped_goes_on_from_its_checkpoint(model, source, tmp_path):
    """Not from the file that it began with."""
    from tests.small_run import assert_same_outcome, stop_after

    init = source.lora_dir / "small.safetensors"
    whole = continued(model, init, tmp_path / "whole", 2, iterations=2)
    go(whole)
    run = continued(model, init, tmp_path / "stopped", 2, iterations=2)
    go(run, stop_after(run, 1))
    go(run)
    assert_same_outcome(run, whole)


def test_the_summary_compares_with_where_the_run_began(model, source, tmp_path):
    """`before` of a continued run is the LoRA it began with, not the base."""
    run = continued(model, source.lora_dir / "small.safetensors", tmp_path, 2)
    summary = go(run)
    last = json.loads(source.summary_file.read_text())
    assert summary["eval_reward_before"] == pytest.approx(last["eval_reward_after"], abs=2e-5)
    assert summary["eval_reward_before"] != pytest.approx(last["eval_reward_before"], abs=1e-4)


def test_text_encoder_parts_are_left_out_with_a_warning(model, source, tmp_path):
    from safetensors.torch import load_file, save_file

    tensors = load_file(source.lora_dir / "small.safetensors")
    key = "text_encoder.text_model.encoder.layers.0.self_attn.q_proj"
    tensors |= {f"{key}.lora_A.weight": torch.ones(2, 32), f"{key}.lora_B.weight": torch.ones(32, 2)}
    save_file(tensors, tmp_path / "both.safetensors")
    run = continued(model, tmp_path / "both.safetensors", tmp_path, 2)
    go(run)
    assert any("text" in e["message"] and "encoder" in e["message"] for e in events(run, "warning"))
    assert difference(evaluated(run, 0), evaluated(source, 3)) <= 1
