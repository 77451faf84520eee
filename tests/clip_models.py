"""Small random CLIP models for tests of learned rewards, with the shapes and names of the published files."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from trainer.rewards.clip_text import END, LENGTH
from trainer.rewards.towers import ClipShape

TINY = ClipShape(
    features=32,
    picture_width=48,
    picture_layers=2,
    picture_heads=4,
    patch=14,
    size=28,
    text_width=40,
    text_layers=2,
    text_heads=4,
)


def open_clip_state(shape: ClipShape = TINY, seed: int = 0) -> dict[str, Tensor]:
    """A state dictionary as open_clip writes it, half precision as in HPSv2's files."""
    generator = torch.Generator().manual_seed(seed)

    def random(*size: int) -> Tensor:
        return (torch.randn(*size, generator=generator) * 0.2).half()

    def norm(name: str, width: int) -> dict[str, Tensor]:
        return {f"{name}.weight": 1 + random(width), f"{name}.bias": random(width)}

    def blocks(prefix: str, width: int, layers: int) -> dict[str, Tensor]:
        made: dict[str, Tensor] = {}
        for n in range(layers):
            block = f"{prefix}.resblocks.{n}"
            made |= norm(f"{block}.ln_1", width) | norm(f"{block}.ln_2", width)
            made |= {f"{block}.attn.in_proj_weight": random(3 * width, width), f"{block}.attn.in_proj_bias": random(3 * width)}
            for name, out, into in (
                ("attn.out_proj", width, width),
                ("mlp.c_fc", 4 * width, width),
                ("mlp.c_proj", width, 4 * width),
            ):
                made |= {f"{block}.{name}.weight": random(out, into), f"{block}.{name}.bias": random(out)}
        return made

    tokens = (shape.size // shape.patch) ** 2 + 1
    return {
        "positional_embedding": random(LENGTH, shape.text_width),
        "text_projection": random(shape.text_width, shape.features),
        "logit_scale": torch.tensor(4.6052).half(),
        "visual.class_embedding": random(shape.picture_width),
        "visual.positional_embedding": random(tokens, shape.picture_width),
        "visual.proj": random(shape.picture_width, shape.features),
        "visual.conv1.weight": random(shape.picture_width, 3, shape.patch, shape.patch),
        "token_embedding.weight": random(END + 1, shape.text_width),
        **norm("visual.ln_pre", shape.picture_width),
        **norm("visual.ln_post", shape.picture_width),
        **norm("ln_final", shape.text_width),
        **blocks("visual.transformer", shape.picture_width, shape.picture_layers),
        **blocks("transformer", shape.text_width, shape.text_layers),
    }


def vocabulary(folder: Path) -> Path:
    """A folder with a merges.txt of CLIP's size: made up, as the true one is not part of this repository."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pairs = [("i", "n"), *((a, b) for a in letters for b in (*letters, *(f"{c}</w>" for c in letters)) if (a, b) != ("i", "n"))]
    # Pairs of pairs, until there are as many as CLIP has.
    doubles = [f"{a}{b}" for a in letters for b in letters]
    more = ((a, b) for a in doubles for b in doubles)
    while len(pairs) < 48894:
        pairs.append(next(more))
    text = "\n".join(["#version: 0.2", *(" ".join(pair) for pair in pairs)])
    (folder / "merges.txt").write_text(f"{text}\n", encoding="utf-8")
    return folder
