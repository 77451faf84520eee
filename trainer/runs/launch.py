"""Starting a trainer in a process of its own, that outlives the one which started it. The only place that starts one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError, one_line
from .atomic import read_json
from .control import take_requests
from .layout import RunDir
from .state import ACTIVE_STATUSES, FAILED, STARTING, RunState, state_or_none, write_state

PACK = Path(__file__).resolve().parents[2]
CLI = PACK / "trainer" / "cli.py"

# Windows' own numbers, which `subprocess` defines only there.
_NEW_PROCESS_GROUP, _NO_WINDOW, _BREAKAWAY = 0x200, 0x8000000, 0x1000000
_TAIL_BYTES = 64 * 1024
# What a trainer takes as its device.
DEVICE = re.compile(r"auto|cpu|mps|(?:cuda|xpu)(?::[0-9]{1,3})?")
DEVICE_WORDS = "auto, cpu, mps, cuda, xpu, cuda:N or xpu:N"


class Child:
    """A trainer that this process started. `poll()` returns its exit code and, if it died early, has said so in the state."""

    def __init__(self, run: RunDir, process: subprocess.Popen) -> None:
        self.run, self.process = run, process
        self._settled = False
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        return self.process.pid

    def poll(self) -> int | None:
        code = self.process.poll()
        with self._lock:
            if code is not None and not self._settled:
                self._settled = True
                settle(self.run, self.pid, code)
        return code

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        self.process.wait(timeout)
        code = self.poll()
        assert code is not None
        return code


def launch(run: RunDir, device: str) -> Child:
    """Starts `resume --in-line` for a run whose configuration is written. Raises UserError; the state then says `failed`."""
    old = state_or_none(run) or RunState()
    state = RunState(
        status=STARTING,
        iteration=old.iteration,
        iterations=old.iterations,
        lora=old.lora,
        device=device,
        name=old.name,
        started=old.started or time.time(),
    )
    try:
        take_requests(run)  # what the process before this one was asked; from here on all is meant for the new one
        write_state(run, state)
        with open(run.log_file, "ab") as log:
            process = _popen(command(run, device), run.path.parent, log)
    except OSError as error:
        message = f"the trainer could not be started: {one_line(error)}"
        _fail(run, message)
        raise UserError(f"{message} ({' '.join(command(run, device)[:2])})") from error
    return Child(run, process)


def command(run: RunDir, device: str, executable: str = sys.executable, flags: Any = sys.flags) -> list[str]:
    """The command line of a trainer, under the very Python that runs here, with its isolation (a portable ComfyUI has `-s`)."""
    if flags.isolated:  # the two others are part of it
        options = ["-I"]
    else:
        options = [*(["-E"] if flags.ignore_environment else []), *(["-s"] if flags.no_user_site else [])]
    return [executable, *options, str(CLI), "resume", str(run.path), "--device", device, "--in-line"]


def process_options(platform: str = sys.platform) -> list[dict[str, Any]]:
    """What makes a child outlive its parent and be spared its Ctrl-C, as arguments of Popen; the first that works is used.

    POSIX: a session of its own. Windows: a process group and a hidden console of its own, and outside the job object that some
    launchers end with all its members, where that job allows it.
    """
    if platform != "win32":
        return [{"start_new_session": True}]
    flags = _NEW_PROCESS_GROUP | _NO_WINDOW
    return [{"creationflags": flags | _BREAKAWAY}, {"creationflags": flags}]


def child_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """UTF-8 in the log wherever it is written from, and each line at once."""
    return {**environ, "PYTHONIOENCODING": "utf-8:backslashreplace", "PYTHONUNBUFFERED": "1"}


def _popen(arguments: list[str], folder: Path, log: Any) -> subprocess.Popen:
    *first, last = process_options()
    common: dict[str, Any] = {
        "cwd": folder,
        "env": child_environment(),
        "stdin": subprocess.DEVNULL,
        "stdout": log,
        "stderr": subprocess.STDOUT,
        "close_fds": True,  # the server's sockets stay the server's
        "shell": False,
    }
    for options in first:
        try:
            return subprocess.Popen(arguments, **common, **options)
        except PermissionError:  # the job object does not let go of its members
            continue
    return subprocess.Popen(arguments, **common, **last)


def settle(run: RunDir, pid: int, code: int) -> None:
    """After a child's end: a run that still says it is active becomes `failed`, with the child's last words.

    A process that was killed while it trained stays `lost`, as any reader finds it: nothing failed there.
    """
    said = read_json(run.state_file)
    if said is None and not run.path.is_dir():  # deleted meanwhile
        return
    status, owner = (STARTING, None) if said is None else (said.get("status"), said.get("pid"))
    if status not in ACTIVE_STATUSES or owner not in (None, pid):
        return
    if code < 0 and owner == pid:
        return
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    words = last_line(run.log_file)
    _fail(run, f"the trainer {how}: {words}" if words else f"the trainer {how} without a word; see {run.log_file.name}")


def last_line(log: Path) -> str:
    """The last line of a log that is not empty, '' without one."""
    lines = log_tail(log, 1)
    return lines[-1][:500] if lines else ""


def log_tail(log: Path, count: int) -> list[str]:
    """Up to `count` of the last lines, blank ones left out, from the last stretch of the file; [] without a file.

    A progress bar that was redrawn in place counts as lines of its own.
    """
    stretch = max(_TAIL_BYTES, min(count * 400, 2 * 2**20))
    try:
        with open(log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - stretch))
            text = file.read(stretch).decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = re.split(r"[\r\n]+", text)
    if size > stretch:
        lines = lines[1:]  # its beginning was cut off
    return [line for line in lines if line.strip()][-count:]


def _fail(run: RunDir, message: str) -> None:
    state = state_or_none(run) or RunState()
    state.status, state.message, state.pid, state.process_start = FAILED, message, None, None
    try:
        write_state(run, state)
    except OSError:  # a full disk; a reader finds the run lost when the time of grace is over
        pass
