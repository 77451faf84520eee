"""The pack's nodes on a real ComfyUI's node API, without a server.

`pack("nodes.knobs")`   a module of the pack that needs no ComfyUI, imported as ComfyUI would: below a package of another name
`ComfyNodes(folder)`    a process with ComfyUI's code, whose base directory is `folder`; nodes run in it as ComfyUI runs them
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

from tests.comfyui.comfyui_site import comfyui_site
from tests.comfyui.comfyui_tree import NoComfyUI, comfyui_tree, missing

ROOT = Path(__file__).parents[1]
PACKAGE = "vgrpo_pack"
PROBE = Path(__file__).with_name("comfy_api_probe.py")


class NodeError(Exception):
    """What a node raised; `kind` is the exception's class name."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Result:
    """A node's outputs: `outputs` as plain data, `ui` as the page gets it. A result may be an input of a further node."""

    def __init__(self, token: int, outputs: list[Any], ui: dict[str, Any]) -> None:
        self.token, self.outputs, self.ui = token, outputs, ui

    def __getitem__(self, index: int) -> dict[str, int]:
        """The link to an output."""
        return {"$result": self.token, "output": index}


def pack(module: str) -> types.ModuleType:
    """A module of the pack by its dotted name below the root; the root's own __init__ is not run."""
    if PACKAGE not in sys.modules:
        root = types.ModuleType(PACKAGE)
        root.__path__ = [str(ROOT)]
        sys.modules[PACKAGE] = root
    return importlib.import_module(f"{PACKAGE}.{module}")


class ComfyNodes:
    """ComfyUI's code in a process of its own; started by the first call."""

    def __init__(self, base: Path, packages: Path | None = None) -> None:
        """`packages`: a folder with further installed packages."""
        self.base = base
        self._path = [packages] if packages else []
        for name in ("input", "models/diffusers", "models/loras"):
            (base / name).mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[str] | None = None

    def names(self) -> list[str]:
        return self._ask(op="names")

    def info(self, node: str) -> dict[str, Any]:
        """The node as /object_info describes it."""
        return self._ask(op="info", node=node)

    def run(self, node: str, /, **inputs: Any) -> Result:
        """Raises NodeError."""
        answer = self._ask(op="run", node=node, inputs={k: v for k, v in inputs.items()})
        return Result(answer["token"], answer["outputs"], answer["ui"])

    def call(self, node: str, method: str, /, **inputs: Any) -> Any:
        """`validate_inputs` or `fingerprint_inputs` of a node."""
        return self._ask(op="call", node=node, method=method, inputs=inputs)

    def close(self) -> None:
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait(20)
            self._process.stdout.close()
            self._process = None

    def _ask(self, **question: Any) -> Any:
        process = self._process or self._start()
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise AssertionError(f"ComfyUI's code ended: {(self.base / 'probe.log').read_text(errors='replace')[-3000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise NodeError(*answer["error"])
        return answer["answer"]

    def _start(self) -> subprocess.Popen[str]:
        try:
            tree = comfyui_tree()
            site = comfyui_site(tree)
        except NoComfyUI as error:
            missing(str(error))
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (site, tree, *self._path))), "PYTHONUTF8": "1"}
        with open(self.base / "probe.log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(PROBE), str(self.base), str(ROOT), PACKAGE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                text=True,
                encoding="utf-8",
            )
        return self._process
