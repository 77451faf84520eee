"""Mean saturation: a monitor for the over-saturation that often comes with a rising reward (flow_grpo#233)."""

from __future__ import annotations

from .pixels import PixelReward


class Saturation(PixelReward):
    name = "saturation"
    description = "Mean HSV saturation of the picture; black counts as unsaturated."
    range = "0 (grey) to 1 (pure colours)"

    def measure(self, picture):
        pixels = picture.double()
        high, low = pixels.amax(-1), pixels.amin(-1)
        return float(((high - low) / high.clamp(min=1)).mean())
