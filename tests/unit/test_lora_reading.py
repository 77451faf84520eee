from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.lora_models import output, random_factors, tiny_sd3, train_a_little, worst
from trainer.errors import UserError
from trainer.lora import LoraAdapter, LoraFactors, attach, export_lora, layer_shapes, read_lora

Q = "transformer_blocks.0.attn.to_q"
QKV = "diffusion_model.joint_blocks.0.x_block.attn.qkv"
FLAT = "transformer_blocks_0_attn1_to_q"
NETWORK = layer_shapes(tiny_sd3())


@pytest.fixture
def adapter() -> LoraAdapter:
    adapter = attach(tiny_sd3(), rank=4, alpha=8.0, targets="attention+mlp", seed=7)
    train_a_little(adapter)
    return adapter


def pair(out: int = 192, rank: int = 4, inside: int = 192, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(rank, inside, generator=g), torch.randn(out, rank, generator=g)


# --- files that other libraries really write


@pytest.mark.parametrize("with_metadata", [True, False])
def test_what_diffusers_saves(tmp_path: Path, adapter: LoraAdapter, with_metadata: bool) -> None:
    from diffusers import StableDiffusion3Pipeline
    from diffusers.training_utils import _collate_lora_metadata
    from peft.utils import get_peft_model_state_dict

    layers = get_peft_model_state_dict(adapter.denoiser, adapter_name="policy")
    metadata = {}
    if with_metadata:
        adapter.denoiser.peft_config["default"] = adapter.denoiser.peft_config["policy"]
        metadata = _collate_lora_metadata({"transformer": adapter.denoiser})
    StableDiffusion3Pipeline.save_lora_weights(tmp_path, transformer_lora_layers=layers, **metadata)
    for path in (tmp_path, tmp_path / "pytorch_lora_weights.safetensors"):
        back = read_lora(path, NETWORK)
        # Without metadata the file itself says alpha = rank, and diffusers would apply it so.
        assert back.alpha == (8.0 if with_metadata else 4.0)
        expected = adapter.snapshot()
        assert all(
            torch.equal(a, b) for n in expected.factors for a, b in zip(back.factors[n], expected.factors[n], strict=True)
        )


def test_what_a_bare_diffusers_model_saves(tmp_path: Path, adapter: LoraAdapter) -> None:
    adapter.denoiser.save_lora_adapter(tmp_path, adapter_name="policy")
    assert read_lora(tmp_path, NETWORK).checksum() == adapter.snapshot().checksum()


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("rslora", [True, False])
def test_what_peft_saves(tmp_path: Path, safe: bool, rslora: bool) -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules=["to_q", "proj_out"],
        rank_pattern={Q: 6},
        alpha_pattern={"proj_out": 3},
        init_lora_weights=False,
        use_rslora=rslora,
    )
    model = get_peft_model(tiny_sd3(), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.mul_(0.05)
    model.save_pretrained(tmp_path, safe_serialization=safe)
    if not safe:
        state = {k: v for k, v in model.state_dict().items() if "lora_" in k}
        torch.save({k.replace(".default", ""): v for k, v in state.items()}, tmp_path / "adapter_model.bin")
        (tmp_path / "adapter_model.safetensors").unlink(missing_ok=True)
    back = read_lora(tmp_path, NETWORK)
    assert back.rank == 6 and set(back.factors) == {f"transformer_blocks.{b}.attn.to_q" for b in range(3)} | {"proj_out"}
    for name in back.factors:
        expected = model.base_model.model.get_submodule(name).get_delta_weight("default")
        assert torch.allclose(back.delta(name), expected, atol=1e-7)
    other = attach(tiny_sd3(), 6, 6.0, ["attn.to_q", "proj_out"], seed=1)
    assert other.start_from(back) == 0.0
    assert torch.allclose(output(other.denoiser), output(model.base_model.model), atol=1e-5)


# --- key styles


STYLES: dict[str, Callable[[str], tuple[str, str, str]]] = {
    "diffusers": lambda n: (f"transformer.{n}.lora_A.weight", f"transformer.{n}.lora_B.weight", f"transformer.{n}.alpha"),
    "doubled prefix": lambda n: (
        f"transformer.transformer.{n}.lora_A.weight",
        f"transformer.transformer.{n}.lora_B.weight",
        "",
    ),
    "no prefix": lambda n: (f"{n}.lora_A.default.weight", f"{n}.lora_B.default.weight", f"{n}.alpha"),
    "peft": lambda n: (f"base_model.model.{n}.lora_A.weight", f"base_model.model.{n}.lora_B.weight", ""),
    "diffusion_model": lambda n: (f"diffusion_model.{n}.lora_down.weight", f"diffusion_model.{n}.lora_up.weight", ""),
    "kohya": lambda n: tuple(f"lora_unet_{n.replace('.', '_')}.{e}" for e in ("lora_down.weight", "lora_up.weight", "alpha")),
    "onetrainer": lambda n: tuple(
        f"lora_transformer_{n.replace('.', '_')}.{e}" for e in ("lora_down.weight", "lora_up.weight", "alpha")
    ),
    "old diffusers": lambda n: (f"transformer.{n}.lora.down.weight", f"transformer.{n}.lora.up.weight", ""),
}


@pytest.mark.parametrize("style", STYLES)
def test_every_key_style_gives_the_same_change(tmp_path: Path, adapter: LoraAdapter, style: str) -> None:
    expected = adapter.snapshot()
    tensors = {}
    for name, (a, b) in expected.factors.items():
        down, up, alpha = STYLES[style](name)
        # A style without alpha keys acts at scale 1, so the scale 8 / 4 goes into B.
        tensors |= {down: a, up: b if alpha else b * 2}
        if alpha:
            tensors[alpha] = torch.tensor(8.0)
    save_file(tensors, tmp_path / "a.safetensors")
    back = read_lora(tmp_path / "a.safetensors", NETWORK)
    assert list(back.factors) == list(expected.factors)
    assert worst(back, expected) == 0.0


@pytest.mark.parametrize(
    ("prefix", "dot"),
    [("lora_unet_", "_"), ("diffusion_model.", "."), ("model.diffusion_model.", ".")],
    ids=["kohya", "native", "full"],
)
@pytest.mark.parametrize("alpha", [None, 2.0])
def test_fused_native_modules_are_split_exactly(tmp_path: Path, prefix: str, dot: str, alpha: float | None) -> None:
    tensors, expected = {}, {}
    modules = {
        "joint_blocks.1.x_block.attn.qkv": [f"transformer_blocks.1.attn.to_{x}" for x in "qkv"],
        "joint_blocks.2.context_block.attn.qkv": [f"transformer_blocks.2.attn.add_{x}_proj" for x in "qkv"],
        "joint_blocks.0.context_block.mlp.fc1": ["transformer_blocks.0.ff_context.net.0.proj"],
        "joint_blocks.0.x_block.adaLN_modulation.1": ["transformer_blocks.0.norm1.linear"],
    }
    for i, (native, parts) in enumerate(modules.items()):
        a, b = pair(sum(NETWORK[p][1] for p in parts), rank=3, inside=NETWORK[parts[0]][0], seed=i)
        key = prefix + native.replace(".", dot)
        tensors |= {f"{key}.lora_down.weight": a, f"{key}.lora_up.weight": b}
        if alpha:
            tensors[f"{key}.alpha"] = torch.tensor(alpha)
        fused = (b @ a) * ((alpha or 3.0) / 3)
        expected |= dict(zip(parts, fused.split([NETWORK[p][1] for p in parts]), strict=True))
    save_file(tensors, tmp_path / "a.safetensors")
    back = read_lora(tmp_path / "a.safetensors", NETWORK)
    assert back.rank == 3 and set(back.factors) == set(expected)
    for name, delta in expected.items():
        assert torch.allclose(back.delta(name), delta, rtol=1e-6, atol=1e-6)
    # q, k and v now share one A; it can be written again all the same.
    again = read_lora(export_lora(back, tmp_path / "b.safetensors", network=NETWORK), NETWORK)
    assert worst(again, back) <= 1e-5  # values of about 5


def test_native_scale_and_shift_are_swapped_where_diffusers_turned_them(tmp_path: Path) -> None:
    tensors, halves = {}, {}
    for seed, (native, name) in enumerate(
        [
            ("final_layer.adaLN_modulation.1", "norm_out.linear"),
            ("joint_blocks.2.context_block.adaLN_modulation.1", "transformer_blocks.2.norm1_context.linear"),
        ]
    ):
        a, b = pair(384, seed=seed)
        tensors |= {f"diffusion_model.{native}.lora_A.weight": a, f"diffusion_model.{native}.lora_B.weight": b}
        shift, scale = (b @ a).chunk(2)
        halves[name] = torch.cat([scale, shift])
    save_file(tensors, tmp_path / "a.safetensors")
    back = read_lora(tmp_path / "a.safetensors", NETWORK)
    assert {name: torch.allclose(back.delta(name), half, atol=1e-5) for name, half in halves.items()} == dict.fromkeys(
        halves, True
    )


def test_ranks_and_alphas_that_differ_become_one_exactly(tmp_path: Path) -> None:
    tensors, expected = {}, {}
    for block, (rank, alpha) in enumerate([(4, 8.0), (2, 4.0), (8, 4.0)]):
        name = f"transformer_blocks.{block}.attn.to_q"
        a, b = pair(rank=rank, seed=block)
        key = f"lora_unet_{name.replace('.', '_')}"
        tensors |= {f"{key}.lora_down.weight": a, f"{key}.lora_up.weight": b, f"{key}.alpha": torch.tensor(alpha)}
        expected[name] = (b.double() @ a.double()) * (alpha / rank)
    save_file(tensors, tmp_path / "a.safetensors")
    back = read_lora(tmp_path / "a.safetensors", NETWORK)
    assert (back.rank, back.alpha) == (8, 16.0)
    for name, delta in expected.items():
        a, b = (t.double() for t in back.factors[name])
        # In float64 the products agree to the last bits: padding and a scale of a power of two lose nothing.
        assert ((b @ a) * back.scale - delta).abs().max() < 1e-12


def test_half_precision_and_one_by_one_convolutions_become_float32_matrices(tmp_path: Path) -> None:
    a, b = (t.to(torch.bfloat16) for t in pair())
    save_file(
        {f"{Q}.lora_down.weight": a[..., None, None], f"{Q}.lora_up.weight": b[..., None, None]}, tmp_path / "a.safetensors"
    )
    back = read_lora(tmp_path / "a.safetensors", NETWORK)
    assert torch.equal(back.factors[Q][0], a.float()) and torch.equal(back.factors[Q][1], b.float())


def test_text_encoder_parts_are_left_out_with_a_warning(tmp_path: Path) -> None:
    a, b = pair()
    encoder = {"lora_te1_text_model_encoder_layers_0_mlp_fc1.lora_down.weight": a * 2, "text_encoder.x.lora_A.weight": a + 1}
    save_file({f"transformer.{Q}.lora_A.weight": a, f"transformer.{Q}.lora_B.weight": b, **encoder}, tmp_path / "a.safetensors")
    with pytest.warns(UserWarning, match=r"also changes text encoders \(2 keys\)"):
        assert list(read_lora(tmp_path / "a.safetensors", NETWORK).factors) == [Q]
    save_file(encoder, tmp_path / "b.safetensors")
    with pytest.raises(UserError, match="no LoRA weights for the denoiser"):
        read_lora(tmp_path / "b.safetensors", NETWORK)


def test_a_pt_file_of_tensors_is_read_and_one_with_code_is_not(tmp_path: Path) -> None:
    a, b = pair()
    torch.save({f"{Q}.lora_A.weight": a, f"{Q}.lora_B.weight": b}, tmp_path / "a.pt")
    assert torch.equal(read_lora(tmp_path / "a.pt", NETWORK).factors[Q][0], a)

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({f"{Q}.lora_A.weight": Evil()}, tmp_path / "b.pt")
    torch.save([a], tmp_path / "c.pt")
    for name in ("b.pt", "c.pt"):
        with pytest.raises(UserError, match="convert it to safetensors"):
            read_lora(tmp_path / name, NETWORK)
    assert not (tmp_path / "ran").exists()


# --- refusals: one line that says what is wrong


def plain(name: str = f"transformer.{Q}", **changes: Any) -> dict[str, torch.Tensor]:
    a, b = pair()
    return {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b, **changes}


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (
            plain(f"lora_unet_down_blocks_0_attentions_0_{FLAT}"),
            "2 of 2 keys .*looks like a LoRA for Stable Diffusion 1.5 or SDXL",
        ),
        (
            {**plain(), **plain("transformer.single_transformer_blocks.0.attn.to_q")},
            "2 of 4 keys .*single_transformer_blocks.*for FLUX",
        ),
        (plain("diffusion_model.double_blocks.0.img_attn.qkv"), "for FLUX"),
        ({**plain(), **plain("transformer.transformer_blocks.0.img_mlp.net.2")}, "for Qwen-Image"),
        (plain("diffusion_model.layers.0.attention.to_q"), "for Z-Image or Lumina"),
        (plain("diffusion_model.blocks.0.self_attn.q"), "for Wan"),
        (plain("transformer.transformer_blocks.23.attn.to_q"), "Stable Diffusion 3 of another size"),
        (plain("foo.bar"), "a LoRA for Stable Diffusion 3 is needed"),
        ({f"transformer.{Q}.lora_A.weight": pair()[0]}, f"only one of the two factors of {Q}"),
        ({f"transformer.{Q}.alpha": torch.tensor(1.0)}, f"only one of the two factors of {Q}"),
        (plain(**{f"transformer.{Q}.lora_B.weight": pair(rank=5)[1]}), "have ranks 4 and 5"),
        (
            plain(**{f"transformer.{Q}.lora_A.weight": pair(inside=1536)[0]}),
            r"another size: .*\(1536, 192\), this model's \(192, 192\)",
        ),
        (plain(**{f"transformer.{Q}.lora_A.weight": pair()[0] * float("nan")}), "holds NaN"),
        (plain(**{f"transformer.{Q}.lora_A.weight": torch.ones(4, 192, dtype=torch.int8)}), "torch.int8"),
        (plain(**{f"transformer.{Q}.lora_A.weight": torch.ones(4, 192, 3, 3)}), "not a floating-point matrix"),
        (plain(**{f"transformer.{Q}.alpha": torch.tensor(0.0)}), "alpha of .* is 0.0; a positive number"),
        ({**plain(), **plain(f"base_model.model.{Q}")}, f"holds {Q} twice"),
        ({**plain(), f"{QKV}.lora_A.weight": pair()[0], f"{QKV}.lora_B.weight": pair(576)[1]}, f"changes {Q} twice"),
        (plain(**{f"transformer.{Q}.lora_magnitude_vector": torch.ones(192)}), "is a DoRA"),
        ({"lora_unet_joint_blocks_0_x_block_attn_qkv.lokr_w1": torch.ones(2, 2)}, "is a LoKr"),
        ({"model.diffusion_model.joint_blocks.0.x_block.attn.qkv.weight": torch.ones(2, 2)}, "1 of 1 keys name no module"),
    ],
)
def test_what_cannot_be_read_whole_is_refused_in_one_line(tmp_path: Path, tensors: dict[str, torch.Tensor], words: str) -> None:
    save_file(tensors, tmp_path / "a.safetensors")
    with pytest.raises(UserError, match=words) as caught:
        read_lora(tmp_path / "a.safetensors", NETWORK)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"not a lora at all", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "], ids=["empty", "text", "nothing"]
)
def test_damaged_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"damaged or is not a safetensors file|holds no LoRA weights") as caught:
        read_lora(path, NETWORK)
    assert "\n" not in str(caught.value)


def test_a_torn_file(tmp_path: Path) -> None:
    save_file(plain(), tmp_path / "a.safetensors")
    data = (tmp_path / "a.safetensors").read_bytes()
    for size in (5, 50, len(data) // 2, len(data) - 1):
        (tmp_path / "b.safetensors").write_bytes(data[:size])
        (tmp_path / "b.pt").write_bytes(data[:size])
        for name in ("b.safetensors", "b.pt"):
            with pytest.raises(UserError, match="damaged"):
                read_lora(tmp_path / name, NETWORK)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_lora(tmp_path / "no.safetensors", NETWORK)
    with pytest.raises(UserError, match=r"holds no LoRA: neither adapter_config.json"):
        read_lora(tmp_path, NETWORK)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "cannot be read"),
        ("[]", "not a JSON object"),
        (json.dumps({"peft_type": "LOKR"}), "type LOKR; only LORA"),
        (json.dumps({"r": 4, "lora_alpha": "many"}), "the alpha 'many'; a number"),
        (json.dumps({"r": 4, "lora_alpha": 4, "alpha_pattern": {"(a+)+b": 3}}), "is a regular expression"),
        (json.dumps({"r": 4, "lora_alpha": 4}), "adapter_model.bin does not exist"),
    ],
)
def test_bad_peft_folders(tmp_path: Path, config: str, words: str) -> None:
    (tmp_path / "adapter_config.json").write_text(config)
    if "does not exist" not in words:
        save_file(plain(f"base_model.model.{Q}"), tmp_path / "adapter_model.safetensors")
    with pytest.raises(UserError, match=words):
        read_lora(tmp_path, NETWORK)


def test_a_lora_for_the_dual_attention_model(tmp_path: Path) -> None:
    dual = tiny_sd3(dual=True)
    network = layer_shapes(dual)
    a, b = pair(576)
    key = "lora_unet_joint_blocks_1_x_block_attn2_qkv"
    save_file(
        {f"{key}.lora_down.weight": a, f"{key}.lora_up.weight": b, f"{key}.alpha": torch.tensor(4.0)},
        tmp_path / "a.safetensors",
    )
    back = read_lora(tmp_path / "a.safetensors", network)
    assert list(back.factors) == [f"transformer_blocks.1.attn2.to_{x}" for x in "qkv"]
    assert isinstance(back, LoraFactors) and random_factors(back, 1).rank == 4
    with pytest.raises(UserError, match="3 of 3"):
        read_lora(tmp_path / "a.safetensors", NETWORK)
