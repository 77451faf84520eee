"""`hardware`: settings for a size of graphics memory, laid under what the user says and over the preset.

They change memory, speed and rounding, never what is learned. The table is made by `docs/make_hardware.py` from plans.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from ..errors import UserError
from .table import show
from .text import parse

CLASSES = {"8gb": 8, "12gb": 12, "16gb": 16, "24gb": 24, "48gb": 48}  # GiB
CHOICES = ("none", "auto", *CLASSES)
FREE_SHARE = 0.9  # of a class's size that is to be free: the table's plans count on that much
TABLE = Path(__file__).with_name("hardware.yaml")
_GIB = 2**30


def hardware_settings(name: Any, family: str, model: str, device: str = "auto") -> dict[str, Any]:
    """The sections that `hardware: name` sets for a family; empty for none, and for the embedded model, which fits anywhere.

    device: where the run is to take place, whose free memory `auto` asks for. Raises UserError: one line.
    """
    if name is None or name == "none":
        return {}
    if name not in CHOICES:
        near = difflib.get_close_matches(str(name), CHOICES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(f"hardware = {show(name)} ({hint}allowed: {', '.join(CHOICES)})")
    from ..demo import EMBEDDED_MODELS

    table = read_table()
    if model in EMBEDDED_MODELS or family not in table:
        return {}
    if name == "auto":
        name = _class_found(device, table[family])
    if name is None:
        return {}
    if name not in table[family]:
        raise UserError(
            f"hardware = {name}: no settings let family {family} train in it; allowed: none, auto, {', '.join(table[family])}"
        )
    return table[family][name]


def read_table() -> dict[str, dict[str, dict[str, Any]]]:
    """family -> class -> sections of the configuration."""
    return parse(TABLE.read_text(encoding="utf-8"), str(TABLE)) or {}


def largest_class(free: int, names: dict[str, Any]) -> str | None:
    """The largest of these classes that so many free bytes are enough for."""
    fitting = [name for name in names if free >= FREE_SHARE * CLASSES[name] * _GIB]
    return max(fitting, key=CLASSES.__getitem__, default=None)


def _class_found(device: str, names: dict[str, Any]) -> str | None:
    from ..device import choose_device, free_memory

    found = choose_device(device)
    if found.type == "cpu":  # everything is in one memory there, and quantised layers are slow
        return None
    free = free_memory(found)
    name = largest_class(free, names)
    if name is None:
        least = min(names, key=CLASSES.__getitem__)
        raise UserError(
            f"hardware = auto: {free / _GIB:.1f} GiB are free on {found}, and the smallest class of this family is {least}, "
            f"which counts on {FREE_SHARE * CLASSES[least]:.1f} GiB; free some, or set hardware to {least} or none to try"
        )
    return name
