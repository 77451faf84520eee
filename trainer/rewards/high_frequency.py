"""Share of fine detail: a monitor for grid textures (it rises) and blur (it falls) (flow_grpo#233, DanceGRPO#26)."""

from __future__ import annotations

from .pixels import PixelReward, luma

_NOTHING = 1e-6  # energy in squared luma levels; one pixel that is one level off has 1e4 times more


class HighFrequency(PixelReward):
    """The luma's energy above half the Nyquist frequency as a share of all its energy but the mean.

    By a cosine transform, whose mirrored borders add no false edges as a periodic Fourier transform would. A flat picture
    has 0.
    """

    name = "high_frequency"
    description = "Share of the luma's spectral energy (mean left out) above half the Nyquist frequency."
    range = "0 (flat or smooth) to 1 (only pixel-fine texture); about 0.8 for white noise"

    def measure(self, picture):
        import numpy as np
        from scipy.fft import dctn

        light = luma(picture).numpy()
        energy = dctn(light - light.mean(), norm="ortho") ** 2
        total = energy.sum()
        if total < _NOTHING:
            return 0.0
        height, width = light.shape
        # Coefficient k of N oscillates at k / N of the Nyquist frequency.
        radius = np.hypot(np.arange(height)[:, None] / height, np.arange(width)[None, :] / width)
        return float(energy[radius > 0.5].sum() / total)
