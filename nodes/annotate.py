"""Pictures with lines of text below them, readable also where the pictures are tiny. Imports nothing of ComfyUI."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw

from ..trainer.pictures import INK, PAPER, label_font

SMALLEST_SIDE = 192  # pixels; smaller pictures are enlarged by a whole factor
TINTS = {"best": (205, 235, 205), "worst": (245, 210, 210)}


def to_uint8(images: torch.Tensor) -> torch.Tensor:
    """ComfyUI's float[B, H, W, C] in [0, 1] as uint8[B, H, W, 3] on the CPU, rounded as the trainer rounds its own."""
    images = images[..., :3] if images.shape[-1] >= 3 else images[..., :1].expand(*images.shape[:-1], 3)
    return (images.float().nan_to_num(0.0).clamp(0, 1) * 255).round().to(torch.uint8).cpu().contiguous()


def not_numbers(images: torch.Tensor) -> torch.Tensor:
    """bool[B] on the CPU: pictures with a NaN or an infinity, which `to_uint8` shows as black and white."""
    return (~images.float().isfinite()).flatten(1).any(1).cpu()


def enlargement(width: int, height: int) -> int:
    """The whole factor that brings the shorter side to at least SMALLEST_SIDE."""
    return max(1, -(-SMALLEST_SIDE // min(width, height)))


def annotate(images: torch.Tensor, captions: Sequence[Sequence[str]], marks: Sequence[str | None]) -> torch.Tensor:
    """uint8[B, H, W, 3] with `captions[i]` (equally many lines each) below picture i, tinted if `marks[i]` is best or worst.

    Returns float[B, H', W', 3] in [0, 1], all of one size; a line that is too long ends in an ellipsis.
    """
    height, width = images.shape[1:3]
    factor = enlargement(width, height)
    width, height = width * factor, height * factor
    size = max(12, width // 40)
    font, line = label_font(size), size + max(4, size // 3)
    strip = len(captions[0]) * line + line // 2
    sheets = []
    for picture, lines, mark in zip(images, captions, marks, strict=True):
        sheet = Image.new("RGB", (width, height + strip), TINTS.get(mark or "", PAPER))
        sheet.paste(Image.fromarray(picture.numpy()).resize((width, height), Image.Resampling.NEAREST), (0, 0))
        pen = ImageDraw.Draw(sheet)
        for number, text in enumerate(lines):
            place = (size // 2, height + line // 4 + number * line)
            pen.text(place, fit(pen, text, width - size, font), fill=INK, font=font)
        sheets.append(np.asarray(sheet))
    return torch.from_numpy(np.stack(sheets)).float() / 255


def fit(pen: ImageDraw.ImageDraw, text: str, width: int, font) -> str:
    """The text, cut with an ellipsis if it is wider than `width` pixels."""
    if pen.textlength(text, font=font) <= width:
        return text
    low, high = 0, len(text)
    while low < high:  # the longest beginning that fits
        middle = (low + high + 1) // 2
        if pen.textlength(text[:middle] + "...", font=font) <= width:
            low = middle
        else:
            high = middle - 1
    return text[:low].rstrip() + "..."
