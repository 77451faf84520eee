"""What can be known to go wrong before a trainer is started, each said in one line. Imports none of what it looks for."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import runs
from .config import RunConfig, load_config
from .config.fields import looks_like_path
from .demo import EMBEDDED_MODELS
from .errors import UserError, one_line
from .extras import require_all
from .rewards.registry import create_entry
from .runs import RunDir
from .runs.state import state_or_lost

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements.txt"
_MODULES = {"pillow": "PIL", "pyyaml": "yaml"}  # where the module is not called like its package
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:>=\s*([0-9.]+))?")
_GIB = 2**30
FREE_FOR_DEMO, FREE_FOR_OTHERS = _GIB // 4, 2 * _GIB


def preflight(
    config: RunConfig, root: Path, free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free
) -> None:
    """Raises UserError with the first thing that is missing: a package, the model, what a reward needs, room on the disk,
    a folder to write in."""
    if problem := missing_packages(_requirements()):
        raise UserError(problem)
    require_all(config)
    _check_files(config)
    for name, settings in config.rewards.items():
        if lacking := create_entry(name, settings).missing():
            raise UserError(f"rewards.{name}: {lacking}")
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe = root / ".writable"
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to the runs folder {root}: {one_line(error)}; choose another output folder") from error
    needed = FREE_FOR_DEMO if config.policy.model in EMBEDDED_MODELS else FREE_FOR_OTHERS
    if (free := free_bytes(root)) < needed:
        raise UserError(
            f"only {free / _GIB:.1f} GiB are free on the disk of {root}; a run needs {needed / _GIB:g} GiB for its checkpoints"
            " and pictures: free some space, or choose another output folder"
        )


def check_resume(run: RunDir, root: Path) -> None:
    """Raises UserError if the run is active or finished, or if `preflight` finds something missing."""
    runs.require_idle(run, "resumed")
    if state_or_lost(run).status == runs.FINISHED:
        raise UserError(f"The run '{run.id}' is finished; start a new one to train on.")
    preflight(load_config(run.config_file), root)


def missing_packages(
    requirements: Iterable[str],
    find: Callable[[str], Any] = importlib.util.find_spec,
    version: Callable[[str], str] = importlib.metadata.version,
    executable: str = sys.executable,
) -> str | None:
    """One line that names packages which are missing or too old, and the command that installs them; None if all are there."""
    problems = []
    for line in requirements:
        match = _REQUIREMENT.match(line.split("#")[0].strip())
        if not match:
            continue
        name, minimum = match[1], match[2]
        try:
            there = find(_MODULES.get(name.lower(), name.replace("-", "_"))) is not None
        except (ImportError, ValueError):  # half removed, or replaced by something without a spec
            there = False
        if not there:
            problems.append(name)
        elif minimum:
            with suppress(importlib.metadata.PackageNotFoundError):  # a copy that pip did not install; it may do
                found = version(name)
                if _numbers(found) < _numbers(minimum):
                    problems.append(f"{name} {minimum} or newer (found {found})")
    if not problems:
        return None
    return (
        f"the trainer needs Python packages that are missing or too old here: {', '.join(problems)}; install them with: "
        f'"{executable}" -m pip install -r "{REQUIREMENTS}"'
    )


def _requirements() -> list[str]:
    try:
        return REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    except OSError:  # an installed distribution has its dependencies from pip
        return []


def _check_files(config: RunConfig) -> None:
    model = config.policy.model
    embedded = EMBEDDED_MODELS.get(model)
    folder = embedded.model if embedded else Path(model) if looks_like_path(model) else None
    for part, file in {"": model, **config.policy.files}.items():
        if file.lower().endswith(".safetensors") and not Path(file).is_file():
            key = f"policy.files.{part}" if part else "policy.model"
            raise UserError(f"{key}: {file} is not there any more; put it back, or choose another")
    if folder is not None and not folder.is_file() and not (Path(folder) / "model_index.json").is_file():
        raise UserError(
            f"policy.model: {folder} is not a diffusers model folder (it has no model_index.json); "
            + ("install this pack anew" if embedded else "choose another, or put it back")
        )
    if config.policy.lora.init and not Path(config.policy.lora.init).exists():
        raise UserError(f"policy.lora.init: {config.policy.lora.init} is not there any more; choose another, or none")


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
