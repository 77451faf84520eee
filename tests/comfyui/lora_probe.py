"""Runs in a process of its own with ComfyUI's code: what does a real ComfyUI make of our LoRA files?

    python lora_probe.py <ComfyUI folder> <job.json>

The job: {"models": {name: weights}, "cases": [{"model", "lora", "strength", "expected": weights}]}; weights are files with a
diffusers state dict. Prints one JSON object: per model the LoRA names that ComfyUI maps, per case the log warnings, how many
weights changed, and how far they are from the expected ones. ComfyUI's own code converts the diffusers weights.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import logging
import sys
import types
from typing import Any


class _Stub(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Stub(f"{self.__name__}.{name}")


class _StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """ComfyUI's video and cascade models import torchvision at the top; SD3 and LoRA loading never call it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "torchvision" else None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def main(comfyui: str, job_file: str) -> None:
    import transformers  # noqa: F401  (before the stub: it looks whether torchvision is installed)

    if importlib.util.find_spec("torchvision") is None:
        sys.meta_path.insert(0, _StubFinder())
    sys.path.insert(0, comfyui)
    sys.argv = ["main.py", "--cpu"]
    import comfy.options

    comfy.options.enable_args_parsing()
    import comfy.lora
    import comfy.model_detection
    import comfy.sd
    import torch
    from safetensors.torch import load_file

    with open(job_file, encoding="utf-8") as file:
        job = json.load(file)
    patchers, mapped = {}, {}
    for name, path in job["models"].items():
        patchers[name] = comfy.sd.load_diffusion_model_state_dict(load_file(path), model_options={"dtype": torch.float32})
        keys = comfy.lora.model_lora_keys_unet(patchers[name].model, {})
        weights = set(patchers[name].model.state_dict())
        real = [key for key, to in keys.items() if (to if isinstance(to, str) else to[0]) in weights]
        mapped[name] = sorted(key.removeprefix("transformer.") for key in real if key.startswith("transformer."))
    cases = []
    for case in job["cases"]:
        seen = _Warnings()
        logging.getLogger().addHandler(seen)
        base = patchers[case["model"]]
        before = {key: value.clone() for key, value in base.model.state_dict().items()}
        patched, _ = comfy.sd.load_lora_for_models(base, None, load_file(case["lora"]), case["strength"], 0.0)
        patched.patch_model()
        after = {key: value.clone() for key, value in base.model.state_dict().items()}
        patched.unpatch_model()
        logging.getLogger().removeHandler(seen)
        expected = comfy.model_detection.convert_diffusers_mmdit(load_file(case["expected"]), "diffusion_model.")
        linear = [key for key in expected if key in after]
        cases.append(
            {
                "warnings": seen.lines,
                "compared": len(linear),
                "changed": sum(not torch.equal(before[key], after[key]) for key in after),
                "expected_changed": sum(not torch.equal(before[key], expected[key]) for key in linear),
                "largest_change": max(float((after[key] - before[key]).abs().max()) for key in linear),
                "difference": max(float((after[key] - expected[key]).abs().max()) for key in linear),
                "restored": all(torch.equal(before[key], value) for key, value in base.model.state_dict().items()),
            }
        )
    print(json.dumps({"mapped": mapped, "cases": cases}))


if __name__ == "__main__":
    main(*sys.argv[1:])
