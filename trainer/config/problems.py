"""pydantic's errors -> lines that a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from .table import KeyRow, is_section, key_rows, show


class Problem(NamedTuple):
    """`text` is one line that names `key`, its value and what is allowed."""

    key: str
    text: str


def refuse(problems: list[Problem]) -> PydanticCustomError:
    """The error for a validator to raise; `explain` gives the problems back unchanged."""
    return PydanticCustomError("problems", "{text}", {"text": problems[0].text, "problems": problems})


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "", also: Iterable[str] = ()) -> list[Problem]:
    """One problem for each thing that is wrong, in the models' order.

    `prefix` (`rewards.scene.`) goes before every key; `also` names further keys that may stand beside the model's own.
    """
    rows = {row.key: row for row in key_rows(model, prefix)}
    known = [*rows, *(prefix + name for name in also)]
    problems: list[Problem] = []
    unknown: list[Problem] = []  # told first: a key that is misspelt often is the one that is missing elsewhere
    for item in error.errors(include_url=False):
        if item["type"] == "problems":
            problems += item["ctx"]["problems"]
            continue
        key = (prefix + ".".join(str(part) for part in item["loc"])).rstrip(".")
        if item["type"] in ("extra_forbidden", "invalid_key"):
            unknown.append(Problem(key, unknown_key(key, [*known, *_sections(known)])))
            continue
        row = _row(key, rows)
        if item["type"] == "missing":
            problems.append(Problem(key, f"{key} is missing; it must be {_allowed(key, row, known)}"))
        elif item["type"] in ("value_error", "assertion_error"):
            problems.append(Problem(key, f"{key} = {show(item['input'])}: {item['msg'].split(', ', 1)[-1]}"))
        else:
            shown = row.key if row else key
            problems.append(Problem(shown, f"{key} = {show(item['input'])}; allowed: {_allowed(key, row, known)}"))
    return list({problem.text: problem for problem in unknown + problems}.values())


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The line for a key that does not exist, with the nearest that does."""
    key, known = " ".join(key.split()), list(dict.fromkeys(known))
    section = key.rpartition(".")[0]
    siblings = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == section}
    last = key.rpartition(".")[2]
    near = [siblings[name] for name in difflib.get_close_matches(last, siblings, n=1, cutoff=0.6)]
    near = near or [name for name in known if name.rpartition(".")[2] == last]
    near = near or difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if near:
        return f"unknown key {key!r} (did you mean {near[0]!r}?)"
    return f"unknown key {key!r} (allowed: {', '.join(siblings.values() or known)})"


def section_names(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Dotted names of the sections inside `model`."""
    names = []
    for name, field in model.model_fields.items():
        if is_section(field.annotation):
            names += [prefix + name, *section_names(field.annotation, f"{prefix}{name}.")]
    return names


def _sections(known: Iterable[str]) -> list[str]:
    names: list[str] = []
    for key in known:
        parts = key.split(".")
        names += [".".join(parts[:end]) for end in range(1, len(parts))]
    return names


def _row(key: str, rows: dict[str, KeyRow]) -> KeyRow | None:
    """The row of the key, or of the nearest key above it (an error may lie inside a list)."""
    while key and key not in rows:
        key = key.rpartition(".")[0]
    return rows.get(key)


def _allowed(key: str, row: KeyRow | None, known: list[str]) -> str:
    if row:
        return row.allowed
    inside = dict.fromkeys(name[len(key) + 1 :].split(".")[0] for name in known if name.startswith(key + "."))
    return f"a mapping with the keys {', '.join(inside)}"
