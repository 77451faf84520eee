"""Where the files of a reward are looked for, and what is said of one that is not there. Importing this loads no library.

Nothing is fetched unless the user named a hub id: an option that is left empty looks into the models folders and into what the
hub's own cache already holds.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..cache import cache_folder
from ..config.fields import looks_like_path
from ..errors import UserError, one_line

FOLDERS = "VGRPO_MODELS"  # environment: folders to look in, separated as in PATH; ComfyUI's nodes set it
OWN = "vgrpo"  # the folder below ComfyUI's `models` that is meant for these files
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_MODEL_FILES = ("*.safetensors", "*.json", "*.txt", "*.model")  # pickled weights are left out, they double the download


@dataclass(frozen=True)
class Weights:
    """One file, or one folder with the files of a transformers model, that a reward needs.

    `given` is what the user said: nothing, a path, a name in the models folders, or a hub id.
    """

    title: str
    names: tuple[str, ...]  # file or folder names that are looked for; the first is the one to recommend
    hub: str  # `org/name` of the repository that publishes it
    licence: str
    size: int  # bytes, as published; 0 = unknown
    given: str = ""
    option: str = "model"  # where `given` was said
    markers: tuple[str, ...] = ()  # of a folder: it holds one of these files; empty = it is a single file
    single: bool = False  # of a folder: a single file with the weights will do as well, where the user names one
    sha256: str = ""  # as published, of the file (of a folder: of `hashed`)
    hashed: str = ""
    source: str = ""  # an address, where it is not a hub repository

    @property
    def address(self) -> str:
        return self.source or f"https://huggingface.co/{self.hub}"


# What makes a folder a model that transformers can load.
MODEL = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def search_folders(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The folders of `VGRPO_MODELS`, else `./models`; then the program's own cache."""
    named = [Path(part) for part in environ.get(FOLDERS, "").split(os.pathsep) if part]
    return [*(named or [Path("models").absolute()]), cache_folder("models")]


def find(weights: Weights) -> Path | None:
    """Where it lies on this machine, None if nowhere. Never fetches and never raises."""
    if weights.given:
        path = Path(weights.given).expanduser()
        if found := _at(path, weights):
            return found.absolute()
        if path.exists() or looks_like_path(weights.given):
            return None
        by_name = next(filter(None, (_at(place, weights) for place in _places((weights.given,)))), None)
        return by_name or (_cached(weights, weights.given) if _HUB_ID.fullmatch(weights.given) else None)
    inside = next(filter(None, (_at(place, weights) for place in _places(weights.names))), None)
    return inside or _cached(weights, weights.hub)


def locate(weights: Weights) -> Path:
    """The file or folder; fetched only if the user named a hub id. Raises UserError of one line."""
    if found := find(weights):
        return found
    if _fetchable(weights):
        return _fetch(weights)
    raise UserError(problem(weights) or f"{weights.title} is not there")


def problem(weights: Weights) -> str | None:
    """One line: what is missing, where it was looked for, what to do; None if it is there or will be fetched as asked."""
    if find(weights) or _fetchable(weights):
        return None
    what = f"{weights.title}: "
    if weights.given:
        path = Path(weights.given).expanduser()
        if path.exists():
            wanted = f"none of {', '.join(weights.markers or weights.names)} in it"
            return f"{what}{weights.option} = {weights.given!r}, there is {wanted}; {_advice(weights)}"
        where = "there is no such file or folder" if looks_like_path(weights.given) else f"not in {_listed(search_folders())}"
        return f"{what}{weights.option} = {weights.given!r}: {where}; {_advice(weights)}"
    return f"{what}{weights.names[0]} is missing; {_advice(weights, 'it')}"


def status(weights: Weights) -> str:
    """One line for a listing: where it is, that it will be fetched, or what to do. Never raises and never fetches."""
    if found := find(weights):
        return f"found: {found}"
    if _fetchable(weights):
        return f"will be fetched from https://huggingface.co/{weights.given}"
    return (problem(weights) or "missing").removeprefix(f"{weights.title}: ")


def verify(weights: Weights) -> str | None:
    """None if the file that is there is the published one or no checksum is known, else one line. Reads all of it."""
    found = find(weights)
    if found is None or not weights.sha256:
        return None
    path = found / weights.hashed if weights.markers else found
    if not path.is_file():
        return None
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(2**22):
            digest.update(part)
    if digest.hexdigest() == weights.sha256:
        return None
    return f"{path} is not the published file: its SHA-256 is {digest.hexdigest()}, published is {weights.sha256}"


def size_hint(weights: Weights, path: Path) -> str:
    """What a file's size says about why it can't be read: '' unless it is smaller than the published one."""
    try:
        found = path.stat().st_size
    except OSError:
        return ""
    if weights.markers or path.name not in weights.names or found >= weights.size:
        return ""
    return f"; it has {found} bytes where the published file has {weights.size}, so fetch it again from {weights.address}"


def human_size(size: int) -> str:
    """`1.97 GB`, as download pages write it; `unknown size` for 0."""
    if not size:
        return "unknown size"
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} B"


def _advice(weights: Weights, what: str = "") -> str:
    """What to do; `what` is to be put somewhere, if it is not to be named anew."""
    what = what or f"the {'folder' if weights.markers else 'file'} {weights.names[0]}"
    facts = ", ".join(filter(None, (human_size(weights.size) if weights.size else "", weights.licence)))
    advice = f"put {what} from {weights.address} ({facts}) into {_own_folder()}"
    if not weights.option:
        return advice
    fetch = f", or to {weights.hub} to have it fetched" if weights.hub else ""
    return f"{advice}, or set {weights.option!r} to its path{fetch}"


def _own_folder() -> Path:
    folders = search_folders()
    return next((folder for folder in folders if folder.name == OWN), folders[0] / OWN)


def _places(names: tuple[str, ...]) -> Iterator[Path]:
    """Where something called like one of `names` may lie: in a folder, in `vgrpo` below it, or one level further down."""
    for folder in search_folders():
        try:
            below = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        except OSError:
            continue
        own = folder / OWN
        try:
            below_own = sorted(entry for entry in own.iterdir() if entry.is_dir())
        except OSError:
            below_own = []
        for place in (folder, own, *below_own, *(entry for entry in below if entry != own)):
            yield from (place / name for name in names)


def _at(path: Path, weights: Weights) -> Path | None:
    """`path` if it is what is needed; a folder that was given for a single file may hold it."""
    try:
        if weights.markers:
            alone = weights.single and path.is_file()
            return path if alone or any((path / marker).is_file() for marker in weights.markers) else None
        if path.is_file():
            return path
        return next((path / name for name in weights.names if (path / name).is_file()), None)
    except (OSError, ValueError):  # a name that no file system takes
        return None


def _fetchable(weights: Weights) -> bool:
    return bool(_HUB_ID.fullmatch(weights.given)) and not looks_like_path(weights.given)


def _cached(weights: Weights, hub: str) -> Path | None:
    """What the hub's own cache holds already; asks no server."""
    if not hub:
        return None
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    for name in weights.markers or weights.names:
        found = try_to_load_from_cache(hub, name)
        if isinstance(found, str):
            return Path(found).parent if weights.markers else Path(found)
    return None


def _fetch(weights: Weights) -> Path:
    hub = weights.given
    try:
        from huggingface_hub import hf_hub_download, snapshot_download

        if not weights.markers:
            return Path(_first(hub, weights.names, hf_hub_download))
        folder = Path(snapshot_download(hub, allow_patterns=[*_MODEL_FILES], ignore_patterns=["*/*"]))
        if _at(folder, weights) is None:  # an old repository that has its weights only as pickled files
            folder = Path(snapshot_download(hub, allow_patterns=[*weights.markers], ignore_patterns=["*/*"]))
    except Exception as error:  # the library has a dozen kinds: no network, no such repository, no permission, no room
        raise UserError(
            f"{weights.title}: {weights.option} = {hub!r} can't be fetched ({type(error).__name__}: {one_line(error)[:300]}); "
            f"check the name and the network, or {_advice(weights)}"
        ) from error
    if _at(folder, weights) is None:
        raise UserError(f"{weights.title}: {hub} has none of {', '.join(weights.markers)}; {_advice(weights)}")
    return folder


def _first(hub: str, names: tuple[str, ...], download) -> str:
    from huggingface_hub.errors import EntryNotFoundError

    for name in names[:-1]:
        try:
            return download(hub, name)
        except EntryNotFoundError:
            continue
    return download(hub, names[-1])


def _listed(folders: list[Path]) -> str:
    return ", ".join(map(str, folders))
