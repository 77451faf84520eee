"""Rewards by name: the built-in ones, and those that other packages offer as entry points of the group `vgrpo.rewards`.

    [project.entry-points."vgrpo.rewards"]
    my_reward = "my_package.rewards:MyReward"        # derived from vgrpo.trainer.rewards.Reward, its `name` is "my_reward"

Listing names imports nothing. A third-party reward is imported when it is asked for; one that cannot be imported is a warning
in a listing and an error only for who asks for it by name.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import warnings
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError

from ..errors import UserError, one_line
from .base import Reward

ENTRY_POINTS = "vgrpo.rewards"

BUILT_IN = {
    "scene": ".scene:SceneReward",
    "jpeg_size": ".jpeg_size:JpegSize",
    "brightness": ".brightness:Brightness",
    "colorfulness": ".colorfulness:Colorfulness",
    "saturation": ".saturation:Saturation",
    "high_frequency": ".high_frequency:HighFrequency",
    "sharpness": ".sharpness:Sharpness",
    "hpsv2": ".hpsv2:HpsV2",
    "pickscore": ".pickscore:PickScore",
    "imagereward": ".imagereward:ImageReward",
    "clipscore": ".clipscore:ClipScore",
    "aesthetic": ".aesthetic:Aesthetic",
    "ocr": ".ocr:OcrReward",
    "geneval": ".geneval:GenEval",
    "judge": ".judge:Judge",
    "http": ".http:HttpScorer",
    "nsfw": ".nsfw:Nsfw",
}
_MEMBERS = tuple(name for name in (*Reward.__annotations__, *vars(Reward)) if not name.startswith("_"))
RESERVED = ("weight", "kind", "clip", "transform")  # what every entry of a configuration may say; no option is called so


def names() -> tuple[str, ...]:
    """Every name that can be asked for, the built-in ones first; imports nothing."""
    return (*BUILT_IN, *(name for name in sorted(_third_party()) if name not in BUILT_IN))


def reward_class(name: str) -> type[Reward]:
    """The class behind a name. UserError for an unknown name or a third-party reward that cannot be imported."""
    if name in BUILT_IN:
        module, attribute = BUILT_IN[name].split(":")
        return getattr(importlib.import_module(module, __package__), attribute)
    if name not in _third_party():
        raise UserError(f"unknown reward {name!r}{_nearest(name, names())}; known: {', '.join(names())}")
    return _load(name)


def known() -> dict[str, type[BaseModel]]:
    """The options model of every reward that can be imported; a broken third-party one is left out with a warning."""
    found = {}
    for name in names():
        try:
            found[name] = reward_class(name).Options
        except UserError as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)
    return found


def create(name: str, options: Mapping[str, Any] | None = None) -> Reward:
    """A reward with its options checked; it loads nothing yet. UserError for an unknown name or a wrong option."""
    kind = reward_class(name)
    try:
        return kind(kind.Options.model_validate(dict(options or {})))
    except ValidationError as error:
        raise UserError(f"reward {name!r}: {_explain(error, kind.Options)}") from None


def split(name: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """An entry of a configuration as the registered reward that it is and the options that are that reward's own."""
    own = {key: value for key, value in settings.items() if key not in RESERVED}
    return settings.get("kind") or name, own


def create_entry(name: str, settings: Mapping[str, Any]) -> Reward:
    """The reward of an entry of a configuration. UserError as `create`."""
    return create(*split(name, settings))


@cache
def _third_party() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}


@cache
def _load(name: str) -> type[Reward]:
    point = _third_party()[name]
    where = f"reward {name!r} from {point.value}"
    try:
        kind = point.load()
    except Exception as error:  # whatever a stranger's module raises on import
        raise UserError(
            f"{where} cannot be loaded: {type(error).__name__}: {one_line(error)}; repair or uninstall it"
        ) from None
    # By its members, not by issubclass: the package has another name in ComfyUI, installed and started from its folder.
    missing = [member for member in _MEMBERS if not hasattr(kind, member)]
    if not isinstance(kind, type) or missing:
        lacks = f", it lacks {', '.join(missing)}" if missing else ""
        raise UserError(f"{where} is not a reward class{lacks}; derive it from vgrpo.trainer.rewards.Reward")
    if kind.name != name:
        raise UserError(f"{where} calls itself {kind.name!r}; both names must be equal")
    if taken := [option for option in kind.Options.model_fields if option in RESERVED]:
        raise UserError(f"{where} has an option {taken[0]!r}, which every reward has already; give it another name")
    return kind


def _explain(error: ValidationError, options: type[BaseModel]) -> str:
    """The first thing that is wrong, in one line that names the option, its value and what is allowed."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        fields = tuple(options.model_fields)
        return f"unknown option {key!r}{_nearest(key, fields)}; options: {', '.join(fields) or 'none'}"
    return f"option {key!r} is {first['input']!r}: {one_line(ValueError(first['msg'])).removeprefix('Value error, ')}"


def _nearest(name: str, candidates: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(name), list(candidates), n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else ""
