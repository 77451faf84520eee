"""A type of the configuration: one whole number in a range, or a list of such."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import annotated_types
from pydantic import GetCoreSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


@dataclass(frozen=True)
class Each:
    """Annotates `int | tuple[int, ...]`; the range is that of every number."""

    ge: int
    le: int
    multiple_of: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._read, handler(source))

    def _read(self, value: Any) -> Any:
        many = isinstance(value, list | tuple)
        numbers = value if many else [value]
        if not numbers or not all(map(self._fits, numbers)):
            raise PydanticCustomError("number_or_list", "neither such a number nor a list of such")
        return tuple(value) if many else value

    def _fits(self, value: Any) -> bool:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and self.ge <= value <= self.le and value % self.multiple_of == 0


def constraints(field: FieldInfo) -> list[Any]:
    """The annotated types that bound a field's number, or each number of its list."""
    found: list[Any] = []
    optional = [item for kind in get_args(field.annotation) for item in getattr(kind, "__metadata__", ())]
    for item in (*field.metadata, *optional):
        if isinstance(item, Each):
            found += [annotated_types.Ge(item.ge), annotated_types.Le(item.le), annotated_types.MultipleOf(item.multiple_of)]
        else:
            found.append(item)
    return found
