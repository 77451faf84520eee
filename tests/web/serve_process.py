"""`trainer/cli.py serve` as a user starts it."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.comfyui.server import PATIENCE, ROOT


@contextmanager
def serve(runs_root: Path, *options: str) -> Iterator[str]:
    """The address that it prints."""
    command = [sys.executable, str(ROOT / "trainer" / "cli.py"), "serve", str(runs_root), "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUTF8": "1"})
    try:
        assert process.stdout
        ready, _, _ = select.select([process.stdout], [], [], 60 * PATIENCE)
        line = process.stdout.readline() if ready else ""
        found = re.search(r"http://\S+/", line)
        assert found, f"serve does not say where it serves: {line!r}"
        yield found[0]
    finally:
        process.terminate()
        process.wait(20)
