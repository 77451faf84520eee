"""`score`: a table of rewards for pictures on disk."""

from __future__ import annotations

import csv
from pathlib import Path

from ..errors import UserError, one_line
from ..prompts import load_prompts
from ..rewards.registry import create
from ..rewards.registry import names as known_names

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


def run(args) -> int:
    import numpy as np
    import torch
    from PIL import Image

    from ..rewards.scoring import load_rewards, score_rewards

    names = list(dict.fromkeys(n.strip() for n in args.rewards.split(",") if n.strip()))
    if not names:
        raise UserError(f"--rewards {args.rewards!r} names no reward; known: {', '.join(known_names())}")
    rewards = {name: create(name, {}) for name in names}
    for name, message in load_rewards(rewards, torch.device("cpu"), None):
        raise UserError(f"reward {name} can't be loaded: {message}")
    known = {p.text: p.metadata for p in _prompts(args.prompts)}
    rows = []
    for path in _pictures(args.pictures):
        try:
            with Image.open(path) as picture:
                prompt = args.prompt if args.prompt is not None else _own_prompt(path, picture)
                pixels = torch.from_numpy(np.array(picture.convert("RGB")))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # Pillow raises all of these
            raise UserError(f"{path} can't be read as a picture: {one_line(error)}") from error
        # One at a time, since pictures may differ in size.
        table = score_rewards(rewards, pixels[None], [prompt], [known.get(prompt, {})])
        rows.append((path, prompt, {name: float(values[0]) for name, values in table.scores.items()}))
        for name, message in (*table.failures, *table.warnings):
            print(f"{path}: {name}: {message}")
    width = max(len(str(path)) for path, _, _ in rows)
    print(f"{'picture':<{width}}  " + "  ".join(f"{name:>14}" for name in names))
    for path, _, scores in rows:
        print(f"{path!s:<{width}}  " + "  ".join(f"{scores[name]:>14.4f}" for name in names))
    for name in names:
        good = [s[name] for _, _, s in rows if s[name] == s[name]]
        print(f"mean {name}: {sum(good) / len(good):.4f} over {len(good)}" if good else f"mean {name}: nothing scored")
    if args.csv:
        with open(args.csv, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["picture", "prompt", *names])
            writer.writerows([str(path), prompt, *(scores[n] for n in names)] for path, prompt, scores in rows)
    return 0


def _prompts(source: str | None):
    if source != "demo":
        return load_prompts(source, "--prompts") if source else []
    return [*load_prompts(source, "prompts.train"), *load_prompts(source, "prompts.evaluate")]


def _pictures(given: list[Path]) -> list[Path]:
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


def _own_prompt(path: Path, picture) -> str:
    text = getattr(picture, "text", {}).get("prompt")
    beside = path.with_suffix(".txt")
    if text is None and beside.is_file():
        text = beside.read_text(encoding="utf-8-sig").strip()
    return text or ""
