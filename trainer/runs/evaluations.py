"""What an evaluation's index says without its pictures. Imports no torch; `trainer.samples` writes and loads the whole."""

from __future__ import annotations

from .atomic import read_json
from .layout import RunDir

INDEX = "index.json"  # written last: a folder that has one is whole


def saved_means(run: RunDir, iteration: int) -> dict[str, float]:
    """The evaluation metrics that were saved for an iteration, {} if there are none."""
    try:
        means = read_json(run.evaluation(iteration) / INDEX)["means"]
        return {name: float(value) for name, value in means.items() if value is not None}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
