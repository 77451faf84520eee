from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.bench import CPU, PROMPTS
from trainer.errors import UserError
from trainer.policies.sd3 import SD3Policy

WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def policy(tiny_sd3, tmp_path_factory):
    return SD3Policy(tiny_sd3, CPU, cache=tmp_path_factory.mktemp("conditioning"))


def _broken(tiny_sd3: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_sd3, tmp_path / "broken"))


def _refused(folder: Path, **kw) -> str:
    with pytest.raises(UserError) as caught:
        SD3Policy(folder, CPU, **kw)
    line = str(caught.value)
    assert "\n" not in line and str(folder) in line
    return line


def test_a_folder_without_a_model_index(tmp_path):
    assert "policy.model" in (line := _refused(tmp_path)) and "it has no model_index.json" in line


@pytest.mark.parametrize("text", ["{broken", "", "[]", '{"_class_name": null}'])
def test_a_broken_model_index(tmp_path, text):
    (tmp_path / "model_index.json").write_text(text)
    assert _refused(tmp_path).startswith("policy.")


def test_a_model_of_another_family(tmp_path):
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline"}))
    line = _refused(tmp_path)
    assert (
        line.startswith("policy.family: ") and "FluxPipeline" in line and "family sd3 needs a StableDiffusion3Pipeline" in line
    )


def test_missing_weights(tiny_sd3, tmp_path):
    folder = _broken(tiny_sd3, tmp_path)
    (folder / WEIGHTS).unlink()
    assert "diffusion_pytorch_model.safetensors" in _refused(folder)


def test_pickled_weights_are_not_read(tiny_sd3, tmp_path):
    folder = _broken(tiny_sd3, tmp_path)
    torch.save(load_file(folder / WEIGHTS), (folder / WEIGHTS).with_suffix(".bin"))
    (folder / WEIGHTS).unlink()
    assert "diffusion_pytorch_model.safetensors" in _refused(folder)


@pytest.mark.parametrize("keep", [0, 7, 1000, -100])
def test_torn_weights(tiny_sd3, tmp_path, keep):
    folder = _broken(tiny_sd3, tmp_path)
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:keep])
    assert _refused(folder).startswith("policy.model: ")


@pytest.mark.parametrize(("part", "file"), [("transformer", WEIGHTS), ("vae", "vae/diffusion_pytorch_model.safetensors")])
def test_weights_that_lack_a_tensor_are_not_made_up(tiny_sd3, tmp_path, part, file):
    folder = _broken(tiny_sd3, tmp_path)
    tensors = load_file(folder / file)
    name = sorted(tensors)[-1]
    del tensors[name]
    save_file(tensors, folder / file)
    line = _refused(folder)
    assert part in line and name in line


@pytest.mark.parametrize("part", ["scheduler", "transformer", "vae", "tokenizer", "text_encoder_3"])
def test_a_missing_part_is_named(tiny_sd3, tmp_path, part):
    folder = _broken(tiny_sd3, tmp_path)
    shutil.rmtree(folder / part)
    assert f"no folder {part}," in _refused(folder)


def test_a_missing_t5_is_fine_where_it_is_not_used(tiny_sd3, tmp_path):
    folder = _broken(tiny_sd3, tmp_path)
    shutil.rmtree(folder / "text_encoder_3")
    shutil.rmtree(folder / "tokenizer_3")
    policy = SD3Policy(folder, CPU, cache=tmp_path / "cache", use_t5=False)
    assert len(policy.encode(PROMPTS)) == 3


def test_a_broken_text_encoder_is_one_line(tiny_sd3, tmp_path):
    folder = _broken(tiny_sd3, tmp_path)
    (folder / "text_encoder" / "model.safetensors").write_bytes(b"nothing")
    policy = SD3Policy(folder, CPU, cache=tmp_path / "cache")
    with pytest.raises(UserError, match=r"^policy\.model: ") as caught:
        policy.encode(PROMPTS)
    assert "\n" not in str(caught.value)


def test_the_shift_is_found_under_either_name(tiny_sd3, tmp_path):
    from diffusers import DDIMScheduler, UniPCMultistepScheduler

    folder = _broken(tiny_sd3, tmp_path)
    index = json.loads((folder / "model_index.json").read_text())

    def put(scheduler):
        scheduler.save_pretrained(folder / "scheduler")
        index["scheduler"] = ["diffusers", type(scheduler).__name__]
        (folder / "model_index.json").write_text(json.dumps(index))

    assert SD3Policy(folder, CPU).shift == 3.0
    put(UniPCMultistepScheduler(use_flow_sigmas=True, prediction_type="flow_prediction", flow_shift=2.5))
    assert SD3Policy(folder, CPU).shift == 2.5
    put(DDIMScheduler())
    assert "DDIMScheduler" in _refused(folder)


@pytest.mark.parametrize(
    ("size", "nearest"), [((72, 64), "64 x 64"), ((64, 90), "64 x 96"), ((8, 64), "16 x 64"), ((4096, 64), "256 x 64")]
)
def test_a_size_that_does_not_fit_names_the_nearest(policy, size, nearest):
    with pytest.raises(UserError, match=f"^rollout.*{size[0]} x {size[1]}.*nearest size is {nearest}$"):
        policy.check_size(*size, "rollout.width x rollout.height")


def test_sizes_that_fit(policy):
    for size in ((64, 64), (16, 256), (96, 32)):
        policy.check_size(*size, "here")
