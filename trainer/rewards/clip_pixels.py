"""Pictures as CLIP models take them: uint8[B, H, W, 3] -> float32[B, 3, S, S], normalised as OpenAI's CLIP was trained.

Two ways are in use and give different scores: HPS keeps the whole picture and pads it, all others crop its centre.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


def letterbox(pictures: Tensor, size: int) -> Tensor:
    """The longer side brought to `size`, the rest padded with black before normalising, as HPSv2's own transform has it.

    Bicubic with antialiasing, on floats. One difference: a picture that is `size` long and narrower is padded too, where the
    authors' code leaves it as it is and then fails.
    """
    height, width = pictures.shape[1:3]
    scale = size / max(height, width)
    images = pictures.permute(0, 3, 1, 2).float() / 255
    # A side never vanishes, however long and thin the picture is.
    new_height, new_width = (max(1, round(side * scale)) for side in (height, width))
    if scale != 1:
        images = functional.interpolate(images, (new_height, new_width), mode="bicubic", align_corners=False, antialias=True)
    vertical, horizontal = size - new_height, size - new_width
    left, top = horizontal // 2, vertical // 2
    return _normalised(functional.pad(images, (left, horizontal - left, top, vertical - top)))


def center_crop(pictures: Tensor, size: int, rounding: Literal["down", "nearest"] = "down") -> Tensor:
    """The shorter side brought to `size` by Pillow's bicubic filter, on bytes, and the centre cut out.

    rounding: of the crop's corner; `down` as transformers' processors have it, `nearest` as torchvision (and so OpenAI's own
    `clip.load` and ImageReward).
    """
    cropped = [_cropped(picture, size, rounding) for picture in pictures.numpy()]
    return _normalised(torch.from_numpy(np.stack(cropped)).permute(0, 3, 1, 2).float() / 255)


def _cropped(picture: np.ndarray, size: int, rounding: str) -> np.ndarray:
    height, width = picture.shape[:2]
    short, long = min(height, width), max(height, width)
    new_long = int(size * long / short)
    new_width, new_height = (size, new_long) if width <= height else (new_long, size)
    image = Image.fromarray(picture)
    if (new_width, new_height) != (width, height):
        image = image.resize((new_width, new_height), Image.Resampling.BICUBIC)
    left, top = (_corner(side - size, rounding) for side in (new_width, new_height))
    return np.asarray(image.crop((left, top, left + size, top + size)))


def _corner(spare: int, rounding: str) -> int:
    return spare // 2 if rounding == "down" else round(spare / 2)


def _normalised(images: Tensor) -> Tensor:
    mean, std = (torch.tensor(values, dtype=torch.float32).view(1, 3, 1, 1) for values in (MEAN, STD))
    return (images - mean) / std
