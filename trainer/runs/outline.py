"""What a card of the list shows of a run beside its state, cheap enough for hundreds of runs at every look.

A run whose files have not changed costs a few `stat`s. Of a long events.jsonl only samples are read, never all of it.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from ..demo import EMBEDDED_MODELS
from .atomic import read_json
from .events import parse_event
from .follow import Kept
from .layout import EVALUATION_FOLDER, RunDir
from .state import RUNNING, RunState

REWARD = "reward/total/mean"
SPARK = 60
_WHOLE = 128 * 1024  # a file up to this size is read whole
_STRETCH = 16 * 1024  # of a longer one, so much at each of SPARK places, and more at its end
_END = 64 * 1024
_HEAD = 8 * 1024  # of config.yaml; the policy stands before the prompts
_RECENT = 12  # iterations that the time left is judged by

_ITERATION = re.compile(rb'"type": "iteration", "iteration": (\d{1,15}),')
_REWARD = re.compile(rb'"%s": (-?[\d.eE+-]+)' % re.escape(REWARD.encode()))
_TIME = re.compile(rb'"time": (\d+(?:\.\d+)?)')
_RESUMED = re.compile(rb'"type": "resumed", "iteration": (\d{1,15})')
_MODEL = re.compile(r"^policy:[^\n]*\n(?:[ ]+[^\n]*\n)*?[ ]+model: *([^\n]+)$", re.MULTILINE)
_FIRST_PICTURE = re.compile(r"p0{3,6}-s\d{1,6}\.png")

# What a card shows of a run whose files can't be read.
UNKNOWN: dict[str, Any] = {
    "base": None,
    "reward": {"first": None, "last": None},
    "spark": [],
    "eta_s": None,
    "thumbnail": None,
    "origin": None,
}


@dataclass
class Curve:
    """The reward as the list shows it. `last_seq` is None where the end of the file does not tell."""

    first: float | None = None
    last: float | None = None
    spark: list[float] = field(default_factory=list)
    pace_s: float | None = None
    last_seq: int | None = None


class Outline:
    """Remembers of one run what it read, and by which sizes and times of files it is still true."""

    def __init__(self, path: Path) -> None:
        self._run = RunDir(path)
        self._known: dict[str, tuple[Any, Any]] = {}

    def fields(self, state: RunState) -> dict[str, Any]:
        """base, reward, spark, eta_s, thumbnail, origin."""
        curve = self.curve()
        eta = None
        if state.status == RUNNING and curve.pace_s is not None and state.iterations >= state.iteration:
            eta = round(curve.pace_s * (state.iterations - state.iteration), 1)
        return {
            "base": self._remembered("base", _stamp(self._run.config_file), self._base),
            "reward": {"first": curve.first, "last": curve.last},
            "spark": curve.spark,
            "eta_s": eta,
            "thumbnail": self._thumbnail(),
            "origin": self._remembered("origin", _stamp(self._run.origin_file), self._origin),
        }

    def curve(self) -> Curve:
        return self._remembered("curve", _stamp(self._run.events_file), lambda: read_curve(self._run.events_file))

    def _remembered(self, name: str, stamp: Any, read: Any) -> Any:
        known = self._known.get(name)
        if known is None or known[0] != stamp:
            self._known[name] = known = (stamp, read())
        return known[1]

    def _base(self) -> str | None:
        try:
            with open(self._run.config_file, "rb") as file:
                return base_title(file.read(_HEAD).decode("utf-8", errors="replace"))
        except OSError:
            return None

    def _origin(self) -> dict[str, str | None] | None:
        """The node and the graph that started the run, None where it was started otherwise."""
        found = read_json(self._run.origin_file) or {}
        node, graph = found.get("node"), found.get("workflow_id")
        return None if node is None else {"node": str(node), "workflow": None if graph is None else str(graph)}

    def _thumbnail(self) -> str | None:
        stamp = _stamp(self._run.samples)
        known = self._known.get("thumbnail")
        if stamp is None or (known is not None and known[0] == stamp):
            return None if stamp is None else known[1]
        found, newest = newest_picture(self._run.samples)
        if newest:  # else the newest evaluation is still being written, which changes no stamp of ours
            self._known["thumbnail"] = (stamp, found)
        return found


_outlines: Kept[Outline] = Kept(Outline, most=2048)


def outline(run: RunDir) -> Outline:
    """The outline of a run; those last asked for are kept."""
    return _outlines.get(run.path)


def base_title(config: str) -> str | None:
    """What the policy of a configuration's text is called: the embedded model's title, a folder's name, or a hub id."""
    match = _MODEL.search(config)
    if not match:
        return None
    text = match[1].strip()
    if text[:1] in "\"'":
        import yaml

        try:
            text = str(yaml.safe_load(text))
        except yaml.YAMLError:
            text = text.strip("\"'")
    if embedded := EMBEDDED_MODELS.get(text):
        return embedded.title
    is_hub_id = re.fullmatch(r"[\w.-]+/[\w.-]+", text) is not None
    return text if is_hub_id else re.split(r"[\\/]", text.rstrip("\\/"))[-1] or None


def newest_picture(samples: Path) -> tuple[str | None, bool]:
    """The newest evaluation's grid, else its first picture, as a path inside the run; and whether it is the newest's grid."""
    try:
        folders = sorted((int(name), name) for name in os.listdir(samples) if EVALUATION_FOLDER.fullmatch(name))
    except OSError:
        return None, False
    for place, (_, name) in enumerate(reversed(folders)):
        folder = samples / name
        if (folder / "grid.png").is_file():
            return f"samples/{name}/grid.png", place == 0
        try:
            pictures = sorted(file for file in os.listdir(folder) if _FIRST_PICTURE.fullmatch(file))
        except OSError:
            continue
        if pictures:
            return f"samples/{name}/{pictures[0]}", False
    return None, not folders


def read_curve(path: Path) -> Curve:
    """First, last and up to SPARK values of the total reward, and how long an iteration takes now."""
    rewards: dict[int, float] = {}
    times: list[tuple[int, float]] = []
    last_seq = None
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            for lines, near_end in _samples(file, size):
                for line in lines:
                    if line.endswith(b"}"):
                        _take(line, rewards, times if near_end else None)
                if near_end:
                    last_seq = next((event["seq"] for event in map(parse_event, reversed(lines)) if event is not None), None)
    except OSError:
        return Curve()
    order = sorted(rewards)
    chosen = _spread(order)
    return Curve(
        first=rewards[order[0]] if order else None,
        last=rewards[order[-1]] if order else None,
        spark=[float(f"{rewards[iteration]:.5g}") for iteration in chosen],
        pace_s=_pace(times),
        last_seq=last_seq,
    )


def _spread(order: list[int]) -> list[int]:
    """Up to SPARK of these rising iterations, evenly over the run: of a long file the end is known best."""
    if len(order) <= SPARK:
        return order
    step = (order[-1] - order[0]) / (SPARK - 1)
    chosen: dict[int, None] = {}
    for k in range(SPARK):
        target = order[0] + k * step
        at = min(bisect_left(order, target), len(order) - 1)
        chosen[order[at - 1] if at and target - order[at - 1] < order[at] - target else order[at]] = None
    return list(chosen)


def _samples(file: Any, size: int) -> Iterator[tuple[list[bytes], bool]]:
    """Whole lines of a file, in their order, as (lines, whether they are of its end)."""
    if size <= _WHOLE:
        yield file.read(size).split(b"\n"), True
        return
    for k in range(SPARK):
        start = k * (size - _END) // SPARK
        file.seek(start)
        lines = file.read(_STRETCH).split(b"\n")
        # A line that the stretch cuts counts for nothing; one reward of each stretch is enough.
        yield next(([line] for line in (lines if start == 0 else lines[1:])[:-1] if _ITERATION.search(line)), []), False
    file.seek(size - _END)
    yield file.read(_END).split(b"\n")[1:], True


def _take(line: bytes, rewards: dict[int, float], times: list[tuple[int, float]] | None) -> None:
    if match := _ITERATION.search(line):
        iteration = int(match[1])
        if reward := _REWARD.search(line):
            try:
                rewards[iteration] = float(reward[1])
            except ValueError:
                pass
        if times is not None and (time := _TIME.search(line)):
            times.append((iteration, float(time[1])))
    elif match := _RESUMED.search(line):
        for iteration in [number for number in rewards if number > int(match[1])]:
            del rewards[iteration]


def _pace(times: list[tuple[int, float]]) -> float | None:
    """Seconds an iteration, by the median of the last ones: a pause or an evaluation among them does not count."""
    recent = times[-_RECENT - 1 :]
    steps = [b[1] - a[1] for a, b in pairwise(recent) if b[0] == a[0] + 1 and b[1] >= a[1]]
    return median(steps) if steps else None


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns
