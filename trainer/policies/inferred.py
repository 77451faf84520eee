"""What a model file's tensors say of the configurations of its parts: part -> keys that may differ from the published ones.

Only shapes are looked at. Names are the original ones or diffusers'.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from .checkpoint import Shapes
from .published import QWEN3_8B

Changes = dict[str, dict[str, Any]]

_SD3_HEAD = 64  # width of an attention head, where no norm of one shows it
_QWEN3_LAYERS = 3  # whose outputs FLUX.2 klein takes side by side
_SD2_CONTEXT = 1024
# Stable Diffusion 2.x (the configurations beside the weights of 2.1): OpenCLIP ViT-H/14's text model without its last layer.
_SD2: Changes = {
    "unet": {"cross_attention_dim": _SD2_CONTEXT, "attention_head_dim": [5, 10, 20, 20], "use_linear_projection": True},
    "text_encoder": {
        "hidden_size": _SD2_CONTEXT,
        "intermediate_size": 4096,
        "num_hidden_layers": 23,
        "num_attention_heads": 16,
        "projection_dim": 512,
        "hidden_act": "gelu",
    },
    "tokenizer": {"pad_token": "!"},
}


def inferred(family: str, shapes: Shapes) -> Changes:
    """`shapes`: the denoiser's own tensors, without a prefix."""
    return _RULES[family](shapes) if family in _RULES else {}


def _count(shapes: Shapes, *stacks: str) -> int:
    """Blocks in the one of these stacks that the file has."""
    pattern = re.compile(rf"(?:{'|'.join(stacks)})\.(\d+)\.")
    return 1 + max((int(found[1]) for name in shapes if (found := pattern.match(name))), default=-1)


def _shape(shapes: Shapes, *names: str) -> tuple[int, ...]:
    """Of the first of these tensors that is there; () where none is."""
    return next((shapes[name] for name in names if name in shapes), ())


def _sd15(shapes: Shapes) -> Changes:
    contexts = {shape[-1] for name, shape in shapes.items() if name.endswith("attn2.to_k.weight")}
    return _SD2 if contexts == {_SD2_CONTEXT} else {}


def _sd3(shapes: Shapes) -> Changes:
    width = _shape(shapes, "context_embedder.weight")[:1]
    positions = _shape(shapes, "pos_embed", "pos_embed.pos_embed")
    norm = _shape(shapes, "joint_blocks.0.x_block.attn.ln_q.weight", "transformer_blocks.0.attn.norm_q.weight")
    if not width or len(positions) != 3:
        return {}
    second = re.compile(r"(?:joint_blocks\.(\d+)\.x_block|transformer_blocks\.(\d+))\.attn2\.")
    dual = {int(found[1] or found[2]) for name in shapes if (found := second.match(name))}
    head = norm[0] if norm else _SD3_HEAD
    return {
        "transformer": {
            "num_layers": _count(shapes, "joint_blocks", "transformer_blocks"),
            "attention_head_dim": head,
            "num_attention_heads": width[0] // head,
            "caption_projection_dim": width[0],
            "pos_embed_max_size": math.isqrt(positions[1]),
            "dual_attention_layers": sorted(dual),
            "qk_norm": "rms_norm" if norm else None,
        }
    }


def _depth(shapes: Shapes) -> dict[str, Any]:
    """Blocks and heads of the networks with FLUX.1's two stacks."""
    norm = _shape(shapes, "double_blocks.0.img_attn.norm.query_norm.scale", "transformer_blocks.0.attn.norm_q.weight")
    width = _shape(shapes, "img_in.weight", "x_embedder.weight")
    if not norm or not width:
        return {}
    return {
        "num_layers": _count(shapes, "double_blocks", "transformer_blocks"),
        "num_single_layers": _count(shapes, "single_blocks", "single_transformer_blocks"),
        "num_attention_heads": width[0] // norm[0],
    }


def _flux(shapes: Shapes) -> Changes:
    guided = any(name.startswith(("guidance_in.", "time_text_embed.guidance_embedder.")) for name in shapes)
    return {"transformer": {**_depth(shapes), "guidance_embeds": guided}}


def _chroma(shapes: Shapes) -> Changes:
    return {"transformer": _depth(shapes)}


def _flux2_klein(shapes: Shapes) -> Changes:
    depth, text = _depth(shapes), _shape(shapes, "txt_in.weight", "context_embedder.weight")
    if not depth or not text:
        return {}
    changes: Changes = {"transformer": {**depth, "joint_attention_dim": text[1]}}
    if text[1] == _QWEN3_LAYERS * QWEN3_8B["hidden_size"]:
        changes["text_encoder"] = QWEN3_8B
    return changes


def _qwen_image(shapes: Shapes) -> Changes:
    return {"transformer": {"num_layers": _count(shapes, "transformer_blocks")}}


def _z_image(shapes: Shapes) -> Changes:
    return {"transformer": {"n_layers": _count(shapes, "layers")}}


_RULES: dict[str, Callable[[Shapes], Changes]] = {
    "sd15": _sd15,
    "sd3": _sd3,
    "flux": _flux,
    "chroma": _chroma,
    "flux2_klein": _flux2_klein,
    "qwen_image": _qwen_image,
    "z_image": _z_image,
}
