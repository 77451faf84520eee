"""Checkpoints that are complete or absent: written aside, the manifest last, then renamed into place.

A kill or a full disk at any moment leaves every earlier checkpoint as it was (a torn newest checkpoint: unsloth#8163).
Importing this module loads no torch; saving and loading do.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError, one_line
from .atomic import ASIDE_PREFIX, fsync_dir, replace, write_durable
from .layout import RunDir
from .processes import process_alive

if TYPE_CHECKING:
    from torch import Tensor

    Tensors = dict[str, dict[str, Tensor]]

MANIFEST = "manifest.json"
POSITION = "position.json"
_FORMAT = 1
_REPLACED_PREFIX = ".replaced-"
_DELETED_PREFIX = ".deleted-"
_FOLDER = re.compile(r"\d{6,}")
_ASIDE = re.compile(r"\.(writing|replaced|deleted)-(?:(\d{6,})|.*?)-(\d+)(?:-[0-9a-f]{8})?")
_FILE = re.compile(r"[a-z0-9_]+\.safetensors|" + re.escape(POSITION))

Skipped = list[tuple[Path, str]]


class DamagedCheckpoint(UserError):
    """The folder is no complete checkpoint, said in one line."""


@dataclass(frozen=True)
class CheckpointInfo:
    """One complete checkpoint; `size` in bytes, `created` in seconds since 1970."""

    iteration: int
    path: Path
    size: int
    created: float


def save_checkpoint(run: RunDir, iteration: int, tensors: Mapping[str, Mapping[str, Tensor]], position: dict[str, Any]) -> Path:
    """Saves `<name>.safetensors` for each dict of tensors and position.json; returns `checkpoints/<iteration>/`.

    Tensors may lie on any device and may share memory; dtypes and bits are kept. `position` is whatever JSON can hold (floats
    come back exactly, tuples as lists). A checkpoint of the same iteration is replaced, and stays until the new one is whole.
    When anything fails the unfinished folder is removed and the error goes on to the caller, OSError for a full disk.
    """
    for name in tensors:
        if not _FILE.fullmatch(f"{name}.safetensors"):
            raise ValueError(f"{name!r} cannot name a checkpoint file: a-z, 0-9 and '_' are allowed")
    final = _folder(run, iteration)
    aside = final.with_name(f"{ASIDE_PREFIX}{final.name}-{os.getpid()}")
    try:
        run.checkpoints.mkdir(exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        files = {f"{name}.safetensors": _write_tensors(aside / f"{name}.safetensors", group) for name, group in tensors.items()}
        data = json.dumps(position, indent=2).encode()
        write_durable(aside / POSITION, data)
        files[POSITION] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        manifest = {"format": _FORMAT, "iteration": iteration, "created": time.time(), "files": files}
        write_durable(aside / MANIFEST, json.dumps(manifest, indent=2).encode())
        fsync_dir(aside)
        _put_in_place(aside, final)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return final


def list_checkpoints(run: RunDir) -> tuple[list[CheckpointInfo], Skipped]:
    """The complete checkpoints by rising iteration, and what was passed over as (path, reason). Changes nothing.

    Complete: a manifest of this format whose files are all there in the right sizes; the hashes are compared on loading. Where
    a kill fell between the two renames of a replacement, the old checkpoint counts under its aside name. A folder that a living
    process is writing is neither.
    """
    complete: dict[int, CheckpointInfo] = {}
    skipped: Skipped = []
    for path in _entries(run):
        if _FOLDER.fullmatch(path.name):
            try:
                complete[int(path.name)] = _inspect(path, int(path.name))
            except DamagedCheckpoint as error:
                skipped.append((path, str(error)))
    for path, kind, iteration, pid in _asides(run):
        if kind == "replaced" and iteration is not None and iteration not in complete:
            try:
                complete[iteration] = _inspect(path, iteration)
            except DamagedCheckpoint as error:
                skipped.append((path, str(error)))
        elif kind == "writing" and iteration is not None and not process_alive(pid):
            skipped.append((path, "it was never finished: the process that saved it ended in the middle"))
    return [complete[iteration] for iteration in sorted(complete)], skipped


def latest_complete(run: RunDir) -> tuple[CheckpointInfo | None, Skipped]:
    """The newest complete checkpoint, None without one, and what was passed over."""
    complete, skipped = list_checkpoints(run)
    return (complete[-1] if complete else None), skipped


def load_checkpoint(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """The tensors (on the CPU, by file and name) and the position of one checkpoint.

    What is loaded is what was hashed. Raises DamagedCheckpoint, one line, if a file is missing or differs from the manifest.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = Path(path)
    tensors: Tensors = {}
    position: dict[str, Any] = {}
    for name, expected in _manifest(path)["files"].items():
        try:
            data = (path / name).read_bytes()
            if hashlib.sha256(data).hexdigest() != expected["sha256"]:
                raise DamagedCheckpoint(f"The checkpoint {path} is damaged: {name} is not what was saved. Use an earlier one.")
            if name == POSITION:
                position = json.loads(data)
            else:
                tensors[name.removesuffix(".safetensors")] = load(data)
        except (OSError, ValueError, SafetensorError) as error:
            raise DamagedCheckpoint(
                f"The checkpoint {path} cannot be read: {name}: {one_line(error)}. Use an earlier one."
            ) from error
    return tensors, position


def load_latest(run: RunDir) -> tuple[CheckpointInfo, Tensors, dict[str, Any], Skipped]:
    """Loads the newest checkpoint that is complete to the last bit: (info, tensors, position, what was passed over).

    Raises UserError if the run has none.
    """
    complete, skipped = list_checkpoints(run)
    for info in reversed(complete):
        try:
            return info, *load_checkpoint(info.path), skipped
        except DamagedCheckpoint as error:
            skipped.append((info.path, str(error)))
    passed_over = "; ".join(f"{path.name}: {reason}" for path, reason in skipped)
    raise UserError(
        f"The run '{run.id}' has no complete checkpoint in {run.checkpoints}, so it cannot be resumed; start it anew."
        + (f" Passed over: {passed_over}" if passed_over else "")
    )


def prune(run: RunDir, keep: int, protect: Collection[int] = ()) -> list[int]:
    """Deletes complete checkpoints but the newest `keep` (>= 1) and the iterations in `protect`; returns those deleted.

    Each is renamed before it is deleted, so a kill in between leaves no torn checkpoint. Damaged folders are left to people.
    """
    if keep < 1:
        raise ValueError(f"keep is {keep}; at least the newest checkpoint stays")
    complete, _ = list_checkpoints(run)
    doomed = [info for info in complete[:-keep] if info.iteration not in protect]
    for info in doomed:
        aside = run.checkpoints / f"{_DELETED_PREFIX}{info.iteration:06d}-{os.getpid()}"
        replace(info.path, aside)
        shutil.rmtree(aside, ignore_errors=True)
    return [info.iteration for info in doomed]


def clean_aside(run: RunDir) -> list[Path]:
    """Removes what ended processes left unfinished in the run, and puts back a checkpoint whose replacement never came.

    For the trainer when it takes up the run, before its first save. Returns what it removed.
    """
    complete = {int(path.name) for path in _entries(run) if _FOLDER.fullmatch(path.name) and _is_complete(path)}
    removed = []
    for path, kind, iteration, pid in _asides(run):
        if pid != os.getpid() and process_alive(pid):
            continue
        if kind == "replaced" and iteration is not None and iteration not in complete and _is_complete(path, iteration):
            final = _folder(run, iteration)
            shutil.rmtree(final, ignore_errors=True)
            replace(path, final)
            complete.add(iteration)
            continue
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        removed.append(path)
    # Half-written pictures and LoRA files name no writer, but only the run's trainer writes there.
    for path in (*run.samples.glob("*/*.part"), *run.path.glob("*.part"), *run.lora_dir.glob(".*.partial")):
        path.unlink(missing_ok=True)
        removed.append(path)
    return removed


def _folder(run: RunDir, iteration: int) -> Path:
    if iteration < 0:
        raise ValueError(f"iteration {iteration} is negative")
    return run.checkpoints / f"{iteration:06d}"


def _put_in_place(aside: Path, final: Path) -> None:
    """Renames a whole checkpoint to its name. A folder cannot replace a folder in one step, so an old one steps aside first."""
    replaced = final.with_name(f"{_REPLACED_PREFIX}{final.name}-{os.getpid()}")
    had_old = final.exists()
    if had_old:
        shutil.rmtree(replaced, ignore_errors=True)
        replace(final, replaced)
    try:
        replace(aside, final)
    except BaseException:
        if had_old:
            replace(replaced, final)
        raise
    if had_old:
        shutil.rmtree(replaced, ignore_errors=True)
    fsync_dir(final.parent)


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Writes one durable safetensors file; returns its manifest entry. Raises OSError."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    seen: set[int] = set()
    plain = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().to("cpu").contiguous()
        storage = tensor.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != tensor.nbytes:  # the file format has no views
            tensor = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
        plain[name] = tensor
    try:
        save_file(plain, path)
    except SafetensorError as error:  # it hides the system's error in text; the caller wants to know a full disk from a bug
        if code := re.search(r"os error (\d+)", str(error)):
            raise _os_error(int(code[1]), path) from error
        raise
    digest = hashlib.sha256()
    with open(path, "r+b") as file:
        while block := file.read(1 << 20):
            digest.update(block)
        os.fsync(file.fileno())
        size = file.tell()
    return {"size": size, "sha256": digest.hexdigest()}


def _os_error(code: int, path: Path) -> OSError:
    if os.name == "nt":
        return OSError(0, f"system error {code}", str(path), code)  # Python derives errno from Windows' code
    return OSError(code, os.strerror(code), str(path))


def _manifest(path: Path) -> dict[str, Any]:
    """The checked manifest of a folder. Raises DamagedCheckpoint."""
    try:
        found = json.loads((path / MANIFEST).read_bytes())
        if found["format"] != _FORMAT:
            raise DamagedCheckpoint(
                f"The checkpoint {path} has format {found['format']}; this version reads {_FORMAT}. Update vgrpo."
            )
        entries = {"iteration": int, "created": (int, float), "files": dict}
        whole = all(isinstance(found[key], kind) for key, kind in entries.items()) and POSITION in found["files"]
        # Names in a manifest become paths, so only those that this module writes pass.
        if not whole or not all(_FILE.fullmatch(name) and _well_formed(entry) for name, entry in found["files"].items()):
            raise ValueError("entries are missing or malformed")
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"The checkpoint {path} has no {MANIFEST}: it was never finished.") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpoint(f"The checkpoint {path} has an unreadable {MANIFEST}: {one_line(error)}.") from error
    return found


def _well_formed(entry: dict[str, Any]) -> bool:
    return isinstance(entry["size"], int) and isinstance(entry["sha256"], str)


def _inspect(path: Path, iteration: int) -> CheckpointInfo:
    """The checkpoint in `path` if it is complete and is that iteration's. Raises DamagedCheckpoint."""
    manifest = _manifest(path)
    if manifest["iteration"] != iteration:
        raise DamagedCheckpoint(f"The checkpoint {path} is one of iteration {manifest['iteration']}: the folder was renamed.")
    size = 0
    for name, entry in manifest["files"].items():
        try:
            found = (path / name).stat().st_size
        except OSError as error:
            raise DamagedCheckpoint(f"The checkpoint {path} is damaged: {name} is missing.") from error
        if found != entry["size"]:
            raise DamagedCheckpoint(f"The checkpoint {path} is damaged: {name} has {found} bytes of {entry['size']}.")
        size += found
    return CheckpointInfo(iteration, path, size, manifest["created"])


def _is_complete(path: Path, iteration: int | None = None) -> bool:
    try:
        _inspect(path, int(path.name) if iteration is None else iteration)
    except DamagedCheckpoint:
        return False
    return True


def _entries(run: RunDir) -> list[Path]:
    try:
        return sorted(run.checkpoints.iterdir())
    except FileNotFoundError:
        return []


def _asides(run: RunDir) -> Iterator[tuple[Path, str, int | None, int]]:
    """Unfinished work: (path, "writing" | "replaced" | "deleted", iteration if it is a checkpoint, writer's pid)."""
    files = (*run.path.glob(f"{ASIDE_PREFIX}*"), *run.samples.glob(f"*/{ASIDE_PREFIX}*"))
    for path in [*_entries(run), *sorted(files)]:
        if match := _ASIDE.fullmatch(path.name):
            yield path, match[1], int(match[2]) if match[2] else None, int(match[3])
