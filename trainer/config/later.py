"""Keys that came after runs had been made. At its default such a key changes nothing, so those runs keep their digest."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

LATER: dict[str, Any] = {"later": True}
"""Marks a key where it is declared: its Field's `json_schema_extra`, or a part of it."""


def without_later(model: BaseModel, data: dict[str, Any]) -> dict[str, Any]:
    """`data`, what `model` dumps and perhaps more, without the marked keys that have their default; sections opened up."""
    kept = {}
    for key, value in data.items():
        field, own = type(model).model_fields.get(key), getattr(model, key, None)
        if field is not None and _is_later(field) and own == field.get_default(call_default_factory=True):
            continue
        kept[key] = without_later(own, value) if isinstance(own, BaseModel) else value
    return kept


def _is_later(field: FieldInfo) -> bool:
    return isinstance(field.json_schema_extra, dict) and bool(field.json_schema_extra.get("later"))
