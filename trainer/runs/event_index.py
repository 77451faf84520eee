"""Where each event lies in events.jsonl, so that rare kinds and the newest ones are found without reading the file."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from .events import EVENT_TYPES, parse_event
from .follow import Follower, Kept

_START = re.compile(rb'\{"seq": (\d+), "time": [^,"]*, "type": "([a-z]+)"')  # what EventWriter puts first in a line
_KINDS = {name.encode(): number for number, name in enumerate(EVENT_TYPES)}
_OTHER = 255


class EventIndex(Follower):
    """Numbers, places and kinds of a file's events: 17 bytes an event."""

    def reset(self) -> None:
        self._seqs, self._offsets, self._kinds = array("q"), array("q"), bytearray()

    def line(self, offset: int, line: bytes) -> None:
        match = _START.match(line) if line.endswith(b"}\n") else None
        if match:
            seq, kind = int(match[1]), _KINDS.get(match[2], _OTHER)
        else:
            event = parse_event(line)
            if event is None:
                return
            seq, kind = event["seq"], _KINDS.get(str(event.get("type")).encode(), _OTHER)
        if self._seqs and seq <= self._seqs[-1]:
            return
        self._seqs.append(seq)
        self._offsets.append(offset)
        self._kinds.append(kind)

    def whole(self, line: bytes) -> bool:
        return parse_event(line) is not None

    def after(self, seq: int, limit: int, types: Collection[str] | None = None) -> list[dict[str, Any]]:
        """Up to `limit` events with a number above `seq`, oldest first; with `types`, only of these."""
        with self.lock:
            self.catch_up()
            start = bisect_right(self._seqs, seq)
            return self._read(self._chosen(range(start, len(self._seqs)), limit, types))

    def before(self, seq: int, limit: int, types: Collection[str] | None = None) -> list[dict[str, Any]]:
        """The last `limit` events with a number below `seq`, oldest first; with `types`, only of these."""
        with self.lock:
            self.catch_up()
            end = bisect_left(self._seqs, seq)
            return self._read(self._chosen(range(end - 1, -1, -1), limit, types)[::-1])

    def _chosen(self, places: range, limit: int, types: Collection[str] | None) -> list[int]:
        if types is None:
            return list(places[:limit])
        wanted = {_KINDS[name.encode()] for name in types}
        chosen = []
        for place in places:
            if self._kinds[place] in wanted:
                chosen.append(place)
                if len(chosen) == limit:
                    break
        return chosen

    def _read(self, places: Iterable[int]) -> list[dict[str, Any]]:
        found = []
        try:
            with open(self.path, "rb") as file:
                for place in places:
                    file.seek(self._offsets[place])
                    event = parse_event(file.readline())
                    if event is not None and event["seq"] == self._seqs[place]:
                        found.append(event)
        except FileNotFoundError:
            pass
        return found


_indexes: Kept[EventIndex] = Kept(EventIndex, most=64)


def event_index(path: Path) -> EventIndex:
    """The index of a file; those of the files last asked for are kept."""
    return _indexes.get(path)
