"""The pure modules behind the views of one run, under node, where there is one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="there is no node; the browser tests cover these modules")
def test_the_pure_modules_of_the_views():
    script = Path(__file__).parent / "js" / "views.test.mjs"
    found = subprocess.run([NODE, "--test", str(script)], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-2000:]
