"""Write docs/configuration.md from the configuration's own models: python docs/make_configuration.py"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from trainer.config import RunConfig, preset_names  # noqa: E402
from trainer.rewards import registry  # noqa: E402

HEAD = """\
# Configuration

Written by `python docs/make_configuration.py` from the program's own tables; a test keeps it true.

A configuration is a YAML file (scalars as in YAML 1.2, so `1e-4` is a number). `preset: NAME` at its top starts from a preset
({presets}) and changes what the file names; `rewards` and `monitors` replace the preset's as a whole. On the command line
`--set optimizer.lr=1e-4` changes one key. A run keeps the complete result, prompts included, as its `config.yaml`.

Unknown keys are errors that name the nearest known one. "Ours" marks a default that has no published source.

| key | takes | default | meaning and source |
|---|---|---|---|
"""

REWARDS = """
## Rewards

Under `rewards` with a `weight` (default 1, negative = penalty), or under `monitors`: scored and plotted, never trained on.

| name | range | options | what it measures |
|---|---|---|---|
"""


def text() -> str:
    rows = []
    for row in RunConfig.key_table():
        takes = " ".join(filter(None, (row.type, row.range)))
        rows.append(f"| `{row.key}` | {_cell(takes)} | {_cell(row.default)} | {_cell(row.description)} |")
    rewards = []
    for name in registry.BUILT_IN:
        kind = registry.reward_class(name)
        options = ", ".join(f"`{key}`" for key in kind.Options.model_fields) or "none"
        rewards.append(f"| `{name}` | {_cell(kind.range)} | {options} | {_cell(kind.description)} |")
    presets = ", ".join(f"`{name}`" for name in preset_names())
    return HEAD.format(presets=presets) + "\n".join(rows) + "\n" + REWARDS + "\n".join(rewards) + "\n"


def _cell(value: str) -> str:
    return " ".join(value.split()).replace("|", "\\|")


if __name__ == "__main__":
    (ROOT / "docs" / "configuration.md").write_text(text(), encoding="utf-8")
