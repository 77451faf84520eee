"""Code of a test in a process with a real ComfyUI's code, and the pack imported as ComfyUI would, below a package `pack`.

`in_comfyui(base, code, **values)` runs the code with `values` as names (plain data) and returns what it puts into `answer`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.comfyui.comfyui_site import comfyui_site
from tests.comfyui.comfyui_tree import NoComfyUI, comfyui_tree, missing

TIMEOUT_S = 900  # seconds of work, but tests share the machine
ROOT = Path(__file__).parents[1]

_START = """
import json, sys, types
base, root, values, target = sys.argv[1:]
sys.argv = ["main.py", "--cpu", "--base-directory", base]
import comfy.options
comfy.options.enable_args_parsing()
package = types.ModuleType("pack")
package.__path__ = [root]
sys.modules["pack"] = package
scope = {"answer": {}, **json.loads(values)}
with open(target + ".py", encoding="utf-8") as file:
    exec(compile(file.read(), "the test's code", "exec"), scope)
with open(target, "w", encoding="utf-8") as file:
    json.dump(scope["answer"], file)
"""


def in_comfyui(base: Path, code: str, /, **values: Any) -> dict[str, Any]:
    """Raises AssertionError with the process's output if the code raises."""
    try:
        tree = comfyui_tree()
        site = comfyui_site(tree)
    except NoComfyUI as error:
        missing(str(error))
    for name in ("input", "output", "user", "models/loras", "models/diffusers"):
        (base / name).mkdir(parents=True, exist_ok=True)
    target = base / "answer.json"
    Path(f"{target}.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", _START, str(base), str(ROOT), json.dumps(values), str(target)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (site, tree))), "PYTHONUTF8": "1"},
        cwd=base,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return json.loads(target.read_text(encoding="utf-8"))
