"""The reward protocol. Importing this module loads neither torch nor anything that a single reward needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    import torch


class RewardOptions(BaseModel):
    """Options of a reward that has none; a reward with options subclasses it. Unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Reward(ABC):
    """Scores finished pictures; higher is better.

    A subclass sets the class attributes and `score`; the other methods have defaults. Its module must import lightly, because
    the configuration reads `Options` without scoring anything: libraries and weights belong into `load` or `score`.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    range: ClassVar[str]  # for people: the lowest and the highest score, and the unit
    needs_metadata: ClassVar[bool] = False
    Options: ClassVar[type[BaseModel]] = RewardOptions

    def __init__(self, options: BaseModel | None = None) -> None:
        self.options = self.Options() if options is None else options

    def load(self, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> None:  # noqa: B027
        """Bring what scoring needs onto `device`, weights in `dtype`; called before the first `score`, may be called again."""

    @abstractmethod
    def score(self, images: torch.Tensor, prompts: Sequence[str], metadata: Sequence[Mapping[str, Any]]) -> torch.Tensor:
        """Score B pictures: uint8[B, H, W, 3] on the CPU, the very pixels that are saved; never changed in place.

        Returns a floating tensor[B], NaN where an output could not be scored. A failure is an exception or NaN, never a 0.
        """

    def details(
        self, images: torch.Tensor, prompts: Sequence[str], metadata: Sequence[Mapping[str, Any]]
    ) -> dict[str, torch.Tensor]:
        """Further figures of the same pictures, each a tensor[B]; `accuracy` of `scene` is logged as `scene/accuracy`."""
        return {}

    def problem(self, prompt: str, metadata: Mapping[str, Any]) -> str | None:
        """Why no picture of this prompt could ever be scored, or None; known without a picture, so also before a run."""
        return None
