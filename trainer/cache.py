"""Where this program keeps what it may make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """`$VGRPO_CACHE/<name>`, else `~/.cache/vgrpo/<name>`. It may not exist yet."""
    return Path(os.environ.get("VGRPO_CACHE") or Path.home() / ".cache" / "vgrpo") / name
