"""FLUX.1 dev (`FluxTransformer2DModel`; ComfyUI's and sd-scripts' Flux)."""

from __future__ import annotations

from typing import ClassVar

from .base import ATTENTION, ATTENTION_MLP, Family, Identity, NativeModule, Network, expand

_ATTENTION = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
# A single block's proj_out takes the attention's and the MLP's output together, so it goes with the MLP.
_MLP = ("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2", "proj_mlp", "proj_out")

DOUBLE_ATTENTION = {
    "img_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "img_attn.proj": ("attn.to_out.0",),
    "txt_attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    "txt_attn.proj": ("attn.to_add_out",),
}
_DOUBLE = {
    **DOUBLE_ATTENTION,
    "img_mlp.0": ("ff.net.0.proj",),
    "img_mlp.2": ("ff.net.2",),
    "txt_mlp.0": ("ff_context.net.0.proj",),
    "txt_mlp.2": ("ff_context.net.2",),
    "img_mod.lin": ("norm1.linear",),
    "txt_mod.lin": ("norm1_context.linear",),
}
_SINGLE = {
    "linear1": ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"),
    "linear2": ("proj_out",),
    "modulation.lin": ("norm.linear",),
}
# guidance_in is there in guidance-distilled models (dev), not in schnell; Chroma has none of the embedders.
_TOP = {
    "img_in": "x_embedder",
    "txt_in": "context_embedder",
    "time_in.in_layer": "time_text_embed.timestep_embedder.linear_1",
    "time_in.out_layer": "time_text_embed.timestep_embedder.linear_2",
    "vector_in.in_layer": "time_text_embed.text_embedder.linear_1",
    "vector_in.out_layer": "time_text_embed.text_embedder.linear_2",
    "guidance_in.in_layer": "time_text_embed.guidance_embedder.linear_1",
    "guidance_in.out_layer": "time_text_embed.guidance_embedder.linear_2",
    "final_layer.linear": "proj_out",
    "final_layer.adaLN_modulation.1": "norm_out.linear",
}


class Flux(Family):
    name = "flux"
    label = "FLUX.1"
    presets: ClassVar = {ATTENTION: _ATTENTION, ATTENTION_MLP: _ATTENTION + _MLP}

    def candidates(self, network: Network) -> dict[str, NativeModule]:
        """Double blocks, single blocks (whose qkv and MLP input are one Linear, linear1), and the modules outside."""
        out = {native: NativeModule((name,), name == "norm_out.linear") for native, name in _TOP.items()}
        out |= expand(network, "double_blocks", "transformer_blocks", _DOUBLE)
        out |= expand(network, "single_blocks", "single_transformer_blocks", _SINGLE)
        return out

    def identity(self, network: Network, prediction: str | None = None) -> Identity:
        code = "https://github.com/black-forest-labs/flux"
        return Identity("flux-1-dev", code, "1024x1024", "flux1", "networks.lora_flux")
