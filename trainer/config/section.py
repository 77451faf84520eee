"""What every section of the configuration is."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from .table import is_section

STAGE_1 = "arXiv 2604.23380, SD 3.5 Medium stage 1"  # where most defaults come from


class Section(BaseModel):
    """Strict about types, closed to unknown keys and to numbers that are not finite; never changed once built."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _empty_sections(cls, data: Any) -> Any:
        """A heading with nothing under it (`checkpoint:`) is an empty section."""
        if not isinstance(data, dict):
            return data
        sections = {name for name, field in cls.model_fields.items() if is_section(field.annotation)}
        return {key: {} if value is None and key in sections else value for key, value in data.items()}
