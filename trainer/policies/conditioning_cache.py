"""Encoded prompts on disk, found again by content: encoder weights, tokenizer and text decide the file's name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ..cache import cache_folder

# One prompt of a model with a large T5 takes some MB, so the folder is bounded by removing what was used longest ago.
MAX_BYTES = 4 * 2**30


def default_folder() -> Path:
    """`$VGRPO_CACHE/conditioning`, else `~/.cache/vgrpo/conditioning`."""
    return cache_folder("conditioning")


def fingerprint(modules: Sequence[torch.nn.Module], tokenizers: Sequence[Any], *words: str) -> str:
    """A digest of the encoders' weights (some thousand evenly spaced values of each tensor, with its shape), of the tokenizers
    as they were loaded, and of `words`.
    """
    digest = hashlib.sha256("\x1f".join([*words, *map(_rules, tokenizers)]).encode())
    for module in modules:
        for name, tensor in module.state_dict().items():
            flat = tensor.detach().reshape(-1)
            sample = flat[:: max(1, flat.numel() // 4096)].float().cpu().contiguous()
            digest.update(f"{name}{tuple(tensor.shape)}".encode())
            digest.update(sample.numpy().tobytes())
    return digest.hexdigest()[:24]


def _rules(tokenizer: Any) -> str:
    """All that decides which tokens a text becomes."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
    return f"{tokenizer.model_max_length}{rules}"


class ConditioningCache:
    """One safetensors file a prompt. A file that can't be read is encoded again; a folder that can't be written is not used."""

    def __init__(self, folder: Path, encoder: str):
        self.folder = folder / encoder

    def fetch(
        self, prompts: Sequence[str], encode: Callable[[list[str]], list[dict[str, torch.Tensor]]]
    ) -> list[dict[str, torch.Tensor]]:
        """The tensors of each prompt; `encode` is called once, with the distinct prompts that are not cached, if any."""
        found: dict[str, dict[str, torch.Tensor]] = {}
        for prompt in dict.fromkeys(prompts):
            try:
                found[prompt] = load_file(self._file(prompt))
            except (OSError, SafetensorError):
                continue
        missing = [p for p in dict.fromkeys(prompts) if p not in found]
        if missing:
            for prompt, tensors in zip(missing, encode(missing), strict=True):
                found[prompt] = tensors
                self._store(prompt, tensors)
            self._prune()
        return [found[p] for p in prompts]

    def _file(self, prompt: str) -> Path:
        return self.folder / (hashlib.sha256(prompt.encode()).hexdigest()[:32] + ".safetensors")

    def _store(self, prompt: str, tensors: dict[str, torch.Tensor]) -> None:
        target = self._file(prompt)
        aside = target.with_suffix(f".{os.getpid()}.part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file({k: v.contiguous() for k, v in tensors.items()}, aside)
            os.replace(aside, target)
        except (OSError, SafetensorError):  # a full disk costs time, not the run
            with suppress(OSError):
                aside.unlink()

    def _prune(self) -> None:
        try:
            files = [(f.stat().st_atime, f.stat().st_size, f) for f in self.folder.parent.glob("*/*.safetensors")]
            excess = sum(size for _, size, _ in files) - MAX_BYTES
            for _, size, file in sorted(files):
                if excess <= 0:
                    break
                file.unlink(missing_ok=True)
                excess -= size
        except OSError:
            return
