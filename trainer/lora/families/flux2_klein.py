"""FLUX.2 klein, 4B and 9B (`Flux2Transformer2DModel`; ComfyUI's Flux with one modulation for all blocks)."""

from __future__ import annotations

from typing import ClassVar

from .base import ATTENTION, ATTENTION_MLP, Family, Identity, Layout, NativeModule, Network, expand
from .flux import DOUBLE_ATTENTION

# A single block's queries, keys, values and MLP are one Linear in diffusers too, so they are trained together.
_ATTENTION = (
    *("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"),
    *("attn.to_qkv_mlp_proj", "attn.to_out"),
)
_MLP = ("ff.linear_in", "ff.linear_out", "ff_context.linear_in", "ff_context.linear_out")

_DOUBLE = {
    **DOUBLE_ATTENTION,
    "img_mlp.0": ("ff.linear_in",),
    "img_mlp.2": ("ff.linear_out",),
    "txt_mlp.0": ("ff_context.linear_in",),
    "txt_mlp.2": ("ff_context.linear_out",),
}
_SINGLE = {"linear1": ("attn.to_qkv_mlp_proj",), "linear2": ("attn.to_out",)}
_TOP = {
    "img_in": "x_embedder",
    "txt_in": "context_embedder",
    "time_in.in_layer": "time_guidance_embed.timestep_embedder.linear_1",
    "time_in.out_layer": "time_guidance_embed.timestep_embedder.linear_2",
    "guidance_in.in_layer": "time_guidance_embed.guidance_embedder.linear_1",
    "guidance_in.out_layer": "time_guidance_embed.guidance_embedder.linear_2",
    "double_stream_modulation_img.lin": "double_stream_modulation_img.linear",
    "double_stream_modulation_txt.lin": "double_stream_modulation_txt.linear",
    "single_stream_modulation.lin": "single_stream_modulation.linear",
    "final_layer.linear": "proj_out",
    "final_layer.adaLN_modulation.1": "norm_out.linear",
}
_WIDTH_9B = 4096


class Flux2Klein(Family):
    name = "flux2_klein"
    label = "FLUX.2 klein"
    presets: ClassVar = {ATTENTION: _ATTENTION, ATTENTION_MLP: _ATTENTION + _MLP}
    # ComfyUI learnt diffusers' names of the MLPs and single blocks late; the native ones it maps since it has the model.
    comfyui = Layout("native", "diffusion_model.")

    def candidates(self, network: Network) -> dict[str, NativeModule]:
        out = {native: NativeModule((name,), name == "norm_out.linear") for native, name in _TOP.items()}
        out |= expand(network, "double_blocks", "transformer_blocks", _DOUBLE)
        out |= expand(network, "single_blocks", "single_transformer_blocks", _SINGLE)
        return out

    def identity(self, network: Network, prediction: str | None = None) -> Identity:
        size = "9b" if network.get("x_embedder", (0, 0))[1] >= _WIDTH_9B else "4b"
        code = "https://github.com/black-forest-labs/flux2"
        return Identity(f"Flux.2-klein-{size}", code, "1024x1024", f"flux_2_klein_{size}", "networks.lora_flux_2")
