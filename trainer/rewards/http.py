"""Any scorer behind an address: a server of one's own, in any language. docs/rewards.md has the schema and an example."""

from __future__ import annotations

import math

from pydantic import Field

from .remote import RemoteOptions, RemoteReward, as_base64, is_number

VERSION = 1


class HttpOptions(RemoteOptions):
    pictures_per_request: int = Field(8, ge=1, le=1024, description="pictures in one request")
    parallel: int = Field(4, ge=1, le=256, description="requests on their way at once")


class HttpScorer(RemoteReward):
    name = "http"
    description = "Asks a server for the scores: JSON with pictures and prompts out, a number for each picture back."
    range = "the server's own"
    Options = HttpOptions

    def score(self, images, prompts, metadata):
        import torch

        size = self.options.pictures_per_request
        starts = range(0, len(images), size)

        def body(start: int):
            rows = range(start, min(start + size, len(images)))
            pictures = [{"image": as_base64(images[i]), "prompt": prompts[i], "metadata": dict(metadata[i])} for i in rows]
            return {"version": VERSION, "pictures": pictures}

        def read(answer, number: int) -> list[float]:
            return _scores(answer, min(size, len(images) - starts[number]))

        answers = self.ask([lambda start=start: body(start) for start in starts], read)
        scores: list[float] = []
        for start, found in zip(starts, answers, strict=True):
            scores += found if found is not None else [math.nan] * min(size, len(images) - start)
        return torch.tensor(scores, dtype=torch.float64)


def _scores(answer, wanted: int) -> list[float]:
    """`{"scores": [0.5, null]}` -> numbers, NaN for null. Raises ValueError for anything else."""
    scores = answer.get("scores") if isinstance(answer, dict) else None
    if not isinstance(scores, list) or len(scores) != wanted:
        raise ValueError(f"the answer has no list 'scores' of {wanted} numbers")
    if any(value is not None and not is_number(value) for value in scores):
        raise ValueError("'scores' holds something that is neither a number nor null")
    return [math.nan if value is None else float(value) for value in scores]
