"""Checks of a node's inputs that ComfyUI does not make, or not in every version. Imports nothing of ComfyUI."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..trainer.errors import UserError

_NAMED = 40  # choices that an error names


def one_of(node: str, name: str, value: Any, allowed: Collection[str]) -> None:
    """Raises UserError for a value that a list does not hold: over the API, ComfyUI 0.3.75 lets any text through."""
    if value not in allowed:
        named = list(allowed)[:_NAMED]
        more = f" and {len(allowed) - len(named)} more" if len(allowed) > len(named) else ""
        raise UserError(f"{node}: {name} = {value!r}; allowed: {', '.join(named)}{more}")
