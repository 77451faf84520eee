"""The reward protocol. Importing this module loads neither torch nor anything that a single reward needs."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict

from ..extras import installed

if TYPE_CHECKING:
    import torch

    from .weights import Weights


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
    penalty: ClassVar[bool] = False  # a score that warns: it may only be trained away from, so its weight is negative
    licence: ClassVar[str] = ""  # of what it needs beyond this program
    packages: ClassVar[Mapping[str, str]] = {}  # optional Python packages: module -> what pip calls it
    Options: ClassVar[type[BaseModel]] = RewardOptions

    def __init__(self, options: BaseModel | None = None) -> None:
        self.options = self.Options() if options is None else options

    def load(self, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> None:  # noqa: B027
        """Bring what scoring needs onto `device`, weights in `dtype`; called before the first `score`, may be called again."""

    def rest(self) -> bool:
        """The end of a round of scoring: it may leave its device, and comes back by itself when it scores. Whether it left."""
        return False

    def park(self) -> bool:
        """Leave the device now, and come back when it scores. Whether it left."""
        return False

    def weights(self) -> Sequence[Weights]:
        """The files that it needs with its options; looked up by `missing`, by `load` and by the command `rewards`."""
        return ()

    def missing(self) -> str | None:
        """One line: which package or file is not there, and what to do; None if it can be loaded. Loads and fetches nothing."""
        if lacking := [name for module, name in self.packages.items() if not installed(module)]:
            those = " ".join(lacking)
            return f"needs {those}, which {_is(lacking)} not installed; install with: {sys.executable} -m pip install {those}"
        if not (needed := self.weights()):
            return None
        from .weights import problem

        return next(filter(None, map(problem, needed)), None)

    @abstractmethod
    def score(self, images: torch.Tensor, prompts: Sequence[str], metadata: Sequence[Mapping[str, Any]]) -> torch.Tensor:
        """Score B pictures: uint8[B, H, W, 3] on the CPU, the very pixels that are saved; never changed in place.

        Returns a floating tensor[B], NaN where an output could not be scored. A failure is an exception or NaN, never a 0.
        """

    def interrupt(self) -> None:  # noqa: B027
        """From another thread: a `score` that is under way should end soon, as nobody waits for it any more."""

    def details(
        self, images: torch.Tensor, prompts: Sequence[str], metadata: Sequence[Mapping[str, Any]]
    ) -> dict[str, torch.Tensor]:
        """Further figures of the same pictures, each a tensor[B]; `accuracy` of `scene` is logged as `scene/accuracy`."""
        return {}

    def counts(self) -> dict[str, float]:
        """What the newest `score` went through, such as a server's `retries`; summed and logged, never trained on."""
        return {}

    def news(self) -> list[str]:
        """What a user should know of the newest `score` though it went well: a batch that was made smaller. Told once."""
        return []

    def trouble(self) -> str | None:
        """Why the newest `score` left pictures without a score, if `problem` can't tell: a server that did not answer."""
        return None

    def problem(self, prompt: str, metadata: Mapping[str, Any]) -> str | None:
        """Why no picture of this prompt could ever be scored, or None; known without a picture, so also before a run."""
        return None


def _is(things: Sequence[str]) -> str:
    return "is" if len(things) == 1 else "are"
