"""Latents -> pictures, with one rounding that scoring and saving share."""

from __future__ import annotations

from typing import Any

import torch

from ..memory import MemoryShortage, PhaseBatches

DECODE_PIXELS = 4 * 2**20  # pictures decoded at a time hold at most this many pixels
TILE = 512  # pixels, a side of a tile


def prepare_decoder(vae: Any, wanted: torch.dtype) -> None:
    """Frozen, in `wanted`, or in float32 where it is known to overflow in float16 (SDXL's own; diffusers: force_upcast).

    Channels come last: convolutions then work in place of reordering their input and output, which takes memory and time.
    """
    vae.requires_grad_(False).eval()
    dtype = torch.float32 if wanted == torch.float16 and vae.config.get("force_upcast") else wanted
    if not _takes_frames(vae):
        vae.to(dtype=dtype, memory_format=torch.channels_last)
        return
    vae.to(dtype=dtype)
    for module in vae.modules():  # kernels of both ranks: `Module.to` can't lay out the two in one call
        if isinstance(module, torch.nn.Conv2d | torch.nn.Conv3d):
            layout = torch.channels_last if module.weight.ndim == 4 else torch.channels_last_3d
            module.weight.data = module.weight.data.contiguous(memory_format=layout)


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
def decode_pictures(
    vae: Any, raw: torch.Tensor, scale: int, device: torch.device, batches: PhaseBatches, tiling: str = "auto"
) -> torch.Tensor:
    """uint8 [B, H, W, 3] on the CPU from latents [B, C, h, w] as the decoder takes them, each `scale` pixels wide.

    `tiling`: "on" decodes overlapping tiles one after the other, which takes less memory and changes pixels by a little; "auto"
    does so for pictures beyond DECODE_PIXELS, and where a single whole one does not fit into memory; "off" never.
    """
    height, width = (side * scale for side in raw.shape[-2:])
    phase = f"decoding {width} x {height}"
    tiled = tiling == "on" or (tiling == "auto" and (height * width > DECODE_PIXELS or batches.gave_up(phase)))
    while True:
        _set_tiles(vae, scale if tiled else None)
        try:
            parts = batches.over(
                phase + " in tiles" * tiled,
                max(1, DECODE_PIXELS // (height * width)),
                len(raw),
                lambda here: _decode(vae, raw[here].to(device, vae.dtype)),
            )
            return torch.cat(parts).contiguous()
        except MemoryShortage:
            if tiled or tiling != "auto":
                raise
        batches.give_up(phase, "in tiles")
        tiled = True


def _decode(vae: Any, raw: torch.Tensor) -> torch.Tensor:
    if _takes_frames(vae):
        frames = raw[:, :, None].contiguous(memory_format=torch.channels_last_3d)
        picture = vae.decode(frames, return_dict=False)[0][:, :, 0].float()
    else:
        picture = vae.decode(raw.contiguous(memory_format=torch.channels_last), return_dict=False)[0].float()
    return ((picture / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu()


def _set_tiles(vae: Any, scale: int | None) -> None:
    """Tiles of TILE pixels, as latents are `scale` pixels wide; None: whole pictures."""
    if scale is None:
        if getattr(vae, "use_tiling", False):
            vae.disable_tiling()
    elif _takes_frames(vae):
        vae.enable_tiling(TILE, TILE, TILE * 3 // 4, TILE * 3 // 4)
    else:  # its own tiles would be as large as the pictures that it was trained on
        vae.enable_tiling()
        vae.tile_sample_min_size, vae.tile_latent_min_size = TILE, TILE // scale
