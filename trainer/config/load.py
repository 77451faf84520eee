"""Configuration files, presets and overrides -> one checked `RunConfig`."""

from __future__ import annotations

import copy
import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..demo import EMBEDDED_MODELS
from ..errors import UserError
from .fields import absolute, looks_like_path
from .hardware import hardware_settings
from .model import RunConfig
from .policy import FAMILIES, PARTS
from .problems import explain, section_names, unknown_key
from .table import show
from .text import parse

PRESETS = Path(__file__).parent.parent / "presets"
# Naming the rewards of a run replaces the preset's: none that the file does not name is ever trained on.
_REPLACED = ("rewards", "monitors")
_MODELS_OF_REWARDS = ("model", "clip_model")  # options that may be paths


def load_config(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    check_files: bool = True,
    device: str = "auto",
    folder: str | Path | None = None,
) -> RunConfig:
    """The checked, self-contained configuration: prompts inlined, paths absolute.

    source: a mapping, the path of a UTF-8 YAML file, or YAML text (a string of several lines). It may name a `preset` that it
        completes; its `rewards` and `monitors` replace the preset's as a whole, all else is merged key by key. It may name a
        `hardware` (see hardware.py), whose settings lie between the two; neither word is a key of the result.
    overrides: `a.b=c`, the value read as YAML; later ones win.
    device: where the run is to take place, as on the command line; `hardware: auto` asks for its free memory.
    check_files: False skips the check that the base model and the LoRA to continue from exist, to look at an old run.
    folder: which the relative paths of a mapping count from (default: the current one, as in a text or an override); those of
        a file count from the file's own folder.
    Raises UserError: one line with the first problem (key, value, what is allowed) and the number of further ones.
    """
    data, origin, base = _read(source, folder)
    preset = data.pop("preset", None)
    data = _anchored(data, base)
    under: dict[str, Any] = {}
    if preset is not None:
        if not isinstance(preset, str):
            raise UserError(f"{origin}preset = {show(preset)}; allowed: one of {', '.join(preset_names())}")
        under = _located(origin, lambda: load_preset(preset))
    hardware, overrides, said = _hardware(data.pop("hardware", None), overrides, origin)
    asked, overridden = _overridden(merge(under, data), overrides)
    if hardware is not None:
        policy = asked.get("policy") if isinstance(asked.get("policy"), dict) else {}
        family, model = policy.get("family", FAMILIES[0]), policy.get("model", "")
        settings = _located(said, lambda: hardware_settings(hardware, str(family), str(model), device))
        asked, overridden = _overridden(merge(merge(under, settings), data), overrides)
    data = asked
    try:
        return RunConfig.model_validate(data, context={"check_files": check_files})
    except ValidationError as error:
        problems = explain(error, RunConfig)
    first = problems[0]
    where = next((at for key, at in reversed(overridden.items()) if f"{first.key}.".startswith(f"{key}.")), origin)
    more = len(problems) - 1
    text = where + first.text + (f" (and {more} more error{'s' if more > 1 else ''})" if more else "")
    raise UserError(" ".join(text.splitlines()))  # a path may hold a line break


def preset_names() -> list[str]:
    """The names that `preset:` takes."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def load_preset(name: str) -> dict[str, Any]:
    """A preset as plain, unchecked data; one that starts from another `preset` is complete. UserError for an unknown name."""
    names = preset_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(f"unknown preset {show(name)} ({hint}allowed: {', '.join(names)})")
    data = parse((PRESETS / f"{name}.yaml").read_text(encoding="utf-8"), f"preset {name}")
    below = data.pop("preset", None)
    return data if below is None else merge(load_preset(below), data)


def read_yaml(path: str | Path) -> Any:
    """What a UTF-8 YAML file holds. Raises UserError: one line with the file, and the line of what is wrong in it."""
    path = absolute(os.fspath(path))
    return parse(_read_text(path), path)


def _read(source: str | Path | Mapping[str, Any], folder: str | Path | None) -> tuple[dict[str, Any], str, str]:
    """The source as a fresh mapping, the words that errors about it start with, and the folder that its paths count from."""
    if isinstance(source, Mapping):
        return copy.deepcopy(dict(source)), "", absolute(os.fspath(folder or os.getcwd()))
    if isinstance(source, str) and "\n" in source:
        data, where, base = parse(source.removeprefix("\ufeff"), "configuration"), "configuration", os.getcwd()
    else:
        path = absolute(os.fspath(source))
        data, where, base = read_yaml(path), path, os.path.dirname(path)
    if data is None:
        raise UserError(f"{where}: the configuration is empty; start with 'preset: demo', for example")
    if not isinstance(data, dict):
        raise UserError(
            f"{where}: the configuration is {show(data)}; it must be a mapping of keys such as policy, prompts, rewards"
        )
    return data, f"{where}: ", base


def _read_text(path: str) -> str:
    if not os.path.exists(path):
        raise UserError(f"configuration file not found: {path}")
    if os.path.isdir(path):
        raise UserError(f"{path} is a folder; the configuration must be a YAML file")
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8") from error


def _located(origin: str, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return read()
    except UserError as error:
        raise UserError(f"{origin}{error}") from error


def _anchored(data: dict[str, Any], base: str) -> dict[str, Any]:
    """The data with its relative paths made absolute; whether they exist is checked later, with everything else."""
    for key in ("policy.model", "policy.parts"):
        _rewrite(data, key, lambda value: _anchored_model(value, base))
    for key in ("policy.lora.init", "policy.tokenizers", *(f"policy.files.{part}" for part in PARTS)):
        _rewrite(data, key, lambda value: absolute(value, base) if value else value)
    for key in ("prompts.train", "prompts.evaluate"):
        _rewrite(data, key, lambda value: value if value in EMBEDDED_MODELS or not value else absolute(value, base))
    for section in _REPLACED:
        for name in data.get(section) if isinstance(data.get(section), dict) else ():
            for option in _MODELS_OF_REWARDS:
                _rewrite(data[section], f"{name}.{option}", lambda v: absolute(v, base) if looks_like_path(v) else v)
    return data


def _anchored_model(value: str, base: str) -> str:
    path = absolute(value, base)
    if value and value not in EMBEDDED_MODELS and (looks_like_path(value) or os.path.exists(path)):
        return path
    return value


def _rewrite(data: dict[str, Any], key: str, change: Callable[[str], str]) -> None:
    *sections, last = key.split(".")
    inner: Any = data
    for name in sections:
        inner = inner.get(name) if isinstance(inner, dict) else None
    if isinstance(inner, dict) and isinstance(inner.get(last), str | Path):
        inner[last] = change(os.fspath(inner[last]))


def merge(under: Mapping[str, Any], over: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """`over` laid upon `under`, as a file upon its preset; a heading of `over` with nothing under it changes nothing."""
    merged = dict(under)
    for key, value in over.items():
        below = under.get(key)
        if isinstance(below, dict) and value is None:
            continue
        whole = depth == 0 and key in _REPLACED
        merged[key] = (
            merge(below, value, depth + 1) if isinstance(below, dict) and isinstance(value, dict) and not whole else value
        )
    return merged


def _hardware(value: Any, overrides: Sequence[str], origin: str) -> tuple[Any, list[str], str]:
    """The hardware that the source or, the last of them winning, an override names; the other overrides; and who named it."""
    rest = []
    for text in overrides:
        key, equals, word = text.partition("=")
        if equals and key.strip() == "hardware":
            origin = f"override {text!r}: "
            value = parse(word, origin.rstrip(": "))
        else:
            rest.append(text)
    return value, rest, origin


def _overridden(data: dict[str, Any], overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """A copy of the data with the overrides applied; and for each key that one of them sets, the words for errors about it."""
    data, where = copy.deepcopy(data), {}
    for text in overrides:
        data, key = _override(data, text)
        where[key] = f"override {text!r}: "
    return data, where


def _override(data: dict[str, Any], text: str) -> tuple[dict[str, Any], str]:
    """The data with one `a.b=c` applied, and its key."""
    key, equals, value_text = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise UserError(f"override {text!r}; allowed: key=value, for example optimizer.lr=1e-4")
    known = [*(row.key for row in RunConfig.key_table()), *section_names(RunConfig)]
    parts = key.split(".")
    # What lies under these two is known to the rewards alone; they check it with the rest.
    if key not in known and not (parts[0] in _REPLACED and len(parts) > 1 and all(parts)):
        raise UserError(f"override {text!r}: {unknown_key(key, known)}")
    value = parse(value_text, f"override {text!r}")
    change: Any = value
    for name in reversed(parts):
        change = {name: change}
    change = _anchored(change, os.getcwd())
    inner = data
    for name in parts[:-1]:
        change = change[name]
        if inner.get(name) is None:
            inner[name] = {}
        inner = inner[name]
        if not isinstance(inner, dict):
            raise UserError(f"override {text!r}: {name} = {show(inner)} is not a mapping, so nothing can be set inside it")
    inner[parts[-1]] = change[parts[-1]]
    return data, key
