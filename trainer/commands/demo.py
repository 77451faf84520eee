"""`demo`: the embedded model learns to draw what its prompts ask for."""

from __future__ import annotations

from ..config import load_config
from . import train


def run(args) -> int:
    overrides = [
        f"seed={args.seed}",
        *([f"iterations={args.iterations}"] if args.iterations is not None else []),
        *args.overrides,
    ]
    return train.start(load_config({"preset": "demo"}, overrides), args.output, args.device)
