"""Pictures on disk: single outputs with their prompt, seed and scores inside, labelled grids, the before/after grid."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont, PngImagePlugin

from .runs.atomic import replace

TILE = 128  # small pictures are enlarged to this many pixels, large ones shrunk, so that a grid stays readable
GAP, LABEL, MARGIN = 4, 16, 8
INK, FAINT, PAPER = (20, 20, 20), (110, 110, 110), (255, 255, 255)


def to_pil(image: torch.Tensor) -> Image.Image:
    """One picture uint8[H, W, 3]."""
    return Image.fromarray(np.ascontiguousarray(image.numpy()))


def save_png(image: Image.Image, path: Path, texts: dict[str, str] | None = None) -> None:
    """Atomic: the file is complete or absent. Raises OSError, and then leaves nothing behind."""
    info = PngImagePlugin.PngInfo()
    for key, value in (texts or {}).items():
        info.add_itxt(key, value)
    aside = path.with_suffix(".part")
    try:
        image.save(aside, format="PNG", pnginfo=info)
        replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def save_outputs(
    folder: Path,
    images: Sequence[torch.Tensor],
    prompts: Sequence[str],
    seeds: Sequence[int],
    per_prompt: int,
    scores: dict[str, torch.Tensor],
) -> list[str]:
    """Each picture as `p<prompt>-s<seed number>.png`, with prompt, seed and scores as PNG text. Returns the file names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for i, seed in enumerate(seeds):
        name = f"p{i // per_prompt:03d}-s{i % per_prompt}.png"
        own = {reward: _rounded(float(values[i])) for reward, values in scores.items()}
        texts = {"prompt": prompts[i // per_prompt], "seed": str(seed), "scores": json.dumps(own)}
        save_png(to_pil(images[i]), folder / name, texts)
        names.append(name)
    return names


def _rounded(score: float) -> float | None:
    return round(score, 6) if math.isfinite(score) else None  # JSON has no NaN


def label_font(size: int = 12) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def grid(
    rows: Sequence[Sequence[Image.Image]],
    captions: Sequence[str],
    notes: Sequence[Sequence[str]] | None = None,
    column_titles: Sequence[str] = (),
) -> Image.Image:
    """Prompts down, pictures across; `captions` above each row, `notes` (a score) below each picture.

    Places are alike; a picture of another shape than its place stands in the middle of it.
    """
    tiles = [_tile_size(picture) for row in rows for picture in row]
    tile_w, tile_h = (max(sides) for sides in zip(*tiles, strict=True))
    font = label_font()
    columns = max(len(row) for row in rows)
    title = LABEL + GAP if column_titles else 0
    note = LABEL if notes else 0
    row_height = LABEL + tile_h + note + GAP
    sheet = Image.new("RGB", (2 * MARGIN + columns * (tile_w + GAP), 2 * MARGIN + title + len(rows) * row_height), PAPER)
    pen = ImageDraw.Draw(sheet)
    for c, text in enumerate(column_titles):
        pen.text((MARGIN + c * (tile_w + GAP), MARGIN), text, fill=INK, font=font)
    for r, row in enumerate(rows):
        y = MARGIN + title + r * row_height
        pen.text((MARGIN, y), _fit(pen, captions[r], columns * (tile_w + GAP), font), fill=INK, font=font)
        for c, picture in enumerate(row):
            x = MARGIN + c * (tile_w + GAP)
            wide, high = _tile_size(picture)
            mode = Image.Resampling.NEAREST if picture.width < wide else Image.Resampling.LANCZOS
            middle = (x + (tile_w - wide) // 2, y + LABEL + (tile_h - high) // 2)
            sheet.paste(picture.resize((wide, high), mode), middle)
            if notes:
                pen.text((x, y + LABEL + tile_h), notes[r][c], fill=FAINT, font=font)
    return sheet


def _tile_size(picture: Image.Image) -> tuple[int, int]:
    scale = TILE / max(picture.size)
    return max(1, round(picture.width * scale)), max(1, round(picture.height * scale))


def _fit(pen: ImageDraw.ImageDraw, text: str, width: int, font) -> str:
    """The text on one line, cut with an ellipsis where it is wider than the grid."""
    text = " ".join(text.split())
    if pen.textlength(text, font=font) <= width:
        return text
    while text and pen.textlength(text + "...", font=font) > width:
        text = text[:-1]
    return text + "..."
