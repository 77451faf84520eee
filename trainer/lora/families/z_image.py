"""Z-Image (`ZImageTransformer2DModel`; ComfyUI's NextDiT)."""

from __future__ import annotations

from typing import ClassVar

from .base import ATTENTION, ATTENTION_MLP, Family, Identity, Layout, NativeModule, Network, expand

_ATTENTION = ("attention.to_q", "attention.to_k", "attention.to_v", "attention.to_out.0")
_MLP = ("feed_forward.w1", "feed_forward.w2", "feed_forward.w3")

_BLOCK = {
    "attention.qkv": ("attention.to_q", "attention.to_k", "attention.to_v"),
    "attention.out": ("attention.to_out.0",),
    "feed_forward.w1": ("feed_forward.w1",),
    "feed_forward.w2": ("feed_forward.w2",),
    "feed_forward.w3": ("feed_forward.w3",),
    "adaLN_modulation.0": ("adaLN_modulation.0",),
}
_STACKS = ("layers", "noise_refiner", "context_refiner")
# diffusers names its embedder and its last layer after their patch sizes in space and time.
_TOP = {
    "x_embedder": "all_x_embedder.2-1",
    "cap_embedder.1": "cap_embedder.1",
    "t_embedder.mlp.0": "t_embedder.mlp.0",
    "t_embedder.mlp.2": "t_embedder.mlp.2",
    "final_layer.linear": "all_final_layer.2-1.linear",
    "final_layer.adaLN_modulation.1": "all_final_layer.2-1.adaLN_modulation.1",
}


class ZImage(Family):
    name = "z_image"
    label = "Z-Image"
    presets: ClassVar = {ATTENTION: _ATTENTION, ATTENTION_MLP: _ATTENTION + _MLP}
    # `transformer.` is not mapped by ComfyUI 0.3.75; diffusers loads both.
    comfyui = Layout("diffusers", "diffusion_model.")

    def candidates(self, network: Network) -> dict[str, NativeModule]:
        out = {native: NativeModule((name,)) for native, name in _TOP.items()}
        for stack in _STACKS:
            out |= expand(network, stack, stack, _BLOCK)
        return out

    def identity(self, network: Network, prediction: str | None = None) -> Identity:
        code = "https://github.com/Tongyi-MAI/Z-Image"
        return Identity("Z-Image", code, "1024x1024", "z_image", "networks.lora_zimage")
