"""A curriculum: runs one after another, each continuing from the LoRA of the one before. Imports no torch.

What is done lies in the stages' run directories and nowhere else, so the same command goes on where it was stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from . import runs
from .config import PolicyConfig, RunConfig, load_config
from .config.fields import absolute
from .config.load import merge, read_yaml
from .config.table import show
from .errors import UserError, one_line
from .runs import RunDir
from .runs.layout import slug
from .runs.state import lora_left, state_or_lost

KEYS = ("name", "common", "stages")
_MAX_TITLE = 80  # of a run's name
_MAX_NAME = 20  # of the curriculum and of a stage in a run id, which has 64 characters


@dataclass(frozen=True)
class Stage:
    """One run of a curriculum. `config` has no LoRA to continue from yet, except the first stage's own."""

    number: int  # from 1
    run_id: str
    config: RunConfig


@dataclass(frozen=True)
class Curriculum:
    name: str
    stages: tuple[Stage, ...]


def load_curriculum(path: str | Path) -> Curriculum:
    """Every stage's checked configuration. The file: `name`, `common` (keys of every stage), `stages` (a list of what each
    stage has besides; `name` there names the stage). Relative paths count from the file's folder.

    Raises UserError, one line: the file, the stage, and what is wrong there.
    """
    path = Path(absolute(str(path)))
    data = read_yaml(path)
    if not isinstance(data, dict) or not isinstance(data.get("stages"), list) or not data["stages"]:
        raise UserError(
            f"{path}: a curriculum is a mapping with a list 'stages' of configurations; allowed keys: {', '.join(KEYS)}"
        )
    if unknown := [key for key in data if key not in KEYS]:
        raise UserError(f"{path}: unknown key {show(unknown[0])}; allowed: {', '.join(KEYS)}")
    name = data.get("name", path.stem)
    if not isinstance(name, str) or not name.strip():
        raise UserError(f"{path}: name = {show(name)}; allowed: a text")
    common = data.get("common") or {}
    if not isinstance(common, dict):
        raise UserError(f"{path}: common = {show(common)}; allowed: a mapping of keys that every stage has")
    stages = [_stage(path, name, number, common, given) for number, given in enumerate(data["stages"], 1)]
    for before, stage in pairwise(stages):
        _check_base(path, stages[0], stage)
        _check_shape(path, before, stage)
    return Curriculum(name, tuple(stages))


def _stage(path: Path, curriculum: str, number: int, common: Mapping[str, Any], given: Any) -> Stage:
    where = f"{path}: stage {number}"
    if not isinstance(given, dict):
        raise UserError(f"{where} = {show(given)}; allowed: a mapping of keys such as preset, prompts, rewards")
    word = given.get("name", "")
    if not isinstance(word, str):
        raise UserError(f"{where}: name = {show(word)}; allowed: a text")
    title = f"{curriculum} {number} {word}".strip()[:_MAX_TITLE]
    try:
        config = load_config({**merge(common, given), "name": title}, folder=path.parent)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    if number > 1 and config.policy.lora.init:
        raise UserError(f"{where}: policy.lora.init is set; a later stage continues from the stage before it, leave it out")
    words = [slug(curriculum, _MAX_NAME), str(number), *([slug(word, _MAX_NAME)] if word else [])]
    return Stage(number, "-".join(words), config)


def _check_base(path: Path, first: Stage, stage: Stage) -> None:
    if other := _other_base(stage.config.policy, first.config.policy):
        key, ours, theirs = other
        raise UserError(
            f"{path}: stage {stage.number}: policy.{key} = {ours}, but stage 1 has {theirs}; a LoRA belongs to one base: set "
            "it once, under common"
        )


def _check_shape(path: Path, before: Stage, stage: Stage) -> None:
    """A stage whose LoRA has no room for all of the one before would lose a part of it, or be refused when its turn comes."""
    ours, theirs = stage.config.policy.lora, before.config.policy.lora
    where = f"{path}: stage {stage.number}: policy.lora"
    if ours.rank < theirs.rank:
        raise UserError(
            f"{where}.rank = {ours.rank}, but stage {before.number} has {theirs.rank}, and a part of it would be lost; set the "
            "rank once, under common"
        )
    if not _parts(theirs.targets) <= _parts(ours.targets) and isinstance(ours.targets, str) == isinstance(theirs.targets, str):
        raise UserError(
            f"{where}.targets = {show(ours.targets)}, but stage {before.number} has {show(theirs.targets)}, and a part of it "
            "would find no place; set the targets once, under common"
        )


def _parts(targets: str | tuple[str, ...]) -> set[str]:
    return set(targets.split("+") if isinstance(targets, str) else targets)


def check_order(curriculum: Curriculum, root: Path) -> None:
    """Raises UserError if a stage is there but not the one before it: made anew, that would not be what it continued from."""
    here = [RunDir(root / stage.run_id) for stage in curriculum.stages]
    for before, run in pairwise(here):
        if run.config_file.is_file() and not before.config_file.is_file():
            raise UserError(
                f"{run.path} is there, but not the run that it continued from, {before.path}; put that back, remove the later "
                "one, or give another --output or name"
            )


def _other_base(policy: PolicyConfig, past: PolicyConfig) -> tuple[str, str, str] | None:
    """(key, its value, the past one) of what tells two bases apart, None where they are the same."""
    for key in ("family", "model"):
        ours, theirs = getattr(policy, key), getattr(past, key)
        if ours != theirs:
            return key, show(ours), show(theirs)
    return None


def finished_lora(run: RunDir) -> Path:
    """The LoRA file of a finished run. Raises UserError if the run is not finished, or its file is gone."""
    state = state_or_lost(run)
    if state.status != runs.FINISHED:
        raise UserError(
            f"the run {run.id} is {state.status}, so it has no LoRA to continue from yet; finish it with: resume {run.path}"
        )
    if path := lora_left(run, state):
        return path.absolute()
    raise UserError(
        f"the LoRA of the run {run.id} is gone: {run.lora_file}; export it again, and continue from that by policy.lora.init"
    )


def continued(config: RunConfig, before: RunDir) -> RunConfig:
    """The configuration with the LoRA of a finished run to continue from. Raises UserError if the two have different bases."""
    lora = finished_lora(before)
    try:
        past = load_config(before.config_file, check_files=False)
    except UserError as error:
        raise UserError(f"the run {before.id} can't be read: {one_line(error)}") from error
    if other := _other_base(config.policy, past.policy):
        key, ours, theirs = other
        raise UserError(f"policy.{key} = {ours}, but the run {before.id} was trained on {theirs}; use the same base")
    data = config.to_dict()
    data["policy"]["lora"]["init"] = str(lora)
    return load_config(data)


def check_same(run: RunDir, config: RunConfig) -> None:
    """Raises UserError if a run that is there was made from another configuration than its stage now says."""
    differ = load_config(run.config_file, check_files=False).diff_from(config)
    if differ := [key for key in differ if key != "policy.lora.init"]:  # which moves along with the folder of the runs
        raise UserError(
            f"{run.path} was started with another {', '.join(differ[:3])} than the curriculum says now; change it back, or "
            "give another --output or name"
        )
