"""What the arithmetic rewards share: one figure a picture, computed in float64 on the CPU."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from .base import Reward

if TYPE_CHECKING:
    import torch


class PixelReward(Reward):
    """A reward that looks at one picture at a time and at nothing else."""

    @abstractmethod
    def measure(self, picture: torch.Tensor) -> float:
        """The score of one picture uint8[H, W, 3]."""

    def score(self, images, prompts, metadata):
        import torch

        return torch.tensor([self.measure(picture) for picture in images], dtype=torch.float64)


def luma(picture: torch.Tensor) -> torch.Tensor:
    """Gamma-coded luma float64[H, W] in [0, 255] of uint8[H, W, 3] (ITU-R BT.601, as JPEG has it)."""
    red, green, blue = picture.double().unbind(-1)
    return 0.299 * red + 0.587 * green + 0.114 * blue
