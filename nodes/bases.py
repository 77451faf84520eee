"""From what a Policy node holds to the `policy` section of a configuration. Imports nothing of ComfyUI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

from ..trainer.config import DEMO_MODEL, LoraConfig, PolicyConfig
from ..trainer.config.model import TARGETS
from ..trainer.errors import UserError, one_line
from .choices import PolicyChoice, typed

NODE = "Policy"
EMBEDDED = "demo (embedded model)"
NO_LORA = "none"
AUTO = "auto"
DTYPES = (AUTO, *get_args(PolicyConfig.model_fields["dtype"].annotation))
# A diffusers pipeline's class, as its model_index.json names it -> the family that trains it.
PIPELINES = {"StableDiffusion3Pipeline": "sd3"}
_EMBEDDED_FAMILY = "sd3"

__all__ = ["AUTO", "DTYPES", "EMBEDDED", "NODE", "NO_LORA", "PIPELINES", "TARGETS", "choose_policy", "family_of"]


def choose_policy(
    folder: Path | None, rank: int, alpha: float, targets: str, init: Path | None, dtype: str, gradient_checkpointing: bool
) -> PolicyChoice:
    """folder: a diffusers folder, None for the embedded model. alpha: 0 = 2 x rank. Raises UserError of one line."""
    _within("rank", rank, 1, 1024)
    _within("alpha", alpha, 0, 4096)
    _one_of("targets", targets, TARGETS)
    _one_of("dtype", dtype, DTYPES)
    if dtype == AUTO:
        dtype = "float32" if folder is None else "bfloat16"  # the embedded model is small and usually runs on a CPU
    lora = {"rank": rank, "alpha": typed(alpha) or None, "targets": targets, "init": str(init) if init else None}
    config: dict[str, Any] = {
        "family": _EMBEDDED_FAMILY if folder is None else family_of(folder),
        "model": DEMO_MODEL if folder is None else str(folder),
        "lora": lora,
        "dtype": dtype,
        "gradient_checkpointing": gradient_checkpointing,
    }
    return PolicyChoice(config)


def family_of(folder: Path) -> str:
    """The model family of a diffusers folder, by its model_index.json. Raises UserError where no family trains it."""
    path = folder / "model_index.json"
    try:
        index = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"{NODE}: base {folder.name!r} is no diffusers pipeline: {folder} has no model_index.json") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{NODE}: base {folder.name!r}: cannot read {path}: {one_line(error)}") from None
    pipeline = index.get("_class_name") if isinstance(index, dict) else None
    if pipeline not in PIPELINES:
        raise UserError(
            f"{NODE}: base {folder.name!r} is a {pipeline or 'file that is no pipeline'}; "
            f"pipelines that can be trained: {', '.join(PIPELINES)}"
        )
    return PIPELINES[pipeline]


def tooltip(key: str) -> str:
    """The description of a key of the `policy` section, as the configuration gives it."""
    model = LoraConfig if key.startswith("lora.") else PolicyConfig
    text = model.model_fields[key.removeprefix("lora.")].description or ""
    return text[:1].upper() + text[1:]


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UserError(f"{NODE}: {name} = {value:g}; allowed: {low:g} to {high:g}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UserError(f"{NODE}: {name} = {value!r}; allowed: {', '.join(allowed)}")
