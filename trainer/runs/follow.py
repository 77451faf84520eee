"""Reading a growing file of lines once: each question only reads what came since the one before. And keeping few such files."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

_CHECK = 64  # bytes before the known end that must still be what they were

T = TypeVar("T")


class Follower:
    """What derives a table from a file's lines; a subclass says what a line means and how to begin anew.

    Call `catch_up` with `lock` held. A file that shrank, was replaced, or differs right before the place where reading stopped
    is read from its beginning.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.lock = threading.RLock()
        self._end = 0
        self._mark: tuple[object, bytes] = (None, b"")  # the file's identity, and its last bytes before `_end`

    def reset(self) -> None:
        """Forget everything."""
        raise NotImplementedError

    def line(self, offset: int, line: bytes) -> None:
        """Take one whole line."""
        raise NotImplementedError

    def whole(self, line: bytes) -> bool:
        """Whether a last line without its newline is complete all the same."""
        return False

    def catch_up(self) -> None:
        """Take the lines that are new. A missing file is an empty one."""
        try:
            file = open(self.path, "rb")
        except FileNotFoundError:
            self._begin_anew(None)
            return
        with file:
            stat = os.fstat(file.fileno())
            identity = (stat.st_dev, stat.st_ino)
            known, tail = self._mark
            if known != identity or stat.st_size < self._end or (tail and self._read_tail(file) != tail):
                self._begin_anew(identity)
            if stat.st_size == self._end:
                return
            file.seek(self._end)
            for line in file:
                if not line.endswith(b"\n") and not self.whole(line):
                    break  # it is being written
                self.line(self._end, line)
                self._end += len(line)
            self._mark = (identity, self._read_tail(file))

    def _begin_anew(self, identity: object) -> None:
        self.reset()
        self._end, self._mark = 0, (identity, b"")

    def _read_tail(self, file) -> bytes:
        start = max(0, self._end - _CHECK)
        file.seek(start)
        return file.read(self._end - start)


class Kept(Generic[T]):
    """The values last asked for, by key: at most `most` of them, and at most `weight` in all where they are weighed."""

    def __init__(self, make: Callable[[Path], T], most: int, weight: int = 0, weigh: Callable[[T], int] | None = None) -> None:
        self._make, self._most, self._weight, self._weigh = make, most, weight, weigh
        self._kept: OrderedDict[Path, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: Path) -> T:
        with self._lock:
            if path in self._kept:
                self._kept.move_to_end(path)
            else:
                self._kept[path] = self._make(path)
            found = self._kept[path]
            while len(self._kept) > 1 and (len(self._kept) > self._most or self._heavy()):
                self._kept.popitem(last=False)
            return found

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Path]:
        return iter(list(self._kept))

    def _heavy(self) -> bool:
        return self._weigh is not None and sum(self._weigh(value) for value in self._kept.values()) > self._weight
