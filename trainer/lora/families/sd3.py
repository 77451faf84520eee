"""Stable Diffusion 3 and 3.5 (`SD3Transformer2DModel`; ComfyUI's and sd-scripts' MMDiT)."""

from __future__ import annotations

from typing import ClassVar

from .base import ATTENTION, ATTENTION_MLP, Family, Identity, NativeModule, Network, blocks, expand

_ATTENTION = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
_MLP = ("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2")

# Native name inside a block -> diffusers names inside the block. attn2 exists in the dual-attention blocks of SD 3.5 medium.
_BLOCK = {
    "x_block.attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "x_block.attn.proj": ("attn.to_out.0",),
    "x_block.attn2.qkv": ("attn2.to_q", "attn2.to_k", "attn2.to_v"),
    "x_block.attn2.proj": ("attn2.to_out.0",),
    "x_block.mlp.fc1": ("ff.net.0.proj",),
    "x_block.mlp.fc2": ("ff.net.2",),
    "x_block.adaLN_modulation.1": ("norm1.linear",),
    "context_block.attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    "context_block.attn.proj": ("attn.to_add_out",),
    "context_block.mlp.fc1": ("ff_context.net.0.proj",),
    "context_block.mlp.fc2": ("ff_context.net.2",),
    "context_block.adaLN_modulation.1": ("norm1_context.linear",),
}
_DEPTH_LARGE = 38  # blocks of SD 3.5 large; SD 3 and 3.5 medium have 24
_TOP = {
    "x_embedder.proj": "pos_embed.proj",
    "context_embedder": "context_embedder",
    "t_embedder.mlp.0": "time_text_embed.timestep_embedder.linear_1",
    "t_embedder.mlp.2": "time_text_embed.timestep_embedder.linear_2",
    "y_embedder.mlp.0": "time_text_embed.text_embedder.linear_1",
    "y_embedder.mlp.2": "time_text_embed.text_embedder.linear_2",
    "final_layer.adaLN_modulation.1": "norm_out.linear",
    "final_layer.linear": "proj_out",
}


class SD3(Family):
    name = "sd3"
    label = "Stable Diffusion 3"
    # `to_q` also finds attn2.to_q, the second attention of SD 3.5 medium.
    presets: ClassVar = {ATTENTION: _ATTENTION, ATTENTION_MLP: _ATTENTION + _MLP}

    def candidates(self, network: Network) -> dict[str, NativeModule]:
        """The block table for every block, and the modules outside the blocks.

        The last block ends the text stream (`context_pre_only`): it has no to_add_out and no ff_context, and its norm1_context,
        like norm_out, holds (scale, shift) where the original holds (shift, scale).
        """
        out = {native: NativeModule((name,), name == "norm_out.linear") for native, name in _TOP.items()}
        out |= expand(network, "joint_blocks", "transformer_blocks", _BLOCK)
        last = f"joint_blocks.{len(blocks(network, 'transformer_blocks')) - 1}.context_block.adaLN_modulation.1"
        if last in out:
            out[last] = NativeModule(out[last].parts, swap_halves=True)
        return out

    def identity(self, network: Network, prediction: str | None = None) -> Identity:
        """sd-scripts (`library/sd3_utils.py`, analyze_state_dict_state) has three models, and writes their names alone as
        `ss_base_model_version` (`sd3_train_network.py`). It tells large from 3 medium by the norm of queries and keys, which is
        no Linear; the depth tells them apart as well.
        """
        if any(".attn2." in name for name in network):
            model = "5-medium"
        else:
            model = "5-large" if len(blocks(network, "transformer_blocks")) >= _DEPTH_LARGE else "medium"
        return Identity(f"stable-diffusion-3-{model}", "diffusers", "1024x1024", model, "networks.lora_sd3")

    def refusal(self, network: Network) -> str | None:
        """ComfyUI reads the number of blocks off the width: hidden size = 64 * depth."""
        depth, query = len(blocks(network, "transformer_blocks")), network.get("transformer_blocks.0.attn.to_q")
        if query is None:
            return "it has no transformer_blocks.0.attn.to_q, so it is not an SD3 transformer"
        if query[1] != 64 * depth:
            return f"ComfyUI takes an SD3's hidden size to be 64 x depth, and this one has size {query[1]} and {depth} blocks"
        return None
