"""`clip` and `transform` of a reward: from what the configuration says to a `Shape`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..rewards.shaping import Shape, problem_of
from .problems import Problem
from .table import show

KEYS = ("clip", "transform")
_CLIP = "allowed: [low, high] in the unit of the score, null = no bound on that side, such as [0.2, null]"
_TRANSFORM = "allowed: null, log, or {threshold: a score}"


def read_shape(settings: Mapping[str, Any], key: str) -> tuple[dict[str, Any], list[Problem]]:
    """The keys of a reward's `settings` that say something, as plain data, and what is wrong with them."""
    given = {name: settings[name] for name in KEYS if settings.get(name) is not None}
    wrong = [
        Problem(f"{key}.{name}", f"{key}.{name} = {show(given[name])}; {allowed}")
        for name, right, allowed in (("clip", _is_clip, _CLIP), ("transform", _is_transform, _TRANSFORM))
        if name in given and not right(given[name])
    ]
    if not wrong and (problem := problem_of(shape_of(given))):
        wrong = [Problem(f"{key}.{next(iter(given))}", f"{key}: {problem}")]
    if wrong:
        return {}, wrong
    if "clip" in given:
        given["clip"] = [None if bound is None else float(bound) for bound in given["clip"]]
    if isinstance(transform := given.get("transform"), Mapping):
        given["transform"] = {"threshold": float(transform["threshold"])}
    return given, []


def shape_of(settings: Mapping[str, Any]) -> Shape:
    """The shape that settings say which `read_shape` has passed."""
    low, high = settings.get("clip") or (None, None)
    transform = settings.get("transform")
    threshold = transform["threshold"] if isinstance(transform, Mapping) else None
    return Shape(low, high, transform == "log", threshold)


def _is_clip(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(bound is None or _finite(bound) for bound in value)


def _is_transform(value: Any) -> bool:
    return value == "log" or (isinstance(value, Mapping) and set(value) == {"threshold"} and _finite(value["threshold"]))


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
