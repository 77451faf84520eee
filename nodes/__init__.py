"""What runs inside ComfyUI. Importing it is cheap: a theme's module is loaded when ComfyUI asks for nodes."""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from ..trainer.errors import one_line
from . import host

log = logging.getLogger("vgrpo.nodes")

MINIMUM = "0.3.75"
TESTED = "0.33.0"
THEMES = ("prompts", "policy", "rewards", "settings", "training", "runs", "sampling", "scoring", "demo_model")


def start() -> None:
    """Once, while the pack is imported: routes can only be added then. Does nothing outside ComfyUI."""
    if not host.inside():
        return
    if too_old(found := host.comfyui_version()):
        log.error("V-GRPO: found ComfyUI %s, needed %s or newer: no nodes are loaded; update ComfyUI.", found, MINIMUM)
        return
    with _no_collection():
        host.offer_model_folders()
        try:
            import_module(".routes", __package__).mount()
        except Exception as error:
            log.error("V-GRPO: runs cannot be watched from the page: %s", reason(error, found))


def comfy_entrypoint() -> Any:
    """The extension with all nodes. Whatever stands in the way is one line in ComfyUI's log, never a traceback."""
    from comfy_api.latest import ComfyExtension

    class VGRPOExtension(ComfyExtension):
        async def get_node_list(self) -> list[type]:
            return load_nodes()

    return VGRPOExtension()


def load_nodes() -> list[type]:
    """The node classes of every theme that this ComfyUI can show; of any other a line in the log says why it is left out."""
    if too_old(host.comfyui_version()):
        return []
    found: list[type] = []
    with _no_collection():
        _load(found)
    return found


@contextmanager
def _no_collection() -> Iterator[None]:
    """An import makes many small objects; they would start a collection of all that ComfyUI holds, which takes longer."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _load(found: list[type]) -> None:
    for theme in THEMES:
        try:
            nodes = import_module(f".{theme}", __package__).NODES
            for node in nodes:
                node.GET_SCHEMA()  # an input that this version does not know would take every other node away too
        except Exception as error:
            log.error("V-GRPO: the nodes of '%s' are left out: %s", theme, reason(error, host.comfyui_version()))
        else:
            found += nodes


def too_old(found: str) -> bool:
    """Whether a version, as far as it can be read, lies below the oldest that is supported."""
    return 0 < len(_numbers(found)) and _numbers(found) < _numbers(MINIMUM)


def reason(error: BaseException, found: str) -> str:
    """One line: what failed, which ComfyUI was found, which one is needed, what to do."""
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith(("comfy", "nodes")) and error.name:
        if __package__ not in error.name:
            return f"the Python package {error.name} is missing; install the pack's requirements.txt with ComfyUI's Python"
    return (
        f"{type(error).__name__}: {one_line(error)} (found ComfyUI {found}; needed {MINIMUM} or newer, tested up to {TESTED};"
        " update ComfyUI or this pack)"
    )


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
