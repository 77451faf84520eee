"""Colourfulness after D. Hasler and S. Suesstrunk, "Measuring colourfulness in natural images" (SPIE 5007, 2003)."""

from __future__ import annotations

import math

from .pixels import PixelReward


class Colorfulness(PixelReward):
    name = "colorfulness"
    description = "Colourfulness M3 of Hasler and Suesstrunk (2003): spread and strength of the two colour-opponent axes."
    range = "0 (grey) to about 285; the paper calls 33 moderately and 109 extremely colourful"

    def measure(self, picture):
        red, green, blue = picture.double().unbind(-1)
        rg, yb = red - green, (red + green) / 2 - blue
        spread = math.hypot(float(rg.std(correction=0)), float(yb.std(correction=0)))
        strength = math.hypot(float(rg.mean()), float(yb.mean()))
        return spread + 0.3 * strength
