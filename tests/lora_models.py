"""Tiny real denoisers of every family and random LoRAs for the tests of `trainer.lora`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trainer.lora import LoraAdapter, LoraFactors

# Class in diffusers and what differs from its defaults. Widths are as small as the classes allow.
_UNET = {
    "sample_size": 8,
    "block_out_channels": (32, 64),
    "norm_num_groups": 8,
    "layers_per_block": 2,
    "cross_attention_dim": 24,
}
_FLUX = {
    "in_channels": 16,
    "num_layers": 2,
    "num_single_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 24,
    "axes_dims_rope": (4, 6, 6),
}
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    # The embedded model's shape with random weights.
    "sd3": (
        "SD3Transformer2DModel",
        {
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 16,
            "out_channels": 16,
            "num_layers": 3,
            "attention_head_dim": 64,
            "num_attention_heads": 3,
            "joint_attention_dim": 192,
            "caption_projection_dim": 192,
            "pooled_projection_dim": 192,
            "pos_embed_max_size": 16,
        },
    ),
    # Attention on the first level, as in Stable Diffusion 1.x; the patch-wise projections are convolutions.
    "sd15": (
        "UNet2DConditionModel",
        {
            **_UNET,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
            "attention_head_dim": 8,
        },
    ),
    # Attention on the last level, two layers deep, a second conditioning of sizes, as in SDXL.
    "sdxl": (
        "UNet2DConditionModel",
        {
            **_UNET,
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
            "attention_head_dim": (2, 4),
            "transformer_layers_per_block": (1, 2),
            "use_linear_projection": True,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 8,
            "projection_class_embeddings_input_dim": 20 + 6 * 8,
        },
    ),
    "flux": ("FluxTransformer2DModel", {**_FLUX, "pooled_projection_dim": 20, "guidance_embeds": True}),
    "chroma": (
        "ChromaTransformer2DModel",
        {**_FLUX, "approximator_num_channels": 16, "approximator_hidden_dim": 24, "approximator_layers": 2},
    ),
    "qwen_image": (
        "QwenImageTransformer2DModel",
        {
            "in_channels": 16,
            "out_channels": 4,
            "num_layers": 2,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 24,
            "axes_dims_rope": (4, 6, 6),
        },
    ),
    "z_image": (
        "ZImageTransformer2DModel",
        {
            "in_channels": 4,
            "dim": 48,
            "n_layers": 2,
            "n_refiner_layers": 1,
            "n_heads": 3,
            "n_kv_heads": 3,
            "cap_feat_dim": 24,
            "axes_dims": (4, 6, 6),
            "axes_lens": (64, 32, 32),
        },
    ),
    "flux2_klein": (
        "Flux2Transformer2DModel",
        {
            "in_channels": 16,
            "num_layers": 2,
            "num_single_layers": 2,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 24,
            "axes_dims_rope": (4, 4, 4, 4),
            "guidance_embeds": False,
        },
    ),
}
FAMILIES = tuple(TINY)


def tiny(family: str, **changes: Any) -> Any:
    """The family's real class with random weights, frozen and in evaluation mode."""
    import diffusers

    name, shape = TINY[family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # Frozen, as a base is: whether a weight requires gradients changes torch's CPU kernels, and so the last bits.
        denoiser = getattr(diffusers, name)(**{**shape, **changes}).eval().requires_grad_(False)
        # Where diffusers starts a layer at 0, no change before it would be seen.
        for parameter in denoiser.parameters():
            if not parameter.any():
                torch.nn.init.normal_(parameter, std=0.02)
    return denoiser


def tiny_sd3(dual: bool = False, **changes: Any) -> Any:
    """`dual` has the attn2 and the query/key norms of SD 3.5 medium."""
    more = {"qk_norm": "rms_norm", "dual_attention_layers": (0, 1)} if dual else {}
    return tiny("sd3", **more, **changes)


def inputs(seed: int = 1, dtype: torch.dtype = torch.float32, family: str = "sd3") -> dict[str, Any]:
    """What the family's tiny denoiser takes, for two pictures."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    return _INPUTS[family](noise)


def _sd3(noise: Callable[..., torch.Tensor]) -> dict[str, Any]:
    return {
        "hidden_states": noise(2, 16, 8, 8),
        "encoder_hidden_states": noise(2, 5, 192),
        "pooled_projections": noise(2, 192),
        "timestep": torch.tensor([300.0, 900.0]),
    }


def _sd15(noise: Callable[..., torch.Tensor]) -> dict[str, Any]:
    return {"sample": noise(2, 4, 8, 8), "timestep": torch.tensor([300, 900]), "encoder_hidden_states": noise(2, 5, 24)}


def _sdxl(noise: Callable[..., torch.Tensor]) -> dict[str, Any]:
    sizes = torch.tensor([[64.0, 64, 0, 0, 64, 64]] * 2)
    return {**_sd15(noise), "added_cond_kwargs": {"text_embeds": noise(2, 20), "time_ids": sizes}}


def _flow(noise: Callable[..., torch.Tensor], axes: int = 3) -> dict[str, Any]:
    return {
        "hidden_states": noise(2, 16, 16),
        "encoder_hidden_states": noise(2, 5, 24),
        "timestep": torch.tensor([0.3, 0.9]),
        "img_ids": torch.stack([torch.arange(16.0) // 4] * (axes - 1) + [torch.arange(16.0) % 4], dim=1),
        "txt_ids": torch.zeros(5, axes),
    }


def _flux(noise: Callable[..., torch.Tensor]) -> dict[str, Any]:
    return {**_flow(noise), "pooled_projections": noise(2, 20), "guidance": torch.tensor([3.5, 3.5])}


def _qwen_image(noise: Callable[..., torch.Tensor]) -> dict[str, Any]:
    flow = _flow(noise)
    kept = {name: flow[name] for name in ("hidden_states", "encoder_hidden_states", "timestep")}
    mask = torch.ones(2, 5, dtype=torch.bool)
    return {**kept, "encoder_hidden_states_mask": mask, "img_shapes": [[(1, 4, 4)]] * 2}


def _z_image(noise: Callable[..., torch.Tensor]) -> dict[str, Any]:
    pictures, captions = noise(2, 4, 1, 8, 8), noise(2, 5, 24)
    return {"x": list(pictures), "t": torch.tensor([0.3, 0.9]), "cap_feats": list(captions)}


_INPUTS: dict[str, Callable[[Callable[..., torch.Tensor]], dict[str, Any]]] = {
    "sd3": _sd3,
    "sd15": _sd15,
    "sdxl": _sdxl,
    "flux": _flux,
    "chroma": _flow,
    "qwen_image": _qwen_image,
    "z_image": _z_image,
    "flux2_klein": lambda noise: _flow(noise, axes=4),
}


def output(denoiser: Any, seed: int = 1, family: str = "sd3") -> torch.Tensor:
    with torch.no_grad():
        found = denoiser(**inputs(seed, denoiser.dtype, family), return_dict=False)[0]
    return torch.stack(list(found)) if isinstance(found, list | tuple) else found


def random_factors(like: LoraFactors, seed: int) -> LoraFactors:
    """Factors of the same shapes, both sides non-zero, as after training."""
    generator = torch.Generator().manual_seed(seed)
    factors = {
        name: (torch.randn(a.shape, generator=generator) * 0.05, torch.randn(b.shape, generator=generator) * 0.05)
        for name, (a, b) in like.factors.items()
    }
    return LoraFactors(factors, like.rank, like.alpha)


def random_lora(network: Any, names: Any, rank: int, alpha: float, seed: int = 5) -> LoraFactors:
    """Random factors for some modules of a network (`layer_shapes`)."""
    shapes = {}
    for name in names:
        inside, outside, *kernel = network[name]
        for side in kernel:
            inside *= side
        shapes[name] = (torch.empty(rank, inside), torch.empty(outside, rank))
    return random_factors(LoraFactors(shapes, rank, alpha), seed)


def train_a_little(adapter: LoraAdapter, seed: int = 5) -> LoraFactors:
    """Gives the adapter values as after training and returns them."""
    adapter.load(random_factors(adapter.snapshot(), seed))
    return adapter.snapshot()


def worst(left: LoraFactors, right: LoraFactors) -> float:
    """The largest difference between the changes of the weights."""
    assert set(left.factors) == set(right.factors)
    return max(float((left.delta(name) - right.delta(name)).abs().max()) for name in left.factors)
