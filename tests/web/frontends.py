"""ComfyUI's frontends for tests: folder of a version's wheel, kept in the tests' cache (it is GPL: never vendored)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.comfyui.comfyui_tree import NoComfyUI, cache_folder

OLDEST, NEWEST = "1.32.9", "1.58.1"
_PACKAGE, _INSIDE = "comfyui-frontend-package", "comfyui_frontend_package/static/"


def frontend(version: str) -> Path:
    """A folder for ComfyUI's `--front-end-root`, fetched on first use. Raises NoComfyUI."""
    folder = cache_folder() / f"frontend-{version}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            _fetch(Path(scratch), version)
            try:
                (Path(scratch) / _INSIDE).rename(folder)
            except OSError:
                if not folder.is_dir():  # another test process was faster; anything else is still an error
                    raise
    return folder


def _fetch(scratch: Path, version: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--timeout", "20", "--retries", "2", "-d", str(scratch), f"{_PACKAGE}=={version}"]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
        raise NoComfyUI(f"the frontend comes from PyPI ({_PACKAGE}=={version}), and pip failed: {reason}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(scratch, [name for name in wheel.namelist() if name.startswith(_INSIDE)])
