"""Model families by name. A new one is a module with a `Family` and a line in `_FAMILIES`."""

from __future__ import annotations

from ...errors import UserError
from .base import Family, Layout, NativeModule, Network, columns
from .chroma import Chroma
from .flux import Flux
from .flux2_klein import Flux2Klein
from .qwen_image import QwenImage
from .sd3 import SD3
from .unet import SD15, SDXL
from .z_image import ZImage

__all__ = ["Family", "Layout", "NativeModule", "Network", "columns", "get_family"]

_FAMILIES: dict[str, Family] = {
    family.name: family for family in (SD3(), SD15(), SDXL(), Flux(), Chroma(), QwenImage(), ZImage(), Flux2Klein())
}


def get_family(name: str) -> Family:
    """The family of this name. Raises UserError with the known names."""
    if name not in _FAMILIES:
        raise UserError(f"LoRA family {name!r} is not known; known families: {', '.join(sorted(_FAMILIES))}")
    return _FAMILIES[name]
