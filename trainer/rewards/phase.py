"""Scoring beside the making of pictures: while one batch is scored the next one is decoded."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch

from ..prompts import Prompt
from .base import Reward
from .residency import rest
from .scoring import ScoreTable, join, score_rewards

_LOOK_S = 0.5


class ScoringPhase:
    """Scores batches in the order in which they are added, one after the other, in a thread of its own.

    Leaving it by an exception drops what has not begun and interrupts the batch that is being scored. At its end, rewards that
    are in the training's way leave their device.
    """

    def __init__(self, rewards: Mapping[str, Reward], *, details: bool = False) -> None:
        self._rewards, self._details = rewards, details
        self._batches: list[Future[ScoreTable]] = []
        self._ends: list[int] = []  # how many pictures had been added with each
        self._thread = ThreadPoolExecutor(1, "vgrpo-scoring")

    def __enter__(self) -> ScoringPhase:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for reward in self._rewards.values():
                reward.interrupt()
        self._thread.shutdown(cancel_futures=True)
        rest(self._rewards.values())

    def add(self, images: torch.Tensor, prompts: Sequence[Prompt]) -> None:
        """Hand over uint8[B, H, W, 3] with their B prompts; returns at once."""
        texts, metadata = [p.text for p in prompts], [p.metadata for p in prompts]
        self._ends.append((self._ends[-1] if self._ends else 0) + len(prompts))
        self._batches.append(self._thread.submit(score_rewards, self._rewards, images, texts, metadata, details=self._details))

    def scored(self) -> int:
        """How many of the pictures are scored already, counted from the first one added."""
        return max((end for end, batch in zip(self._ends, self._batches, strict=True) if batch.done()), default=0)

    def result(self, check: Callable[[], None] | None = None, first: int | None = None) -> ScoreTable:
        """Everything that was added, in that order, or its `first` pictures; waits for it, and calls `check`, which may raise,
        twice a second meanwhile.

        Raises what no reward may raise: an interruption.
        """
        batches = self._batches if first is None else self._batches[: bisect_left(self._ends, first) + 1]
        while check is not None and wait(batches, _LOOK_S).not_done:
            check()
        table = join([batch.result() for batch in batches])
        return table if first is None else table.first(first)
