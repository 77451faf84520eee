"""ComfyUI's frontends for tests: folder of a version's wheel, kept in the tests' cache (it is GPL: never vendored)."""

from __future__ import annotations

from pathlib import Path

from tests.comfyui.comfyui_tree import fetched

OLDEST, NEWEST = "1.32.9", "1.58.1"
_PACKAGE, _INSIDE = "comfyui-frontend-package", "comfyui_frontend_package/static/"


def frontend(version: str) -> Path:
    """A folder for ComfyUI's `--front-end-root`, fetched on first use. Raises NoComfyUI."""
    return fetched(f"frontend-{version}", f"{_PACKAGE}=={version}", _INSIDE, "the frontend")
