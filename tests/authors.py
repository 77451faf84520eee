"""The authors' own code of learned rewards, for parity tests: in a process of its own, from a folder outside the repository.

Their packages pin old versions or pull in hundreds of megabytes, so they are installed without their dependencies, beside what
of those their scoring really imports. `VGRPO_COMFY_CACHE` names where the folder is kept, as for ComfyUI's code.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.comfyui.comfyui_site import TORCHVISION_SHIM
from tests.comfyui.comfyui_tree import NoComfyUI, cache_folder, missing

ROOT = Path(__file__).parents[1]
_PACKAGES = (
    "hpsv2x==1.2.0",
    "image-reward==1.5",
    "open-clip-torch==3.3.0",
    "timm==1.0.29",
    *("clint==0.5.1", "args==0.1.0", "requests==2.34.2", "urllib3==2.8.0", "charset-normalizer==3.5.3", "idna==3.20"),
    *("ftfy==6.3.1", "wcwidth==0.9.4"),
)
_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--timeout", "20"]


def authors_site() -> Path:
    """A folder for PYTHONPATH with the authors' packages, made on first use. Skips the test (fails in CI) without network."""
    torch = importlib.metadata.version("torch")
    torchvision = [] if importlib.util.find_spec("torchvision") else [f"torchvision=={_torchvision(torch)}"]
    key = json.dumps([_PACKAGES, torchvision, torch, sys.version, TORCHVISION_SHIM])
    site = cache_folder() / f"authors-site-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if not site.is_dir():
        site.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=site.parent) as scratch:
            _fill(Path(scratch) / "site", torchvision)
            try:
                (Path(scratch) / "site").rename(site)
            except OSError:
                if not site.is_dir():  # another test process was faster; anything else is still an error
                    raise
    return site


def _torchvision(torch: str) -> str:
    major, minor = torch.split("+")[0].split(".")[:2]
    return f"0.{int(minor) + 15}.*" if major == "2" else "*"


def _fill(site: Path, torchvision: list[str]) -> None:
    done = subprocess.run([*_PIP, "--target", str(site), *_PACKAGES, *torchvision], capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["no reason given"]
        missing(f"the authors' code of learned rewards comes from PyPI, and pip failed: {errors[-1]}")
    (site / "sitecustomize.py").write_text(TORCHVISION_SHIM, encoding="utf-8")


def by_authors(folder: Path, code: str, /, **values: Any) -> dict[str, Any]:
    """Runs `code` with the authors' packages and `values` (plain data) as names; returns its dictionary `answer`.

    `answer` may hold tensors and plain data. Raises AssertionError with the process's output if the code raises.
    """
    try:
        site = authors_site()
    except NoComfyUI as error:
        missing(str(error))
    script, target = folder / "authors.py", folder / "answer.pt"
    script.write_text(_FRAME.format(code=code), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(values), str(target)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]), "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=900,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    import torch

    return torch.load(target, weights_only=True)


_FRAME = """
import json, sys
import torch
values, target = json.loads(sys.argv[1]), sys.argv[2]
globals().update(values)
answer = {{}}
{code}
torch.save(answer, target)
"""


def clip_vocabulary(folder: Path) -> Path:
    """A folder with CLIP's merges.txt, from open_clip's packed list."""
    import gzip

    packed = authors_site() / "open_clip" / "bpe_simple_vocab_16e6.txt.gz"
    lines = gzip.decompress(packed.read_bytes()).decode().split("\n")
    target = folder / "sd1_tokenizer"
    target.mkdir(parents=True, exist_ok=True)
    (target / "merges.txt").write_text("\n".join(["#version: 0.2", *lines[1:48895]]) + "\n", encoding="utf-8")
    return target
