"""Checks of single values that a type and a range cannot express. Each raises ValueError with what is allowed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..errors import UserError
from .problems import Problem, refuse

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_PATH_LIKE = re.compile(r"[./~]|[A-Za-z]:")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.\w+)*", re.ASCII)
_T = TypeVar("_T")


def reporting(key: str, read: Callable[[], _T]) -> _T:
    """What `read` returns; its UserError, which names the key itself, becomes one of the configuration's problems."""
    try:
        return read()
    except UserError as error:
        raise refuse([Problem(key, str(error))]) from error


def looks_like_path(value: str) -> bool:
    """Whether a model's name can only be meant as a path (`./sd3`, `~/sd3`, `C:\\sd3`), not as a hub id."""
    return bool(_PATH_LIKE.match(value)) or "\\" in value


def absolute(value: str, base: str | os.PathLike[str] = "") -> str:
    """`value` as an absolute path, a relative one counted from `base`; symbolic links stay as they are."""
    return os.path.abspath(os.path.join(base, os.path.expanduser(value)))


def model_source(value: str, check: bool, files: bool = True) -> str:
    """An existing folder or (with `files`) .safetensors file as an absolute path, or a hub id unchanged."""
    path, more = absolute(value), "a .safetensors file, demo, demo-letters, " if files else ""
    if value and os.path.isdir(path):
        return path
    if looks_like_path(value) or (files and os.path.isfile(path)):
        if not check:
            return value
        if os.path.isfile(path):
            if files and path.lower().endswith(".safetensors"):
                return path
            raise ValueError(
                f"this is a file; allowed: a diffusers folder (with model_index.json), {more}or a hub id such as org/name"
            )
        kind = "file" if files and path.lower().endswith(".safetensors") else "folder"
        raise ValueError(f"{kind} not found; allowed: an existing diffusers folder, {more}or a hub id such as org/name")
    if not _HUB_ID.fullmatch(value):
        raise ValueError(
            f"neither a folder nor a hub id; allowed: an existing diffusers folder, {more}or a hub id such as org/name"
        )
    return value


def weights_file(value: str, check: bool) -> str:
    """An existing .safetensors file as an absolute path."""
    path = absolute(value)
    if check and not (os.path.isfile(path) and path.lower().endswith(".safetensors")):
        raise ValueError("no such .safetensors file; other formats can run code when they are read, convert it first")
    return path


def folder(value: str, check: bool) -> str:
    """An existing folder as an absolute path."""
    path = absolute(value)
    if check and not os.path.isdir(path):
        raise ValueError("folder not found; allowed: null, or an existing folder")
    return path


def lora_path(value: str, check: bool) -> str:
    """An existing .safetensors file or folder as an absolute path."""
    path = absolute(value)
    if not check:
        return path
    if not value or not os.path.exists(path):
        raise ValueError("file or folder not found; allowed: null, or an existing .safetensors file or folder")
    if os.path.isfile(path) and not path.lower().endswith(".safetensors"):
        raise ValueError("not a .safetensors file; other formats can run code when they are read, convert it first")
    return path


def targets(value: Any, words: Sequence[str]) -> Any:
    """One of `words`, or a non-empty tuple of different module name endings."""
    if isinstance(value, str) and value in words:
        return value
    if isinstance(value, list | tuple) and value and len(set(map(repr, value))) == len(value):
        if all(isinstance(item, str) and _MODULE.fullmatch(item) for item in value):
            return tuple(value)
    raise ValueError(f"allowed: {', '.join(words)}, or a list of different module name endings such as [attn.to_q, attn.to_k]")


def printable(value: str) -> str:
    """A name that people can read: not blank, no control characters, no broken Unicode."""
    if not value.strip() or not value.isprintable():
        raise ValueError("allowed: a name of 1 to 80 printable characters")
    return value
