"""Prompts: where they come from, and one form for all of them."""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .demo import EMBEDDED_MODELS
from .errors import UserError

SUFFIXES = (".txt", ".jsonl")
_MAX_DEPTH = 16
_ALLOWED = "a list of prompts, a .txt file (one prompt a line), a .jsonl file or the word demo or demo-letters"


@dataclass(frozen=True)
class Prompt:
    """One prompt: its text, and JSON data that rewards read (a scene's specification, GenEval's `include`, ...)."""

    text: str
    metadata: dict[str, Any] = field(default_factory=dict, hash=False)


def load_prompts(source: object, where: str, base: Path | None = None) -> list[Prompt]:
    """All prompts of `source`, in its order; never an empty list.

    source: a list of strings or {text | prompt, metadata} mappings; the path of a UTF-8 file, .txt (one prompt a line, blank
        lines and lines that start with # are skipped) or .jsonl (one object a line; keys beside `text`/`prompt` and `metadata`
        join the metadata); or the name of an embedded model, its own prompts.
    where: the configuration key, `prompts.train` or `prompts.evaluate`; it is named in errors and picks the embedded file.
    base: the folder that a relative path starts from (default: the current one).
    Raises UserError: one line with the key, the file and the line number.
    """
    if isinstance(source, str | Path):
        if embedded := EMBEDDED_MODELS.get(source):
            path = embedded.prompts(where.rsplit(".", 1)[-1])
        else:
            path = Path(os.path.abspath(os.path.join(base or "", os.path.expanduser(source))))
        prompts = list(_read_file(path, where))
        if not prompts:
            raise UserError(f"{where}: {path} holds no prompt; put at least one in it")
        return prompts
    if isinstance(source, list | tuple):
        if not source:
            raise UserError(f"{where}: the list is empty; it must hold at least one prompt")
        return [_from_item(item, f"{where}[{index}]") for index, item in enumerate(source)]
    raise UserError(f"{where} = {_short(source)}; allowed: {_ALLOWED}")


def _read_file(path: Path, where: str) -> Iterator[Prompt]:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"{where}: {str(path)!r} is not a prompt source; allowed: {_ALLOWED}")
    for number, line in enumerate(_read_text(path, where).split("\n"), start=1):
        line = line.strip()
        at = f"{where}: {path}, line {number}"
        if not line:
            continue
        if suffix == ".jsonl":
            yield from_json_line(line, at)
        elif not line.startswith("#"):
            yield Prompt(_text(line, at))


def _read_text(path: Path, where: str) -> str:
    if not os.path.exists(path):
        raise UserError(f"{where}: prompt file not found: {path}")
    if os.path.isdir(path):
        raise UserError(f"{where}: {path} is a folder; a .txt or .jsonl file is needed")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{where}: cannot read {path}: {error.strerror or error}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{where}: {path}, line {line}: not UTF-8 text; save the file as UTF-8") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def from_json_line(line: str, at: str) -> Prompt:
    """A line of a .jsonl file: an object with a prompt. `at` begins the text of a UserError."""
    try:
        entry = json.loads(line, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{at}: not JSON ({error.msg} at column {error.colno}); each line is one object with a prompt"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{at}: not usable JSON ({error})") from error
    if not isinstance(entry, dict):
        raise UserError(f'{at}: {_short(entry)} is not an object; allowed: {{"prompt": "...", "metadata": {{...}}}}')
    return _from_mapping(entry, at, extras=True)


def _from_item(item: object, at: str) -> Prompt:
    if isinstance(item, Prompt):
        item = {"text": item.text, "metadata": item.metadata}
    if isinstance(item, str):
        return Prompt(_text(item, at))
    if isinstance(item, Mapping):
        return _from_mapping(item, at, extras=False)
    raise UserError(f"{at} = {_short(item)}; allowed: a string, or a mapping with the keys text and metadata")


def _from_mapping(entry: Mapping, at: str, extras: bool) -> Prompt:
    texts = [key for key in ("text", "prompt") if key in entry]
    if len(texts) != 1:
        raise UserError(
            f"{at}: {'both text and prompt are' if texts else 'neither text nor prompt is'} given; exactly one is needed"
        )
    others = {key: value for key, value in entry.items() if key not in (texts[0], "metadata")}
    # In a hand-written list a further key is a typo; a data set's lines do have them (GenEval's tag and include).
    if others and not extras:
        key = str(next(iter(others)))
        near = difflib.get_close_matches(key, ["text", "metadata"], n=1)
        hint = f"did you mean {near[0]!r}?" if near else "allowed: text, metadata"
        raise UserError(f"{at}: unknown key {key!r} ({hint})")
    metadata = entry.get("metadata")
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, Mapping):
        raise UserError(f"{at}: metadata = {_short(metadata)}; allowed: an object")
    twice = sorted(set(metadata) & set(others), key=str)
    if twice:
        raise UserError(f"{at}: {twice[0]!r} stands both beside metadata and in it; keep one")
    return Prompt(_text(entry[texts[0]], at), _plain({**metadata, **others}, at))


def _text(value: object, at: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{at}: the prompt is {_short(value)}; it must be a string")
    if not value.strip():
        raise UserError(f"{at}: the prompt is blank")
    return _encodable(value, at)


def _encodable(value: str, at: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{at}: {_short(value)} holds half of a surrogate pair, which is not text") from error
    return value


def _plain(value: object, at: str, depth: int = 0) -> Any:
    """A copy of JSON data; anything that a file could not give back unchanged is refused."""
    if depth > _MAX_DEPTH:
        raise UserError(f"{at}: metadata is nested deeper than {_MAX_DEPTH} levels")
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return _encodable(value, at)
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, at, depth + 1) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {_encodable(key, at): _plain(item, at, depth + 1) for key, item in value.items()}
    raise UserError(
        f"{at}: metadata holds {_short(value)}; allowed: strings, finite numbers, true, false, null, lists, objects"
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
