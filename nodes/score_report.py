"""What Score Group says about scored pictures: tables, verdicts, best and worst. Imports nothing of ComfyUI.

A picture's group is the prompt it was made for. B pictures, scores float64[B] by reward name, NaN where a reward gave none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..trainer.objective import combine_advantages, group_advantages, zero_variance_groups
from ..trainer.prompts import Prompt

TEACHES, LITTLE, NOTHING, UNKNOWN, FAILED = "teaches", "teaches little", "teaches nothing here", "cannot be judged", "failed"
FEW = 4  # groups smaller than this give a rough guess only
MOSTLY_BETWEEN = 0.1  # share of the variance inside groups under which a note is due


@dataclass(frozen=True)
class Scored:
    """B scored pictures. `weights` names the rewards that count; all others in `scores` are monitors. `compared` are the scores
    as the training compares them, after bounds and transforms.

    `group_ids` are the positions of the groups, 0 and up; `advantages` float64[B], 0 where an output was not scored.
    """

    prompts: tuple[Prompt, ...]
    group_ids: tuple[int, ...]
    seeds: tuple[int, ...] | None
    scores: dict[str, Tensor]
    compared: dict[str, Tensor]
    weights: dict[str, float]
    advantages: Tensor
    messages: list[tuple[str, str]] = field(default_factory=list)  # (reward, what went wrong or should be known)

    def members(self) -> list[list[int]]:
        """The positions of each group's pictures."""
        found: dict[int, list[int]] = {}
        for i, group in enumerate(self.group_ids):
            found.setdefault(group, []).append(i)
        return [found[group] for group in sorted(found)]


@dataclass(frozen=True)
class Spread:
    """How a reward's scores differ; standard deviations are population ones, as in the training. NaN where nothing is known.

    `groups` counts the prompts with at least two scored pictures, `flat` those of them whose pictures all score alike.
    """

    scored: int
    pictures: int
    groups: int
    flat: int
    smallest: int  # scored pictures in the smallest of these groups
    mean: float
    low: float
    high: float
    within_std: float  # mean over the groups
    within_share: float  # of the variance of all scores, the share inside groups, 0 to 1


def advantages_of(scores: dict[str, Tensor], weights: dict[str, float], group_ids: Sequence[int]) -> Tensor:
    """float64[B]: each counting reward normalised in its group, then summed by weight, as the training does by default.

    A reward that scored nothing at all is left out, so that the others can still be looked at; 0 everywhere if none is left.
    """
    used = {name: scores[name] for name in weights if bool(scores[name].isfinite().any())}
    if not used:
        return torch.zeros(len(group_ids), dtype=torch.float64)
    return combine_advantages(used, {name: weights[name] for name in used}, list(group_ids)).double()


def spread(values: Tensor, group_ids: Sequence[int]) -> Spread:
    valid = values.isfinite()
    ids = torch.as_tensor(list(group_ids))
    good, own = values[valid], ids[valid]
    counts = torch.unique(own, return_counts=True) if len(own) else (own, own)
    compared = counts[0][counts[1] >= 2]
    inside = torch.isin(own, compared)
    stds = [_std(good[own == group]) for group in compared]
    flat = round(zero_variance_groups(good[inside], own[inside]) * len(compared)) if len(compared) else 0
    total = _std(good) ** 2 if len(good) else math.nan
    within = sum(float(((good[own == g] - good[own == g].mean()) ** 2).sum()) for g in counts[0]) / max(1, len(good))
    return Spread(
        scored=len(good),
        pictures=len(values),
        groups=len(compared),
        flat=flat,
        smallest=int(counts[1][counts[1] >= 2].min()) if len(compared) else 0,
        mean=float(good.mean()) if len(good) else math.nan,
        low=float(good.min()) if len(good) else math.nan,
        high=float(good.max()) if len(good) else math.nan,
        within_std=sum(stds) / len(stds) if stds else math.nan,
        within_share=within / total if total > 0 else math.nan,
    )


def verdict(s: Spread) -> tuple[str, str]:
    """(a short word, sentences in plain words): would a training learn anything from this reward on such pictures?"""
    if s.scored == 0:
        return FAILED, "No picture could be scored."
    if s.groups == 0:
        return UNKNOWN, "No prompt has two scored pictures to compare; raise group_size to 2 or more, better to 8 or more."
    values = f"mean {s.mean:.4g}, from {s.low:.4g} to {s.high:.4g}"
    notes = []
    if s.scored < s.pictures:
        notes.append(f"{s.pictures - s.scored} of {s.pictures} pictures could not be scored and count for nothing.")
    if s.smallest < FEW:
        notes.append(f"Groups of {s.smallest} give a rough guess only; trainings use 16 to 24 pictures a prompt.")
    if s.flat == s.groups:
        same = f"every picture scores {s.mean:.4g}" if s.low == s.high else f"all pictures of one prompt score alike ({values})"
        text = f"{same[:1].upper()}{same[1:]}, so every advantage is 0. " + _advice(s)
        return NOTHING, " ".join([text, *notes])
    if s.within_share < MOSTLY_BETWEEN:
        notes.insert(
            0,
            f"Only {s.within_share:.0%} of the differences are between pictures of the same prompt, the rest is between "
            "prompts; see that the small differences, which the training enlarges, mean something.",
        )
    differ = f"In {s.groups - s.flat} of {s.groups} groups the pictures of one prompt score differently"
    figures = f"mean std within a group {s.within_std:.3g}; {values}"
    if 2 * s.flat > s.groups:
        return LITTLE, " ".join([f"{differ}; the other {s.flat} would be skipped ({figures}). {_advice(s)}", *notes])
    return TEACHES, " ".join([f"{differ} ({figures}).", *notes])


def _advice(s: Spread) -> str:
    return (
        "Larger groups or prompts of another difficulty may help; otherwise the model always does this, or never, and a reward "
        "with finer steps is needed."
    )


def best_and_worst(scored: Scored) -> tuple[list[int], list[int]]:
    """For each group the position of its best and of its worst picture by advantage; unscored pictures only if all are."""
    ranked = ranking_scores(scored)
    best, worst = [], []
    for members in scored.members():
        known = [i for i in members if bool(ranked[i].isfinite())] or members
        best.append(max(known, key=lambda i: float(scored.advantages[i])))
        worst.append(min(known, key=lambda i: (float(scored.advantages[i]), -i)))
    return best, worst


def marks(scored: Scored) -> list[str | None]:
    """`best` or `worst` for each picture that is so; none in a group whose pictures all have the same advantage."""
    found: list[str | None] = [None] * len(scored.group_ids)
    for best, worst in zip(*best_and_worst(scored), strict=True):
        if scored.advantages[best] > scored.advantages[worst]:
            found[best], found[worst] = "best", "worst"
    return found


def ranking_scores(scored: Scored) -> Tensor:
    """float64[B]: NaN where a counting reward that works gave no score, so that the advantage 0 says nothing."""
    total = torch.zeros(len(scored.group_ids), dtype=torch.float64)
    for name in scored.weights:
        if bool(scored.scores[name].isfinite().any()):
            total = total + scored.scores[name]
    return total


def table(scored: Scored) -> str:
    """A Markdown table, one row a picture, counted from 1; monitors are marked with *."""
    names = ordered(scored)
    marked = marks(scored)
    head = ["prompt", "member", *(title(scored, name) for name in names), "advantage", ""]
    rows = []
    for number, members in enumerate(scored.members()):
        for member, i in enumerate(members):
            values = [show(float(scored.scores[name][i])) for name in names]
            rows.append([str(number + 1), str(member + 1), *values, f"{float(scored.advantages[i]):+.2f}", marked[i] or ""])
    lines = [*_aligned(head, rows), ""]
    for number, members in enumerate(scored.members()):
        lines.append(f"prompt {number + 1}: {' '.join(scored.prompts[members[0]].text.split()) or '(none)'}")
    if len(names) > len(scored.weights):
        lines.append("* monitor: scored and shown, not trained on")
    return "\n".join([*lines, *message_lines(scored)])


def summary(scored: Scored) -> str:
    """A line of figures for each reward, then its verdict in plain words."""
    names = ordered(scored)
    spreads = {name: spread(scored.compared[name], scored.group_ids) for name in names}
    head = ["reward", "weight", "mean", "std within a group", "groups without a difference"]
    rows = []
    for name, s in spreads.items():
        weight = f"{scored.weights[name]:g}" if name in scored.weights else "monitor"
        rows.append([name, weight, show(s.mean), show(s.within_std), f"{s.flat} of {s.groups}"])
    lines = [*_aligned(head, rows), ""]
    for name, s in spreads.items():
        word, text = verdict(s)
        only = "" if name in scored.weights else " (monitor, not trained on)"
        lines.append(f"{name}{only}: {word}. {text}")
    return "\n".join([*lines, *message_lines(scored)])


def data(scored: Scored) -> dict[str, Any]:
    """Everything as plain data for JSON, counted from 0; null for NaN, seeds as text because JavaScript would round them."""
    best, worst = best_and_worst(scored)
    alone = {name: group_advantages(values, list(scored.group_ids)) for name, values in scored.compared.items()}
    groups = []
    for number, members in enumerate(scored.members()):
        pictures = [
            {
                "image": i,
                "member": member,
                "seed": None if scored.seeds is None else str(scored.seeds[i]),
                "scores": {name: _plain(values[i]) for name, values in scored.scores.items()},
                "advantages": {name: _plain(values[i]) for name, values in alone.items()},
                "advantage": _plain(scored.advantages[i]),
            }
            for member, i in enumerate(members)
        ]
        prompt = scored.prompts[members[0]]
        about = {"prompt": prompt.text, "metadata": prompt.metadata, "best": best[number], "worst": worst[number]}
        groups.append({**about, "pictures": pictures})
    rewards = {}
    for name in ordered(scored):
        s = spread(scored.compared[name], scored.group_ids)
        word, text = verdict(s)
        figures = {key: _plain(value) for key, value in vars(s).items()}
        rewards[name] = {"weight": scored.weights.get(name), **figures, "verdict": word, "explanation": text}
    return {"rewards": rewards, "groups": groups, "messages": [list(message) for message in scored.messages]}


def captions(scored: Scored) -> list[list[str]]:
    """The lines under each picture, as many for every picture."""
    lines: list[list[str]] = [[] for _ in scored.group_ids]
    for number, members in enumerate(scored.members()):
        for member, i in enumerate(members):
            own = [f"prompt {number + 1}, picture {member + 1}", f"advantage {float(scored.advantages[i]):+.2f}"]
            own += [f"{title(scored, name)} {show(float(scored.scores[name][i]))}" for name in ordered(scored)]
            lines[i] = [*own, " ".join(scored.prompts[i].text.split())]
    return lines


def ordered(scored: Scored) -> list[str]:
    """The rewards that count, then the monitors."""
    return [*scored.weights, *(name for name in scored.scores if name not in scored.weights)]


def title(scored: Scored, name: str) -> str:
    return name if name in scored.weights else f"{name}*"


def show(value: float) -> str:
    return "not scored" if math.isnan(value) else f"{value:.4g}"


def message_lines(scored: Scored) -> list[str]:
    return [f"! {name}: {text}" for name, text in scored.messages]


def _aligned(head: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[c]) for row in [head, *rows]) for c in range(len(head))]
    padded = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in [head, *rows]]
    lines = [f"| {' | '.join(row)} |" for row in padded]
    return [lines[0], f"|{'|'.join('-' * (width + 1) + ':' for width in widths)}|", *lines[1:]]


def _plain(value: Any) -> Any:
    value = value.item() if isinstance(value, Tensor) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _std(values: Tensor) -> float:
    return float((values - values.mean()).square().mean().sqrt())
