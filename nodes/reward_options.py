"""From a reward's class to the inputs of its node, and from a node's values to a `RewardChoice`. Imports nothing of ComfyUI."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from ..trainer.config.shape import KEYS as SHAPE_KEYS
from ..trainer.config.shape import read_shape
from ..trainer.config.text import parse
from ..trainer.errors import UserError
from ..trainer.rewards.registry import BUILT_IN, names, reward_class
from .checks import one_of
from .choices import RewardChoice, typed

MAX_WEIGHT = 1000.0
OWN = ("weight", "monitor_only", "rewards", "name")  # inputs that reward nodes have; no option may be called so
SEVERAL = ("judge", "http")  # two of these in one chain make sense; their nodes have a name
TRANSFORMS = ("none", "log", "threshold")
SHAPE_NODE = "Shape Reward"
_LIMIT = 2**31 - 1
_TITLES = {
    "jpeg_size": "JPEG size",
    "hpsv2": "HPSv2",
    "pickscore": "PickScore",
    "imagereward": "ImageReward",
    "clipscore": "CLIPScore",
    "ocr": "OCR",
    "geneval": "GenEval",
    "nsfw": "NSFW",
    "http": "HTTP scorer",
}


@dataclass(frozen=True)
class Option:
    """One option as an input: `kind` is combo, int, float, bool, text, lines (of text), or yaml for what no other holds."""

    id: str
    kind: str
    default: Any
    tooltip: str
    choices: tuple[str, ...] = ()
    low: float = -_LIMIT
    high: float = _LIMIT


def node_id(name: str) -> str:
    """`jpeg_size` -> `VGRPORewardJpegSize`."""
    return "VGRPOReward" + "".join(part.capitalize() for part in name.split("_"))


def title(name: str) -> str:
    """`jpeg_size` -> `Reward: JPEG size`."""
    words = _TITLES.get(name) or name.replace("_", " ")
    return f"Reward: {words[:1].upper()}{words[1:]}"


def default_weight(name: str) -> float:
    return -1.0 if reward_class(name).penalty else 1.0


def describe(name: str) -> str:
    """What the reward measures, in which unit, and what it needs."""
    kind = reward_class(name)
    needs = " Needs prompts with metadata (the demo's, or lines of JSON)." if kind.needs_metadata else ""
    return f"{kind.description} Score: {kind.range}.{needs}"


def options_of(name: str) -> list[Option]:
    """The reward's options in their order. ValueError where one has the name of an input that every reward node has."""
    fields = reward_class(name).Options.model_fields
    taken = [key for key in fields if key in OWN]
    if taken:
        raise ValueError(f"reward {name!r}: an option must not be called {taken[0]!r}, every reward node has that input")
    return [_option(key, field) for key, field in fields.items()]


def add_reward(
    kind: str, weight: float, monitor_only: bool, options: Mapping[str, Any], before: RewardChoice | None, name: str = ""
) -> RewardChoice:
    """The rewards of the chain before, and this one, under `name` if that is given. Raises UserError of one line."""
    before, node, name = before or RewardChoice(), title(kind), name.strip() or kind
    if name in before.rewards or name in before.monitors:
        other = ", or give one of them another name" if kind in SEVERAL else ""
        raise UserError(f"{node} stands twice in the chain of rewards; keep one of the two nodes{other}")
    values = {**({"kind": kind} if name != kind else {}), **_values(kind, options)}
    if monitor_only:
        return replace(before, monitors={**before.monitors, name: values})
    if weight == 0:
        raise UserError(
            f"{node}: weight = 0 trains on nothing; turn monitor_only on to watch the score, or give another weight "
            "(negative = penalty)"
        )
    if not math.isfinite(weight) or abs(weight) > MAX_WEIGHT:
        raise UserError(f"{node}: weight = {weight:g}; allowed: -{MAX_WEIGHT:g} to {MAX_WEIGHT:g} except 0")
    if weight > 0 and reward_class(kind).penalty:
        raise UserError(f"{node}: weight = {weight:g} trains towards what it warns of; give a negative weight, or monitor_only")
    return replace(before, rewards={**before.rewards, name: {"weight": typed(weight), **values}})


def shape_reward(before: RewardChoice, name: str, low: str, high: str, transform: str, threshold: float) -> RewardChoice:
    """The chain with one of its rewards shaped: `name`, or the last one. Bounds are numbers as text, empty = none."""
    if not before.rewards:
        raise UserError(f"{SHAPE_NODE}: no reward of the chain is trained on; a monitor's scores are shown as they are")
    name = name.strip() or list(before.rewards)[-1]
    if name not in before.rewards:
        raise UserError(f"{SHAPE_NODE}: reward = {name!r}; allowed: {', '.join(before.rewards)}, or empty for the last one")
    shape: dict[str, Any] = {}
    bounds = [_bound(low, "low"), _bound(high, "high")]
    if bounds != [None, None]:
        shape["clip"] = bounds
    one_of(SHAPE_NODE, "transform", transform, TRANSFORMS)
    if transform == "log":
        shape["transform"] = "log"
    elif transform == "threshold":
        shape["transform"] = {"threshold": typed(threshold)}
    _, problems = read_shape(shape, SHAPE_NODE)
    if problems:
        raise UserError(problems[0].text)
    kept = {key: value for key, value in before.rewards[name].items() if key not in SHAPE_KEYS}
    return replace(before, rewards={**before.rewards, name: {**kept, **shape}})


def _bound(text: str, which: str) -> float | None:
    if not text.strip():
        return None
    value = parse(text, f"{SHAPE_NODE}: {which}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{SHAPE_NODE}: {which} = {text.strip()!r}; allowed: a number, or nothing for no bound")
    return typed(value)


def built_in() -> tuple[str, ...]:
    return tuple(BUILT_IN)


def third_party() -> tuple[str, ...]:
    """The rewards that other installed packages offer."""
    return tuple(name for name in names() if name not in BUILT_IN)


def _values(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every option with its value; those that were not given have their default."""
    values = {}
    for option in options_of(name):
        value = given.get(option.id, option.default)
        where = f"{title(name)}: {option.id}"
        if option.kind == "yaml":
            value = parse(value, where)
        elif option.kind == "combo":
            one_of(title(name), option.id, value, option.choices)
        elif option.kind in ("int", "float") and not option.low <= value <= option.high:
            raise UserError(f"{where} = {value:g}; allowed: {option.low:g} to {option.high:g}")
        values[option.id] = typed(value) if option.kind == "float" else value
    return values


def _option(key: str, field: FieldInfo) -> Option:
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    text = field.description or key.replace("_", " ")
    text = text[:1].upper() + text[1:]
    kind, choices = field.annotation, ()
    if get_origin(kind) is Literal and all(isinstance(choice, str) for choice in get_args(kind)):
        choices = get_args(kind)
        return Option(key, "combo", default or choices[0], text, choices)
    if kind is bool:
        return Option(key, "bool", bool(default), text)
    if kind in (int, float):
        low, high = _range(field, kind)
        return Option(key, kind.__name__, kind(low if default is None else default), text, (), low, high)
    if kind is str:
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        return Option(key, "lines" if extra.get("multiline") else "text", default or "", text)
    shown = "" if default is None else json.dumps(default)  # which is YAML as well, on one line
    return Option(key, "yaml", shown, f"{text} (as YAML; empty = null)")


def _range(field: FieldInfo, kind: type) -> tuple[float, float]:
    low, high, step = -_LIMIT, _LIMIT, 1 if kind is int else 1e-6
    for item in field.metadata:
        if isinstance(item, annotated_types.Ge):
            low = item.ge
        elif isinstance(item, annotated_types.Gt):
            low = item.gt + step
        elif isinstance(item, annotated_types.Le):
            high = item.le
        elif isinstance(item, annotated_types.Lt):
            high = item.lt - step
    return low, high
