"""The `rewards` and `monitors` sections: names and options belong to the rewards themselves, through their registry."""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from ..errors import UserError
from .problems import Problem, explain, refuse
from .table import show

_MAX_WEIGHT = 1000.0
_DEFAULT_WEIGHT = 1.0


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
        if name not in _names():
            problems.append(Problem(key, _unknown(name, key)))
            continue
        settings = {} if settings is None else settings
        if not isinstance(settings, Mapping):
            problems.append(Problem(key, f"{key} = {show(settings)}; allowed: a mapping of options, or nothing"))
            continue
        options = dict(settings)
        checked[name] = {}
        if section == "rewards":
            weight = options.pop("weight", _DEFAULT_WEIGHT)
            if wrong := _wrong_weight(weight, f"{key}.weight"):
                problems.append(wrong)
                continue
            checked[name] = {"weight": float(weight)}
        elif "weight" in options:
            problems.append(
                Problem(f"{key}.weight", f"{key}.weight: a monitor has no weight, it is never trained on; use rewards.{name}")
            )
            continue
        try:
            checked[name] |= _validate(name, options, key).model_dump(mode="json")
        except ValidationError as error:
            also = ("weight",) if section == "rewards" else ()
            problems += explain(error, _options_class(name), key + ".", also)
        except UserError as error:
            problems.append(Problem(key, f"{key}: {error}"))
    if problems:
        raise refuse(problems)
    return checked


def options_model(name: str, settings: Mapping[str, Any]) -> BaseModel:
    """The typed options of a reward whose settings have passed `check_settings`."""
    return _validate(name, {key: value for key, value in settings.items() if key != "weight"}, name)


def _validate(name: str, options: dict, key: str) -> BaseModel:
    _all_finite(options, key)
    try:
        # As JSON, strict validation still takes a list for a tuple and a string for a path, which is all that YAML has.
        text = json.dumps(options, default=_path_text)
    except TypeError as error:
        raise UserError(f"an option is no plain value ({error})") from error
    return _options_class(name).model_validate_json(text, strict=True)


def _all_finite(value: Any, key: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise refuse([Problem(key, f"{key} = {show(value)}; allowed: a finite number")])
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for inner, item in items:
        _all_finite(item, f"{key}.{inner}")


def _wrong_weight(weight: Any, key: str) -> Problem | None:
    if isinstance(weight, int | float) and not isinstance(weight, bool) and -_MAX_WEIGHT <= weight <= _MAX_WEIGHT:
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


def _options_class(name: str) -> type[BaseModel]:
    from ..rewards import registry

    return registry.reward_class(name).Options
