"""Stable Diffusion 1.5 and SDXL (`UNet2DConditionModel`; the original code's UNet, which ComfyUI and sd-scripts name alike).

SDXL's descendants (Illustrious, Pony, NoobAI, v-prediction ones too) are SDXL here: their layers and names are the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from .base import ATTENTION, ATTENTION_MLP, KOHYA, Family, Identity, Layout, NativeModule, Network

ATTENTION_MLP_CONV = "attention+mlp+conv"

_ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")
_MLP = ("ff.net.0.proj", "ff.net.2")
# With the two above: everything that sd-scripts trains when it is given a rank for convolutions.
_CONV = (
    *("proj_in", "proj_out", "conv1", "conv2", "conv_shortcut", "time_emb_proj"),
    *("downsamplers.0.conv", "upsamplers.0.conv"),
)

_RESNET = {
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
_TOP = {
    "conv_in": "input_blocks.0.0",
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_out": "out.2",
}
_CONTEXT_V2 = 1024  # width of Stable Diffusion 2.x's text encoder
_IN_BLOCK = re.compile(r"(down|up)_blocks\.(\d+)\.(resnets|attentions|downsamplers|upsamplers)\.(\d+)\.(.+)")
_IN_MIDDLE = re.compile(r"mid_block\.(resnets|attentions)\.(\d+)\.(.+)")


class UNet(Family):
    prefix = "unet"
    presets: ClassVar = {
        ATTENTION: _ATTENTION,
        ATTENTION_MLP: _ATTENTION + _MLP,
        ATTENTION_MLP_CONV: _ATTENTION + _MLP + _CONV,
    }
    # The one spelling of a UNet that both ComfyUI and diffusers read, the real alpha with it.
    comfyui = Layout("diffusers", "lora_unet_", flat=True)

    def candidates(self, network: Network) -> dict[str, NativeModule]:
        levels = _Levels.of(network)
        return {native: NativeModule((name,)) for name in network if (native := levels.native(name))}


class SD15(UNet):
    name = "sd15"
    label = "Stable Diffusion 1.5"
    # sd-scripts trains Stable Diffusion 1.x on diffusers' UNet, and SDXL on the original one.
    kohya = UNet.comfyui

    def identity(self, network: Network, prediction: str | None = None) -> Identity:
        """As sd-scripts names them: `library/sai_model_spec.py`, and get_model_version_str_for_sd1_sd2 in `model_util.py`."""
        contexts = {shape[0] for name, shape in network.items() if name.endswith("attn2.to_k")}
        v = "_v" if prediction == "v_prediction" else ""
        if contexts == {_CONTEXT_V2}:
            architecture, size = ("stable-diffusion-v2-768-v", "768x768") if v else ("stable-diffusion-v2-512", "512x512")
            return Identity(architecture, "diffusers", size, f"sd_v2{v}", "networks.lora")
        return Identity("stable-diffusion-v1", "diffusers", "512x512", f"sd_v1{v}", "networks.lora")


class SDXL(UNet):
    name = "sdxl"
    label = "SDXL"
    kohya = KOHYA

    def identity(self, network: Network, prediction: str | None = None) -> Identity:
        code = "https://github.com/Stability-AI/generative-models"
        return Identity("stable-diffusion-xl-v1-base", code, "1024x1024", "sdxl_base_v1-0", "networks.lora")


@dataclass(frozen=True)
class _Levels:
    """How the original UNet numbers its parts: through all levels; a resnet with its attention is one, so is a downsampler."""

    down: tuple[int, ...]
    """Resnets of each level on the way down."""
    up: tuple[int, ...]
    attentive: frozenset[int]
    """Levels on the way up that have attentions."""

    @classmethod
    def of(cls, network: Network) -> _Levels:
        sizes: dict[str, dict[int, int]] = {"down": {}, "up": {}}
        attentive = set()
        for name in network:
            if not (found := _IN_BLOCK.fullmatch(name)):
                continue
            side, level, kind, index = found[1], int(found[2]), found[3], int(found[4])
            if kind == "resnets":
                sizes[side][level] = max(sizes[side].get(level, 0), index + 1)
            elif kind == "attentions" and side == "up":
                attentive.add(level)
        down, up = (tuple(count for _, count in sorted(sizes[side].items())) for side in ("down", "up"))
        return cls(down, up, frozenset(attentive))

    def native(self, name: str) -> str | None:
        """The original name of a diffusers module, None if it has none."""
        if name in _TOP:
            return _TOP[name]
        if found := _IN_MIDDLE.fullmatch(name):
            # The middle is resnet, attention, resnet.
            kind, index, rest = found[1], int(found[2]), found[3]
            return _part(f"middle_block.{2 * index}", rest) if kind == "resnets" else f"middle_block.{2 * index + 1}.{rest}"
        if not (found := _IN_BLOCK.fullmatch(name)):
            return None
        side, level, kind, index, rest = found[1], int(found[2]), found[3], int(found[4]), found[5]
        if side == "down":
            first = 1 + sum(self.down[:level]) + level  # part 0 is conv_in, and every level ends in a downsampler
            if kind == "downsamplers":
                return f"input_blocks.{first + self.down[level]}.0.op"
            part = f"input_blocks.{first + index}"
        else:
            first = sum(self.up[:level])
            if kind == "upsamplers":  # it closes the level's last part, after the resnet and the attention
                return f"output_blocks.{first + self.up[level] - 1}.{2 if level in self.attentive else 1}.conv"
            part = f"output_blocks.{first + index}"
        return _part(f"{part}.0", rest) if kind == "resnets" else f"{part}.1.{rest}"


def _part(resnet: str, rest: str) -> str | None:
    return f"{resnet}.{_RESNET[rest]}" if rest in _RESNET else None
