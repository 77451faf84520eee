"""One trainer a device; the others wait in line, first come, first served.

A process takes a place by a ticket file whose name says when it came and who it is; the device itself is an operating system's
lock, which no crash leaves behind. Tickets give the order and the names, the lock alone decides. Imports no torch.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..cache import cache_folder
from ..errors import UserError, one_line
from .atomic import write_json
from .layout import RunDir
from .processes import process_alive, process_start_time

WAITING = "waiting for "  # so begins the message of a run in line,
LOADING = "loading"  # and this is the whole message of one whose turn has come
_TICKET = re.compile(r"(\d{20})-(\d+)\.json")
# A device's number counts from what the process may see; the lock is for the device behind it.
_VISIBLE = {"cuda": ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), "xpu": ("ZE_AFFINITY_MASK",)}


@dataclass(frozen=True)
class Ticket:
    """A place in line: when it was taken (nanoseconds since 1970), by which process, for which run in which folder."""

    path: Path
    taken: int
    pid: int
    run_id: str
    run_path: str


class Place:
    """This process's place in the line for one device; leaves it on exit. Poll `holds()` until it is True."""

    def __init__(self, run: RunDir, device: str, taken: float | None = None, root: Path | None = None) -> None:
        """`taken`: seconds since 1970 when the run was asked for (default now). UserError: the run has a place already."""
        self.run, self.device = run, device
        self.folder = (root or default_root()) / device_key(device)
        when = min(time.time_ns(), int(taken * 1e9)) if taken is not None else time.time_ns()
        self._ticket = self.folder / f"{when:020d}-{os.getpid()}.json"
        self._lock: Any = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            others = [t for t in tickets(self.folder) if t.pid != os.getpid() and t.run_path == str(run.path)]
            if others:
                raise UserError(f"The run '{run.id}' is in line or at work already, in process {others[0].pid}.")
            write_json(self._ticket, {"run": run.id, "path": str(run.path), "process_start": process_start_time(os.getpid())})
        except OSError as error:
            raise UserError(
                f"Cannot take a place in line for {device} in {self.folder}: {one_line(error)}."
                " Set VGRPO_CACHE to a folder that can be written."
            ) from error

    def holds(self) -> bool:
        """Whether the device is this process's, from now on until it leaves or ends."""
        if self._lock is not None:
            return True
        if self.before():
            return False
        from filelock import FileLock, Timeout

        lock = FileLock(str(self.folder / "lock"), timeout=0)
        try:
            lock.acquire()
        except Timeout:
            return False
        except NotImplementedError:  # a disk without locks: the order of the tickets is all there is
            pass
        self._lock = lock
        return True

    def before(self) -> list[Ticket]:
        """The tickets before this one, the holder's first."""
        return [ticket for ticket in tickets(self.folder) if (ticket.taken, ticket.pid) < self._order()]

    def message(self) -> str:
        """Whom this run waits for, for people."""
        before = self.before()
        if not before:
            return f"{WAITING}another trainer on {self.device}"
        more = f" and {len(before) - 1} more" if len(before) > 1 else ""
        return f"{WAITING}{before[0].run_id}{more} on {self.device}"

    def leave(self) -> None:
        self._ticket.unlink(missing_ok=True)
        if self._lock is not None:
            with suppress(OSError, NotImplementedError):
                self._lock.release()
            self._lock = None

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *exc: object) -> None:
        self.leave()

    def _order(self) -> tuple[int, int]:
        match = _TICKET.fullmatch(self._ticket.name)
        assert match
        return int(match[1]), int(match[2])


def tickets(folder: Path) -> list[Ticket]:
    """The tickets of living processes, in order; those that a dead process left behind are removed."""
    found = []
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    for name in names:
        if not (match := _TICKET.fullmatch(name)):
            continue
        path, pid = folder / name, int(match[2])
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
            run_id, run_path, start = str(said["run"]), str(said["path"]), said["process_start"]
        except FileNotFoundError:  # left just now
            continue
        except (OSError, ValueError, KeyError, TypeError):
            run_id, run_path, start = "another run", "", None
        if process_alive(pid, start if isinstance(start, (int, float)) else None):
            found.append(Ticket(path, int(match[1]), pid, run_id, run_path))
        else:
            with suppress(OSError):
                path.unlink(missing_ok=True)
    return sorted(found, key=lambda ticket: (ticket.taken, ticket.pid))


def default_root() -> Path:
    """`$VGRPO_CACHE/devices/<host>`, else below `~/.cache/vgrpo`: a home folder may be shared between machines."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()) or "host"
    return cache_folder("devices") / host


def device_key(device: str, environ: Mapping[str, str] = os.environ) -> str:
    """A file name for the device behind a torch name, the same for every process of this machine: `cuda:1` -> `cuda-1`.

    With CUDA_VISIBLE_DEVICES=3,GPU-5f both `cuda` and `cuda:0` are `cuda-3`, and `cuda:1` is `cuda-GPU-5f`.
    """
    kind, _, number = device.partition(":")
    index = int(number) if number.isascii() and number.isdecimal() else 0
    if kind in ("cpu", "mps"):
        return kind
    for variable in _VISIBLE.get(kind, ()):
        listed = [word.strip() for word in environ.get(variable, "").split(",") if word.strip()]
        if index < len(listed):
            return f"{kind}-{re.sub(r'[^A-Za-z0-9.-]', '-', listed[index])}"
    return f"{kind}-{index}"
