"""Bases that are single files: recognised by their tensors, converted by diffusers, completed by folders and other files."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests import ldm, native_names
from tests.family_bench import CPU, PROMPTS, SAMPLING
from tests.tiny_families import make_folder
from trainer.errors import UserError
from trainer.policies import policy_class
from trainer.policies.checkpoint import recognise
from trainer.policies.files import plain_weights
from trainer.policies.published import PUBLISHED
from trainer.policies.references import write_reference

SDXL_UNET = {
    "input_blocks.0.0.weight": (1, 1),
    "label_emb.0.0.weight": (1, 1),
    "input_blocks.4.1.transformer_blocks.0.attn2.to_k.weight": (1, 2048),
}
MARKS = {
    "sd15": {"input_blocks.0.0.weight": (1, 1), "input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight": (1, 768)},
    "sdxl": SDXL_UNET,
    "sd3": {"joint_blocks.0.x_block.attn.qkv.weight": (1, 1)},
    "flux": {"double_blocks.0.img_attn.qkv.weight": (1, 1), "guidance_in.in_layer.weight": (1, 1)},
    "chroma": {"double_blocks.0.img_attn.qkv.weight": (1, 1), "distilled_guidance_layer.norms.0.scale": (1,)},
    "qwen_image": {"txt_norm.weight": (1,), "transformer_blocks.0.img_mod.1.weight": (1, 1)},
    "z_image": {"cap_embedder.1.weight": (1, 1), "layers.0.attention.qkv.weight": (1, 1)},
    "flux2_klein": {"double_blocks.0.img_attn.qkv.weight": (1, 1), "double_stream_modulation_img.lin.weight": (1, 1)},
}


def _file(path: Path, shapes: dict[str, tuple[int, ...]], prefix: str = "") -> Path:
    save_file({prefix + name: torch.zeros(shape) for name, shape in shapes.items()}, path)
    return path


@pytest.fixture(scope="module")
def sdxl(tmp_path_factory):
    """(folder, the same model as one checkpoint file)."""
    from diffusers import StableDiffusionXLPipeline

    root = tmp_path_factory.mktemp("sdxl")
    folder = make_folder("sdxl", root / "model")
    pipe = StableDiffusionXLPipeline.from_pretrained(folder)
    file = root / "checkpoint.safetensors"
    save_file(native_names.whole("sdxl", pipe), file)
    return folder, file


# Recognising


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
@pytest.mark.parametrize("family", MARKS)
def test_a_file_is_recognised_by_its_tensors(tmp_path, family, prefix):
    found = recognise(_file(tmp_path / "any name.safetensors", MARKS[family], prefix))
    assert (found.family, found.prefix, found.v_prediction, found.parts) == (family, prefix, False, frozenset())


@pytest.mark.parametrize("family", ["sd15", "sdxl", "flux", "chroma", "qwen_image", "z_image", "flux2_klein", "sd3"])
def test_a_file_in_diffusers_names_is_recognised(tmp_path, family):
    folder = make_folder(family, tmp_path / "model")
    below = "unet" if family in ("sd15", "sdxl") else "transformer"
    assert recognise(next((folder / below).glob("*.safetensors"))).family == family


def test_what_else_a_checkpoint_holds(tmp_path, sdxl):
    assert recognise(sdxl[1]).parts == {"vae", "text_encoder", "text_encoder_2"}
    marked = {**{f"model.diffusion_model.{k}": v for k, v in SDXL_UNET.items()}, "v_pred": (0,), "ztsnr": (0,)}
    found = recognise(_file(tmp_path / "noob.safetensors", marked))
    assert found.v_prediction and found.zero_terminal


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"encoder.layers.0.weight": (1, 1)}, "holds no model of a known family; families: sd3, sd15"),
        ({**SDXL_UNET, "input_blocks.4.1.transformer_blocks.0.attn2.to_k.weight": (1, 1280)}, "SDXL's refiner"),
    ],
)
def test_other_files_are_refused(tmp_path, shapes, said):
    with pytest.raises(UserError, match=said) as caught:
        recognise(_file(tmp_path / "other.safetensors", shapes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 7, b"\xff" * 64, (20).to_bytes(8, "little") + b"{broken", b"PK\3\4" + b"x" * 90]
)
def test_damaged_files_are_refused(tmp_path, content):
    file = tmp_path / "broken.safetensors"
    file.write_bytes(content)
    with pytest.raises(UserError, match="is damaged or is not a safetensors file"):
        recognise(file)


# Loading


def _same(policy, other):
    ours, theirs = policy.denoiser.state_dict(), other.denoiser.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in theirs)
    mine, yours = policy.encode(PROMPTS), other.encode(PROMPTS)
    for key in yours.tensors:
        torch.testing.assert_close(mine.tensors[key], yours.tensors[key], rtol=0, atol=1e-6)
    sampling = replace(SAMPLING, steps=2)
    latents = other.sample(yours, [1, 2, 3], sampling)
    torch.testing.assert_close(policy.sample(mine, [1, 2, 3], sampling), latents, rtol=0, atol=1e-5)
    assert torch.equal(policy.decode(latents), other.decode(latents))


def test_a_whole_sdxl_checkpoint_is_the_folders_model(sdxl, tmp_path):
    folder, file = sdxl
    kind = policy_class("sdxl")
    policy = kind(file, CPU, cache=tmp_path / "a", parts=str(folder))
    assert policy.title == "checkpoint"
    _same(policy, kind(folder, CPU, cache=tmp_path / "b"))


@pytest.mark.parametrize("family", ["flux", "qwen_image", "z_image", "chroma", "flux2_klein", "sd3"])
def test_a_denoiser_alone_takes_the_rest_from_a_folder(tmp_path, family):
    folder = make_folder(family, tmp_path / "model")
    file = tmp_path / "denoiser.safetensors"
    save_file(load_file(next((folder / "transformer").glob("*.safetensors"))), file)
    kind = policy_class(family)
    _same(kind(file, CPU, cache=tmp_path / "a", parts=str(folder)), kind(folder, CPU, cache=tmp_path / "b"))


def test_parts_in_files_of_their_own(tmp_path):
    """FLUX.1 as ComfyUI's folders hold it; the folder gives only what the files can't say."""
    from diffusers import FluxPipeline

    folder = make_folder("flux", tmp_path / "model")
    words = shutil.copytree(folder, tmp_path / "words", ignore=shutil.ignore_patterns("*.safetensors"))
    pipe = FluxPipeline.from_pretrained(folder)
    files = {}
    for name, state in (
        ("transformer", pipe.transformer.state_dict()),
        ("vae", ldm.ldm_vae(pipe.vae)),
        ("text_encoder", ldm.hf_clip(pipe.text_encoder)),
        ("text_encoder_2", pipe.text_encoder_2.state_dict()),
    ):
        files[name] = str(tmp_path / f"{name}.safetensors")
        state.pop("encoder.embed_tokens.weight", None)  # published T5 files have one of its two names
        save_file({key: value.clone().contiguous() for key, value in state.items()}, files[name])
    base = files.pop("transformer")
    kind = policy_class("flux")
    policy = kind(base, CPU, cache=tmp_path / "a", parts=str(words), files=files)
    _same(policy, kind(folder, CPU, cache=tmp_path / "b"))


def test_another_family_is_refused_by_name(sdxl, tmp_path):
    with pytest.raises(
        UserError, match=r"^policy\.family: .*is?.*family sdxl \(Stable Diffusion XL\), not of flux; set policy\.family to sdxl"
    ):
        policy_class("flux")(sdxl[1], CPU, cache=tmp_path)


def test_a_file_that_says_v_prediction(sdxl, tmp_path):
    folder, file = sdxl
    marked = tmp_path / "noob.safetensors"
    save_file({**load_file(file), "v_pred": torch.zeros(0), "ztsnr": torch.zeros(0)}, marked)
    policy = policy_class("sdxl")(marked, CPU, cache=tmp_path, parts=str(folder))
    assert policy.schedule.prediction == "v_prediction" and policy.schedule.zero_terminal
    plain = policy_class("sdxl")(marked, CPU, cache=tmp_path, parts=str(folder), prediction="epsilon", zero_terminal_snr=False)
    assert plain.schedule.prediction == "epsilon"


# float8


def test_float8_weights_are_multiplied_by_their_scales(tmp_path):
    folder = make_folder("flux", tmp_path / "model")
    state = load_file(next((folder / "transformer").glob("*.safetensors")))
    keys = [key for key in state if key.endswith(("to_q.weight", "proj_mlp.weight"))]
    assert len(keys) >= 3
    file = tmp_path / "fp8.safetensors"
    save_file(ldm.scaled_float8(state, keys), file)
    policy = policy_class("flux")(file, CPU, cache=tmp_path, parts=str(folder))
    loaded = policy.denoiser.state_dict()
    assert loaded.keys() == state.keys()
    for key, value in state.items():
        difference = (loaded[key] - value).abs().max()
        assert float(difference) <= (float(value.abs().max()) / 14 if key in keys else 0.0)  # e4m3 keeps 3 bits
    assert all(loaded[key].dtype == torch.float32 for key in keys)


def test_plain_float8_and_packed_weights():
    eight = torch.tensor([1.5, -2.0]).to(torch.float8_e5m2)
    assert plain_weights({"a.weight": eight}, torch.bfloat16, "f")["a.weight"].tolist() == [1.5, -2.0]
    with pytest.raises(
        UserError, match=r"f holds packed weights \(a\.weight is torch\.uint8\); take the fp16, bf16 or fp8 file"
    ):
        plain_weights({"a.weight": torch.zeros(2, dtype=torch.uint8)}, torch.bfloat16, "f")


# Without a folder


# Parameters of the published models' parts.
COUNTS = {
    "sd15": {"unet": 859_520_964, "vae": 83_653_863, "text_encoder": 123_060_480},
    "sdxl": {"unet": 2_567_463_684, "vae": 83_653_863, "text_encoder": 123_060_480, "text_encoder_2": 694_659_840},
    "flux": {"transformer": 11_901_408_320, "vae": 83_819_683, "text_encoder": 123_060_480, "text_encoder_2": 4_762_310_656},
}


@pytest.mark.parametrize("family", COUNTS)
def test_the_built_in_sizes_are_those_of_the_published_models(tmp_path, family):
    import diffusers
    import transformers

    write_reference(family, "Any", tmp_path / "reference", native_names.comfy_tokenizers(tmp_path / "comfy"), {}, {})
    counts = {}
    for part, (library, kind, _) in PUBLISHED[family].items():
        cls = getattr(transformers if library == "transformers" else diffusers, kind)
        if not issubclass(cls, torch.nn.Module):
            continue
        with torch.device("meta"):
            if library == "diffusers":
                model = cls.from_config(cls.load_config(tmp_path / "reference", subfolder=part))
            else:
                model = cls(cls.config_class.from_pretrained(tmp_path / "reference", subfolder=part))
        counts[part] = sum(parameter.numel() for parameter in model.parameters())
    assert counts == COUNTS[family]


def test_a_missing_tokenizer_says_where_it_goes(tmp_path, sdxl, monkeypatch):
    monkeypatch.setenv("VGRPO_CACHE", str(tmp_path / "cache"))
    with pytest.raises(
        UserError, match=r"^policy\.tokenizers: .*vocab\.json and merges\.txt.*ComfyUI's folder `comfy`"
    ) as caught:
        policy_class("sdxl")(sdxl[1], CPU, cache=tmp_path)
    assert str(tmp_path / "cache" / "tokenizers" / "sd1_tokenizer") in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("family", MARKS)
def test_a_part_that_is_nowhere_is_named(tmp_path, family):
    file = _file(tmp_path / "base.safetensors", MARKS[family])
    with pytest.raises(UserError, match=r"^policy\.files: .*has no \w+; name its file in policy\.files\.\w+") as caught:
        policy_class(family)(file, CPU, cache=tmp_path, tokenizers=str(native_names.comfy_tokenizers(tmp_path / "comfy")))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", MARKS)
def test_a_model_of_another_family_is_refused_by_name(tmp_path, family):
    file = _file(tmp_path / "base.safetensors", MARKS[family])
    for other in (name for name in MARKS if name != family):
        with pytest.raises(UserError, match=rf"^policy\.family: .* of family {family} .*; set policy\.family to {family}$"):
            policy_class(other)(file, CPU, cache=tmp_path)
