"""Tiny real SD3 transformers and random LoRAs for the tests of `trainer.lora`."""

from __future__ import annotations

from typing import Any

import torch

from trainer.lora import LoraAdapter, LoraFactors


def tiny_sd3(dual: bool = False, **changes: Any) -> Any:
    """The embedded model's shape with random weights; `dual` has the attn2 and the query/key norms of SD 3.5 medium."""
    from diffusers import SD3Transformer2DModel

    shape: dict[str, Any] = {
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
    }
    if dual:
        shape |= {"qk_norm": "rms_norm", "dual_attention_layers": (0, 1)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # Frozen, as a base is: whether a weight requires gradients changes torch's CPU kernels, and so the last bits.
        return SD3Transformer2DModel(**{**shape, **changes}).eval().requires_grad_(False)


def inputs(seed: int = 1, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "hidden_states": torch.randn(2, 16, 8, 8, generator=generator).to(dtype),
        "encoder_hidden_states": torch.randn(2, 5, 192, generator=generator).to(dtype),
        "pooled_projections": torch.randn(2, 192, generator=generator).to(dtype),
        "timestep": torch.tensor([300.0, 900.0]),
    }


def output(denoiser: Any, seed: int = 1) -> torch.Tensor:
    with torch.no_grad():
        return denoiser(**inputs(seed, denoiser.dtype)).sample


def random_factors(like: LoraFactors, seed: int) -> LoraFactors:
    """Factors of the same shapes, both sides non-zero, as after training."""
    generator = torch.Generator().manual_seed(seed)
    factors = {
        name: (torch.randn(a.shape, generator=generator) * 0.05, torch.randn(b.shape, generator=generator) * 0.05)
        for name, (a, b) in like.factors.items()
    }
    return LoraFactors(factors, like.rank, like.alpha)


def train_a_little(adapter: LoraAdapter, seed: int = 5) -> LoraFactors:
    """Gives the adapter values as after training and returns them."""
    adapter.load(random_factors(adapter.snapshot(), seed))
    return adapter.snapshot()


def worst(left: LoraFactors, right: LoraFactors) -> float:
    """The largest difference between the changes of the weights."""
    assert set(left.factors) == set(right.factors)
    return max(float((left.delta(name) - right.delta(name)).abs().max()) for name in left.factors)
