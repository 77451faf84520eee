"""Networks that see a picture and read a prompt: what `TwoTowerReward` compares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from .checkpoint import fill
from .clip_text import END, LENGTH, START, ClipTokenizer


class Towers(nn.Module, ABC):
    """A picture tower and a text tower whose features live in one space."""

    @abstractmethod
    def pixels(self, pictures: Tensor) -> Tensor:
        """uint8[B, H, W, 3] on the CPU -> what `see` takes, on the CPU."""

    @abstractmethod
    def see(self, pixels: Tensor) -> Tensor:
        """Features [B, D], of any length; `pixels` lie on the device of the weights."""

    @abstractmethod
    def read(self, prompt: str) -> Tensor:
        """Features [D], of any length."""


class ClipTowers(Towers):
    """transformers' `CLIPModel` with the pixels and the token ids of the model that its weights come from."""

    def __init__(self, clip: nn.Module, pixels: Callable[[Tensor], Tensor], tokenize: ClipTokenizer) -> None:
        super().__init__()
        self.clip, self._pixels, self._tokenize = clip, pixels, tokenize

    def pixels(self, pictures):
        return self._pixels(pictures)

    def see(self, pixels):
        return pooled(self.clip.get_image_features(pixel_values=pixels))

    def read(self, prompt):
        ids = self._tokenize([prompt])
        # Attention is causal, so what stands after the end changes nothing but the time it takes.
        ids = ids[:, : int((ids[0] == END).nonzero()[0]) + 1]
        return pooled(self.clip.get_text_features(input_ids=ids.to(self.clip.device)))[0]


def pooled(output: object) -> Tensor:
    """transformers 5 wraps the features in an output object, 4 returns them bare."""
    return getattr(output, "pooler_output", output)


@dataclass(frozen=True)
class ClipShape:
    """The sizes of a CLIP model; the defaults are ViT-H-14's (open_clip's `ViT-H-14.json`), which HPSv2 and PickScore have."""

    features: int = 1024
    picture_width: int = 1280
    picture_layers: int = 32
    picture_heads: int = 16
    patch: int = 14
    size: int = 224
    text_width: int = 1024
    text_layers: int = 24
    text_heads: int = 16
    activation: str = "gelu"


VIT_H_14 = ClipShape()


def clip_from_open_clip(state: dict[str, Tensor], shape: ClipShape, title: str, path: Path) -> nn.Module:
    """transformers' `CLIPModel` with the weights of an open_clip state dictionary. UserError if it is another model."""
    return fill_clip(from_open_clip(state), shape, title, path)


def fill_clip(state: dict[str, Tensor], shape: ClipShape, title: str, path: Path) -> nn.Module:
    """transformers' `CLIPModel` of that shape with these weights. UserError of one line if they are another model's."""
    from transformers import CLIPConfig, CLIPModel

    with torch.device("meta"):  # nothing is initialised only to be overwritten
        clip = CLIPModel(CLIPConfig(projection_dim=shape.features, vision_config=_vision(shape), text_config=_text(shape)))
    fill(clip, state, title, path, ignore=[name for name in state if name.endswith(_NO_WEIGHTS)])
    return with_positions(clip)


def fill_vision(state: dict[str, Tensor], shape: ClipShape, title: str, path: Path) -> nn.Module:
    """transformers' `CLIPVisionModelWithProjection` with the picture tower of a whole CLIP's weights. UserError as above."""
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    with torch.device("meta"):
        tower = CLIPVisionModelWithProjection(CLIPVisionConfig(**_vision(shape)))
    texts = [name for name in state if name.startswith(("text_model.", "text_projection.")) or name == "logit_scale"]
    fill(tower, state, title, path, ignore=[*texts, *(name for name in state if name.endswith(_NO_WEIGHTS))])
    return with_positions(tower)


_NO_WEIGHTS = ("position_ids", "attn_mask")
_WIDENING = 4  # of the layers between attention; all CLIP models have it


def _vision(shape: ClipShape) -> dict[str, object]:
    return {
        "hidden_size": shape.picture_width,
        "intermediate_size": _WIDENING * shape.picture_width,
        "num_hidden_layers": shape.picture_layers,
        "num_attention_heads": shape.picture_heads,
        "patch_size": shape.patch,
        "image_size": shape.size,
        "hidden_act": shape.activation,
        "projection_dim": shape.features,
    }


def _text(shape: ClipShape) -> dict[str, object]:
    return {
        "hidden_size": shape.text_width,
        "intermediate_size": _WIDENING * shape.text_width,
        "num_hidden_layers": shape.text_layers,
        "num_attention_heads": shape.text_heads,
        "max_position_embeddings": LENGTH,
        "vocab_size": END + 1,
        "hidden_act": shape.activation,
        "projection_dim": shape.features,
        "bos_token_id": START,
        "eos_token_id": END,
        "pad_token_id": 0,
    }


def with_positions(model: nn.Module) -> nn.Module:
    """The module with the `position_ids` that no weight file holds, after it was made on the device `meta`."""
    for module in model.modules():
        positions = module._buffers.get("position_ids")
        if positions is not None and positions.is_meta:
            module._buffers["position_ids"] = torch.arange(positions.shape[-1]).expand(1, -1)
    return model


_TOP = {
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "logit_scale": "logit_scale",
}
_NORMS = {
    "visual.ln_pre": "vision_model.pre_layrnorm",
    "visual.ln_post": "vision_model.post_layernorm",
    "ln_final": "text_model.final_layer_norm",
}
_PROJECTIONS = {"visual.proj": "visual_projection.weight", "text_projection": "text_projection.weight"}
_BLOCKS = {"visual.transformer.resblocks": "vision_model.encoder.layers", "transformer.resblocks": "text_model.encoder.layers"}
_IN_BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}


def from_open_clip(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """An open_clip (or OpenAI CLIP) state dictionary under transformers' names: q, k, v split, both projections transposed.

    A name that open_clip does not have is passed on, so that whoever fills the model can say what is wrong.
    """
    named: dict[str, Tensor] = {}
    for key, tensor in state.items():
        named |= _renamed(key, tensor)
    return named


def _renamed(key: str, tensor: Tensor) -> dict[str, Tensor]:
    if key in _TOP:
        return {_TOP[key]: tensor}
    if key in _PROJECTIONS:
        return {_PROJECTIONS[key]: tensor.T.contiguous()}
    for prefix, name in _NORMS.items():
        if key.startswith(f"{prefix}."):
            return {name + key.removeprefix(prefix): tensor}
    for prefix, name in _BLOCKS.items():
        if key.startswith(f"{prefix}."):
            number, _, rest = key.removeprefix(f"{prefix}.").partition(".")
            return _in_block(f"{name}.{number}", rest, tensor)
    return {key: tensor}


def _in_block(block: str, rest: str, tensor: Tensor) -> dict[str, Tensor]:
    if rest in ("attn.in_proj_weight", "attn.in_proj_bias"):
        kind = rest.rpartition("_")[2]
        return {f"{block}.self_attn.{name}_proj.{kind}": part for name, part in zip("qkv", tensor.chunk(3), strict=True)}
    module, _, kind = rest.rpartition(".")
    return {f"{block}.{_IN_BLOCK.get(module, module)}.{kind}": tensor}
