"""JPEG size: the compressibility reward of DDPO (arXiv 2305.13301) and flow_grpo, per pixel instead of per picture."""

from __future__ import annotations

import io
from typing import Literal

from pydantic import Field

from .base import RewardOptions
from .pixels import PixelReward


class JpegSizeOptions(RewardOptions):
    prefer: Literal["small", "large"] = Field(
        "small", description="'small' rewards pictures that compress well (score = -bytes per pixel), 'large' the opposite"
    )
    quality: int = Field(95, ge=1, le=100, description="JPEG quality, 1 to 100; 95 as in DDPO")


class JpegSize(PixelReward):
    name = "jpeg_size"
    description = "Size of the picture as a JPEG file, in bytes per pixel; the sign follows `prefer`."
    range = "about -3 to 0 bytes per pixel with prefer: small, 0 to about 3 with prefer: large"
    Options = JpegSizeOptions

    def measure(self, picture):
        from PIL import Image

        file = io.BytesIO()
        Image.fromarray(picture.numpy()).save(file, format="JPEG", quality=self.options.quality)
        height, width = picture.shape[:2]
        bytes_per_pixel = len(file.getvalue()) / (height * width)
        return -bytes_per_pixel if self.options.prefer == "small" else bytes_per_pixel
