"""What the pack costs ComfyUI's start, and what its user is told when it does not fit."""

from __future__ import annotations

import compileall
import re
import subprocess
import sys

import pytest

from tests.comfy_api import pack
from tests.comfy_process import in_comfyui
from tests.small_run import ROOT

nodes = pack("nodes")

# Loads the pack as ComfyUI does: the root's file, under a name made of its path.
LOAD = """
import asyncio, gc, importlib.util, io as text_io, logging, sys, time
import aiohttp.web, numpy, PIL.Image, safetensors.torch, torch, yaml
import folder_paths, comfy.utils, comfy.model_management, comfy.sample, comfy.samplers, comfy.sd, latent_preview
import comfy_api.latest

lines = text_io.StringIO()
logging.getLogger().addHandler(logging.StreamHandler(lines))
def load(name):
    spec = importlib.util.spec_from_file_location(name, root + "/__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    extension = module.comfy_entrypoint()
    assert isinstance(extension, comfy_api.latest.ComfyExtension)
    found = asyncio.run(extension.get_node_list())
    return module, [node.GET_SCHEMA() for node in found]
"""

MEASURE = """
before = set(sys.modules)
gc.collect()  # else the collection of all that torch has made, a third of a second, may fall to us by chance
cpu, wall = time.process_time(), time.perf_counter()
module, schemas = load(root.replace(".", "_x_"))
answer.update(cpu=time.process_time() - cpu, wall=time.perf_counter() - wall, web=module.WEB_DIRECTORY)
answer["ids"] = [s.node_id for s in schemas]
answer["categories"] = sorted({s.category.split("/")[0] for s in schemas})
answer["new"] = sorted({name.split(".")[0] for name in set(sys.modules) - before})
answer["log"] = lines.getvalue()
answer["mappings"] = hasattr(module, "NODE_CLASS_MAPPINGS")
"""

# One theme after the other does not fit; then the whole ComfyUI is too old.
FAULTS = """
import importlib, types
whole = [s.node_id for s in load("whole")[1]]

def fault(name, theme, module):
    sys.modules[f"{name}.nodes.{theme}"] = module
    lines.truncate(0); lines.seek(0)
    ids = [s.node_id for s in load(name)[1]]
    return [sorted(set(whole) - set(ids)), lines.getvalue().splitlines()]

class TooNew:
    @classmethod
    def GET_SCHEMA(cls):
        raise TypeError("Schema.__init__() got an unexpected keyword argument 'search_aliases'")

answer["schema"] = fault("schema", "scoring", types.SimpleNamespace(NODES=[TooNew]))
answer["moved"] = fault("moved", "sampling", types.SimpleNamespace())
answer["broken"] = fault("broken", "settings", None)
import comfyui_version
comfyui_version.__version__ = "0.3.50"
lines.truncate(0); lines.seek(0)
answer["old"] = [load("old")[1], lines.getvalue().splitlines()]
answer["old routes"] = "old.nodes.routes" in sys.modules
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    for folder in ("nodes", "trainer"):  # the first start after an update compiles, once
        compileall.compile_dir(ROOT / folder, quiet=1)
    # A busy neighbour slows a core down even in its own time, so the quickest of three starts counts.
    starts = [in_comfyui(tmp_path_factory.mktemp("comfyui"), LOAD + MEASURE, root=str(ROOT)) for _ in range(3)]
    return min(starts, key=lambda start: start["cpu"])


def test_all_nodes_are_there(measured):
    assert measured["log"] == ""
    assert measured["categories"] == ["V-GRPO"] and measured["web"] == "./web" and not measured["mappings"]
    names = ("PromptSet", "Policy", "Settings", "TrainLoRA", "LoadRun", "ApplyRunLoRA", "SamplePromptGroup", "ScoreGroup")
    assert {f"VGRPO{name}" for name in (*names, "LoadDemoModel", "RewardScene")} <= set(measured["ids"])
    assert len(measured["ids"]) == len(set(measured["ids"])) and all(name.startswith("VGRPO") for name in measured["ids"])


def test_the_start_gains_less_than_a_third_of_a_second(measured):
    """In processor time: a busy machine's clock says more about its other work."""
    assert measured["cpu"] < 0.3, measured


def test_nothing_heavy_is_imported(measured):
    heavy = {"diffusers", "peft", "transformers", "matplotlib", "scipy", "accelerate", "filelock"}
    assert not heavy & set(measured["new"]), measured["new"]
    assert not {"trainer", "nodes"} & set(measured["new"])  # names that belong to others


def test_what_does_not_fit_is_one_line_and_takes_nothing_else_away(tmp_path):
    answer = in_comfyui(tmp_path, LOAD + FAULTS, root=str(ROOT))
    gone, log = answer["schema"]
    assert gone == ["VGRPOScoreGroup"] and len(log) == 1
    assert "'scoring' are left out" in log[0] and "search_aliases" in log[0]
    assert "found ComfyUI 0." in log[0] and "needed 0.3.75 or newer" in log[0]
    gone, log = answer["moved"]
    assert gone == ["VGRPOSamplePromptGroup"] and len(log) == 1
    gone, log = answer["broken"]
    assert gone == ["VGRPOSettings"] and len(log) == 1
    ids, log = answer["old"]
    assert ids == [] and not answer["old routes"]
    assert log == ["V-GRPO: found ComfyUI 0.3.50, needed 0.3.75 or newer: no nodes are loaded; update ComfyUI."]


def test_outside_comfyui_the_root_package_is_harmless(tmp_path):
    (tmp_path / "vgrpo").symlink_to(ROOT, target_is_directory=True)
    code = (
        "import sys, vgrpo; import vgrpo.trainer.runs\n"
        "heavy = {'torch', 'aiohttp', 'pydantic', 'numpy', 'comfy', 'server', 'folder_paths', 'trainer', 'nodes'}\n"
        "print(sorted(heavy & set(sys.modules)), vgrpo.WEB_DIRECTORY)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.stdout == "[] ./web\n", done.stderr


@pytest.mark.parametrize(
    ("version", "old"),
    [
        ("0.3.74", True),
        ("0.3.75", False),
        ("0.3.76", False),
        ("0.33.0", False),
        ("1.0", False),
        ("0.2.9", True),
        ("unknown", False),
        ("v0.3", False),
    ],
)
def test_which_versions_are_too_old(version, old):
    assert nodes.too_old(version) is old


def test_no_requirement_replaces_what_comfyui_brought():
    """A pin or an upper bound has replaced users' CUDA torch and numpy."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9_-]+(>=[0-9.]+)?", line), line
    assert {"torch", "numpy", "safetensors", "aiohttp", "Pillow"} <= set(lines)  # whatever is installed will do


def test_a_missing_package_is_named():
    error = ModuleNotFoundError("No module named 'pydantic'", name="pydantic")
    assert nodes.reason(error, "0.33.0").startswith("the Python package pydantic is missing; install")
    error = ModuleNotFoundError("No module named 'comfy_api.latest'", name="comfy_api.latest")
    assert "found ComfyUI 0.33.0; needed 0.3.75 or newer" in nodes.reason(error, "0.33.0")
