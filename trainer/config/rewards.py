"""The `rewards` and `monitors` sections: names and options belong to the rewards themselves, through their registry.

Beside its own options each entry may say `kind`, the reward it is where the entry has another name (two judges in one run), and
in `rewards` how it counts: `weight`, `clip` and `transform`.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from ..errors import UserError
from .problems import Problem, explain, refuse
from .shape import KEYS as SHAPE_KEYS
from .shape import read_shape
from .table import show

if TYPE_CHECKING:
    from ..rewards.base import Reward

_MAX_WEIGHT = 1000.0
_DEFAULT_WEIGHT = 1.0
_ENTRY = "allowed: a mapping of options, or nothing"
TOTAL = "total"
_LABEL = re.compile(r"[a-z][a-z0-9_]{0,39}")  # it becomes part of metric names


def check_settings(value: Any, section: str) -> dict[str, dict[str, Any]]:
    """Every reward of `section` (`rewards` or `monitors`) with all its options written out, so that a later change of a default
    cannot change a run. Rewards carry a `weight`. Raises one error with all problems."""
    value = {} if value is None else value
    if not isinstance(value, Mapping):
        raise refuse([Problem(section, f"{section} = {show(value)}; allowed: a mapping of reward names to their options")])
    if section == "rewards" and not value:
        raise refuse([Problem(section, f"rewards is empty; at least one reward is needed (known: {', '.join(_names())})")])
    problems: list[Problem] = []
    checked = {}
    for name, settings in value.items():
        key = f"{section}.{name}"
        settings = {} if settings is None else settings
        if not isinstance(settings, Mapping):
            wrong = _unknown(name, key) if name not in _names() else f"{key} = {show(settings)}; {_ENTRY}"
            problems.append(Problem(key, wrong))
            continue
        checked[name], wrong = _check_entry(name, dict(settings), section)
        problems += wrong
    if problems:
        raise refuse(problems)
    return checked


def _check_entry(name: Any, options: dict[str, Any], section: str) -> tuple[dict[str, Any], list[Problem]]:
    """One entry with everything written out, and what is wrong with it."""
    key = f"{section}.{name}"
    kind = options.pop("kind", None)
    if kind is None:
        kind = name
    if kind not in _names():
        return {}, [Problem(key, _unknown(kind, key if kind == name else f"{key}.kind"))]
    checked: dict[str, Any] = {}
    if name == TOTAL:
        return {}, [Problem(key, f"{key}: {TOTAL} is what the weighted sum is called; give the entry another name")]
    if kind != name:
        if not isinstance(name, str) or not _LABEL.fullmatch(name) or name in _names():
            taken = "the name of another reward" if name in _names() else "no name for an entry"
            wrong = f"{key}: {show(name)} is {taken}; allowed beside kind: a-z, 0-9 and _, at most 40, from a letter"
            return {}, [Problem(key, wrong)]
        checked["kind"] = kind
    if section == "rewards":
        counting, wrong = _check_counting(kind, options, key)
        if wrong:
            return {}, wrong
        checked |= counting
    elif given := [word for word in ("weight", *SHAPE_KEYS) if word in options]:
        wrong = f"{key}.{given[0]}: a monitor has no {given[0]}, it is never trained on; use rewards.{name}"
        return {}, [Problem(f"{key}.{given[0]}", wrong)]
    try:
        checked |= _validate(kind, options, key).model_dump(mode="json")
    except ValidationError as error:
        also = ("weight", *SHAPE_KEYS) if section == "rewards" else ()
        return {}, explain(error, _class(kind).Options, key + ".", (*also, "kind"))
    except UserError as error:
        return {}, [Problem(key, f"{key}: {error}")]
    return checked, []


def _check_counting(kind: str, options: dict[str, Any], key: str) -> tuple[dict[str, Any], list[Problem]]:
    """How a reward counts: taken out of `options`, checked."""
    try:
        penalty = _class(kind).penalty
    except UserError as error:  # a third-party reward that cannot be imported
        return {}, [Problem(key, f"{key}: {error}")]
    weight = options.pop("weight", -_DEFAULT_WEIGHT if penalty else _DEFAULT_WEIGHT)
    if wrong := _wrong_weight(weight, f"{key}.weight", penalty):
        return {}, [wrong]
    shape, problems = read_shape(options, key)
    for word in SHAPE_KEYS:
        options.pop(word, None)
    return {"weight": float(weight), **shape}, problems


def options_model(name: str, settings: Mapping[str, Any]) -> BaseModel:
    """The typed options of a reward whose settings have passed `check_settings`."""
    from ..rewards import registry

    kind, options = registry.split(name, settings)
    return _validate(kind, options, name)


def _validate(kind: str, options: dict, key: str) -> BaseModel:
    _all_finite(options, key)
    try:
        # As JSON, strict validation still takes a list for a tuple and a string for a path, which is all that YAML has.
        text = json.dumps(options, default=_path_text)
    except TypeError as error:
        raise UserError(f"an option is no plain value ({error})") from error
    return _class(kind).Options.model_validate_json(text, strict=True)


def _all_finite(value: Any, key: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise refuse([Problem(key, f"{key} = {show(value)}; allowed: a finite number")])
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for inner, item in items:
        _all_finite(item, f"{key}.{inner}")


def _wrong_weight(weight: Any, key: str, penalty: bool) -> Problem | None:
    if isinstance(weight, int | float) and not isinstance(weight, bool) and -_MAX_WEIGHT <= weight <= _MAX_WEIGHT:
        if weight > 0 and penalty:
            text = f"{key} = {show(weight)} trains towards what this score warns of; allowed: a negative weight, or monitors"
            return Problem(key, text)
        if weight != 0:
            return None
        return Problem(key, f"{key} = 0 trains on nothing; move the reward to monitors, or give it another weight")
    limit = f"{_MAX_WEIGHT:g}"
    return Problem(
        key, f"{key} = {show(weight)}; allowed: a finite number from -{limit} to {limit} except 0 (negative = penalty)"
    )


def _path_text(value: object) -> str:
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    raise TypeError(f"a {type(value).__name__}")


def _unknown(name: object, key: str) -> str:
    near = difflib.get_close_matches(str(name), _names(), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{' '.join(key.split())}: unknown reward {name!r} ({hint}known: {', '.join(_names())})"


def _names() -> tuple[str, ...]:
    from ..rewards import registry  # only a configuration that is being checked needs it

    return registry.names()


def _class(kind: str) -> type[Reward]:
    from ..rewards import registry

    return registry.reward_class(kind)
