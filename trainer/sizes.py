"""Sizes of pictures: which size (an aspect bucket) a prompt group gets."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .prompts import Prompt
from .seeds import derive_seed

Size = tuple[int, int]
"""Width and height in pixels."""

BUCKET = "bucket"  # the metadata key by which a prompt names its size
_SIZE = re.compile(r"\s*(\d{1,5})\s*[xX×]\s*(\d{1,5})\s*", re.ASCII)


def parse_size(text: object) -> Size:
    """`832x1216` -> (832, 1216). Raises ValueError for anything else."""
    found = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if not found:
        raise ValueError(f"{text!r} is no size; allowed: width x height in pixels, such as 832x1216")
    return int(found[1]), int(found[2])


def size_text(size: Size) -> str:
    return f"{size[0]}x{size[1]}"


def paired(width: int | Sequence[int], height: int | Sequence[int]) -> tuple[Size, ...]:
    """The sizes width[i] x height[i]. Raises ValueError unless both are numbers, or lists of equal length."""
    if isinstance(width, int) and isinstance(height, int):
        return ((width, height),)
    if isinstance(width, int) or isinstance(height, int) or len(width) != len(height):
        raise ValueError("both must be numbers, or lists of equal length: size i is width[i] x height[i]")
    return tuple(zip(width, height, strict=True))


def named_size(prompt: Prompt) -> Size | None:
    """The size that a prompt asks for in its metadata. Raises ValueError where that is no size."""
    return parse_size(prompt.metadata[BUCKET]) if BUCKET in prompt.metadata else None


def drawn_size(sizes: Sequence[Size], prompt: Prompt, index: int, run_seed: int, iteration: int) -> Size:
    """The size of a prompt's group in an iteration: the one it names, else one of `sizes`, drawn anew in each iteration.

    A function of (run seed, iteration, `index` of the prompt) alone, so that a resumed run goes on with the same sizes.
    """
    return named_size(prompt) or sizes[derive_seed(run_seed, "size", iteration, index) % len(sizes)]
