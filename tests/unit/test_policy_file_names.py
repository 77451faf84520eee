"""A model as ComfyUI's users have it, in one file or in several, is the diffusers folder's model to the bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

import diffusers
import pytest
import torch
import transformers
from diffusers.loaders import single_file_model
from safetensors.torch import save_file

from tests import ldm, native_names
from tests.family_bench import CPU, PROMPTS, SAMPLING
from tests.tiny_families import MAKERS, _clip, _kl_vae, _speaking, make_folder
from trainer.demo import parts as demo_parts
from trainer.errors import UserError
from trainer.families import FAMILIES
from trainer.policies import policy_class
from trainer.policies.checkpoint import recognise
from trainer.policies.files import CheckpointFile
from trainer.policies.folders import Folder
from trainer.policies.inferred import inferred
from trainer.policies.published import PUBLISHED

TRANSFORMERS = [name for name in FAMILIES if FAMILIES[name].kind == "flow"]
BUILT_IN_WIDTH = 3072  # of FLUX.1 and Chroma in diffusers' converters
WIDTH = 32  # of the small ones


def _sd3(folder: Path) -> Path:
    """An SD 3.5 Medium: a second attention in one of two blocks, a normalised one in all; the demo's has neither, and no T5."""
    from diffusers import SD3Transformer2DModel, StableDiffusion3Pipeline
    from transformers import T5Config, T5EncoderModel

    torch.manual_seed(0)
    tokenizer = demo_parts.build_tokenizer(0)
    t5 = T5EncoderModel(T5Config(vocab_size=40, d_model=64, d_kv=12, d_ff=64, num_layers=2, num_heads=4))
    transformer = SD3Transformer2DModel(
        sample_size=8,
        num_layers=2,
        attention_head_dim=64,
        num_attention_heads=2,
        joint_attention_dim=64,
        caption_projection_dim=128,
        pooled_projection_dim=64,
        pos_embed_max_size=16,
        dual_attention_layers=(0,),
        qk_norm="rms_norm",
    )
    StableDiffusion3Pipeline(
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        tokenizer_3=demo_parts.build_placeholder_t5(64)[0],
        text_encoder=_clip(tokenizer, projection=True),
        text_encoder_2=_clip(tokenizer, projection=True),
        text_encoder_3=t5.eval(),
        vae=_kl_vae(16, scaling_factor=1.5305, shift_factor=0.0609, use_quant_conv=False, use_post_quant_conv=False),
        transformer=_speaking(transformer),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
    ).save_pretrained(folder)
    return folder


def _qwen(folder: Path) -> Path:
    """With the levels and layers of the real decoder, which diffusers' converter counts on."""
    vae = diffusers.AutoencoderKLQwenImage(base_dim=8, dim_mult=[1, 2, 4, 4], num_res_blocks=2)
    pipe = diffusers.QwenImagePipeline.from_pretrained(make_folder("qwen_image", folder.with_name("first")), vae=vae)
    pipe.save_pretrained(folder)
    return folder


_DEEPER = {"num_layers": 2, "num_single_layers": 3}
_MAKE: dict[str, Callable[[Path], Path]] = {
    "sd3": _sd3,
    "qwen_image": _qwen,
    "flux": lambda folder: make_folder("flux", folder, **_DEEPER),
    "chroma": lambda folder: make_folder("chroma", folder, **_DEEPER, approximator_layers=2),
    "flux2_klein": lambda folder: make_folder("flux2_klein", folder, **_DEEPER),
    "z_image": lambda folder: make_folder("z_image", folder, n_layers=2),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Family -> (folder with weights, the same without, its pipeline); each made once."""
    made: dict[str, tuple[Path, Path, Any]] = {}

    def get(family: str) -> tuple[Path, Path, Any]:
        if family not in made:
            root = tmp_path_factory.mktemp(family)
            folder = _MAKE.get(family, lambda path: make_folder(family, path))(root / "model")
            words = shutil.copytree(folder, root / "words", ignore=shutil.ignore_patterns("*.safetensors", "*.index.json"))
            made[family] = folder, words, Folder(str(folder), family).load(torch.float32)
        return made[family]

    return get


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """diffusers' converters of FLUX.1 and Chroma have the model's width built in; here it is the small one's."""
    for name in ("FluxTransformer2DModel", "ChromaTransformer2DModel"):
        entry = single_file_model.SINGLE_FILE_LOADABLE_CLASSES[name]
        function = entry["checkpoint_mapping_fn"]
        assert BUILT_IN_WIDTH in function.__code__.co_consts
        constants = tuple(WIDTH if value == BUILT_IN_WIDTH else value for value in function.__code__.co_consts)
        code = function.__code__.replace(co_consts=constants)
        monkeypatch.setitem(entry, "checkpoint_mapping_fn", FunctionType(code, function.__globals__))


def _assert_equal(found: Any, expected: Any) -> None:
    """Every part's weights, to the bit, and its configuration."""
    compared = 0
    for name, part in expected.components.items():
        if not isinstance(part, torch.nn.Module):
            continue
        ours, theirs = getattr(found, name).state_dict(), part.state_dict()
        assert ours.keys() == theirs.keys(), name
        for key, value in theirs.items():
            if name == "text_encoder" and key == "lm_head.weight":
                continue  # nothing reads it, and files may lack it
            assert ours[key].dtype == value.dtype and torch.equal(ours[key], value), (name, key)
        assert type(getattr(found, name)) is type(part) and not getattr(found, name).training
        compared += 1
    assert compared >= 3


def _split(family: str, pipe: Any, folder: Path) -> tuple[Path, dict[str, str]]:
    """(the denoiser's file, the others by part)."""
    folder.mkdir()
    files = {}
    for name, state in native_names.parts(family, pipe).items():
        files[name] = str(folder / f"{name}.safetensors")
        save_file(state, files[name])
    return Path(files.pop("unet", None) or files.pop("transformer")), files


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_one_file_is_the_folders_model(folders, tmp_path, family, dtype):
    folder, words, pipe = folders(family)
    file = tmp_path / "checkpoint.safetensors"
    save_file(native_names.whole(family, pipe), file)
    found = recognise(file)
    assert (found.family, found.prefix) == (family, "model.diffusion_model.")
    assert found.parts == {name for name in native_names.parts(family, pipe) if name not in ("unet", "transformer")}
    expected = pipe if dtype == torch.float32 else Folder(str(folder), family).load(dtype)
    _assert_equal(CheckpointFile(file, family, str(words)).load(dtype), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_several_files_are_the_folders_model(folders, tmp_path, family):
    _, words, pipe = folders(family)
    base, files = _split(family, pipe, tmp_path / "files")
    assert recognise(base).family == family and recognise(base).prefix == ""
    _assert_equal(CheckpointFile(base, family, str(words), files).load(torch.float32), pipe)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_that_is_another_part_is_named(folders, tmp_path, family):
    """The decoder's file where a text encoder belongs, and the other way round."""
    _, words, pipe = folders(family)
    base, files = _split(family, pipe, tmp_path / "files")
    for part, other in (("vae", "text_encoder"), ("text_encoder", "vae")):
        wrong = CheckpointFile(base, family, str(words), {**files, part: files[other]})
        with pytest.raises(
            UserError, match=rf"^policy\.files: the file of {part} lacks \d+ tensors of a \w+, first "
        ) as caught:
            wrong.load(torch.float32)
        assert "\n" not in str(caught.value)


def test_stable_diffusion_3_goes_without_a_t5_that_is_nowhere(folders, tmp_path):
    """As in ComfyUI, whose users often have the two CLIPs alone."""
    _, _, pipe = folders("sd3")
    tokenizers = str(native_names.comfy_tokenizers(tmp_path / "comfy"))
    base, files = _split("sd3", pipe, tmp_path / "files")
    t5 = files.pop("text_encoder_3")
    index = CheckpointFile(base, "sd3", None, files, tokenizers).index(())
    assert index["text_encoder_3"] == index["tokenizer_3"] == [None, None]
    index = CheckpointFile(base, "sd3", None, {**files, "text_encoder_3": t5}, tokenizers).index(())
    assert index["text_encoder_3"] == ["transformers", "T5EncoderModel"]


def _published_as_small(folder: Path, published: dict[str, Any]) -> dict[str, Any]:
    """The classes and words of the published model with the small one's sizes."""
    small = {}
    for part, (library, kind, config) in published.items():
        name = "scheduler_config.json" if part == "scheduler" else "config.json"
        if part == "tokenizer":
            own = {
                "model_max_length": 512,
                "pad_token": "<|endoftext|>",
                "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
            }
            words = {key: value for key, value in config.items() if key in ("tokenizer_class", "chat_template")}
            small[part] = (library, kind, {**words, **own})
        else:
            small[part] = (library, kind, json.loads((folder / part / name).read_text()))
    return small


@pytest.mark.parametrize("family", ["qwen_image", "z_image"])
def test_files_alone_make_the_same_pictures(folders, tmp_path, monkeypatch, family):
    """Without `policy.parts`: configurations that are built in, words from ComfyUI's folder."""
    folder, _, pipe = folders(family)
    base, files = _split(family, pipe, tmp_path / "files")
    monkeypatch.setitem(PUBLISHED, family, _published_as_small(folder, PUBLISHED[family]))
    comfy = native_names.comfy_tokenizers(tmp_path / "comfy")
    words = comfy / "text_encoders" / "qwen25_tokenizer" / "vocab.json"
    words.write_text(json.dumps(pipe.tokenizer.get_vocab()))
    kind = policy_class(family)
    ours = kind(base, CPU, cache=tmp_path / "a", files=files, tokenizers=str(comfy))
    theirs = kind(folder, CPU, cache=tmp_path / "b")
    mine, yours = ours.encode(PROMPTS), theirs.encode(PROMPTS)
    assert mine.tensors.keys() == yours.tensors.keys()
    assert all(torch.equal(mine.tensors[key], yours.tensors[key]) for key in yours.tensors)
    sampling = replace(SAMPLING, steps=2)
    latents = theirs.sample(yours, [1, 2, 3], sampling)
    assert torch.equal(ours.sample(mine, [1, 2, 3], sampling), latents)
    assert torch.equal(ours.decode(latents), theirs.decode(latents))


@pytest.mark.parametrize(("name", "distilled"), [("flux-2-klein-4b", True), ("flux-2-klein-base-4b-fp8", False)])
def test_a_distilled_klein_is_known_by_the_name_of_its_file(folders, tmp_path, name, distilled):
    base, files = _split("flux2_klein", folders("flux2_klein")[2], tmp_path / "files")
    named = shutil.copyfile(base, tmp_path / f"{name}.safetensors")
    source = CheckpointFile(named, "flux2_klein", None, files, str(native_names.comfy_tokenizers(tmp_path / "comfy")))
    assert source.index(())["is_distilled"] is distilled


# The published sizes, without memory for them


def _published(family: str) -> Any:
    """The transformer, on no device."""
    _, kind, config = PUBLISHED[family]["transformer"]
    with torch.device("meta"):
        return getattr(diffusers, kind)(**config)


@pytest.mark.parametrize("family", TRANSFORMERS)
def test_the_published_sizes_are_what_the_converter_and_the_tensors_say(monkeypatch, family):
    monkeypatch.undo()  # the converters as they are
    model = _published(family)
    known = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    native = native_names.denoiser(family, model.state_dict())
    if family != "qwen_image":
        assert native.keys() != known.keys()
    convert = single_file_model.SINGLE_FILE_LOADABLE_CLASSES[type(model).__name__]["checkpoint_mapping_fn"]
    converted = convert(checkpoint=dict(native), config=dict(model.config))
    assert {key: tuple(value.shape) for key, value in converted.items()} == known
    for shapes in (known, {key: tuple(value.shape) for key, value in native.items()}):
        for key, value in inferred(family, shapes)["transformer"].items():
            found = model.config[key]
            assert (list(found) if isinstance(found, list | tuple) else found) == value, key


@pytest.mark.parametrize("family", TRANSFORMERS)
def test_a_small_ones_size_is_inferred(folders, family):
    """Where it differs from the published one."""
    _, _, pipe = folders(family)
    state = pipe.transformer.state_dict()
    for named in (state, native_names.denoiser(family, state)):
        for key, value in inferred(family, {name: tuple(tensor.shape) for name, tensor in named.items()})[
            "transformer"
        ].items():
            found = pipe.transformer.config[key]
            assert (list(found) if isinstance(found, list | tuple) else found) == value, key


def test_stable_diffusion_2_is_inferred_by_its_prompts_width():
    shapes = {"input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight": (320, 1024)}
    changes = inferred("sd15", shapes)
    unet = {**PUBLISHED["sd15"]["unet"][2], **changes["unet"]}
    encoder = {**PUBLISHED["sd15"]["text_encoder"][2], **changes["text_encoder"]}
    with torch.device("meta"):
        count = sum(p.numel() for p in diffusers.UNet2DConditionModel(**unet).parameters())
        text = transformers.CLIPTextModel(transformers.CLIPTextConfig(**encoder))
    assert count == 865_910_724  # Stable Diffusion 2.1's
    assert sum(p.numel() for p in text.parameters()) == 340_387_840
    assert inferred("sd15", {"input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight": (320, 768)}) == {}


def test_kleins_larger_sister_has_the_larger_language_model():
    changes = inferred("flux2_klein", {**_klein_shapes(4096, 12288), "single_blocks.23.linear1.weight": (1, 1)})
    assert changes["transformer"] == {
        "num_layers": 8,
        "num_single_layers": 24,
        "num_attention_heads": 32,
        "joint_attention_dim": 12288,
    }
    assert changes["text_encoder"]["hidden_size"] == 4096
    assert "text_encoder" not in inferred("flux2_klein", _klein_shapes(3072, 7680))


def _klein_shapes(width: int, text: int) -> dict[str, tuple[int, ...]]:
    return {
        "img_in.weight": (width, 128),
        "txt_in.weight": (width, text),
        "double_blocks.0.img_attn.norm.query_norm.scale": (128,),
        "double_blocks.7.img_attn.norm.query_norm.scale": (128,),
    }


def test_every_family_has_published_sizes():
    assert PUBLISHED.keys() == FAMILIES.keys() == MAKERS.keys()


def test_stable_diffusion_2s_text_encoder_has_open_clips_names(folders, tmp_path):
    """And a projection, which the pipeline's encoder leaves out."""
    _, words, pipe = folders("sd15")
    whole = native_names.whole("sd15", pipe)
    encoder = {key: value for key, value in whole.items() if not key.startswith("cond_stage_model.")}
    named = ldm.open_clip(pipe.text_encoder, torch.zeros(32, 32))
    encoder |= {f"cond_stage_model.model.{key}": value.contiguous().clone() for key, value in named.items()}
    file = tmp_path / "sd2.safetensors"
    save_file(encoder, file)
    _assert_equal(CheckpointFile(file, "sd15", str(words)).load(torch.float32), pipe)
