"""What rewards with a network share: where it runs, in which batches, what is kept. Importing this loads no library."""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from ..config.fields import absolute, looks_like_path
from ..device import KINDS, choose_device
from ..errors import UserError
from ..memory import PhaseBatches, is_out_of_memory
from .base import Reward, RewardOptions
from .residency import short_of_memory

if TYPE_CHECKING:
    import torch

_PROMPTS_KEPT = 20_000  # text features, about 4 kB each


def _absolute_path(value: str) -> str:
    """A path as an absolute one, so that a run's config.yaml means the same from any folder; names and hub ids unchanged."""
    path = absolute(value)
    return path if value and (looks_like_path(value) or os.path.exists(path)) else value


def _device(value: str) -> str:
    if value != "auto" and not re.fullmatch(r"(cuda|xpu)(:\d+)?|mps|cpu", value):
        raise ValueError(f"allowed: auto, {', '.join(KINDS)}, or cuda:N")
    return value


# A path, a name in the models folders, or a hub id.
WeightsPath = Annotated[str, AfterValidator(_absolute_path)]


class LearnedOptions(RewardOptions):
    model: WeightsPath = Field(
        "",
        description="where its weights are: empty = look in the models folders, else a path, or a hub id such as org/name, "
        "which is then downloaded",
    )
    device: Annotated[str, AfterValidator(_device)] = Field(
        "auto",
        description="where it runs: auto = the run's device, else cuda, cuda:N, xpu, mps or cpu",
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        "auto",
        description="precision: auto = as the authors' own code, which is float16 on CUDA for some and float32 for all "
        "elsewhere; bfloat16 changes scores most",
    )
    offload: Literal["auto", "always", "never"] = Field(
        "auto",
        description="whether it waits in the CPU's memory between two rounds of scoring: auto = when less than a quarter of "
        "its device's memory would be free",
    )
    batch_size: int = Field(16, ge=1, le=1024, description="pictures scored at once; halved where memory does not suffice")


class LearnedReward(Reward):
    """A reward whose `build` makes a torch module: loaded once, kept in memory, on its device while it scores."""

    half_on_cuda: ClassVar[bool] = False  # whether the authors' own code runs in half precision there
    Options = LearnedOptions

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._module: torch.nn.Module | None = None
        self._device: torch.device | None = None
        self._dtype: torch.dtype | None = None
        self._news: list[str] = []
        self._batches = PhaseBatches(self._news.append, "set its device to cpu, or policy.offload to model")

    @abstractmethod
    def build(self) -> torch.nn.Module:
        """The network with its weights, on the CPU. Raises UserError of one line."""

    def load(self, device="cpu", dtype=None):
        import torch

        own = self.options
        self._device = torch.device(device) if own.device == "auto" else choose_device(own.device)
        if own.dtype != "auto":
            dtype = getattr(torch, own.dtype)
        half = self.half_on_cuda and self._device.type == "cuda"
        self._dtype = dtype or (torch.float16 if half else torch.float32)
        if self._module is None:
            self._module = self.build().eval().requires_grad_(False)
        self._return()

    def cast(self, module: torch.nn.Module, dtype: torch.dtype) -> None:
        """Bring the weights to the precision that was asked for; a reward may leave parts of it as they are."""
        module.to(dtype)

    def rest(self) -> bool:
        if self.options.offload == "auto" and (self._device is None or not short_of_memory(self._device)):
            return False
        return self.park()

    def park(self) -> bool:
        if self._module is None or self._device.type == "cpu" or self.options.offload == "never":
            return False
        self._module.to("cpu")
        return True

    def news(self) -> list[str]:
        said = [*self._news]
        self._news.clear()
        return said

    def bytes(self) -> int:
        """What it takes on its device; 0 before it is loaded."""
        if self._module is None:
            return 0
        return sum(t.numel() * t.element_size() for t in (*self._module.parameters(), *self._module.buffers()))

    def module(self) -> torch.nn.Module:
        """The network on its device, loaded or brought back if need be."""
        if self._module is None or self._device is None:
            self.load(self._device or "cpu", self._dtype)
        elif next(self._module.parameters()).device != self._device:
            self._return()
        return self._module

    def precision(self):
        """The context that a forward pass runs in: weights of half precision need autocast for the sums."""
        import torch

        return nullcontext() if self._dtype == torch.float32 else torch.autocast(self._device.type, self._dtype)

    def in_batches(self, count: int, run: Callable[[slice], torch.Tensor]) -> torch.Tensor:
        """`run` on parts of `count` pictures, joined as float32 on the CPU; out of memory halves the part for good.

        Raises MemoryShortage where one picture does not fit.
        """
        import torch

        parts = self._batches.over("scoring", self.options.batch_size, count, lambda part: run(part).float().cpu())
        return torch.cat(parts)

    def _return(self) -> None:
        try:
            self.cast(self._module, self._dtype)
            self._module.to(self._device)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._module.to("cpu")
            raise UserError(
                f"{self.name} does not fit on {self._device}: it takes {self.bytes() / 1e9:.1f} GB; set its device to cpu"
            ) from error


class TwoTowerReward(LearnedReward):
    """A score that is made of the cosine between features of the picture and of the prompt; `build` makes `towers.Towers`."""

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._prompts: dict[str, torch.Tensor] = {}

    def from_cosine(self, cosine: torch.Tensor) -> torch.Tensor:
        """Scores [B] of cosines [B], both float64."""
        return cosine

    def score(self, images, prompts, metadata):
        import torch

        with torch.no_grad():
            towers = self.module()
            read = torch.stack([self._features(towers, prompt) for prompt in prompts])
            seen = self.in_batches(len(images), lambda part: self._see(towers, images[part]))
        return self.from_cosine((read.double() * seen.double()).sum(-1))

    def _see(self, towers, pictures):
        pixels = towers.pixels(pictures).to(self._device)
        with self.precision():
            features = towers.see(pixels)
        return _unit(features)

    def _features(self, towers, prompt: str) -> torch.Tensor:
        """Read one at a time: in a batch the last digits would depend on which prompts were read before."""
        if prompt not in self._prompts:
            with self.precision():
                features = towers.read(prompt)
            while len(self._prompts) >= _PROMPTS_KEPT:
                self._prompts.pop(next(iter(self._prompts)))
            self._prompts[prompt] = _unit(features).cpu()
        return self._prompts[prompt]


def _unit(features: torch.Tensor) -> torch.Tensor:
    from torch.nn.functional import normalize

    return normalize(features.float(), dim=-1)
