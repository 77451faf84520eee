"""Pictures for tests of rewards: every shape that a preprocessing can get wrong, with fine and coarse detail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

# name -> (width, height, mode)
SHAPES = {
    "square": (512, 512, "RGB"),
    "rgba": (300, 260, "RGBA"),
    "portrait": (333, 517, "RGB"),
    "landscape": (640, 201, "RGB"),
    "odd": (227, 451, "RGB"),
    "tiny": (9, 7, "RGB"),
    "native": (224, 224, "RGB"),
}


def picture(name: str, seed: int = 0) -> Image.Image:
    """A gradient with blocks and noise, the same for the same name and seed."""
    width, height, mode = SHAPES[name]
    random = np.random.default_rng([seed, width, height])
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.stack([255 * x / width, 255 * y / height, 127 + 120 * np.sin((x + y) / 9)], -1)
    pixels[height // 4 : height // 2, width // 4 : width // 2] = random.integers(0, 256, 3)
    pixels = np.clip(pixels + random.normal(0, 25, pixels.shape), 0, 255).astype(np.uint8)
    if mode == "RGBA":
        alpha = np.clip(255 * (x + y) / (width + height), 0, 255).astype(np.uint8)
        return Image.fromarray(np.dstack([pixels, alpha]), "RGBA")
    return Image.fromarray(pixels)


def save_pictures(folder: Path) -> dict[str, str]:
    """All pictures as .png files: name -> path."""
    paths = {}
    for number, name in enumerate(SHAPES):
        paths[name] = str(folder / f"{name}.png")
        picture(name, number).save(paths[name])
    return paths


def as_batch(path: str) -> torch.Tensor:
    """uint8[1, H, W, 3] of a picture file, as this program reads one."""
    with Image.open(path) as image:
        return torch.from_numpy(np.array(image.convert("RGB")))[None]
