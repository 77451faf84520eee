"""CLIP's byte-pair vocabulary and the token ids of prompts.

All CLIP models here share one vocabulary (OpenAI's). They differ in how a prompt is cleaned before it is split: OpenAI and
open_clip repair broken Unicode and unescape HTML, transformers does not. Importing this loads no library.
"""

from __future__ import annotations

import gzip
import html
import importlib.util
import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError, one_line
from .weights import Weights, find, problem

if TYPE_CHECKING:
    from torch import Tensor

START, END = 49406, 49407
LENGTH = 77  # tokens, the start and the end among them
_MERGES = 48894
_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_PACKED = "bpe_simple_vocab_16e6.txt.gz"
# Installed packages that bring the vocabulary along, and where.
_PACKAGES = (("open_clip", _PACKED), ("hpsv2", f"src/open_clip/{_PACKED}"), ("clip", _PACKED))

VOCABULARY = Weights(
    title="CLIP's vocabulary",
    names=("clip-vit-large-patch14", "sd1_tokenizer"),  # the second is ComfyUI's own
    hub="openai/clip-vit-large-patch14",
    licence="MIT",
    size=524_619,
    option="",
    markers=("merges.txt", "tokenizer.json"),
)


class ClipTokenizer:
    """Prompts -> int64[B, 77] as CLIP's text towers take them: start, text cut to 75 tokens, end, zeros."""

    def __init__(self, merges: Sequence[tuple[str, str]], clean: Callable[[str], str]) -> None:
        from tokenizers import Regex, Tokenizer
        from tokenizers.models import BPE
        from tokenizers.pre_tokenizers import ByteLevel, Split
        from tokenizers.pre_tokenizers import Sequence as Steps

        letters = _byte_letters()
        words = [*letters, *(f"{letter}</w>" for letter in letters), *("".join(pair) for pair in merges)]
        vocabulary = {word: number for number, word in enumerate(words)}
        self._tokenizer = Tokenizer(BPE(vocabulary, list(merges), end_of_word_suffix="</w>"))
        self._tokenizer.pre_tokenizer = Steps(
            [Split(Regex(_PATTERN), "removed", invert=True), ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        self._clean = clean

    def __call__(self, prompts: Sequence[str]) -> Tensor:
        import torch

        ids = torch.zeros(len(prompts), LENGTH, dtype=torch.int64)
        for row, encoded in zip(ids, self._tokenizer.encode_batch([self._clean(prompt) for prompt in prompts]), strict=True):
            tokens = [START, *encoded.ids[: LENGTH - 2], END]
            row[: len(tokens)] = torch.tensor(tokens)
        return ids


def load_tokenizer(clean: Callable[[str], str], beside: Path | None = None) -> ClipTokenizer:
    """The tokenizer with the vocabulary found on this machine, first in the folder `beside`. Raises UserError of one line."""
    return ClipTokenizer(read_merges(_found(beside)), clean)


def vocabulary_problem(beside: Path | None = None) -> str | None:
    """One line if the vocabulary is nowhere on this machine."""
    return None if _search(beside) else _absent()


def clean_like_open_clip(text: str) -> str:
    import ftfy

    text = html.unescape(html.unescape(ftfy.fix_text(text)))
    return re.sub(r"\s+", " ", text.strip()).strip().lower()


def clean_like_transformers(text: str) -> str:
    return re.sub(r"\s+", " ", unicodedata.normalize("NFC", text)).lower()


def read_merges(path: Path) -> list[tuple[str, str]]:
    """The 48,894 merges of a merges.txt, a tokenizer.json or OpenAI's packed list. UserError for any other vocabulary."""
    try:
        if path.suffix == ".json":
            found = json.loads(path.read_text(encoding="utf-8"))["model"]["merges"]
            merges = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in found]
        else:
            text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text(encoding="utf-8")
            merges = [tuple(line.split()) for line in text.split("\n")[1:] if line.strip()][:_MERGES]
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"CLIP's vocabulary in {path} can't be read ({one_line(error)}); {_advice()}") from error
    if len(merges) != _MERGES or any(len(pair) != 2 for pair in merges) or merges[0] != ("i", "n"):
        raise UserError(f"{path} is not CLIP's vocabulary ({len(merges)} merges, expected {_MERGES}); {_advice()}")
    return merges


def _found(beside: Path | None) -> Path:
    if found := _search(beside):
        return found
    raise UserError(_absent())


def _search(beside: Path | None) -> Path | None:
    folders = [beside] if beside else []
    if kept := find(VOCABULARY):
        folders.append(kept)
    for folder in folders:
        for name in VOCABULARY.markers:
            if (folder / name).is_file():
                return folder / name
    for package, inside in _PACKAGES:
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            continue
        for root in (spec.submodule_search_locations or []) if spec else []:
            if (Path(root) / inside).is_file():
                return Path(root) / inside
    return None


def _absent() -> str:
    return f"{problem(VOCABULARY)}; only its file merges.txt is needed, ComfyUI's folder comfy/sd1_tokenizer has it too"


def _advice() -> str:
    return f"take merges.txt from {VOCABULARY.address}"


def _byte_letters() -> list[str]:
    """A printable letter for each of the 256 bytes, in the vocabulary's order (as GPT-2 has it)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + number) for number in range(len(others))]
