"""What a single model file is, read off its list of tensors: no weights are loaded, and torch is not needed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError, one_line
from ..families import FAMILIES

Shapes = dict[str, tuple[int, ...]]
"""Every tensor of a file: its name -> its shape."""

LDM_PREFIX = "model.diffusion_model."
LDM_UNET = "input_blocks.0.0.weight"  # every UNet in LDM's names has it
DENOISER_PREFIXES = (LDM_PREFIX, "")  # in a whole checkpoint, and in a file of its own
_MOST_HEADER = 100 * 2**20  # bytes; those of the largest models have a few


@dataclass(frozen=True)
class Recognised:
    """`family`: whose denoiser the file holds. `prefix`: what stands before the denoiser's names."""

    family: str
    prefix: str
    parts: frozenset[str]
    """What else it holds: `vae`, `text_encoder`, `text_encoder_2`, `text_encoder_3`."""
    v_prediction: bool
    """Whether the file says so; the keys `v_pred` and `ztsnr` are a convention of ComfyUI and NoobAI."""
    zero_terminal: bool


def read_shapes(path: Path) -> Shapes:
    """The tensors of a safetensors file. Raises UserError for a file that is missing, damaged or of another kind."""
    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if not 2 <= size <= _MOST_HEADER:
                raise ValueError("its first bytes are no safetensors header")
            header = json.loads(file.read(size))
        return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"policy.model: {path} is damaged or is not a safetensors file ({one_line(error)})") from error


def recognise(path: Path) -> Recognised:
    """Whose model a file holds. Raises UserError for one that no family trains."""
    shapes = read_shapes(path)
    for prefix in DENOISER_PREFIXES:
        family = _family({name[len(prefix) :]: shape for name, shape in shapes.items() if name.startswith(prefix)}, path)
        if family:
            return Recognised(family, prefix, _parts(shapes, family), "v_pred" in shapes, "ztsnr" in shapes)
    raise UserError(
        f"policy.model: {path} holds no model of a known family; families: {', '.join(FAMILIES)}. A text encoder or a VAE "
        "belongs into policy.files"
    )


def _family(shapes: Shapes, path: Path) -> str | None:
    """The family of a denoiser by tensors that only it has, in its original or diffusers' names."""
    if LDM_UNET in shapes or "down_blocks.0.resnets.0.conv1.weight" in shapes:
        return _unet_family(shapes, path)
    for family, names in _MARKS.items():
        if all(any(re.fullmatch(pattern, name) for name in shapes) for pattern in names):
            return family
    return None


# First match wins: Chroma and FLUX.2 have FLUX.1's blocks too.
_MARKS: dict[str, tuple[str, ...]] = {
    "flux2_klein": (r"double_stream_modulation_img\.lin(ear)?\.weight",),
    "chroma": (r"distilled_guidance_layer\..*",),
    "flux": (r"double_blocks\.0\.img_attn\.qkv\.weight|single_transformer_blocks\.0\.proj_mlp\.weight",),
    "qwen_image": (r"txt_norm\.weight", r"transformer_blocks\.0\.img_mod\.1\.weight"),
    "z_image": (r"cap_embedder\.1\.weight", r"layers\.0\.attention\.(qkv|to_q)\.weight"),
    "sd3": (r"joint_blocks\.0\.x_block\.attn\.qkv\.weight|transformer_blocks\.0\.norm1_context\.linear\.weight",),
}
_CONTEXT = re.compile(r".*\.attn2\.to_k\.weight")


def _unet_family(shapes: Shapes, path: Path) -> str:
    """SD 1.x has prompts 768 wide, 2.x 1024, SDXL 2048; SDXL's refiner 1280."""
    wide = {shape[-1] for name, shape in shapes.items() if _CONTEXT.fullmatch(name)}
    sized = any(name.startswith(("label_emb.", "add_embedding.")) for name in shapes)
    if wide == {1280}:
        raise UserError(f"policy.model: {path} is SDXL's refiner, which makes no picture by itself; train the base model")
    return "sdxl" if sized else "sd15"


# Names of a family's text encoders in ComfyUI's all-in-one files, in the pipeline's order.
_ENCODERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "sd3": (("clip_l",), ("clip_g",), ("t5xxl",)),
    "flux": (("clip_l",), ("t5xxl",)),
    "chroma": (("t5xxl",),),
    "qwen_image": (("qwen25_7b",),),
    "z_image": (("qwen3_4b",),),
    "flux2_klein": (("qwen3_4b", "qwen3_8b"),),
}
# LDM's and SDXL's.
_LDM_ENCODERS = (("cond_stage_model.", "conditioner.embedders.0."), ("conditioner.embedders.1.",))


def part_prefixes(family: str) -> dict[str, tuple[str, ...]]:
    """What the names of each part but the denoiser begin with in a whole checkpoint."""
    encoders = _LDM_ENCODERS
    if family in _ENCODERS:
        encoders = tuple(tuple(f"text_encoders.{name}." for name in names) for names in _ENCODERS[family])
    numbered = {f"text_encoder{f'_{number}' if number > 1 else ''}": names for number, names in enumerate(encoders, start=1)}
    return {"vae": ("first_stage_model.", "vae."), **numbered}


def _parts(shapes: Shapes, family: str) -> frozenset[str]:
    beginnings = part_prefixes(family).items()
    return frozenset(part for part, prefixes in beginnings if any(name.startswith(prefixes) for name in shapes))
