"""The packages that a ComfyUI server needs beside the test environment's own, in a folder of the cache.

pip itself says what is missing, against the environment as it is; nothing that is installed is replaced, torch and numpy least.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.comfyui.comfyui_tree import NoComfyUI, cache_folder

# Nothing here uses them: upscaling, and the hundred megabytes of ComfyUI's own templates. The torch family goes its own way.
_LEFT_OUT = {
    "torch",
    "torchvision",
    "torchaudio",
    "kornia",
    "spandrel",
    "comfyui-workflow-templates",
    "pyopengl",
    "comfy-angle",
}
_SCHEME = 2  # another number: folders made by an older version of this file are not used
_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
_INSTALL = ["install", "--quiet", "--only-binary", ":all:", "--timeout", "20", "--retries", "2"]

# PyPI's torchvision is built for CUDA; beside a CPU torch its library does not load, and its Python half misses two operators.
TORCHVISION_SHIM = '''\
"""Beside a CPU torch, gives torchvision's Python half the two operators that it asks for when it is imported."""

import sys


class _BeforeTorchvision:
    library = None

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision" and self.library is None:
            sys.meta_path.remove(self)
            import torch

            _BeforeTorchvision.library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                self.library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return None


sys.meta_path.insert(0, _BeforeTorchvision())
'''


def comfyui_site(tree: Path) -> Path:
    """A folder for PYTHONPATH with what `tree`'s requirements.txt wants and the environment lacks; made on first use.

    Raises NoComfyUI if pip cannot get the packages.
    """
    wanted = _wanted(tree)
    installed = {dist.name.lower(): dist.version for dist in importlib.metadata.distributions() if dist.name}
    key = json.dumps([wanted, sys.version, installed.get("torch"), sorted(installed), TORCHVISION_SHIM, _SCHEME])
    site = cache_folder() / f"comfy-site-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if not site.is_dir():
        site.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=site.parent) as scratch:
            _fill(Path(scratch), wanted, installed)
            try:
                (Path(scratch) / "site").rename(site)
            except OSError:
                if not site.is_dir():  # another test process was faster; anything else is still an error
                    raise
    return site


def _wanted(tree: Path) -> list[str]:
    lines = [line.strip() for line in (tree / "requirements.txt").read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line and line[0] != "#" and re.split(r"[\s<>=~!;\[]", line)[0].lower() not in _LEFT_OUT]


def _fill(scratch: Path, wanted: list[str], installed: dict[str, str]) -> None:
    site, report, constraints = scratch / "site", scratch / "report.json", scratch / "installed.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in installed.items()), encoding="utf-8")
    _pip([*_INSTALL, "--dry-run", "--report", str(report), "-c", str(constraints), *wanted])
    found = [item["metadata"] for item in json.loads(report.read_text(encoding="utf-8"))["install"]]
    lacking = [f"{package['name']}=={package['version']}" for package in found]
    if importlib.util.find_spec("torchvision") is None:
        major, minor = installed["torch"].split("+")[0].split(".")[:2]
        lacking.append(f"torchvision==0.{int(minor) + 15}.*" if major == "2" else "torchvision")
    if importlib.util.find_spec("torchaudio") is None:
        lacking.append("torchaudio")
    site.mkdir()
    if lacking:
        _pip([*_INSTALL, "--no-deps", "--target", str(site), *lacking])
    if any((site / name).exists() for name in ("torch", "numpy", "transformers")):
        raise NoComfyUI(f"pip would replace torch, numpy or transformers for ComfyUI's packages: {', '.join(lacking)}")
    import torch

    if not torch.version.cuda:
        (site / "sitecustomize.py").write_text(TORCHVISION_SHIM, encoding="utf-8")
        shutil.rmtree(site / "torchaudio" / "lib", ignore_errors=True)  # it is built for CUDA too; without it, it isn't loaded


def _pip(arguments: list[str]) -> None:
    done = subprocess.run([*_PIP, *arguments], capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["no reason given"]
        raise NoComfyUI(f"ComfyUI's server needs packages from PyPI, and pip failed: {errors[-1]}")
