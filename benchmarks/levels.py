"""Where the course of a run reaches a level. Without torch, so that the page of evidence may ask too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise


def kept_at(rows: Sequence[Sequence[float]], learnt: float) -> float:
    """What is kept, of rows (network evaluations, learnt, kept), where `learnt` is first reached, between two rows by a line.

    nan: never.
    """
    for before, after in pairwise(rows):
        if after[1] >= learnt:
            share = 1.0 if after[1] == before[1] else max(0.0, (learnt - before[1]) / (after[1] - before[1]))
            return float(before[2] + share * (after[2] - before[2]))
    return math.nan
