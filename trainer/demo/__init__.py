"""The embedded model: a small SD3 with its own world of captioned scenes, so that everything runs without a download."""

from __future__ import annotations

from pathlib import Path

TITLE = "V-GRPO embedded model"
MODEL_DIR = Path(__file__).with_name("model")
PROMPT_FILES = {name: Path(__file__).with_name("prompts") / f"{name}.jsonl" for name in ("train", "evaluate")}
