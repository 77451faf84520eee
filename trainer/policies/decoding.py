"""Latents -> pictures, with one rounding that scoring and saving share."""

from __future__ import annotations

from typing import Any

import torch

DECODE_PIXELS = 4 * 2**20  # pictures decoded at a time hold at most this many pixels


def prepare_decoder(vae: Any, wanted: torch.dtype) -> None:
    """Frozen, in `wanted`, or in float32 where it is known to overflow in float16 (SDXL's own; diffusers: force_upcast)."""
    vae.requires_grad_(False).eval()
    dtype = torch.float32 if wanted == torch.float16 and vae.config.get("force_upcast") else wanted
    vae.to(dtype=dtype) if _takes_frames(vae) else vae.to(dtype=dtype, memory_format=torch.channels_last)


def _takes_frames(vae: Any) -> bool:
    """Whether it is a decoder of videos, which takes [B, C, 1, h, w]."""
    return "temperal_downsample" in vae.config


def raw_latents(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    """Latents [B, C, ...] as the decoder takes them: scale, mean and spread as its configuration states them."""
    config = vae.config
    mean, std = config.get("latents_mean"), config.get("latents_std")
    scale = config.get("scaling_factor") or 1.0
    if mean is not None and std is not None:
        shape = (1, -1, *(1,) * (latents.ndim - 2))
        mean, std = (torch.tensor(value, dtype=latents.dtype, device=latents.device).view(shape) for value in (mean, std))
        return latents * std / scale + mean
    return latents / scale + (config.get("shift_factor") or 0.0)


@torch.no_grad()
def decode_pictures(vae: Any, raw: torch.Tensor, scale: int, device: torch.device) -> torch.Tensor:
    """uint8 [B, H, W, 3] on the CPU from latents [B, C, h, w] as the decoder takes them, each `scale` pixels wide."""
    pixels = raw.shape[-1] * raw.shape[-2] * scale**2
    parts = []
    for chunk in raw.split(max(1, DECODE_PIXELS // pixels)):
        chunk = chunk.to(device, vae.dtype)
        if _takes_frames(vae):
            picture = vae.decode(chunk[:, :, None], return_dict=False)[0][:, :, 0].float()
        else:
            picture = vae.decode(chunk.contiguous(memory_format=torch.channels_last), return_dict=False)[0].float()
        parts.append(((picture / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu())
    return torch.cat(parts).contiguous()
