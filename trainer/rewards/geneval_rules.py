"""GenEval's rules (D. Ghosh et al., arXiv 2310.11513): what a picture's objects must be, given what was found in it.

A prompt's metadata is GenEval's own: `include` is a list of {class, count, color?, position?: [relation, which]}, where `which`
is the number of an earlier entry; `exclude` a list of {class, count}; `tag` the kind of the task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COLORS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
RELATIONS = ("left of", "right of", "above", "below")
THRESHOLD, COUNTING_THRESHOLD = 0.3, 0.9  # of a detection's confidence; the second where things are counted
MOST = 16  # detections of one class
_NEAR = 0.1  # share of the two boxes' sizes within which a distance says nothing
_CLEARLY = 0.5  # share of a distance that must lie along an axis


@dataclass(frozen=True)
class Found:
    """One detected object. box: left, top, right, bottom in pixels; what: its number among the detections, for colour."""

    box: tuple[float, float, float, float]
    confidence: float
    what: int


@dataclass(frozen=True)
class Verdict:
    """`correct` is GenEval's own answer; `score` is the mean over all demands of how far each is met, 0 to 1."""

    correct: bool
    score: float


def problem_of(metadata: Mapping[str, Any]) -> str | None:
    """Why the metadata can't be judged by, None if it can."""
    include = metadata.get("include")
    if not isinstance(include, list) or not include:
        return "the prompt's metadata has no list 'include' (use GenEval's evaluation_metadata.jsonl)"
    for number, entry in enumerate(include):
        if wrong := _wrong_entry(entry, "include"):
            return wrong
        if entry.get("color") is not None and entry["color"] not in COLORS:
            return f"color = {entry['color']!r} in 'include'; allowed: {', '.join(COLORS)}"
        position = entry.get("position")
        if position is not None and not _is_position(position, number):
            return f"position = {position!r} in 'include'; allowed: [one of {', '.join(RELATIONS)}, number of an earlier entry]"
    exclude = metadata.get("exclude") or []
    if not isinstance(exclude, list):
        return "'exclude' of the metadata is no list"
    return next(filter(None, (_wrong_entry(entry, "exclude") for entry in exclude)), None)


def classes_of(metadata: Mapping[str, Any]) -> list[str]:
    """The classes that matter, each once."""
    return list(dict.fromkeys(entry["class"] for entry in (*metadata["include"], *(metadata.get("exclude") or ()))))


def threshold_of(metadata: Mapping[str, Any]) -> float:
    """The least confidence that counts: higher where objects are counted, as GenEval has it."""
    counting = metadata["tag"] == "counting" if "tag" in metadata else bool(metadata.get("exclude"))
    return COUNTING_THRESHOLD if counting else THRESHOLD


def kept(found: Sequence[Found], threshold: float) -> list[Found]:
    """The detections of one class that count, the surest first."""
    return sorted((f for f in found if f.confidence > threshold), key=lambda f: -f.confidence)[:MOST]


def judge(
    found: Mapping[str, Sequence[Found]],
    metadata: Mapping[str, Any],
    color_of: Callable[[str, Sequence[Found]], list[str]],
) -> Verdict:
    """found: what `kept` left of each class. color_of(class, objects) names the colour of each; asked only where it matters."""
    correct, shares = True, []
    groups: list[Sequence[Found] | None] = []  # of each entry, the objects that meet it
    excluded = {entry["class"] for entry in metadata.get("exclude") or ()}
    for entry in metadata["include"]:
        name, count = entry["class"], entry.get("count", 1)
        there = found.get(name, [])
        chosen = there[:count]
        met = len(chosen) == count
        # Too many are wrong only where an `exclude` says so.
        off = abs(len(there) - count) if name in excluded else count - len(chosen)
        shares.append(max(0.0, 1 - off / count))
        if color := entry.get("color"):
            right = color_of(name, chosen).count(color) if chosen else 0
            shares.append(right / count)
            met &= right >= count
        if position := entry.get("position"):
            relation, which = position
            target = groups[which]
            placed = met and target is not None and all(relation in relations(a.box, b.box) for a in chosen for b in target)
            shares.append(float(placed))
            met &= placed
        groups.append(chosen if met else None)
        correct &= met
    for entry in metadata.get("exclude") or ():
        fine = len(found.get(entry["class"], ())) < entry.get("count", 1)
        if entry["class"] not in {e["class"] for e in metadata["include"]}:
            shares.append(float(fine))
        correct &= fine
    return Verdict(correct, sum(shares) / len(shares))


def relations(a: Sequence[float], b: Sequence[float]) -> set[str]:
    """How box a lies to box b: up to two of RELATIONS, none where they are too near to tell.

    Centres count; the part of their distance that is under a tenth of both sizes counts for nothing.
    """
    distance, clear = [], []
    for low, high in ((0, 2), (1, 3)):
        apart = (a[low] + a[high]) / 2 - (b[low] + b[high]) / 2
        slack = _NEAR * (abs(a[high] - a[low]) + abs(b[high] - b[low]))
        distance.append(apart)
        clear.append(math.copysign(max(abs(apart) - slack, 0.0), apart))
    length = math.hypot(*distance)
    if all(abs(part) < 1e-3 for part in clear):
        return set()
    x, y = clear[0] / length, clear[1] / length
    found = {"left of": x < -_CLEARLY, "right of": x > _CLEARLY, "above": y < -_CLEARLY, "below": y > _CLEARLY}
    return {relation for relation, holds in found.items() if holds}


def _wrong_entry(entry: Any, where: str) -> str | None:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("class"), str):
        return f"an entry of {where!r} names no 'class'"
    count = entry.get("count", 1)
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST:
        return f"count = {count!r} of {entry['class']!r} in {where!r}; allowed: 1 to {MOST}"
    return None


def _is_position(position: Any, number: int) -> bool:
    if not isinstance(position, list | tuple) or len(position) != 2 or position[0] not in RELATIONS:
        return False
    which = position[1]
    return isinstance(which, int) and not isinstance(which, bool) and 0 <= which < number
