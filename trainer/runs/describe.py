"""Runs in words for a page: an entry of the list, and all about one run. Paths are relative to the run's folder."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from ..errors import UserError, one_line
from .atomic import read_json
from .control import ACTIONS, pending
from .evaluations import INDEX
from .events import EventReader
from .follow import Kept
from .launch import CLI
from .layout import EVALUATION_FOLDER, RunDir
from .outline import UNKNOWN, outline
from .state import FAILED, LOST, STOPPED, RunState, state_or_lost

RESUMABLE = (STOPPED, FAILED, LOST)
PICTURE = re.compile(r"grid\.png|p\d{3,6}-s\d{1,6}\.png")
REPORTS = ("curve.png", "before-after.png")


def summary(run: RunDir) -> dict[str, Any]:
    """One run in the list: its state, `seq`, the number of its newest event, and what its card shows.

    A run whose files can't be read says so in its message, and takes no other one away."""
    state = state_or_lost(run)
    try:
        return _entry(run, state)
    except OSError as error:
        reason = f"its files cannot be read: {one_line(error)}"
        return {**_heading(run, state), "message": "; ".join(filter(None, (state.message, reason))), "seq": 0, **UNKNOWN}


def _heading(run: RunDir, state: RunState) -> dict[str, Any]:
    return {
        "id": run.id,
        "name": state.name,
        "status": state.status,
        "iteration": state.iteration,
        "iterations": state.iterations,
        "message": state.message,
        "device": state.device,
        "pid": state.pid if state.active else None,
        "started": state.started,
        "updated": state.updated,
        "heartbeat": state.heartbeat,
        "actions": allowed(state),
    }


def _entry(run: RunDir, state: RunState) -> dict[str, Any]:
    found = outline(run)
    last = found.curve().last_seq
    seq = EventReader(run.events_file).last_seq() if last is None else last
    return {**_heading(run, state), "seq": seq, **found.fields(state)}


def description(run: RunDir) -> dict[str, Any]:
    """All about one run but its events, log and configuration."""
    from .checkpoints import list_checkpoints

    state = state_or_lost(run)
    complete, skipped = list_checkpoints(run)
    return {
        **_entry(run, state),
        "lora": Path(state.lora).name if state.lora else None,
        "requests": pending(run),
        "checkpoints": [{"iteration": c.iteration, "size": c.size, "created": c.created} for c in complete],
        "damaged_checkpoints": [{"name": path.name, "reason": reason} for path, reason in skipped],
        "samples": evaluations(run),
        "reports": [name for name in REPORTS if (run.path / name).is_file()],
        "summary": read_json(run.summary_file),
        "log": str(run.log_file),
        "workflow": run.workflow_file.is_file(),
    }


def allowed(state: RunState) -> list[str]:
    """What can be asked of a run now: control actions while it is active, else `resume` (a new process) and `delete`."""
    if state.active:
        return [action for action in ACTIONS if action != ("resume" if state.status != "paused" else "pause")]
    return ["resume", "delete"] if state.status in RESUMABLE else ["delete"]


def headless_command(run: RunDir) -> str:
    """The command line that repeats the run, for this system's shell. Raises UserError if its configuration is gone."""
    if not run.config_file.is_file():
        raise UserError(f"the run '{run.id}' has no config.yaml, so nothing can repeat it")
    words = [sys.executable, str(CLI), "train", str(run.config_file), "--output", str(run.path.parent)]
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)


def workflow(run: RunDir) -> Any:
    """The graph that started the run, None where it was started otherwise."""
    return read_json(run.workflow_file)


def configuration(run: RunDir) -> dict[str, Any]:
    """The configuration as it lies there, and how it differs from the preset that is most like it."""
    from ..config import load_config, load_preset, preset_names

    try:
        text = run.config_file.read_text(encoding="utf-8")
        config = load_config(run.config_file, check_files=False)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the configuration of '{run.id}' cannot be read: {one_line(error)}") from error
    mine = config.to_dict()
    # What a preset leaves open is the run's own, and no difference. Of prompts only their number is checked, so texts will do.
    open_parts = {
        "rewards": mine["rewards"],
        "prompts": {part: [prompt.text for prompt in getattr(config.prompts, part)] for part in mine["prompts"]},
    }
    best: tuple[str | None, list[dict[str, Any]]] = (None, [])
    for name in preset_names():
        given = load_preset(name)
        try:
            preset = load_config({**open_parts, **given}, check_files=False)
        except UserError:
            continue
        theirs = preset.to_dict()
        same = {"name", *(part for part in open_parts if part not in given)}
        keys = [key for key in config.diff_from(preset) if key.split(".")[0] not in same]
        rows = [{"key": key, "value": _short(_at(mine, key)), "preset": _short(_at(theirs, key))} for key in keys]
        if best[0] is None or len(rows) < len(best[1]):
            best = (name, rows)
    return {
        "run": run.id,
        "yaml": text,
        "digest": config.digest(),
        "preset": best[0],
        "diff": best[1],
        "rewards": {name: given["weight"] for name, given in mine["rewards"].items()},
        "monitors": list(mine["monitors"]),
        "clip_eps": mine["objective"]["clip_eps"],
    }


def _at(data: Any, key: str) -> Any:
    for part in key.split("."):
        data = data.get(part) if isinstance(data, dict) else None
    return data


def _short(value: Any) -> Any:
    return f"{len(value)} entries" if isinstance(value, list) and len(value) > 8 else value


class _Evaluation:
    """One evaluation's folder, read again when its index is another one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: tuple[Any, dict[str, Any] | None] = (None, None)

    def read(self) -> dict[str, Any] | None:
        index_file = self._folder / INDEX
        try:
            stat = index_file.stat()
        except OSError:
            return None
        stamp = (stat.st_size, stat.st_mtime_ns)
        if self._known[0] != stamp:
            self._known = (stamp, self._found(read_json(index_file)))
        return self._known[1]

    def _found(self, index: dict[str, Any] | None) -> dict[str, Any] | None:
        if not index:
            return None
        name = self._folder.name
        return {
            "iteration": int(name),
            "folder": f"samples/{name}",
            "grid": f"samples/{name}/grid.png" if (self._folder / "grid.png").is_file() else None,
            **{key: index.get(key) for key in ("prompts", "seeds_per_prompt", "scores", "means")},
            # Seeds have 63 bits; a browser's numbers have 53.
            "seeds": [str(seed) for seed in index.get("seeds") or []],
            "files": [file for file in index.get("files") or [] if isinstance(file, str) and PICTURE.fullmatch(file)],
        }


_evaluations_kept: Kept[_Evaluation] = Kept(_Evaluation, most=2048)
_REPEATED = ("prompts", "seeds", "files")


def evaluation(run: RunDir, iteration: int) -> dict[str, Any] | None:
    """One evaluation with the score of each picture, None if there is none of that iteration."""
    return _evaluations_kept.get(run.evaluation(iteration)).read()


def evaluations(run: RunDir) -> list[dict[str, Any]]:
    """All evaluations by rising iteration, without scores; prompts, seeds and files are null where they are those before.

    Hundreds of evaluations of the same prompts and seeds are thus a small answer.
    """
    folders = sorted(run.samples.iterdir(), key=lambda path: (len(path.name), path.name)) if run.samples.is_dir() else []
    shown: list[dict[str, Any]] = []
    before: dict[str, Any] = {}
    for folder in folders:
        found = _evaluations_kept.get(folder).read() if EVALUATION_FOLDER.fullmatch(folder.name) else None
        if found is None:
            continue
        same = [key for key in _REPEATED if key in before and found[key] == before[key]]
        shown.append({key: None if key in same else value for key, value in found.items() if key != "scores"})
        before = found
    return shown
