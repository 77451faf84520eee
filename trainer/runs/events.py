"""events.jsonl: what happened in a run, one JSON object a line, numbered without gaps or repeats by `seq`."""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

EVENT_TYPES = ("iteration", "grid", "checkpoint", "evaluation", "warning", "error", "finished", "resumed", "paused")

Event = dict[str, Any]
_RESERVED = ("seq", "time", "type")
_SEQ_PREFIX = re.compile(rb'\{"seq": (\d+), ')  # what EventWriter puts first in a line: a seq without parsing the rest
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)  # json.loads would make one for each line
_TAIL = 64 * 1024
_NEAR = 64 * 1024  # a search by bisection ends within this many bytes before its event


class EventWriter:
    """Appends events; the run's trainer is the only one that has one. Safe to use from several threads.

    Numbering goes on after the last whole line, so a resumed run continues its predecessor's. A line torn by a kill in mid
    write is ended with a newline, never rewritten; a reader passes over it.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._file: BinaryIO = open(self.path, "ab", buffering=0)
        self._torn = not _ends_in_newline(self.path)
        self.last_seq = _last_seq(self.path)

    def write(self, kind: str, /, **fields: Any) -> Event:
        """Appends one event at once and returns it as a reader will see it: {"seq", "time", "type": kind, **fields}.

        A float that is not finite becomes null; numbers of numpy and torch become plain ones, paths text, tuples lists.
        Raises ValueError for an unknown kind or a reserved field, TypeError for a value that JSON has no word for, OSError when
        it cannot be written (a full disk); the next event then starts on a line of its own.
        """
        if kind not in EVENT_TYPES:
            raise ValueError(f"unknown event type {kind!r}; allowed: {', '.join(EVENT_TYPES)}")
        if taken := [name for name in _RESERVED if name in fields]:
            raise ValueError(f"event fields {taken} are reserved")
        plain = _plain(fields)
        with self._lock:
            if self._torn:  # what is there may be whole but for its newline, and then its number is taken
                self.last_seq = _last_seq(self.path)
            event = {"seq": self.last_seq + 1, "time": round(time.time(), 3), "type": kind, **plain}
            line = json.dumps(event, allow_nan=False).encode("ascii") + b"\n"
            data = b"\n" + line if self._torn else line
            self._torn = True
            while data:
                data = data[self._file.write(data) :]
            self._torn = False
            self.last_seq += 1
        return event

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class EventReader:
    """Reads any stretch of a file that may be growing, in time that does not depend on the file's length.

    Holds no open file. Finds the place of a number by bisection, because numbers only rise, and remembers the last place, so
    that following a run reads only what is new. A missing file holds no events.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._known = (0, 0)  # (seq, byte offset behind its line)

    def window(self, after: int = 0, limit: int | None = None, types: Collection[str] | None = None) -> list[Event]:
        """Up to `limit` events with seq > `after`, oldest first; with `types`, only of these."""
        return list(islice(self._events(after, types), limit))

    def last_seq(self) -> int:
        """The newest event's number, 0 if there is none."""
        return _last_seq(self.path)

    def _events(self, after: int, types: Collection[str] | None) -> Iterator[Event]:
        wanted = None if types is None else [json.dumps(name).encode() for name in types]
        try:
            file = open(self.path, "rb")
        except FileNotFoundError:
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            known_seq, offset = self._known
            if not (known_seq <= after and offset <= size and _line_starts_at(file, offset)):  # another window, or another file
                offset = 0
            offset = _seek(file, after, offset, size)
            last = after
            for line in file:
                offset += len(line)
                if wanted is not None and not any(name in line for name in wanted):
                    continue  # cheaper than parsing it
                event = parse_event(line)
                if event is None or event["seq"] <= last:
                    continue
                last = event["seq"]
                self._known = (last, offset)
                if types is None or event.get("type") in types:
                    yield event


def read_events(
    path: Path | str, after: int = 0, limit: int | None = None, types: Collection[str] | None = None
) -> Iterator[Event]:
    """Events with seq > `after`, oldest first, parsed one by one; see EventReader for what it tolerates."""
    return islice(EventReader(path)._events(after, types), limit)


def metric_series(events: Iterable[Event]) -> dict[str, list[tuple[int, float]]]:
    """Curves from the `metrics` of iteration and evaluation events: name -> [(iteration, value)], iterations rising.

    After a kill and a resume the iterations since the last checkpoint were done twice: the later event counts, and a `resumed`
    event takes back every point after the iteration that it resumes from. Nulls (values that were not finite) are left out.
    """
    latest: dict[str, dict[int, dict[str, Any]]] = {}
    for event in events:
        iteration, kind = event.get("iteration"), event.get("type")
        if not isinstance(iteration, int):
            continue
        if kind == "resumed":
            latest = {name: {i: metrics for i, metrics in rows.items() if i <= iteration} for name, rows in latest.items()}
        elif kind in ("iteration", "evaluation") and isinstance(event.get("metrics"), dict):
            latest.setdefault(kind, {})[iteration] = event["metrics"]
    series: dict[str, list[tuple[int, float]]] = {}
    for rows in latest.values():
        for iteration in sorted(rows):
            for name, value in rows[iteration].items():
                if isinstance(value, (int, float)):
                    series.setdefault(name, []).append((iteration, value))
    return series


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "item"):  # a numpy or torch number; anything with more than one element raises there
        return _plain(value.item())
    raise TypeError(f"an event cannot hold a {type(value).__name__}")


def parse_event(line: bytes) -> Event | None:
    """The event of a line of events.jsonl, or None for a torn or foreign one."""
    try:
        event = _DECODER.decode(line.decode())
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and type(event.get("seq")) is int else None


def _seq(line: bytes) -> int | None:
    if line.endswith(b"}\n") and (match := _SEQ_PREFIX.match(line)):
        return int(match[1])
    event = parse_event(line)
    return None if event is None else event["seq"]


def _seek(file: BinaryIO, after: int, low: int, high: int) -> int:
    """Moves to the start of a line at or a little before the first event with seq > `after`; returns that offset.

    `low` is the start of a line before that event, `high` the file's size.
    """
    while high - low > _NEAR:
        middle = (low + high) // 2
        file.seek(middle)
        start = middle + len(file.readline())  # the rest of a line that began before `middle`
        seq = None
        position = start
        while seq is None and position < high:
            line = file.readline()
            if not line:
                break
            seq = _seq(line)
            if seq is None or seq <= after:
                position += len(line)
        if seq is not None and seq <= after:
            low = position  # behind that event
        else:
            high = middle
    file.seek(low)
    return low


def _line_starts_at(file: BinaryIO, offset: int) -> bool:
    if offset == 0:
        return True
    file.seek(offset - 1)
    return file.read(1) == b"\n"


def _ends_in_newline(path: Path) -> bool:
    with open(path, "rb") as file:
        return _line_starts_at(file, file.seek(0, os.SEEK_END))


def _last_seq(path: Path) -> int:
    """The newest number, read from the end backwards; 0 for a missing or empty file."""
    try:
        file = open(path, "rb")
    except FileNotFoundError:
        return 0
    with file:
        end = file.seek(0, os.SEEK_END)
        rest = b""  # the beginning, still unread to its left, of the line that the last block cut
        while end > 0:
            start = max(0, end - _TAIL)
            file.seek(start)
            block = file.read(end - start) + rest
            lines = block.splitlines(keepends=True)
            rest = lines.pop(0) if start > 0 else b""
            for line in reversed(lines):
                event = parse_event(line)
                if event is not None:
                    return event["seq"]
            end = start
    return 0
