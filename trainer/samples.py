"""An evaluation's pictures in the run directory: samples/<iteration>/, each picture, one grid, and an index of both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from .evaluation import Evaluation
from .pictures import grid, save_outputs, save_png, to_pil
from .prompts import Prompt
from .runs import RunDir, write_json
from .runs.evaluations import INDEX

GRID_ROWS, GRID_COLUMNS = 12, 4


def save_evaluation(run: RunDir, iteration: int, result: Evaluation) -> dict[str, Any]:
    """Save all pictures, the grid and the index (last). Returns the grid event's fields, paths relative to the run."""
    folder = run.evaluation(iteration)
    texts = [p.text for p in result.prompts]
    files = save_outputs(folder, result.images, texts, result.seeds, result.seeds_per_prompt, result.scores)
    columns = min(result.seeds_per_prompt, GRID_COLUMNS)
    rows = [[p * result.seeds_per_prompt + k for k in range(columns)] for p in range(min(len(texts), GRID_ROWS))]
    notes = [[_note(result.scores, i) for i in row] for row in rows]
    save_png(grid([[to_pil(result.images[i]) for i in row] for row in rows], texts, notes), folder / "grid.png")
    index = {
        "iteration": iteration,
        "prompts": texts,
        "seeds": list(result.seeds),
        "seeds_per_prompt": result.seeds_per_prompt,
        "files": files,
        "scores": {name: [None if v != v else v for v in values.tolist()] for name, values in result.scores.items()},
        "means": result.means,
    }
    write_json(folder / INDEX, {k: null_for_nan(v) for k, v in index.items()})
    return {"grid": f"samples/{folder.name}/grid.png", "index": f"samples/{folder.name}/{INDEX}", "pictures": len(files)}


def load_evaluation(run: RunDir, iteration: int, prompts: Sequence[Prompt]) -> Evaluation | None:
    """The evaluation as it was saved, or None if it is not there whole or was made with other prompts."""
    folder = run.evaluation(iteration)
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        if index["prompts"] != [p.text for p in prompts]:
            return None
        # The names are remade, not read: an index from elsewhere must not point out of the folder.
        per_prompt = int(index["seeds_per_prompt"])
        names = [f"p{i // per_prompt:03d}-s{i % per_prompt}.png" for i in range(len(index["seeds"]))]
        images = tuple(torch.from_numpy(np.array(Image.open(folder / name).convert("RGB"))) for name in names)
        scores = {
            k: torch.tensor([float("nan") if x is None else x for x in v], dtype=torch.float64)
            for k, v in index["scores"].items()
        }
        means = {k: float("nan") if v is None else float(v) for k, v in index["means"].items()}
    except (OSError, ValueError, KeyError, TypeError, SyntaxError):  # Pillow calls a broken PNG a SyntaxError
        return None
    return Evaluation(tuple(prompts), per_prompt, tuple(index["seeds"]), images, scores, means, ())


def _note(scores: dict[str, torch.Tensor], i: int) -> str:
    """The first reward's score, which is what a grid is looked at for."""
    value = float(next(iter(scores.values()))[i])
    return "not scored" if value != value else f"{value:.2f}"


def null_for_nan(value: Any) -> Any:
    """The value with null for NaN, which JSON has no word for, also inside mappings."""
    if isinstance(value, dict):
        return {k: null_for_nan(v) for k, v in value.items()}
    return None if isinstance(value, float) and value != value else value
