"""What each key takes, told by the models themselves: for error lines, --help and the documentation."""

from __future__ import annotations

import types
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .each import constraints

_NAMES = {int: "an integer", float: "a finite number", bool: "true or false", str: "a string", dict: "a mapping"}


class KeyRow(NamedTuple):
    """One row of the key table; every column is text for people."""

    key: str
    type: str
    default: str
    range: str
    description: str

    @property
    def allowed(self) -> str:
        """What the key takes and what for, as error lines say it (the sources that follow in the description are left out)."""
        return f"{' '.join(filter(None, (self.type, self.range)))} ({self.description.split('. ')[0].rstrip('.')})"


def key_rows(model: type[BaseModel], prefix: str = "") -> list[KeyRow]:
    """The rows of `model` in its order, sections opened up; keys are dotted and start with `prefix`."""
    rows = []
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        if is_section(field.annotation):
            rows += key_rows(field.annotation, key + ".")
            continue
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        rows.append(
            KeyRow(
                key,
                str(extra.get("takes") or type_text(field.annotation)),
                str(extra.get("default_text") or ("required" if field.is_required() else show(field.get_default()))),
                range_text(field),
                field.description or name.replace("_", " "),
            )
        )
    return rows


def is_section(annotation: object) -> bool:
    """Whether a field's type is itself a model with keys of its own."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def type_text(annotation: object) -> str:
    """`an integer`, `one of a, b`, `a finite number or null`."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ("one of " if len(args) > 1 else "") + ", ".join(show(value) for value in args)
    if origin in (Union, types.UnionType):
        parts = [type_text(arg) for arg in args if arg is not type(None)]
        return " or ".join(parts + (["null"] if type(None) in args else []))
    if origin is tuple:
        return f"a list, each of it {type_text(args[0])}" if args else "a list"
    return _NAMES.get(origin or annotation, getattr(annotation, "__name__", str(annotation)))


def range_text(field: FieldInfo) -> str:
    """`from 2 to 1024`, `> 0, <= 1`; empty where the type says it all."""
    low = high = ""
    parts = []
    for item in constraints(field):
        if isinstance(item, annotated_types.Ge):
            low = f">= {show(item.ge)}"
        elif isinstance(item, annotated_types.Gt):
            low = f"> {show(item.gt)}"
        elif isinstance(item, annotated_types.Le):
            high = f"<= {show(item.le)}"
        elif isinstance(item, annotated_types.Lt):
            high = f"< {show(item.lt)}"
        elif isinstance(item, annotated_types.MultipleOf):
            parts.append(f"a multiple of {show(item.multiple_of)}")
        elif isinstance(item, annotated_types.MaxLen):
            parts.append(f"of at most {item.max_length} characters")
    if low.startswith(">=") and high.startswith("<="):
        return ", ".join([f"from {low[3:]} to {high[3:]}", *parts])
    return ", ".join(filter(None, [low, high, *parts]))


def show(value: Any) -> str:
    """A value as YAML would spell it, on one line, cut to a readable length."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple):
        value = list(value)
    try:
        text = " ".join((value if isinstance(value, str) and _plain_word(value) else repr(value)).split())
    except ValueError:  # an integer too long to print
        text = "a huge number"
    return text if len(text) <= 80 else text[:77] + "..."


def _plain_word(value: str) -> bool:
    return value.replace("_", "").replace("+", "").isidentifier()
