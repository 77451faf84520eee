"""Score a batch with several rewards so that a scorer that fails neither counts as 0 nor ends the run by itself.

A failed output is NaN (verl-omni#366: counted as 0 it poisons its group), and one failed monitor never kills a run (UniRL#232).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..errors import UserError, one_line
from .base import Reward


@dataclass(frozen=True)
class ScoreTable:
    """What B pictures scored: float64[B] on the CPU by reward name, NaN where an output could not be scored.

    `details` holds further figures under `<reward>/<figure>`, `counts` what a reward went through, under such names too.
    `reasons` says for each reward with a NaN why the first of them is one; `notes` lists (reward, message) for lesser trouble.
    """

    scores: dict[str, torch.Tensor]
    details: dict[str, torch.Tensor] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)

    def first(self, outputs: int) -> ScoreTable:
        """The same of the first so many pictures only."""
        scores, details = ({name: values[:outputs] for name, values in part.items()} for part in (self.scores, self.details))
        return replace(self, scores=scores, details=details)

    @property
    def failures(self) -> list[tuple[str, str]]:
        """(reward, message) for each reward that gave no score at all."""
        return [(name, self._missing(name)) for name, values in self.scores.items() if bool(values.isnan().all())]

    @property
    def warnings(self) -> list[tuple[str, str]]:
        """(reward, message) for lesser trouble: some outputs unscored, or details that failed."""
        some = [name for name, values in self.scores.items() if bool(values.isnan().any() and not values.isnan().all())]
        return [*((name, self._missing(name)) for name in some), *self.notes]

    def _missing(self, name: str) -> str:
        values = self.scores[name]
        return f"{int(values.isnan().sum())} of {len(values)} outputs not scored: {self.reasons.get(name, 'NaN')}"


def join(tables: Sequence[ScoreTable]) -> ScoreTable:
    """The tables of several batches, scored by the same rewards, as that of one. Details that a batch lacks are NaN."""
    sizes = [len(next(iter(table.scores.values()))) if table.scores else 0 for table in tables]

    def joined(parts: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        return {
            name: torch.cat(
                [
                    part[name] if name in part else torch.full((size,), torch.nan, dtype=torch.float64)
                    for part, size in zip(parts, sizes, strict=True)
                ]
            )
            for name in dict.fromkeys(name for part in parts for name in part)
        }

    whole = ScoreTable(joined([table.scores for table in tables]), joined([table.details for table in tables]))
    for table in tables:
        for name, reason in table.reasons.items():
            whole.reasons.setdefault(name, reason)
        whole.notes.extend(note for note in table.notes if note not in whole.notes)
        for name, value in table.counts.items():
            whole.counts[name] = whole.counts.get(name, 0) + value
    return whole


def load_rewards(rewards: Mapping[str, Reward], device: torch.device | str, dtype: torch.dtype | None) -> list[tuple[str, str]]:
    """Load every reward; returns (reward, message) of those that could not be loaded. Whether that is fatal is the caller's."""
    failures = []
    for name, reward in rewards.items():
        try:
            reward.load(device, dtype)
        except Exception as error:
            failures.append((name, _message(error)))
    return failures


@torch.no_grad()
def score_rewards(
    rewards: Mapping[str, Reward],
    images: torch.Tensor,
    prompts: Sequence[str],
    metadata: Sequence[Mapping[str, Any]],
    *,
    details: bool = False,
) -> ScoreTable:
    """Score uint8[B, H, W, 3] with every reward; `details` asks for their further figures too (as an evaluation does).

    Raises ValueError only if the batch itself is malformed; whatever a reward does wrong ends up in the table.
    """
    _check_batch(images, prompts, metadata)
    table = ScoreTable({})
    for name, reward in rewards.items():
        try:
            scores = _checked(reward.score(images, prompts, metadata), len(images))
        except Exception as error:
            table.scores[name] = torch.full((len(images),), torch.nan, dtype=torch.float64)
            table.reasons[name] = _message(error)
            continue
        finally:
            _add_counts(table, name, reward)
            table.notes.extend((name, text) for text in reward.news())
        table.scores[name] = scores
        if bool(scores.isnan().any()):
            table.reasons[name] = _reason(reward, scores, prompts, metadata)
        if details:
            _add_details(table, name, reward, images, prompts, metadata)
    return table


class FailureCount:
    """Counts, for each reward, how often in a row it gave no score at all.

    A training reward that reaches `limit` stops the run: training on would only burn time. A monitor never does.
    """

    def __init__(self, training: Collection[str], limit: int = 3) -> None:
        self.training = frozenset(training)
        self.limit = limit
        self.counts: dict[str, int] = {}

    def update(self, table: ScoreTable) -> None:
        """Take in one scored batch; UserError when a training reward has failed `limit` times in a row."""
        failed = dict(table.failures)
        for name in table.scores:
            self.counts[name] = self.counts.get(name, 0) + 1 if name in failed else 0
        for name in table.scores:
            if name in self.training and self.counts[name] >= self.limit:
                raise UserError(
                    f"reward {name!r} failed {self.counts[name]} times in a row, last: {failed[name]}; "
                    f"repair it or take it out of 'rewards'"
                )


def _check_batch(images, prompts, metadata) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[-1] != 3 or images.device.type != "cpu":
        found = f"{images.dtype}{list(images.shape)} on {images.device}"
        raise ValueError(f"images must be uint8[B, H, W, 3] on the CPU, got {found}")
    if not len(images) == len(prompts) == len(metadata) > 0:
        found = f"{len(images)} images, {len(prompts)} prompts and {len(metadata)} metadata"
        raise ValueError(f"a batch needs equal numbers above 0, got {found}")


def _checked(values, outputs: int) -> torch.Tensor:
    """The scorer's answer as float64[B], infinities as NaN; ValueError if it is no such thing."""
    values = torch.as_tensor(values)
    if values.shape != (outputs,):
        raise ValueError(f"returned shape {list(values.shape)} for {outputs} pictures, expected [{outputs}]")
    if values.is_complex():
        raise ValueError(f"returned {values.dtype}, expected real numbers")
    values = values.detach().to(device="cpu", dtype=torch.float64, copy=True)
    return values.masked_fill_(~values.isfinite(), torch.nan)


def _reason(reward, scores, prompts, metadata) -> str:
    """What the reward itself says about the first output that it could not score."""
    first = int(scores.isnan().nonzero()[0])
    try:
        problem = reward.problem(prompts[first], metadata[first]) or reward.trouble()
    except Exception as error:
        problem = _message(error)
    return problem or "NaN or infinite score"


def _add_counts(table, name, reward) -> None:
    try:
        for figure, value in reward.counts().items():
            table.counts[f"{name}/{figure}"] = float(value)
    except Exception as error:
        table.notes.append((name, f"counts failed: {_message(error)}"))


def _add_details(table, name, reward, images, prompts, metadata) -> None:
    try:
        for figure, values in reward.details(images, prompts, metadata).items():
            table.details[f"{name}/{figure}"] = _checked(values, len(images))
    except Exception as error:
        table.notes.append((name, f"details failed: {_message(error)}"))


def _message(error: Exception) -> str:
    return one_line(error) if isinstance(error, UserError) else f"{type(error).__name__}: {one_line(error)}"
