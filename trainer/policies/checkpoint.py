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

DENOISER_PREFIXES = ("model.diffusion_model.", "")  # in a whole checkpoint, and in a file of its own
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
            return Recognised(family, prefix, _parts(shapes), "v_pred" in shapes, "ztsnr" in shapes)
    raise UserError(
        f"policy.model: {path} holds no model of a known family; families: {', '.join(FAMILIES)}. A text encoder or a VAE "
        "belongs into policy.files"
    )


def _family(shapes: Shapes, path: Path) -> str | None:
    """The family of a denoiser by tensors that only it has, in its original or diffusers' names."""
    if "input_blocks.0.0.weight" in shapes or "down_blocks.0.resnets.0.conv1.weight" in shapes:
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


_PART_MARKS = {
    "vae": r"(first_stage_model|vae)\..*",
    "text_encoder": r"(cond_stage_model|conditioner\.embedders\.0|text_encoders\.clip_l)\..*",
    "text_encoder_2": r"(conditioner\.embedders\.1|text_encoders\.clip_g)\..*",
    "text_encoder_3": r"text_encoders\.t5xxl\..*",
}


def _parts(shapes: Shapes) -> frozenset[str]:
    return frozenset(part for part, mark in _PART_MARKS.items() if any(re.match(mark, name) for name in shapes))
