"""Mean brightness: a smoke reward, and a monitor for pictures that drift to white or black."""

from __future__ import annotations

from .pixels import PixelReward, luma


class Brightness(PixelReward):
    name = "brightness"
    description = "Mean luma (BT.601, gamma-coded) of the picture."
    range = "0 (black) to 1 (white)"

    def measure(self, picture):
        return float(luma(picture).mean()) / 255
