"""Curves of a run for a page: every metric by iteration, thinned to what a chart can show. Reads each event once."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Any

import numpy as np

from .events import parse_event
from .follow import Follower, Kept

NAN = float("nan")
MAX_POINTS = 20_000
_DIGITS = 7  # of a number that is sent: finer than any chart, and half as long
_CELLS = 16_000_000  # numbers kept in all, 128 MB

Table = dict[str, Any]


class Columns:
    """One table: iterations that rise strictly, and for each metric as many numbers, NaN where there is none."""

    def __init__(self) -> None:
        self.x = array("q")
        self.columns: dict[str, array] = {}

    def put(self, iteration: int, metrics: dict[str, Any]) -> None:
        """A row at the end, or in place of the one for that iteration."""
        if self.x and self.x[-1] >= iteration:
            place = bisect_left(self.x, iteration)
            if self.x[place] != iteration:
                self.x.insert(place, iteration)
                for values in self.columns.values():
                    values.insert(place, NAN)
            for name, values in self.columns.items():
                values[place] = _finite(metrics.get(name))
        else:
            place = len(self.x)
            self.x.append(iteration)
            for name, values in self.columns.items():
                values.append(_finite(metrics.get(name)))
        for name in [name for name in metrics if name not in self.columns]:
            values = self.columns[name] = array("d", [NAN]) * len(self.x)
            values[place] = _finite(metrics[name])

    def take_back(self, iteration: int) -> None:
        """Drop every row after `iteration`."""
        end = bisect_right(self.x, iteration)
        del self.x[end:]
        for values in self.columns.values():
            del values[end:]

    def table(self, points: int, low: int | None = None, high: int | None = None) -> tuple[Table, bool]:
        """At most `points` rows of those from `low` to `high`, and whether it had to leave some out."""
        start = 0 if low is None else bisect_left(self.x, low)
        end = len(self.x) if high is None else bisect_right(self.x, high)
        if end - start <= points:
            x = self.x[start:end].tolist()
            columns = {name: _sent(values[start:end]) for name, values in self.columns.items()}
            return {"x": x, "columns": columns}, False
        return self._thinned(start, end, points), True

    def _thinned(self, start: int, end: int, points: int) -> Table:
        """The first and last row as they are; between them, of each stretch, every column's least and greatest value.

        The two stand in the order in which they occur, at the stretch's first and last iteration, since columns share x: no
        spike is lost, and none moves further than the width of a point.
        """
        if points < 4:
            rows = [start, end - 1][-points:]
            columns = {name: _sent(array("d", [values[row] for row in rows])) for name, values in self.columns.items()}
            return {"x": [self.x[row] for row in rows], "columns": columns}
        inner = end - start - 2
        stretches = (points - 2) // 2
        width = -(-inner // stretches)
        stretches = -(-inner // width)
        x = np.frombuffer(self.x, dtype=np.int64)[start:end].copy()
        firsts = 1 + width * np.arange(stretches)
        lasts = np.minimum(firsts + width - 1, inner)
        single = firsts == lasts  # a last stretch of one row gives one point
        keep = np.ones((stretches, 2), dtype=bool)
        keep[single, 1] = False
        shown = np.stack([x[firsts], x[lasts]], axis=1)[keep]
        columns = {}
        for name, values in self.columns.items():
            whole = np.frombuffer(values, dtype=np.float64)[start:end].copy()
            padded = np.full(stretches * width, np.nan)
            padded[:inner] = whole[1:-1]
            blocks = padded.reshape(stretches, width)
            absent = np.isnan(blocks)
            least_at = np.where(absent, np.inf, blocks).argmin(axis=1)
            most_at = np.where(absent, -np.inf, blocks).argmax(axis=1)
            rows = np.arange(stretches)
            earlier, later = np.minimum(least_at, most_at), np.maximum(least_at, most_at)
            pairs = np.stack([blocks[rows, earlier], blocks[rows, later]], axis=1)[keep]
            columns[name] = _sent(np.concatenate([whole[:1], pairs, whole[-1:]]))
        return {"x": [int(x[0]), *shown.tolist(), int(x[-1])], "columns": columns}


class RunSeries(Follower):
    """The tables of one events.jsonl."""

    def reset(self) -> None:
        self.train, self.evaluate, self.last_seq = Columns(), Columns(), 0

    def line(self, offset: int, line: bytes) -> None:
        event = parse_event(line)
        if event is None or event["seq"] <= self.last_seq:
            return
        self.last_seq = event["seq"]
        iteration, kind, metrics = event.get("iteration"), event.get("type"), event.get("metrics")
        if type(iteration) is not int or abs(iteration) >= 2**53:
            return
        if kind == "resumed":
            self.train.take_back(iteration)
            self.evaluate.take_back(iteration)
        elif kind in ("iteration", "evaluation") and isinstance(metrics, dict):
            (self.train if kind == "iteration" else self.evaluate).put(iteration, metrics)

    def whole(self, line: bytes) -> bool:
        return parse_event(line) is not None

    @property
    def cells(self) -> int:
        return sum(len(table.x) * (1 + len(table.columns)) for table in (self.train, self.evaluate))

    def answer(self, points: int, low: int | None = None, high: int | None = None) -> dict[str, Any]:
        """What the route answers, up to date."""
        with self.lock:
            self.catch_up()
            train, thinned = self.train.table(points, low, high)
            evaluate, thinned_too = self.evaluate.table(points, low, high)
            return {"last_seq": self.last_seq, "train": train, "evaluate": evaluate, "decimated": thinned or thinned_too}


def _new(path: Path) -> RunSeries:
    series = RunSeries(path)
    series.reset()
    return series


_series: Kept[RunSeries] = Kept(_new, most=16, weight=_CELLS, weigh=lambda series: series.cells)


def run_series(path: Path) -> RunSeries:
    """The series of a file; those of the files last asked for are kept, as many as fit the limit of memory."""
    return _series.get(path)


def _finite(value: Any) -> float:
    """A metric's value, NaN where it is none."""
    return value if isinstance(value, (int, float)) and -1e308 < value < 1e308 else NAN


def _sent(values: Any) -> list[float | None]:
    """Numbers for JSON: null for what is not finite, and no more digits than a chart can show."""
    numbers = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(numbers)
    safe = np.where(finite, numbers, 0.0)
    size = np.abs(safe)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        places = np.where(size > 0, _DIGITS - 1 - np.floor(np.log10(np.where(size > 0, size, 1.0))), 0.0)
        scale = 10.0 ** np.clip(places, -300, 22)
        rounded = np.round(safe * scale) / scale
    usable = np.isfinite(rounded) & (size > 1e-15) & (size < 1e15)
    found = np.where(usable, rounded, safe).tolist()
    return found if finite.all() else [value if ok else None for value, ok in zip(found, finite.tolist(), strict=True)]
