"""Is the process that a run names still that process? A pid alone is reused; a pid with its start time is not."""

from __future__ import annotations

import calendar
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# `ps` on macOS gives whole seconds, psutil gives fractions; writer and reader may use different ones.
_SAME_START_S = 1.0


def process_start_time(pid: int | None) -> float | None:
    """When the process started, in seconds; None if no such process runs (a zombie has ended too).

    Only for comparison with another value of the same machine. The clock differs: seconds since boot on Linux (there the wall
    clock time of a start moves whenever the machine's clock is set), seconds since 1970 elsewhere. psutil, which may be
    installed for one interpreter and not for the other, is asked only where there is no exact call that both have.
    """
    if pid is None or pid <= 0:
        return None
    if sys.platform.startswith("linux"):
        return linux_start_time(pid)
    if sys.platform == "win32":
        return windows_start_time(pid)
    try:
        return psutil_start_time(pid)
    except ImportError:
        return ps_start_time(pid)


def process_alive(pid: int | None, start: float | None = None) -> bool:
    """Whether `pid` runs and, where `start` is known, is the very process that started then."""
    found = process_start_time(pid)
    return found is not None and (start is None or abs(found - start) < _SAME_START_S)


def linux_start_time(pid: int, proc: Path = Path("/proc")) -> float | None:
    """Seconds since boot, from field 22 of /proc/<pid>/stat."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the command's name, in parentheses, may itself hold spaces and parentheses
    if len(fields) < 20 or fields[0] in ("Z", "X", "x"):
        return None
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def windows_start_time(pid: int, kernel32: Any = None) -> float | None:
    """Seconds since 1970, from GetProcessTimes. A process that has ended but is still held open by its parent gives None."""
    import ctypes
    from ctypes import wintypes

    query_limited, still_active = 0x1000, 259
    if kernel32 is None:
        kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
        kernel32.OpenProcess.restype = wintypes.HANDLE
        kernel32.OpenProcess.argtypes = [wintypes.DWORD, wintypes.BOOL, wintypes.DWORD]
        kernel32.GetExitCodeProcess.argtypes = [wintypes.HANDLE, ctypes.c_void_p]
        kernel32.GetProcessTimes.argtypes = [wintypes.HANDLE] + [ctypes.c_void_p] * 4
        kernel32.CloseHandle.argtypes = [wintypes.HANDLE]
    handle = kernel32.OpenProcess(query_limited, False, pid)
    if not handle:
        return None  # gone, or not ours: our trainer is always ours
    try:
        code = wintypes.DWORD()
        if not kernel32.GetExitCodeProcess(handle, ctypes.byref(code)) or code.value != still_active:
            return None
        created, ended, in_kernel, in_user = (wintypes.FILETIME() for _ in range(4))
        times = [ctypes.byref(value) for value in (created, ended, in_kernel, in_user)]
        if not kernel32.GetProcessTimes(handle, *times):
            return None
        ticks = (created.dwHighDateTime << 32) | created.dwLowDateTime  # of 100 ns since 1601
        return ticks / 1e7 - 11644473600.0
    finally:
        kernel32.CloseHandle(handle)


def psutil_start_time(pid: int) -> float | None:
    """Seconds since 1970. Raises ImportError where psutil is not installed."""
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None


def ps_start_time(pid: int) -> float | None:
    """Seconds since 1970, whole, from `ps` (macOS, BSD). Time zone and language are fixed: both change what it prints."""
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    command = ["ps", "-o", "stat=", "-o", "lstart=", "-p", str(pid)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    state, _, started = done.stdout.strip().partition(" ")
    if done.returncode != 0 or not started or state.startswith("Z"):
        return None
    try:
        return float(calendar.timegm(time.strptime(" ".join(started.split()), "%a %b %d %H:%M:%S %Y")))
    except ValueError:
        return None
