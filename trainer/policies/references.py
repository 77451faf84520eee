"""A diffusers folder without weights for a checkpoint file, so that it needs no download: configurations and tokenizers.

Tokenizers are files that this program does not carry; ComfyUI's folder `comfy` has them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..cache import cache_folder
from ..errors import UserError
from .published import PUBLISHED

# Class of a tokenizer -> where its files lie below ComfyUI's folder `comfy`, and their names.
_TOKENIZER_FILES = {
    "CLIPTokenizer": ("sd1_tokenizer", ("vocab.json", "merges.txt")),
    "T5TokenizerFast": ("text_encoders/t5_tokenizer", ("tokenizer.json",)),
    "Qwen2Tokenizer": ("text_encoders/qwen25_tokenizer", ("vocab.json", "merges.txt", "tokenizer_config.json")),
}


def tokenizers_folder() -> Path:
    """Where a user without ComfyUI may put tokenizers: `$VGRPO_CACHE/tokenizers`, else `~/.cache/vgrpo/tokenizers`."""
    return cache_folder("tokenizers")


def write_reference(
    family: str,
    pipeline: str,
    folder: Path,
    tokenizers: Path | None,
    changes: Mapping[str, Mapping[str, Any]],
    options: Mapping[str, Any],
) -> None:
    """A diffusers folder without weights. `changes`: part -> keys of its configuration that differ from the published ones.

    options: further arguments of the pipeline. Raises UserError for a family that has none here, and for a tokenizer that is
    nowhere.
    """
    if family not in PUBLISHED:
        raise UserError(
            f"policy.parts: a file of family {family} needs a diffusers folder or hub id of that family here, for "
            f"configurations, tokenizers and what the file lacks (only {', '.join(PUBLISHED)} go without)"
        )
    index: dict[str, Any] = {"_class_name": pipeline, "_diffusers_version": "0.39.0", **options}
    for part, (library, kind, published) in PUBLISHED[family].items():
        index[part] = [library, kind]
        below = folder / part
        below.mkdir(parents=True)
        config = {**published, **changes.get(part, {})}
        name = "scheduler_config.json" if part == "scheduler" else "config.json"
        if kind in _TOKENIZER_FILES:
            for file in _tokenizer_files(kind, tokenizers):
                shutil.copyfile(file, below / file.name)
            name = "tokenizer_config.json"
            config = _completed(below / name, config)
        (below / name).write_text(json.dumps({"_class_name": kind, **config}), encoding="utf-8")
    (folder / "model_index.json").write_text(json.dumps(index), encoding="utf-8")


def _completed(file: Path, config: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer's configuration, with what its own file says besides. Raises UserError for a damaged file."""
    if not file.is_file():
        return config
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        words = {**found.get("added_tokens_decoder", {}), **config.get("added_tokens_decoder", {})}
    except (ValueError, AttributeError, TypeError) as error:
        raise UserError(
            f"policy.tokenizers: {file.name} of the tokenizer is damaged; copy ComfyUI's folder `comfy` again"
        ) from error
    return {**found, **config, "added_tokens_decoder": words}


def _tokenizer_files(kind: str, tokenizers: Path | None) -> list[Path]:
    name, files = _TOKENIZER_FILES[kind]
    for root in filter(None, (tokenizers, tokenizers_folder())):
        found = [root / name / file for file in files]
        if all(file.is_file() for file in found):
            return found
    raise UserError(
        f"policy.tokenizers: the tokenizer files {' and '.join(files)} are in no folder {name}; set policy.tokenizers to "
        f"ComfyUI's folder `comfy`, which has them, or put them into {tokenizers_folder() / name}"
    )
