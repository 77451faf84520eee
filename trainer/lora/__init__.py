"""LoRA: one canonical set of factors, attached to a denoiser, read from and written to the files of other tools.

Importing this needs torch and safetensors only; peft is imported when a LoRA is attached.
"""

from __future__ import annotations

from .adapter import LoraAdapter, attach, layer_shapes, resolve_targets
from .factors import LoraFactors
from .formats import FORMATS, export_lora
from .reading import read_lora

__all__ = ["FORMATS", "LoraAdapter", "LoraFactors", "attach", "export_lora", "layer_shapes", "read_lora", "resolve_targets"]
