"""Files that are complete or absent, whatever kills the process that writes them."""

from __future__ import annotations

import errno
import json
import os
import secrets
import time
from pathlib import Path
from typing import Any

# A name with this prefix and the writer's pid is unfinished work: readers skip it, `checkpoints.clean_aside` removes it.
ASIDE_PREFIX = ".writing-"

# On Windows a file that another process holds open (a reader, a virus scanner) can for a moment not be replaced or renamed.
_SHARING_RETRIES = 40
_SHARING_PAUSE_S = 0.025


def replace(source: Path, target: Path) -> None:
    """`os.replace`, which on Windows waits up to a second for others to close `target`. Raises OSError."""
    for attempt in range(_SHARING_RETRIES):
        try:
            os.replace(source, target)
            return
        except PermissionError:
            if os.name != "nt" or attempt == _SHARING_RETRIES - 1:
                raise
            time.sleep(_SHARING_PAUSE_S)


def read_bytes(path: Path) -> bytes:
    """The whole file; on Windows it waits up to a second while somebody replaces it. Raises OSError."""
    for attempt in range(_SHARING_RETRIES):
        try:
            return path.read_bytes()
        except PermissionError:
            if os.name != "nt" or attempt == _SHARING_RETRIES - 1:
                raise
            time.sleep(_SHARING_PAUSE_S)
    raise AssertionError("unreachable")


def read_json(path: Path) -> dict[str, Any] | None:
    """A file's JSON object, NaN and infinity in it as None; None where the file is missing, damaged or holds something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def fsync_dir(path: Path) -> None:
    """Makes the names in a folder durable where the system can (Windows and some network disks cannot). Raises OSError."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def write_durable(path: Path, data: bytes) -> None:
    """Writes a new file and forces it to the disk; not atomic by itself. Raises OSError (a full disk, for example)."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replaces `path` by `content` (text becomes UTF-8) in one step: a reader sees the old file or the new one, never a part.

    Raises OSError; the old file is then untouched and nothing is left behind.
    """
    data = content.encode() if isinstance(content, str) else content
    aside = path.with_name(f"{ASIDE_PREFIX}{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        write_durable(aside, data)
        replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """`write_atomic` of strict JSON (a NaN is a ValueError), indented for people. Raises OSError."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
