"""`score`: a table of rewards for pictures on disk."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import load_config
from ..config.text import parse
from ..demo import EMBEDDED_MODELS
from ..errors import UserError, one_line
from ..prompts import Prompt, load_prompts
from ..rewards import registry
from .common import run_of

if TYPE_CHECKING:
    import torch

    from ..rewards.base import Reward

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
_BATCH = 16  # pictures of one size that are scored at once


@dataclass(frozen=True)
class _Picture:
    path: Path
    prompt: Prompt
    pixels: torch.Tensor  # uint8[H, W, 3]


@dataclass(frozen=True)
class _Row:
    path: Path
    prompt: str
    scores: dict[str, float]


def run(args) -> int:
    from ..device import choose_device
    from ..rewards.scoring import load_rewards

    rewards = chosen_rewards(args.rewards, args.config, args.overrides)
    known = {p.text: p.metadata for p in _prompts(args.prompts)}
    paths = _pictures(args.pictures)
    for name, reward in rewards.items():
        if lacking := reward.missing():
            raise UserError(f"reward {name}: {lacking}")
    for name, message in load_rewards(rewards, choose_device(args.device), None):
        raise UserError(f"reward {name} can't be loaded: {message}")
    rows = [row for batch in _batches(_read(path, args.prompt, known) for path in paths) for row in _score(batch, rewards)]
    if without := sum(not row.prompt for row in rows):
        print(f"note: no prompt is known for {without} of {len(rows)} pictures; give --prompt, or a .txt beside each")
    _print_table(rows, list(rewards))
    if args.csv:
        with open(args.csv, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["picture", "prompt", *rewards])
            writer.writerows([str(row.path), row.prompt, *row.scores.values()] for row in rows)
    return 0


def chosen_rewards(listed: str | None, config: str | None, overrides: Sequence[str]) -> dict[str, Reward]:
    """The rewards that `--rewards` lists, or those and the monitors of a configuration or run, with `--set` applied.

    With both, the listed ones have the configuration's options. Raises UserError for what does not exist.
    """
    entries: dict[str, Mapping[str, Any]] = {}
    if config is not None:
        path = Path(config)
        found = load_config(run_of(config).config_file if path.is_dir() else path, check_files=False)
        entries = {**found.monitors, **found.rewards}
    if listed is not None:
        names = list(dict.fromkeys(name.strip() for name in listed.split(",") if name.strip()))
        if not names:
            raise UserError(f"--rewards {listed!r} names no reward; known: {', '.join(registry.names())}")
        entries = {name: entries.get(name, {}) for name in names}
    if not entries:
        raise UserError("no rewards; give --rewards NAME,NAME, or --config with a configuration or a run's folder")
    return {name: registry.create_entry(name, options) for name, options in with_overrides(entries, overrides).items()}


def with_overrides(entries: Mapping[str, Mapping[str, Any]], overrides: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The entries with every `NAME.OPTION=VALUE` applied, the value read as YAML. Raises UserError."""
    changed = {name: dict(options) for name, options in entries.items()}
    for text in overrides:
        key, equals, value = text.partition("=")
        name, dot, option = key.strip().partition(".")
        if not (equals and dot and option) or name not in changed:
            raise UserError(f"--set {text!r}; allowed: NAME.OPTION=VALUE with a NAME of {', '.join(changed)}")
        if option in registry.RESERVED:
            raise UserError(f"--set {text!r}: {option} tells how a score counts in a training; it changes no score")
        changed[name][option] = parse(value, f"--set {text!r}")
    return changed


def _score(batch: Sequence[_Picture], rewards: dict[str, Reward]) -> Iterator[_Row]:
    """Pictures of one size; what could not be scored is printed."""
    import torch

    from ..rewards.scoring import score_rewards

    pixels = torch.stack([picture.pixels for picture in batch])
    texts, metadata = [p.prompt.text for p in batch], [p.prompt.metadata for p in batch]
    table = score_rewards(rewards, pixels, texts, metadata)
    for name, message in table.notes:
        print(f"{name}: {message}")
    for i, picture in enumerate(batch):
        scores = {name: float(values[i]) for name, values in table.scores.items()}
        for name in (name for name, score in scores.items() if score != score):
            reason = rewards[name].problem(picture.prompt.text, picture.prompt.metadata) or table.reasons[name]
            print(f"{picture.path}: {name}: not scored: {reason}")
        yield _Row(picture.path, picture.prompt.text, scores)


def _batches(pictures: Iterable[_Picture]) -> Iterator[list[_Picture]]:
    """Neighbours of one size together, never more than a batch in memory."""
    batch: list[_Picture] = []
    for picture in pictures:
        if batch and (len(batch) == _BATCH or picture.pixels.shape != batch[0].pixels.shape):
            yield batch
            batch = []
        batch.append(picture)
    if batch:
        yield batch


def _read(path: Path, prompt: str | None, known: Mapping[str, dict[str, Any]]) -> _Picture:
    import numpy as np
    import torch
    from PIL import Image

    from ..picture_prompts import prompt_of

    try:
        with Image.open(path) as picture:
            text = (prompt_of(path, picture) or "") if prompt is None else prompt
            pixels = torch.from_numpy(np.array(picture.convert("RGB")))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # Pillow raises all of these
        raise UserError(f"{path} can't be read as a picture: {one_line(error)}") from error
    return _Picture(path, Prompt(text, known.get(text, {})), pixels)


def _print_table(rows: Sequence[_Row], names: Sequence[str]) -> None:
    width, widths = max(len(str(row.path)) for row in rows), [max(14, len(name)) for name in names]
    print(f"{'picture':<{width}}  " + "  ".join(f"{name:>{w}}" for name, w in zip(names, widths, strict=True)))
    for row in rows:
        print(f"{row.path!s:<{width}}  " + "  ".join(f"{row.scores[n]:>{w}.4f}" for n, w in zip(names, widths, strict=True)))
    for name in names:
        good = [row.scores[name] for row in rows if row.scores[name] == row.scores[name]]
        print(f"mean {name}: {sum(good) / len(good):.4f} over {len(good)}" if good else f"mean {name}: nothing scored")


def _prompts(source: str | None) -> list[Prompt]:
    if source not in EMBEDDED_MODELS:
        return load_prompts(source, "--prompts") if source else []
    return [*load_prompts(source, "prompts.train"), *load_prompts(source, "prompts.evaluate")]


def _pictures(given: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            found += sorted(f for f in path.iterdir() if f.suffix.lower() in SUFFIXES and f.name != "grid.png")
        elif path.is_file():
            found.append(path)
        else:
            raise UserError(f"there is no picture or folder {path}")
    if not found:
        raise UserError(f"no pictures in {', '.join(map(str, given))}; looked for {', '.join(SUFFIXES)}")
    return found
