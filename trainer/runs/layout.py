"""Where everything of a run lies, and which names a run may have. The only module that joins paths of a run."""

from __future__ import annotations

import re
import secrets
import shutil
import unicodedata
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ..errors import UserError, one_line

RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
EVALUATION_FOLDER = re.compile(r"\d{6,12}")  # an evaluation's name below `samples`
_RUN_ID_WORDS = "1 to 64 of a-z, 0-9 and '-', not starting with '-'"
_MAX_SLUG = 40  # leaves room for "-YYYYMMDD-HHMMSS-xxxx" in 64 characters


class RunNotFound(UserError):
    """No run of that name is in the folder (a handler answers 404)."""


@dataclass(frozen=True)
class RunDir:
    """The files and folders of one run; holds no state and touches no disk. `path` becomes absolute."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path).absolute())

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def state_file(self) -> Path:
        return self.path / "state.json"

    @property
    def lock_file(self) -> Path:
        return self.path / "lock"

    @property
    def events_file(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    def evaluation(self, iteration: int) -> Path:
        """The pictures and the index of one evaluation."""
        return self.samples / f"{iteration:06d}"

    @property
    def origin_file(self) -> Path:
        """Which node, graph and configuration started the run; only ComfyUI writes it."""
        return self.path / "origin.json"

    @property
    def workflow_file(self) -> Path:
        """The graph that started the run."""
        return self.path / "workflow.json"

    @property
    def published_file(self) -> Path:
        """The name under which the LoRA was put into ComfyUI's `loras`."""
        return self.path / "published.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def control(self) -> Path:
        return self.path / "control"

    @property
    def log_file(self) -> Path:
        return self.path / "train.log"

    @property
    def summary_file(self) -> Path:
        return self.path / "summary.json"

    @property
    def lora_dir(self) -> Path:
        """Exported LoRA files; made when the first one is written."""
        return self.path / "lora"

    @property
    def lora_file(self) -> Path:
        """What a finished run leaves."""
        return self.lora_dir / f"{self.id}.safetensors"


def valid_run_id(run_id: object) -> bool:
    """Whether the whole text is a run id. Nothing that passes can leave a folder or hide in it."""
    return isinstance(run_id, str) and RUN_ID.fullmatch(run_id) is not None


def new_run_id(name: str, now: datetime | None = None) -> str:
    """A fresh id: the configuration's name in ASCII, local date and time, four random hexadecimal digits."""
    return f"{slug(name)}-{now or datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def slug(name: str, most: int = _MAX_SLUG) -> str:
    """A name as a part of a run id: a-z, 0-9 and single `-`, at most `most` characters; `run` if nothing is left."""
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", ascii_name).strip("-")[:most].strip("-") or "run"


def create_run(root: Path | str, run_id: str) -> RunDir:
    """Makes `<root>/<run_id>/` and its folders. Raises UserError if the id is malformed, is taken, or cannot be made."""
    run = check_new_run(root, run_id)
    made = False
    try:
        run.path.parent.mkdir(parents=True, exist_ok=True)
        run.path.mkdir()
        made = True
        for folder in (run.samples, run.checkpoints, run.control):
            folder.mkdir()
    except OSError as error:
        if made:
            shutil.rmtree(run.path, ignore_errors=True)
        raise UserError(
            f"Cannot make the folder {run.path}: {one_line(error)}. Choose a folder that can be written."
        ) from error
    return run


def check_new_run(root: Path | str, run_id: str) -> RunDir:
    """The directory that `create_run` would make; makes nothing. Raises UserError if the id is malformed or is taken."""
    run = RunDir(_join(root, run_id))
    if run.config_file.is_file():
        raise UserError(f"The run '{run_id}' exists already in {run.path.parent}; choose another name, or resume it.")
    if run.path.exists():  # a start that was killed leaves such a folder, and so may anybody
        raise UserError(f"{run.path} exists already and holds no configuration of a run; remove it, or choose another name.")
    return run


def find_run(root: Path | str, run_id: str) -> RunDir:
    """The run of that id in `root`. Raises RunNotFound if there is none, UserError if the id is malformed.

    Only a well-formed id is ever joined to a path, so `..`, a drive or a slash never reaches the disk.
    """
    run = RunDir(_join(root, run_id))
    if not _is_run(run.path):
        raise RunNotFound(f"There is no run '{run_id}' in {run.path.parent}; the command `runs` lists those that are there.")
    return run


def list_runs(root: Path | str) -> list[RunDir]:
    """Every run in `root`, the newest first. A missing root holds no runs; other files and folders are passed over."""
    try:
        paths = [path for path in Path(root).iterdir() if valid_run_id(path.name) and _is_run(path)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [RunDir(path) for path in sorted(paths, key=lambda path: (_made_at(path), path.name), reverse=True)]


def _join(root: Path | str, run_id: str) -> Path:
    if not valid_run_id(run_id):
        raise UserError(f"{str(run_id)[:80]!r} is not a run id: {_RUN_ID_WORDS} are allowed.")
    return Path(root) / run_id


def _is_run(path: Path) -> bool:
    run = RunDir(path)  # a copied run may have lost its empty folders, a new one has no files yet
    return run.config_file.is_file() or run.state_file.is_file() or run.control.is_dir()


def _made_at(path: Path) -> float:
    for candidate in (RunDir(path).config_file, path):
        try:
            return candidate.stat().st_mtime  # the configuration is written once, when the run is made
        except OSError:  # it may be deleted while we look
            continue
    return 0.0
