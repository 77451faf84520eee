"""The routes of `trainer.runs.http` in ComfyUI's server, and the watcher that sends its pages the event `vgrpo.event`."""

from __future__ import annotations

import os
from typing import Any

from ..trainer import runs
from ..trainer.runs import RunDir
from ..trainer.runs.http import routes
from ..trainer.runs.reveal import open_folder
from . import host, jobs


class ComfyActions:
    """What a page may ask for. Called in threads of their own, never on the prompt thread."""

    def control(self, run: RunDir, action: str) -> None:
        if action == "resume" and _uses_accelerator(run):
            host.ask_to_free_models()  # the weights come back to the device
        jobs.default().control(run, action)

    def delete(self, run: RunDir) -> None:
        jobs.default().delete(run)

    def resume(self, run: RunDir, device: str) -> None:
        runs.require_idle(run, "resumed")  # before memory is freed for nothing
        if device != "cpu" and host.device() != "cpu":
            host.ask_to_free_models()
        jobs.default().resume(run, device)


def mount() -> None:
    """Once, while the pack is imported. Without a server there is nothing to mount on, and nobody to tell."""

    def register(table: Any) -> None:
        for route in routes(host.runs_root, ComfyActions(), describe, view=view, reveal=open_folder):
            table.route(route.method, route.path)(route.handler)

    if host.add_routes(register):
        jobs.default().watch()


def view(run: RunDir) -> dict[str, Any]:
    """Where ComfyUI's `/view` finds the run's pictures."""
    return {"view": {"type": "output", "subfolder": f"{host.RUNS_FOLDER}/{run.id}"}}


def describe(run: RunDir) -> dict[str, Any]:
    """The run's name in Load LoRA, None before it is published."""
    published = jobs.published_name(run)
    name = published if published in host.loras() else None
    return {"lora_name": name and name.replace(os.sep, "/")}


def _uses_accelerator(run: RunDir) -> bool:
    return jobs.state_or_lost(run).device not in ("", "cpu")
