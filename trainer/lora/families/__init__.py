"""Model families by name. A new one is a module with a `Family` and a line in `_FAMILIES`."""

from __future__ import annotations

from ...errors import UserError
from .base import Family, NativeModule, Network
from .sd3 import SD3

__all__ = ["Family", "NativeModule", "Network", "get_family"]

_FAMILIES: dict[str, Family] = {family.name: family for family in (SD3(),)}


def get_family(name: str) -> Family:
    """The family of this name. Raises UserError with the known names."""
    if name not in _FAMILIES:
        raise UserError(f"LoRA family {name!r} is not known; known families: {', '.join(sorted(_FAMILIES))}")
    return _FAMILIES[name]
