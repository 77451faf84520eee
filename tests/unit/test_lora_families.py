"""Every family's LoRA on its real diffusers class: targets, training, files that diffusers loads, files that are read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.lora_models import FAMILIES, inputs, output, random_factors, random_lora, tiny, train_a_little, worst
from trainer.errors import UserError
from trainer.lora import FORMATS, LoraAdapter, LoraFactors, attach, export_lora, layer_shapes, read_lora, resolve_targets
from trainer.lora.families import get_family
from trainer.lora.formats import comfyui_tensors
from trainer.lora.layouts import unmapped

UNETS = ("sd15", "sdxl")
ALL_LAYERS = {family: layer_shapes(tiny(family)) for family in FAMILIES}


def widest(family: str) -> str:
    """The preset with the most layers."""
    return "attention+mlp+conv" if family in UNETS else "attention+mlp"


def trained(family: str, targets: Any = "attention+mlp", rank: int = 4, alpha: float = 8.0) -> LoraAdapter:
    adapter = attach(tiny(family), rank, alpha, targets, seed=7, family=family)
    train_a_little(adapter)
    return adapter


def mapped(family: str) -> list[str]:
    """Every layer that ComfyUI maps in the default file."""
    names, network = get_family(family), ALL_LAYERS[family]
    missing = unmapped(random_lora(network, network, 1, 1.0), names, network, names.comfyui)
    return [name for name in network if name not in missing]


def pipeline(family: str, denoiser: Any) -> Any:
    """The family's diffusers pipeline with nothing in it but the denoiser."""
    import diffusers

    name, none = {
        "sd3": (
            "StableDiffusion3Pipeline",
            ("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2", "text_encoder_3", "tokenizer_3"),
        ),
        "sd15": ("StableDiffusionPipeline", ("text_encoder", "tokenizer", "safety_checker", "feature_extractor")),
        "sdxl": ("StableDiffusionXLPipeline", ("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2")),
        "flux": ("FluxPipeline", ("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2")),
        "chroma": ("ChromaPipeline", ("text_encoder", "tokenizer")),
        "qwen_image": ("QwenImagePipeline", ("text_encoder", "tokenizer")),
        "z_image": ("ZImagePipeline", ("text_encoder", "tokenizer")),
        "flux2_klein": ("Flux2KleinPipeline", ("text_encoder", "tokenizer")),
    }[family]
    parts: dict[str, Any] = dict.fromkeys(("vae", "scheduler", *none))
    if family == "sd15":
        parts["requires_safety_checker"] = False
    return getattr(diffusers, name)(**parts, **{get_family(family).prefix: denoiser})


# --- targets


@pytest.mark.parametrize(
    ("family", "attention", "with_mlp"),
    [
        # SD 1.5 and SDXL: two attentions of 4 Linears a transformer, 2 + 3 transformers around the level, one in the middle.
        ("sd15", 6 * 8, 6 * 10),
        ("sdxl", 12 * 8, 12 * 10),
        # FLUX: 8 a double block, 3 a single one; MLPs of 4, then proj_mlp and proj_out.
        ("flux", 2 * 8 + 2 * 3, 2 * 12 + 2 * 5),
        ("chroma", 2 * 8 + 2 * 3, 2 * 12 + 2 * 5),
        ("qwen_image", 2 * 8, 2 * 12),
        # Two layers and one refiner of each kind.
        ("z_image", 4 * 4, 4 * 7),
        # A single block's two Linears hold its attention and its MLP together.
        ("flux2_klein", 2 * 8 + 2 * 2, 2 * 12 + 2 * 2),
    ],
)
def test_presets_find_the_layers_inside_blocks(family: str, attention: int, with_mlp: int) -> None:
    denoiser = tiny(family)
    found = resolve_targets(denoiser, "attention", family)
    assert len(found) == attention
    both = resolve_targets(denoiser, "attention+mlp", family)
    assert len(both) == with_mlp and set(found) < set(both)
    assert not {"proj_out", "x_embedder", "conv_in", "conv_out"} & set(both)


@pytest.mark.parametrize("family", UNETS)
def test_the_convolutions_of_a_unet_are_a_preset_of_their_own(family: str) -> None:
    denoiser, network = tiny(family), ALL_LAYERS[family]
    more = set(resolve_targets(denoiser, "attention+mlp+conv", family)) - set(
        resolve_targets(denoiser, "attention+mlp", family)
    )
    kinds = {name.rsplit(".", 1)[1] for name in more}
    assert kinds == {"proj_in", "proj_out", "conv1", "conv2", "conv_shortcut", "time_emb_proj", "conv"}
    assert network["down_blocks.0.resnets.0.conv1"] == (32, 32, 3, 3) and network["conv_in"] == (4, 32, 3, 3)
    assert "conv_in" not in more


def test_the_conv_preset_is_refused_where_there_are_no_convolutions() -> None:
    with pytest.raises(UserError, match=r"no preset of flux \(attention, attention\+mlp\)"):
        resolve_targets(tiny("flux"), "attention+mlp+conv", "flux")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_has_one_native_name_and_fused_ones_are_in_order(family: str) -> None:
    network = ALL_LAYERS[family]
    native = get_family(family).native_modules(network)
    parts = [part for module in native.values() for part in module.parts]
    assert sorted(parts) == sorted(network)
    for module in native.values():
        assert len({network[part][0] for part in module.parts}) == 1  # they share their input


# --- training


@pytest.mark.parametrize("family", FAMILIES)
def test_a_lora_starts_at_the_base_and_every_layer_of_the_preset_learns(family: str) -> None:
    denoiser = tiny(family)
    before = output(denoiser, family=family)
    targets = widest(family)
    adapter = attach(denoiser, 2, 4.0, targets, seed=7, family=family)
    assert torch.equal(output(denoiser, family=family), before)
    train_a_little(adapter)
    found = denoiser(**inputs(family=family), return_dict=False)[0]
    sum(x.square().mean() for x in found).backward()
    still = {name.rsplit(".", 1)[0] for name, p in adapter.named_parameters() if p.grad is None or not p.grad.any()}
    # The last block's text stream ends nowhere, so what only feeds it cannot learn.
    assert all(name.split(".")[1] == "1" or name.split(".")[1] == "2" for name in still if "blocks" in name)
    idle = {
        "sd3": {"attn.add_q_proj"},
        "qwen_image": {"attn.add_q_proj", "attn.to_add_out", "txt_mlp.net.0.proj", "txt_mlp.net.2"},
    }
    assert {name.split(".", 2)[2] for name in still} == idle.get(family, set()), still


@pytest.mark.parametrize("family", UNETS)
def test_convolutions_are_borrowed_merged_and_reloaded_like_linears(family: str) -> None:
    adapter = trained(family, "attention+mlp+conv")
    policy = output(adapter.denoiser, family=family)
    base = {name: value.clone() for name, value in adapter.denoiser.state_dict().items()}
    kept = adapter.snapshot()
    assert kept.factors["mid_block.resnets.0.conv1"][0].shape == (4, 64 * 9)
    other = random_factors(kept, 11)
    with adapter.using(other):
        borrowed = output(adapter.denoiser, family=family)
        with adapter.merged():
            torch.testing.assert_close(output(adapter.denoiser, family=family), borrowed, rtol=1e-3, atol=1e-4)
    assert torch.equal(output(adapter.denoiser, family=family), policy) and not torch.equal(borrowed, policy)
    assert all(torch.equal(value, base[name]) for name, value in adapter.denoiser.state_dict().items())
    assert adapter.snapshot().checksum() == kept.checksum()
    adapter.load(other)
    assert torch.equal(output(adapter.denoiser, family=family), borrowed)
    again = attach(tiny(family), 4, 8.0, "attention+mlp+conv", seed=1, family=family)
    again.load(LoraFactors.from_tensors(kept.tensors()))
    assert torch.equal(output(again.denoiser, family=family), policy)


# --- files: diffusers


# Stacked parts give the same sums in another order; diffusers reads the names of musubi-tuner's newer families in part.
STACKED = {("flux2_klein", "comfyui")}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("format", ["comfyui", "diffusers"])
def test_diffusers_loads_the_file_and_gives_the_same_output(tmp_path: Path, family: str, format: str) -> None:
    """Rank 4 with alpha 8: a loader that loses the alpha is off by half."""
    adapter = trained(family, widest(family))
    network = layer_shapes(adapter.denoiser)
    export_lora(adapter.snapshot(), tmp_path / "a.safetensors", network=network, family=family, format=format)
    fresh = tiny(family)
    base = output(fresh, family=family)
    pipeline(family, fresh).load_lora_weights(str(tmp_path), weight_name="a.safetensors")
    found, expected = output(fresh, family=family), output(adapter.denoiser, family=family)
    if (family, format) in STACKED:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    else:
        assert torch.equal(found, expected)
    assert (found - base).abs().max() > 1e-3
    assert set(layer_shapes(fresh)) == set(network)


@pytest.mark.parametrize("family", ["sd15", "sdxl", "flux"])
def test_diffusers_loads_the_kohya_file(tmp_path: Path, family: str) -> None:
    names = resolve_targets(tiny(family), widest(family), family)
    # diffusers cuts a single block's linear1 at the real model's sizes, whatever the model's are.
    adapter = trained(family, [name for name in names if not name.startswith("single_transformer_blocks")])
    path = export_lora(
        adapter.snapshot(), tmp_path / "a.safetensors", network=ALL_LAYERS[family], family=family, format="kohya"
    )
    fresh = tiny(family)
    pipeline(family, fresh).load_lora_weights(str(path.parent), weight_name=path.name)
    torch.testing.assert_close(output(fresh, family=family), output(adapter.denoiser, family=family), rtol=1e-5, atol=1e-6)


def test_diffusers_reads_a_kohya_single_block_at_its_real_size(tmp_path: Path) -> None:
    from diffusers import FluxPipeline

    block, width = "single_transformer_blocks.0", 3072
    network = {f"{block}.attn.to_{part}": (width, width) for part in "qkv"}
    network |= {f"{block}.proj_mlp": (width, 4 * width), f"{block}.proj_out": (5 * width, width)}
    factors = random_lora(network, network, 2, 4.0)
    export_lora(factors, tmp_path / "a.safetensors", network=network, family="flux", format="kohya")
    found = FluxPipeline.lora_state_dict(str(tmp_path), weight_name="a.safetensors")
    for name, (a, b) in factors.factors.items():
        x = torch.ones(a.shape[1])
        down, up = (found[f"transformer.{name}.lora_{part}.weight"] for part in "AB")
        torch.testing.assert_close(up @ (down @ x), factors.scale * (b @ (a @ x)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_diffusers_saves_is_read(tmp_path: Path, family: str) -> None:
    from diffusers.training_utils import _collate_lora_metadata
    from peft.utils import get_peft_model_state_dict

    adapter = trained(family, widest(family))
    denoiser, prefix = adapter.denoiser, get_family(family).prefix
    denoiser.peft_config["default"] = denoiser.peft_config["policy"]
    layers = get_peft_model_state_dict(denoiser, adapter_name="policy")
    metadata = _collate_lora_metadata({prefix: denoiser})
    pipe = type(pipeline(family, denoiser))
    pipe.save_lora_weights(tmp_path, **{f"{prefix}_lora_layers": layers}, **metadata)
    back = read_lora(tmp_path, ALL_LAYERS[family], family)
    assert back.checksum() == adapter.snapshot().checksum()


@pytest.mark.parametrize("family", FAMILIES)
def test_what_peft_saves_is_read(tmp_path: Path, family: str) -> None:
    from peft import LoraConfig, get_peft_model

    expected = trained(family, widest(family)).snapshot()
    config = LoraConfig(r=4, lora_alpha=8, target_modules=list(expected.factors))
    model = get_peft_model(tiny(family), config)
    with torch.no_grad():
        for name, (a, b) in expected.factors.items():
            layer = model.base_model.model.get_submodule(name)
            for factor, value in ((layer.lora_A.default, a), (layer.lora_B.default, b)):
                factor.weight.copy_(value.reshape(factor.weight.shape))
    model.save_pretrained(tmp_path)
    assert read_lora(tmp_path, ALL_LAYERS[family], family).checksum() == expected.checksum()


# --- files: written and read back


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("format", FORMATS)
def test_every_format_is_read_back_with_the_same_change(tmp_path: Path, family: str, format: str) -> None:
    network = ALL_LAYERS[family]
    factors = random_lora(network, mapped(family) if format == "comfyui" else network, 4, 8.0)
    path = export_lora(factors, tmp_path / "a.safetensors", network=network, family=family, format=format)
    back = read_lora(path, network, family)
    assert list(back.factors) == list(factors.factors) and back.rank == 4
    for name in factors.factors:
        assert torch.equal(back.delta(name), factors.delta(name)), name
    flat = format == "kohya" or (format == "comfyui" and family in UNETS)
    if flat or format == "diffusers":
        assert back.checksum() == factors.checksum()  # the alpha is kept too


@pytest.mark.parametrize("family", FAMILIES)
def test_a_lora_continues_at_another_rank(tmp_path: Path, family: str) -> None:
    network, targets = ALL_LAYERS[family], widest(family)
    made = trained(family, targets).snapshot()
    path = export_lora(made, tmp_path / "a.safetensors", network=network, family=family)
    wider = attach(tiny(family), 6, 3.0, targets, seed=1, family=family)
    assert wider.start_from(read_lora(path, network, family)) == 0.0
    assert worst(wider.snapshot(), made) < 1e-6
    narrower = attach(tiny(family), 2, 2.0, targets, seed=1, family=family)
    assert 0.05 < narrower.start_from(read_lora(path, network, family)) < 1.0


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tensors_in_memory_are_those_of_the_file(tmp_path: Path, family: str) -> None:
    """A checkpoint is applied without loading the base, so the shapes come from the factors alone."""
    network = ALL_LAYERS[family]
    names = resolve_targets(tiny(family), widest(family), family)
    for some in (names, [name for name in names if not name.endswith("to_k")]):
        factors = random_lora(network, some, 4, 8.0)
        path = export_lora(factors, tmp_path / "a.safetensors", network=network, family=family)
        file, memory = load_file(path), comfyui_tensors(factors, get_family(family))
        assert set(file) == set(memory)
        assert all(torch.equal(file[key].flatten(), memory[key].flatten()) for key in file)


@pytest.mark.parametrize("family", FAMILIES)
def test_stacked_files_do_not_widen_the_targets(tmp_path: Path, family: str) -> None:
    """FLUX's linear1 holds q, k, v and the MLP: of an attention LoRA, only the attention comes back, at its own rank."""
    made = trained(family, "attention").snapshot()
    path = export_lora(made, tmp_path / "a.safetensors", network=ALL_LAYERS[family], family=family, format="kohya")
    assert read_lora(path, ALL_LAYERS[family], family).checksum() == made.checksum()


def test_a_stacked_part_that_never_learned_costs_the_others_no_rank(tmp_path: Path) -> None:
    """The last block's text queries end nowhere, so their B stays 0."""
    network = ALL_LAYERS["sd3"]
    made = random_lora(network, resolve_targets(tiny("sd3"), "attention", "sd3"), 2, 4.0)
    made.factors["transformer_blocks.2.attn.add_q_proj"][1].zero_()
    path = export_lora(made, tmp_path / "a.safetensors", network=network, format="kohya")
    assert read_lora(path, network).checksum() == made.checksum()


def test_a_layer_that_comfyui_maps_under_the_native_name_alone_needs_the_other_format(tmp_path: Path) -> None:
    network = ALL_LAYERS["chroma"]
    factors = random_lora(network, ["distilled_guidance_layer.layers.0.linear_1", "transformer_blocks.0.attn.to_q"], 2, 2.0)
    path = tmp_path / "a.safetensors"
    words = r"no Chroma key for 1 trained modules \(distilled_guidance_layer.*; leave them out .* or use format 'kohya'"
    with pytest.raises(UserError, match=words):
        export_lora(factors, path, network=network, family="chroma")
    assert not list(tmp_path.iterdir())
    export_lora(factors, path, network=network, family="chroma", format="kohya")
    assert "lora_unet_distilled_guidance_layer_layers_0_in_layer.lora_up.weight" in load_file(path)


# --- names as other tools write them


@pytest.mark.parametrize(
    ("family", "format", "key"),
    [
        ("sd15", "comfyui", "lora_unet_down_blocks_0_attentions_1_transformer_blocks_0_attn2_to_out_0"),
        ("sd15", "kohya", "lora_unet_up_blocks_1_attentions_2_proj_in"),
        ("sdxl", "comfyui", "lora_unet_mid_block_attentions_0_transformer_blocks_1_ff_net_0_proj"),
        ("sdxl", "kohya", "lora_unet_input_blocks_4_1_transformer_blocks_1_attn1_to_q"),
        ("sdxl", "kohya", "lora_unet_input_blocks_3_0_op"),
        ("sdxl", "kohya", "lora_unet_input_blocks_4_0_skip_connection"),
        ("sdxl", "kohya", "lora_unet_middle_block_1_proj_in"),
        ("sdxl", "kohya", "lora_unet_middle_block_2_out_layers_3"),
        ("sdxl", "kohya", "lora_unet_output_blocks_2_2_conv"),
        ("sdxl", "kohya", "lora_unet_output_blocks_5_0_emb_layers_1"),
        ("flux", "comfyui", "transformer.single_transformer_blocks.1.proj_mlp"),
        ("flux", "kohya", "lora_unet_double_blocks_1_txt_attn_qkv"),
        ("flux", "kohya", "lora_unet_single_blocks_0_linear1"),
        ("chroma", "comfyui", "transformer.transformer_blocks.0.attn.add_q_proj"),
        ("qwen_image", "kohya", "lora_unet_transformer_blocks_0_img_mlp_net_2"),
        ("z_image", "comfyui", "diffusion_model.layers.1.attention.to_out.0"),
        ("z_image", "kohya", "lora_unet_noise_refiner_0_attention_qkv"),
        ("flux2_klein", "comfyui", "diffusion_model.double_blocks.0.img_attn.qkv"),
        ("flux2_klein", "kohya", "lora_unet_single_blocks_1_linear1"),
    ],
)
def test_the_spelling(tmp_path: Path, family: str, format: str, key: str) -> None:
    targets = widest(family)
    names = resolve_targets(tiny(family), targets, family)
    factors = random_lora(ALL_LAYERS[family], names, 2, 1.0)
    path = export_lora(factors, tmp_path / "a.safetensors", network=ALL_LAYERS[family], family=family, format=format)
    tensors = load_file(path)
    if key.startswith("lora_unet_"):
        rank = tensors[f"{key}.lora_down.weight"].shape[0]
        assert rank % 2 == 0 and float(tensors[f"{key}.alpha"]) == rank / 2 == tensors[f"{key}.lora_up.weight"].shape[1] / 2
    else:
        assert tensors[f"{key}.lora_A.weight"].shape[0] == tensors[f"{key}.lora_B.weight"].shape[1]


def test_a_convolution_keeps_its_kernel_in_the_file(tmp_path: Path) -> None:
    factors = random_lora(ALL_LAYERS["sdxl"], ["down_blocks.0.resnets.0.conv1"], 2, 2.0)
    path = export_lora(factors, tmp_path / "a.safetensors", network=ALL_LAYERS["sdxl"], family="sdxl")
    key = "lora_unet_down_blocks_0_resnets_0_conv1"
    shapes = {name: tuple(value.shape) for name, value in load_file(path).items()}
    assert shapes == {f"{key}.lora_down.weight": (2, 32, 3, 3), f"{key}.lora_up.weight": (32, 2, 1, 1), f"{key}.alpha": ()}


def test_unet_files_of_older_diffusers_are_read(tmp_path: Path) -> None:
    name = "down_blocks.0.attentions.0.transformer_blocks.0.attn2"
    factors = random_lora(ALL_LAYERS["sd15"], [f"{name}.to_q", f"{name}.to_out.0"], 4, 4.0)
    tensors = {}
    for old, new in (("to_q", "to_q"), ("to_out", "to_out.0")):
        a, b = factors.factors[f"{name}.{new}"]
        tensors |= {f"unet.{name}.processor.{old}_lora.down.weight": a, f"unet.{name}.processor.{old}_lora.up.weight": b}
    save_file(tensors, tmp_path / "a.safetensors")
    assert read_lora(tmp_path / "a.safetensors", ALL_LAYERS["sd15"], "sd15").checksum() == factors.checksum()


@pytest.mark.parametrize(
    ("family", "made_for", "words"),
    [
        ("sd15", "flux", "looks like a LoRA for FLUX"),
        ("flux", "sd15", "looks like a LoRA for Stable Diffusion 1.5 or SDXL"),
        ("flux", "sdxl", "looks like a LoRA for SDXL"),
        ("sd15", "sdxl", r"looks like a LoRA for SDXL|is for a model of another size"),
        ("sdxl", "sd15", r"Stable Diffusion 1.5 or SDXL of another size|is for a model of another size"),
        ("flux", "flux2_klein", "looks like a LoRA for FLUX.2|is for a model of another size"),
        ("flux2_klein", "flux", "looks like a LoRA for FLUX"),
        ("qwen_image", "z_image", "looks like a LoRA for Z-Image"),
        ("z_image", "qwen_image", "looks like a LoRA for Qwen-Image"),
        ("sd3", "flux", "looks like a LoRA for FLUX"),
    ],
)
def test_a_lora_for_another_family_is_refused_by_name(tmp_path: Path, family: str, made_for: str, words: str) -> None:
    names = resolve_targets(tiny(made_for), "attention+mlp", made_for)
    factors = random_lora(ALL_LAYERS[made_for], names, 2, 2.0)
    path = export_lora(factors, tmp_path / "a.safetensors", network=ALL_LAYERS[made_for], family=made_for, format="diffusers")
    with pytest.raises(UserError, match=words) as caught:
        read_lora(path, ALL_LAYERS[family], family)
    assert "\n" not in str(caught.value)


# --- metadata


@pytest.mark.parametrize(
    ("family", "architecture", "base_version", "module"),
    [
        ("sd15", "stable-diffusion-v1/lora", "sd_v1_v", "networks.lora"),
        ("sdxl", "stable-diffusion-xl-v1-base/lora", "sdxl_base_v1-0", "networks.lora"),
        ("sd3", "stable-diffusion-3-medium/lora", "medium", "networks.lora_sd3"),
        ("flux", "flux-1-dev/lora", "flux1", "networks.lora_flux"),
        ("chroma", "chroma/lora", "chroma", "networks.lora_flux"),
        ("qwen_image", "Qwen-Image/lora", "qwen_image", "networks.lora_qwen_image"),
        ("z_image", "Z-Image/lora", "z_image", "networks.lora_zimage"),
        ("flux2_klein", "Flux.2-klein-4b/lora", "flux_2_klein_4b", "networks.lora_flux_2"),
    ],
)
def test_what_the_file_says_of_itself(tmp_path: Path, family: str, architecture: str, base_version: str, module: str) -> None:
    network = ALL_LAYERS[family]
    factors = random_lora(network, resolve_targets(tiny(family), "attention", family), 4, 8.0)
    facts = {"name": "Cats", "base": "a/base", "prediction": "v_prediction", "resolution": "768x768", "iteration": "7"}
    for format in FORMATS:
        path = export_lora(factors, tmp_path / "a.safetensors", network=network, family=family, format=format, metadata=facts)
        with safe_open(path, "pt") as file:
            found = file.metadata()
        flat = format == "kohya" or (format == "comfyui" and family in UNETS)
        folded = format == "comfyui" and not flat
        assert facts.items() <= found.items()
        assert found["modelspec.architecture"] == architecture and found["modelspec.title"] == "Cats"
        assert found["modelspec.resolution"] == "768x768" and found["modelspec.prediction_type"] == "v"
        assert (found["ss_base_model_version"], found["ss_sd_model_name"]) == (base_version, "a/base")
        assert (found["ss_network_dim"], found["ss_network_alpha"]) == ("4", "4" if folded else "8")
        assert found.get("ss_network_module") == (module if flat else None)
        assert (found["family"], found["rank"], found["alpha"]) == (family, "4", "8")


@pytest.mark.parametrize(
    ("width", "prediction", "architecture", "base_version"),
    [
        (768, "epsilon", "stable-diffusion-v1", "sd_v1"),
        (768, "v_prediction", "stable-diffusion-v1", "sd_v1_v"),
        (1024, None, "stable-diffusion-v2-512", "sd_v2"),
        (1024, "v_prediction", "stable-diffusion-v2-768-v", "sd_v2_v"),
    ],
)
def test_stable_diffusion_2_is_told_by_its_text_encoder(width, prediction, architecture, base_version) -> None:
    key = "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k"
    identity = get_family("sd15").identity({key: (width, 320)}, prediction)
    assert (identity.architecture, identity.base_version) == (architecture, base_version)


@pytest.mark.parametrize(
    ("depth", "dual", "model"), [(24, False, "medium"), (24, True, "5-medium"), (38, False, "5-large"), (2, True, "5-medium")]
)
def test_the_three_models_of_stable_diffusion_3(depth: int, dual: bool, model: str) -> None:
    """The names are sd-scripts' (library/sd3_utils.py), which knows no others."""
    network = {f"transformer_blocks.{n}.attn.to_q": (64 * depth, 64 * depth) for n in range(depth)}
    network |= {"transformer_blocks.0.attn2.to_q": (64 * depth, 64 * depth)} if dual else {}
    identity = get_family("sd3").identity(network)
    assert (identity.architecture, identity.base_version) == (f"stable-diffusion-3-{model}", model)


def test_klein_is_told_from_its_larger_sister_by_its_width() -> None:
    for width, size in ((3072, "4b"), (4096, "9b")):
        identity = get_family("flux2_klein").identity({"x_embedder": (128, width)})
        assert (identity.architecture, identity.base_version) == (f"Flux.2-klein-{size}", f"flux_2_klein_{size}")
