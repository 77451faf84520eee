"""From what a Policy node holds to the `policy` section of a configuration. Imports nothing of ComfyUI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

from ..trainer.config import LoraConfig, PolicyConfig
from ..trainer.config.policy import TARGETS
from ..trainer.demo import DEMO, LETTERS
from ..trainer.errors import UserError, one_line
from ..trainer.families import FAMILIES, family_of_pipeline
from ..trainer.policies.checkpoint import recognise
from .checks import one_of
from .choices import PolicyChoice, typed

NODE = "Policy"
EMBEDDED = "demo (embedded model)"
EMBEDDED_BASES = {EMBEDDED: DEMO, "letters (embedded model)": LETTERS}  # as the node offers them -> `policy.model`
NO_LORA = "none"
AUTO = "auto"
AS_PRESET = "preset"
DTYPES = (AUTO, *get_args(PolicyConfig.model_fields["dtype"].annotation))
FROM_BASE = "from the base"
FILE = ".safetensors"
# ComfyUI's folders whose files may be a base, and the parts that may lie in files of their own -> the folder.
FILE_FOLDERS = ("checkpoints", "diffusion_models")
PART_FOLDERS = {
    "vae": "vae",
    "text_encoder": "text_encoders",
    "text_encoder_2": "text_encoders",
    "text_encoder_3": "text_encoders",
}
EPSILON, V_PREDICTION, V_ZERO_TERMINAL = "epsilon", "v_prediction", "v_prediction, zero terminal SNR"
# What a UNet predicts, as the node offers it -> keys of the configuration.
PREDICTIONS: dict[str, dict[str, Any]] = {
    AUTO: {},
    EPSILON: {"prediction": "epsilon", "zero_terminal_snr": False},
    V_PREDICTION: {"prediction": "v_prediction", "zero_terminal_snr": False},
    V_ZERO_TERMINAL: {"prediction": "v_prediction", "zero_terminal_snr": True},
}
# What saves memory and time: keys of the configuration -> what the node offers.
SAVINGS = {
    key: (AS_PRESET, *get_args(PolicyConfig.model_fields[key].annotation))
    for key in ("quantization", "offload", "vae_tiling", "attention")
}
_EMBEDDED_FAMILY = "sd3"

__all__ = [
    "AS_PRESET",
    "AUTO",
    "DTYPES",
    "EMBEDDED",
    "EMBEDDED_BASES",
    "FILE",
    "FILE_FOLDERS",
    "FROM_BASE",
    "NODE",
    "NO_LORA",
    "PART_FOLDERS",
    "PREDICTIONS",
    "SAVINGS",
    "TARGETS",
    "choose_policy",
    "family_of",
]


def choose_policy(
    base: Path | str,
    rank: int,
    alpha: float,
    targets: str,
    init: Path | None,
    dtype: str,
    gradient_checkpointing: bool,
    prediction: str = AUTO,
    parts: dict[str, Path] | None = None,
    tokenizers: Path | None = None,
    savings: dict[str, str] | None = None,
    compile: bool = False,
) -> PolicyChoice:
    """base: a diffusers folder, a .safetensors file, or the name of an embedded model. alpha: 0 = 2 x rank.

    parts: files of a base that is a file itself (`vae`, `text_encoder`, ...). tokenizers: ComfyUI's folder `comfy`.
    savings: values of `SAVINGS`; those left out are as the preset says. Raises UserError of one line.
    """
    for key, value in (savings or {}).items():
        one_of(NODE, key, value, SAVINGS[key])
    one_of(NODE, "prediction", prediction, tuple(PREDICTIONS))
    _within("rank", rank, 1, 1024)
    _within("alpha", alpha, 0, 4096)
    one_of(NODE, "targets", targets, TARGETS)
    one_of(NODE, "dtype", dtype, DTYPES)
    embedded = isinstance(base, str)
    if dtype == AUTO:
        dtype = "float32" if embedded else "bfloat16"  # the embedded models are small and usually run on a CPU
    lora = {"rank": rank, "alpha": typed(alpha) or None, "targets": targets, "init": str(init) if init else None}
    config: dict[str, Any] = {
        "family": _EMBEDDED_FAMILY if embedded else family_of(base),
        "model": str(base),
        "lora": lora,
        "dtype": dtype,
        "gradient_checkpointing": gradient_checkpointing,
        **PREDICTIONS[prediction],
        **{key: value for key, value in (savings or {}).items() if value != AS_PRESET},
        **({"compile": True} if compile else {}),
    }
    if not embedded and base.suffix == FILE:
        config["files"] = {part: str(path) for part, path in (parts or {}).items()}
        config["tokenizers"] = str(tokenizers) if tokenizers else None
    elif parts:
        raise UserError(
            f"{NODE}: {', '.join(parts)}: only a base that is a file takes parts in files of their own; set {FROM_BASE}"
        )
    return PolicyChoice(config)


def family_of(base: Path) -> str:
    """The model family of a diffusers folder, by its model_index.json, or of a file, by its tensors.

    Raises UserError where no family trains it.
    """
    if base.suffix == FILE:
        try:
            return recognise(base).family
        except UserError as error:
            raise UserError(f"{NODE}: {error}") from None
    folder = base
    path = folder / "model_index.json"
    try:
        index = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"{NODE}: base {folder.name!r} is no diffusers pipeline: {folder} has no model_index.json") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{NODE}: base {folder.name!r}: cannot read {path}: {one_line(error)}") from None
    pipeline = index.get("_class_name") if isinstance(index, dict) else None
    family = family_of_pipeline(pipeline)
    if family is None:
        raise UserError(
            f"{NODE}: base {folder.name!r} is a {pipeline or 'file that is no pipeline'}; "
            f"pipelines that can be trained: {', '.join(family.pipeline for family in FAMILIES.values())}"
        )
    return family.name


def tooltip(key: str) -> str:
    """The description of a key of the `policy` section, as the configuration gives it."""
    model = LoraConfig if key.startswith("lora.") else PolicyConfig
    text = model.model_fields[key.removeprefix("lora.")].description or ""
    return text[:1].upper() + text[1:]


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UserError(f"{NODE}: {name} = {value:g}; allowed: {low:g} to {high:g}")
