"""HPSv2's weights on transformers' `CLIPModel`: the same scores as the authors' own open_clip."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from .checkpoint import read_state
from .clip_pixels import letterbox
from .clip_text import clean_like_open_clip, load_tokenizer
from .towers import VIT_H_14, ClipShape, ClipTowers, clip_from_open_clip
from .weights import Weights, size_hint


def load_towers(file: Weights, path: Path, shape: ClipShape = VIT_H_14) -> ClipTowers:
    """Raises UserError if the file can't be read, is another model, or CLIP's vocabulary is nowhere."""
    tokenize = load_tokenizer(clean_like_open_clip, path.parent)  # before the two gigabytes
    state = read_state(path, file.title, size_hint(file, path))
    return ClipTowers(clip_from_open_clip(state, shape, file.title, path), partial(letterbox, size=shape.size), tokenize)
