"""A small diffusers model in the names that checkpoint files have: LDM's UNet and VAE, open_clip's text encoder."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch

State = dict[str, torch.Tensor]

_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
_UNET_TOP = {
    "conv_in": "input_blocks.0.0",
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}


def hf_clip(encoder: Any) -> State:
    """transformers' names, `text_model.` in front whatever the version of transformers."""
    return {f"text_model.{key.removeprefix('text_model.')}": value for key, value in encoder.state_dict().items()}


def ldm_unet_state(state: State, layers: int) -> State:
    """`layers`: resnets of a level on the way down."""
    return {_unet_name(key, layers): value for key, value in state.items()}


def _unet_name(key: str, layers: int) -> str:
    stem, _, leaf = key.rpartition(".")
    if stem in _UNET_TOP:
        return f"{_UNET_TOP[stem]}.{leaf}"
    if found := re.match(r"(down|up)_blocks\.(\d+)\.(resnets|attentions)\.(\d+)\.(.*)", key):
        side, block, kind, layer, rest = found.groups()
        down = side == "down"
        place = int(block) * (layers + 1) + int(layer) + down
        return f"{'input' if down else 'output'}_blocks.{place}.{_layer(kind, rest)}"
    if found := re.match(r"down_blocks\.(\d+)\.downsamplers\.0\.conv\.(.*)", key):
        return f"input_blocks.{(int(found[1]) + 1) * (layers + 1)}.0.op.{found[2]}"
    if found := re.match(r"up_blocks\.(\d+)\.upsamplers\.0\.conv\.(.*)", key):
        return f"output_blocks.{int(found[1]) * (layers + 1) + layers}.1.conv.{found[2]}"  # after a block without attention
    if found := re.match(r"mid_block\.(resnets|attentions)\.(\d+)\.(.*)", key):
        kind, layer, rest = found.groups()
        return f"middle_block.{1 if kind == 'attentions' else 2 * int(layer)}.{_layer(kind, rest).partition('.')[2]}"
    raise AssertionError(key)


def _layer(kind: str, rest: str) -> str:
    if kind == "attentions":
        return f"1.{rest}"
    stem, _, leaf = rest.rpartition(".")
    return f"0.{_RESNET[stem]}.{leaf}"


def ldm_vae(vae: Any) -> State:
    blocks = len(vae.config.block_out_channels)
    out = {}
    for key, value in vae.state_dict().items():
        key = re.sub(r"decoder\.up_blocks\.(\d+)", lambda m: f"decoder.up.{blocks - 1 - int(m[1])}", key)
        for old, new in (
            ("encoder.down_blocks.", "encoder.down."),
            (".resnets.", ".block."),
            ("mid_block.block.0", "mid.block_1"),
            ("mid_block.block.1", "mid.block_2"),
            ("mid_block.attentions.0", "mid.attn_1"),
            (".downsamplers.0.", ".downsample."),
            (".upsamplers.0.", ".upsample."),
            ("conv_shortcut", "nin_shortcut"),
            ("conv_norm_out", "norm_out"),
            (".group_norm.", ".norm."),
            (".to_q.", ".q."),
            (".to_k.", ".k."),
            (".to_v.", ".v."),
            (".to_out.0.", ".proj_out."),
        ):
            key = key.replace(old, new)
        if re.search(r"attn_1\.(q|k|v|proj_out)\.weight", key):
            value = value[:, :, None, None]
        out[key] = value
    return out


_OPEN_CLIP = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "self_attn.out_proj": "attn.out_proj",
}
_OPEN_CLIP_TOP = {
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.embeddings.token_embedding.weight": "token_embedding.weight",
    "text_model.final_layer_norm.weight": "ln_final.weight",
    "text_model.final_layer_norm.bias": "ln_final.bias",
}


def open_clip(encoder: Any, projection: torch.Tensor | None = None) -> State:
    """`projection`: of an encoder that has none of its own."""
    state = hf_clip(encoder)
    projection = state.pop("text_model.text_projection.weight", projection)
    out = {"text_projection": projection.T.contiguous()}
    out |= {new: state.pop(old) for old, new in _OPEN_CLIP_TOP.items()}
    for layer in range(encoder.config.num_hidden_layers):
        start = f"text_model.encoder.layers.{layer}"
        for leaf in ("weight", "bias"):
            parts = [state.pop(f"{start}.self_attn.{which}_proj.{leaf}") for which in "qkv"]
            out[f"transformer.resblocks.{layer}.attn.in_proj_{leaf}"] = torch.cat(parts)
            for old, new in _OPEN_CLIP.items():
                out[f"transformer.resblocks.{layer}.{new}.{leaf}"] = state.pop(f"{start}.{old}.{leaf}")
    assert not [key for key in state if not key.endswith("position_ids")], list(state)
    return out


def scaled_float8(state: State, keys: Iterable[str]) -> State:
    """Some weights as ComfyUI's scaled fp8 files have them: float8 with a scale beside each, and a mark."""
    out = dict(state)
    for key in keys:
        scale = state[key].abs().max().float() / 448
        out[key] = (state[key].float() / scale).to(torch.float8_e4m3fn)
        out[key.removesuffix(".weight") + ".scale_weight"] = scale.reshape(1)
    return {**out, "scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn)}
