"""Showing a folder in the file manager of the machine that runs this."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def opener(platform: str = sys.platform) -> list[str] | None:
    """The program that opens folders here, None without one: on a server without a screen nobody would see it."""
    if platform == "darwin":
        return ["/usr/bin/open"]
    if platform.startswith("linux") and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        found = shutil.which("xdg-open")
        return [found] if found else None
    return None


def open_folder(path: Path) -> bool:
    """Opens the folder; returns whether somebody took the request. Uses no shell, and waits for nothing."""
    if not path.is_dir():
        return False
    try:
        if sys.platform == "win32":
            os.startfile(path)
            return True
        program = opener()
        if program is None:
            return False
        null = subprocess.DEVNULL
        subprocess.Popen([*program, str(path)], stdin=null, stdout=null, stderr=null, shell=False, start_new_session=True)
        return True
    except OSError:
        return False
