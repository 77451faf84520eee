"""Write docs/configuration.md from the configuration's own models: python docs/make_configuration.py"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from trainer.config import KeyRow, RunConfig, preset_names  # noqa: E402
from trainer.config.table import key_rows  # noqa: E402
from trainer.rewards import registry  # noqa: E402

HEAD = """\
# Configuration

Written by `python docs/make_configuration.py` from the program's own tables; a test keeps it true.

A configuration is a YAML file (scalars as in YAML 1.2, so `1e-4` is a number). `preset: NAME` at its top starts from a preset
({presets}) and changes what the file names; `rewards` and `monitors` replace the preset's as a whole. On the command line
`--set optimizer.lr=1e-4` changes one key. A run keeps the complete result, prompts included, as its `config.yaml`.

`hardware: 16gb` beside `preset` (none, auto, 8gb, 12gb, 16gb, 24gb, 48gb) sets what saves memory, over the preset and under the
file's own keys ([memory-plan.md](memory-plan.md)).

Unknown keys are errors that name the nearest known one. "Ours" marks a default that has no published source.

| key | takes | default | meaning and source |
|---|---|---|---|
"""

REWARDS = """
## Rewards

An entry under `rewards` or `monitors` is the name of a reward with its options, or a name of your own with `kind`, so that a
reward can stand there several times. Under `rewards` it also says how it counts; monitors are only scored and plotted.
[rewards.md](rewards.md) tells the rest.

| key of an entry | takes | default | meaning |
|---|---|---|---|
| `kind` | a name from the table below | the entry's own name | which reward it is |
| `weight` | a number from -1000 to 1000 except 0 | 1, of a penalty -1 | how much it counts, negative = penalty |
| `clip` | `[low, high]`, null = no bound | null | scores beyond a bound count as the bound |
| `transform` | `log`, or `{{threshold: a score}}` | null | after `clip`: the natural logarithm, or 1 from the threshold on |

| name | range | what it measures |
|---|---|---|
{rewards}

| option | takes | default | meaning |
|---|---|---|---|
{options}
"""


def text() -> str:
    keys = [_row(row) for row in RunConfig.key_table()]
    rewards, options = [], []
    for name in registry.BUILT_IN:
        kind = registry.reward_class(name)
        rewards.append(f"| `{name}` | {_cell(kind.range)} | {_cell(kind.description)} |")
        options += [_row(row) for row in key_rows(kind.Options, f"{name}.")]
    presets = ", ".join(f"`{name}`" for name in preset_names())
    head = HEAD.format(presets=presets) + "\n".join(keys) + "\n"
    return head + REWARDS.format(rewards="\n".join(rewards), options="\n".join(options))


def _row(row: KeyRow) -> str:
    takes = " ".join(filter(None, (row.type, row.range)))
    return f"| `{row.key}` | {_cell(takes)} | {_cell(row.default)} | {_cell(row.description)} |"


def _cell(value: str) -> str:
    return " ".join(value.split()).replace("|", "\\|")


if __name__ == "__main__":
    (ROOT / "docs" / "configuration.md").write_text(text(), encoding="utf-8")
