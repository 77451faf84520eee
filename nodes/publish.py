"""A finished run's LoRA, in ComfyUI's `loras`: done by whoever sees the run finish, and harmless to do twice."""

from __future__ import annotations

import filecmp
import os
from pathlib import Path

from ..trainer.errors import UserError
from ..trainer.runs import RunDir
from . import host
from .run_lora import finished_lora
from .run_reading import status_line


def lora_name(run: RunDir) -> str:
    """The name under which Load LoRA lists the run's LoRA once it is published."""
    return os.path.join(host.RUNS_FOLDER, f"{run.id}.safetensors")


def publish(run: RunDir) -> str:
    """Puts the LoRA of a finished run into `loras`, unless the same bytes are there already; returns its name in Load LoRA.

    Safe from any thread. Raises UserError if the run is not finished, its LoRA is gone, or no folder can be written.
    """
    source = finished_lora(run)
    if source is None:
        raise UserError(f"the run '{run.id}' has no finished LoRA to publish: it is {status_line(run)}")
    name = lora_name(run)
    if name in host.loras() and _same(host.lora_file(name), source):
        return name
    return host.publish_lora(source, run.id)


def _same(published: Path, source: Path) -> bool:
    try:
        return filecmp.cmp(published, source, shallow=False)
    except OSError:  # deleted meanwhile
        return False
