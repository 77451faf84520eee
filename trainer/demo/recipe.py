"""What one embedded model is made of and by: `build.py` turns a recipe into a model."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from PIL import Image


class Recipe(ABC):
    """A world of captioned items (scenes, words), the sizes of its model and the figures of its training.

    Every function draws its chances from the `random.Random` that it is given.
    """

    name: ClassVar[str]
    world: ClassVar[ModuleType]  # with the functions `draw`, `caption` and `corrupt`
    width: ClassVar[int]  # pixels
    height: ClassVar[int]
    layers: ClassVar[int]  # of the transformer
    heads: ClassVar[int]  # of 64 channels each
    clip: ClassVar[tuple[tuple[int, int], tuple[int, int]]]  # (width, layers) of the two text encoders
    channels: ClassVar[int]  # of the autoencoder
    fact_sizes: ClassVar[list[int]]  # how many values each of an item's facts can take
    defaults: ClassVar[Mapping[str, Any]]  # of build.py's options

    @abstractmethod
    def tokenizer(self, seed: int):
        """The CLIP tokenizer of both text encoders."""

    @abstractmethod
    def sample(self, rng: random.Random) -> Any:
        """One item to learn from."""

    @abstractmethod
    def held_out(self) -> list:
        """The items that a model is measured on, in a fixed order."""

    @abstractmethod
    def facts(self, item: Any) -> list[int]:
        """The item as class numbers, which the text encoders learn to tell."""

    @abstractmethod
    def judge(self, pictures: np.ndarray, items: Sequence[Any]) -> list[tuple[float, bool]]:
        """(score, strictly correct) of uint8[N, H, W, 3]."""

    def draw(self, item: Any, rng: random.Random) -> Image.Image:
        return self.world.draw(item, rng)

    def caption(self, item: Any, rng: random.Random) -> str:
        return self.world.caption(item, rng)

    def corrupt(self, item: Any, rng: random.Random) -> Any:
        """The item with one thing misdescribed, as alternative texts on the web often do."""
        return self.world.corrupt(item, rng)

    def noisy_caption(self, item: Any, rng: random.Random, noise: float) -> str:
        """A caption of the item: empty once in ten times, else misdescribing it in a share `noise`."""
        if rng.random() < 0.1:
            return ""
        return self.caption(self.corrupt(item, rng) if rng.random() < noise else item, rng)
