"""Sharpness: the variance of the Laplacian (J. Pech-Pacheco et al., ICPR 2000), a monitor for blur."""

from __future__ import annotations

from .pixels import PixelReward, luma


class Sharpness(PixelReward):
    """The 4-neighbour Laplacian of the luma inside the picture's border; a picture under 3 x 3 pixels has none and scores 0."""

    name = "sharpness"
    description = "Variance of the luma's Laplacian: low for blur, high for sharp edges and for noise."
    range = "0 (flat) and up, in squared luma levels; depends on the picture's size and subject"

    def measure(self, picture):
        light = luma(picture)
        if min(light.shape) < 3:
            return 0.0
        middle = light[1:-1, 1:-1]
        laplacian = light[:-2, 1:-1] + light[2:, 1:-1] + light[1:-1, :-2] + light[1:-1, 2:] - 4 * middle
        return float(laplacian.var(correction=0))
