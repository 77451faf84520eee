from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.lora_models import output, random_factors, tiny_sd3, train_a_little
from trainer.errors import UserError
from trainer.lora import FORMATS, LoraAdapter, LoraFactors, attach, export_lora, layer_shapes, read_lora


def trained(dual: bool = False, targets: Any = "attention+mlp", rank: int = 4, alpha: float = 8.0) -> LoraAdapter:
    adapter = attach(tiny_sd3(dual), rank, alpha, targets, seed=7)
    train_a_little(adapter)
    return adapter


def pipeline(transformer: Any) -> Any:
    from diffusers import FlowMatchEulerDiscreteScheduler, StableDiffusion3Pipeline

    none = dict.fromkeys(["vae", "text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2", "text_encoder_3", "tokenizer_3"])
    return StableDiffusion3Pipeline(transformer=transformer, scheduler=FlowMatchEulerDiscreteScheduler(), **none)


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize("format", ["comfyui", "diffusers"])
def test_diffusers_loads_the_file_and_gives_the_same_output_to_the_bit(tmp_path: Path, format: str, dual: bool) -> None:
    """Rank 4 with alpha 8: a loader that loses the alpha is off by half."""
    adapter = trained(dual)
    path = export_lora(adapter.snapshot(), tmp_path / "ö a.safetensors", network=layer_shapes(adapter.denoiser), format=format)
    fresh = tiny_sd3(dual)
    base = output(fresh)
    pipeline(fresh).load_lora_weights(str(path.parent), weight_name=path.name)
    assert torch.equal(output(fresh), output(adapter.denoiser))
    assert (output(fresh) - base).abs().max() > 0.01


def test_a_bare_transformer_loads_it_too(tmp_path: Path) -> None:
    adapter = trained()
    path = export_lora(adapter.snapshot(), tmp_path / "a.safetensors", network=layer_shapes(adapter.denoiser))
    fresh = tiny_sd3()
    fresh.load_lora_adapter(load_file(path))
    assert torch.equal(output(fresh), output(adapter.denoiser))


def test_a_scale_that_is_no_power_of_two_is_within_rounding(tmp_path: Path) -> None:
    adapter = trained(rank=3, alpha=1.0)
    path = export_lora(adapter.snapshot(), tmp_path / "a.safetensors", network=layer_shapes(adapter.denoiser))
    fresh = tiny_sd3()
    pipeline(fresh).load_lora_weights(str(path.parent), weight_name=path.name)
    assert (output(fresh) - output(adapter.denoiser)).abs().max() < 1e-5


def test_why_the_default_has_no_alpha_keys(tmp_path: Path) -> None:
    """If diffusers' SD3 loader ever reads `.alpha`, the default could keep the real alpha: then this fails and says so."""
    adapter = trained(targets=["attn.to_q"])
    path = export_lora(adapter.snapshot(), tmp_path / "a.safetensors", network=layer_shapes(adapter.denoiser))
    tensors = load_file(path)
    assert all(key.startswith("transformer.") and ".lora_" in key for key in tensors)
    tensors["transformer.transformer_blocks.0.attn.to_q.alpha"] = torch.tensor(8.0)
    save_file(tensors, path)
    with pytest.raises(ValueError, match="Invalid LoRA checkpoint"):
        pipeline(tiny_sd3()).load_lora_weights(str(path.parent), weight_name=path.name)


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_every_format_is_read_back_with_the_same_change(tmp_path: Path, format: str, dual: bool) -> None:
    everything = sorted(layer_shapes(tiny_sd3(dual)))
    adapter = trained(dual, targets=everything)
    network, factors = layer_shapes(adapter.denoiser), adapter.snapshot()
    back = read_lora(export_lora(factors, tmp_path / "a.safetensors", network=network, format=format), network)
    assert list(back.factors) == list(factors.factors)
    for name in factors.factors:
        assert torch.equal(back.delta(name), factors.delta(name)), name
    if format != "comfyui":
        assert back.checksum() == factors.checksum()


def test_kohya_with_only_some_of_q_k_v(tmp_path: Path) -> None:
    adapter = trained(targets=["attn.to_k", "attn.add_q_proj", "attn.add_v_proj"])
    network, factors = layer_shapes(adapter.denoiser), adapter.snapshot()
    path = export_lora(factors, tmp_path / "a.safetensors", network=network, format="kohya")
    assert load_file(path)["lora_unet_joint_blocks_0_x_block_attn_qkv.lora_up.weight"].shape == (3 * 192, 4)
    assert float(load_file(path)["lora_unet_joint_blocks_0_context_block_attn_qkv.alpha"]) == 16.0
    back = read_lora(path, network)
    for name in back.factors:
        expected = factors.delta(name) if name in factors.factors else torch.zeros(192, 192)
        assert torch.allclose(back.delta(name), expected, atol=1e-7)
    assert set(factors.factors) <= set(back.factors)


def test_metadata_is_kept_and_the_file_is_the_same_every_time(tmp_path: Path) -> None:
    adapter = trained()
    network = layer_shapes(adapter.denoiser)
    facts = {"base": "demo", "iteration": "25", "config_hash": "ab12", "reward_before": "0.41", "reward_after": "0.83"}
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path in paths:
        export_lora(adapter.snapshot(), path, network=network, metadata=facts)
    with safe_open(paths[0], "pt") as file:
        assert {**facts, "format": "pt", "family": "sd3", "rank": "4", "alpha": "8"}.items() <= file.metadata().items()
    assert paths[0].read_bytes() == paths[1].read_bytes()
    # safetensors orders metadata by a hash that changes from process to process.
    code = (
        "import sys; from pathlib import Path; from trainer.lora.files import read_tensors, write_tensors;"
        "write_tensors(Path(sys.argv[2]), *read_tensors(Path(sys.argv[1])))"
    )
    subprocess.run([sys.executable, "-c", code, str(paths[0]), str(tmp_path / "c.safetensors")], check=True)
    assert (tmp_path / "c.safetensors").read_bytes() == paths[0].read_bytes()


def test_diffusers_metadata_carries_the_alpha(tmp_path: Path) -> None:
    adapter = trained(alpha=2.5)
    network = layer_shapes(adapter.denoiser)
    path = export_lora(adapter.snapshot(), tmp_path / "a.safetensors", network=network, format="diffusers")
    with safe_open(path, "pt") as file:
        config = json.loads(file.metadata()["lora_adapter_metadata"])
    assert (config["transformer.r"], config["transformer.lora_alpha"]) == (4, 2.5)


@pytest.mark.parametrize("format", FORMATS)
def test_the_file_is_bounded_by_the_lora_itself(tmp_path: Path, format: str) -> None:
    """Never a base beside it (Soup#352); kohya's fused q, k, v hold zeros where the blocks do not meet."""
    adapter = trained()
    path = export_lora(adapter.snapshot(), tmp_path / "a.safetensors", network=layer_shapes(adapter.denoiser), format=format)
    own = sum(p.numel() * 4 for p in adapter.parameters())
    assert own < path.stat().st_size < own * (1.7 if format == "kohya" else 1.0) + 300 * 2 * len(adapter.names)


def test_half_precision_is_written_as_such(tmp_path: Path) -> None:
    adapter = trained()
    network = layer_shapes(adapter.denoiser)
    path = export_lora(adapter.snapshot().to(torch.float16), tmp_path / "a.safetensors", network=network)
    assert {t.dtype for t in load_file(path).values()} == {torch.float16}
    back, whole = read_lora(path, network), adapter.snapshot()
    assert 0 < max(float((back.delta(n) - whole.delta(n)).abs().max()) for n in back.factors) < 1e-3


def _only(names: list[str], network: Any) -> LoraFactors:
    shapes = {name: network.get(name, (192, 192)) for name in names}
    return random_factors(LoraFactors({n: (torch.ones(2, i), torch.ones(o, 2)) for n, (i, o) in shapes.items()}, 2, 2.0), 1)


@pytest.mark.parametrize("format", ["comfyui", "kohya"])
def test_a_module_that_comfyui_would_not_map_is_an_error_and_nothing_is_written(tmp_path: Path, format: str) -> None:
    network = {**layer_shapes(tiny_sd3()), "extra_head": (192, 192)}
    factors = _only(["transformer_blocks.0.attn.to_q", "extra_head"], network)
    with pytest.raises(UserError, match=r"ComfyUI has no Stable Diffusion 3 key for 1 trained modules \(extra_head\)"):
        export_lora(factors, tmp_path / "a.safetensors", network=network, format=format)
    assert not list(tmp_path.iterdir())
    export_lora(factors, tmp_path / "a.safetensors", network=network, format="diffusers")


def test_a_depth_that_comfyui_would_not_recognise_is_an_error(tmp_path: Path) -> None:
    network = layer_shapes(tiny_sd3(num_layers=2))
    with pytest.raises(UserError, match="64 x depth, and this one has size 192 and 2 blocks"):
        export_lora(_only(["transformer_blocks.0.attn.to_q"], network), tmp_path / "a.safetensors", network=network)


@pytest.mark.parametrize(
    ("names", "change", "words"),
    [
        (["transformer_blocks.9.attn.to_q"], {}, "transformer_blocks.9.attn.to_q is no Linear or Conv2d of this model"),
        (["proj_out"], {"format": "onnx"}, "'onnx' is not known; known formats: comfyui, diffusers, kohya"),
        (["proj_out"], {"family": "sd9"}, "'sd9' is not known; known families: chroma, flux, "),
        (["proj_out"], {"path": "a.pt"}, "written as .safetensors, got the name 'a.pt'"),
        ([], {}, "no modules"),
    ],
)
def test_bad_requests_are_refused_in_one_line(tmp_path: Path, names: list[str], change: dict[str, str], words: str) -> None:
    network = layer_shapes(tiny_sd3())
    path = tmp_path / change.pop("path", "a.safetensors")
    with pytest.raises(UserError, match=words) as caught:
        export_lora(_only(names, network), path, network=network, **change)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_wrong_shapes_and_non_finite_values_are_not_exported(tmp_path: Path) -> None:
    network = layer_shapes(tiny_sd3())
    factors = _only(["proj_out"], network)
    with pytest.raises(UserError, match=r"proj_out has \(in, out\) = \(192, 64\), this model's has \(192, 65\)"):
        export_lora(factors, tmp_path / "a.safetensors", network={**network, "proj_out": (192, 65)})
    factors.factors["proj_out"][1][0, 0] = float("nan")
    with pytest.raises(UserError, match="proj_out holds NaN"):
        export_lora(factors, tmp_path / "a.safetensors", network=network)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failing_write_keeps_the_old_file_and_leaves_no_part(tmp_path: Path, monkeypatch: Any, step: str) -> None:
    adapter = trained()
    network, path = layer_shapes(adapter.denoiser), tmp_path / "a.safetensors"
    export_lora(adapter.snapshot(), path, network=network)
    before, seen = path.read_bytes(), []

    def full(*_: Any) -> None:
        seen.extend(p.name for p in tmp_path.iterdir() if p != path)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(UserError, match=r"cannot write the LoRA file .*No space left"):
        export_lora(random_factors(adapter.snapshot(), 99), path, network=network)
    assert len(seen) == 1 and not seen[0].endswith(".safetensors")
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == before


def test_a_target_that_is_no_folder_is_a_user_error(tmp_path: Path) -> None:
    network = layer_shapes(tiny_sd3())
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        export_lora(_only(["proj_out"], network), tmp_path / "file" / "a.safetensors", network=network)
    export_lora(_only(["proj_out"], network), tmp_path / "new" / "folder" / "a.safetensors", network=network)
