"""Qwen-Image (`QwenImageTransformer2DModel`). The original code is diffusers' own, so every name is the same everywhere."""

from __future__ import annotations

from typing import ClassVar

from .base import ATTENTION, ATTENTION_MLP, Family, Identity, NativeModule, Network

_ATTENTION = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
_MLP = ("img_mlp.net.0.proj", "img_mlp.net.2", "txt_mlp.net.0.proj", "txt_mlp.net.2")


class QwenImage(Family):
    name = "qwen_image"
    label = "Qwen-Image"
    presets: ClassVar = {ATTENTION: _ATTENTION, ATTENTION_MLP: _ATTENTION + _MLP}

    def candidates(self, network: Network) -> dict[str, NativeModule]:
        return {name: NativeModule((name,)) for name in network}

    def identity(self, network: Network, prediction: str | None = None) -> Identity:
        code = "https://github.com/QwenLM/Qwen-Image"
        return Identity("Qwen-Image", code, "1328x1328", "qwen_image", "networks.lora_qwen_image")
