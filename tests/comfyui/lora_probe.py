"""Runs in a process of its own with ComfyUI's code: what does a real ComfyUI make of our LoRA files?

    python lora_probe.py <ComfyUI folder> <job.json>

The job has two parts, and the answer as well, one JSON object on the last line:

"full": {family: {"how", "config", "shapes", "keys", "native"}}: the base at its real size, without memory (meta tensors). Which
    class does ComfyUI take its weights for, which of our LoRA's keys does it not map, which layers does it have that we do not?
"models": {name: {"family", "class", "config", "weights"}}, "cases": [{"model", "lora", "strength", "deltas"}]: a tiny base of
    ComfyUI's own class. A LoRA file is put on it as Load LoRA does; the weights, translated to diffusers' names by ComfyUI's
    own tables (by diffusers' own converter where ComfyUI has none), must have changed by strength times the deltas (a file).
    `weights`: the names that diffusers' class has.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from typing import Any


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "root":  # ComfyUI's own; a package that is imported late may warn of what it lacks
            self.lines.append(record.getMessage())


# --- real sizes


def recognise(how: str, shapes: dict[str, list[int]], config: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """ComfyUI's configuration of a base and its native weights, from diffusers' shapes or from ComfyUI's own class."""
    import comfy.model_detection as detection
    import comfy.utils
    import torch

    weights = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    if how == "unet":
        found = detection.model_config_from_diffusers_unet(weights)
        table = comfy.utils.unet_to_diffusers(found.unet_config)
        return found, {table[name]: weight for name, weight in weights.items() if name in table}
    if how == "mmdit":
        with torch.device("meta"):
            weights = detection.convert_diffusers_mmdit(weights, "")
    elif how != "same":
        built = built_model(how, config, "meta")
        weights = {
            k.removeprefix("diffusion_model."): v for k, v in built.state_dict().items() if k.startswith("diffusion_model.")
        }
    return detection.model_config_from_unet(weights, ""), weights


def built_model(name: str, config: dict[str, Any], device: str) -> Any:
    import comfy.ldm.chroma.model
    import comfy.ldm.flux.model
    import comfy.supported_models
    import torch

    flux = comfy.ldm.flux.model.FluxParams
    parameters = {"Flux": flux, "Flux2": flux, "Chroma": comfy.ldm.chroma.model.ChromaParams}.get(name)
    if parameters is not None:  # newer versions have more of them, which older ones refuse
        known = {"image_model", *(field.name for field in dataclasses.fields(parameters))}
        config = {key: value for key, value in config.items() if key in known}
    made = getattr(comfy.supported_models, name)(config)
    made.unet_config |= config  # the class sets the number of heads of its real size
    made.set_inference_dtype(torch.float32, None)
    return made.get_model({}, "", device=device)


def full_size(job: dict[str, Any]) -> dict[str, Any]:
    import comfy.lora
    import torch

    try:
        found, weights = recognise(job["how"], job["shapes"], job["config"])
        found.set_inference_dtype(torch.float32, None)
        model = found.get_model(weights, "", device="meta")
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    mapped = comfy.lora.model_lora_keys_unet(model, {})
    layers = {
        key.removeprefix("diffusion_model.").removesuffix(".weight")
        for key, value in model.state_dict().items()
        if key.startswith("diffusion_model.") and key.endswith(".weight") and value.ndim >= 2
    }
    return {
        "recognised": type(found).__name__,
        "unmapped": {format: [key for key in keys if key not in mapped] for format, keys in job["keys"].items()},
        "unknown_to_us": sorted(layers - set(job["native"])),
        "unknown_to_comfyui": sorted(set(job["native"]) - layers),
    }


# --- tiny weights


def filled(model: Any) -> Any:
    """Reproducible weights: ComfyUI leaves them uninitialised until a file is loaded."""
    import torch

    generator = torch.Generator().manual_seed(0)
    for weight in (*model.diffusion_model.parameters(), *model.diffusion_model.buffers()):
        weight.copy_(torch.randn(weight.shape, generator=generator) * 0.05)
    return model.requires_grad_(False)


def in_diffusers_names(family: str, config: dict[str, Any], native: dict[str, Any]) -> dict[str, Any]:
    """Copies of the weights under diffusers' names; parts of fused ones are cut out."""
    import comfy.utils

    if family == "flux2_klein":
        from diffusers.loaders.single_file_utils import convert_flux2_transformer_checkpoint_to_diffusers as convert

        return convert({name: value.clone() for name, value in native.items()})
    if family == "qwen_image":
        return {name: value.clone() for name, value in native.items()}
    table = {
        "sd3": comfy.utils.mmdit_to_diffusers,
        "flux": comfy.utils.flux_to_diffusers,
        "chroma": comfy.utils.flux_to_diffusers,
        "z_image": comfy.utils.z_image_to_diffusers,
    }.get(family, comfy.utils.unet_to_diffusers)(config)
    if family == "chroma":  # ComfyUI has no table for the guidance network
        guidance = [name for name in native if name.startswith("distilled_guidance_layer.")]
        table |= {name.replace("in_layer", "linear_1").replace("out_layer", "linear_2"): name for name in guidance}
    out = {}
    for name, to in table.items():
        key, part, change = (to, None, None) if isinstance(to, str) else (*to, None, None)[:3]
        if key in native:
            value = native[key] if part is None else native[key].narrow(*part)
            out[name] = (change(value) if change else value).clone()  # the only change there is undoes itself
    return out


def apply_lora(model: Any, of: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    import comfy.model_patcher
    import comfy.sd
    import torch
    from safetensors.torch import load_file

    def weights() -> dict[str, Any]:
        state = model.state_dict()
        native = {k.removeprefix("diffusion_model."): v for k, v in state.items() if k.startswith("diffusion_model.")}
        # ComfyUI's tables know other tools' names of the same weights as well.
        return {k: v for k, v in in_diffusers_names(of["family"], of["config"], native).items() if k in of["weights"]}

    seen = _Warnings()
    logging.getLogger().addHandler(seen)
    cpu = torch.device("cpu")
    base = comfy.model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu)
    before, raw = weights(), {key: value.clone() for key, value in model.state_dict().items()}
    patched, _ = comfy.sd.load_lora_for_models(base, None, load_file(case["lora"]), case["strength"], 0.0)
    patched.patch_model()
    after = weights()
    patched.unpatch_model()
    logging.getLogger().removeHandler(seen)
    deltas = {f"{name}.weight": case["strength"] * delta for name, delta in load_file(case["deltas"]).items()}
    changes = {name: after[name] - before[name] for name in after}
    return {
        "warnings": seen.lines,
        "absent": sorted(set(deltas) - set(changes)),
        "changed": sum(bool(change.any()) for change in changes.values()),
        "expected_changed": len(deltas),
        "largest_change": max(float(change.abs().max()) for change in changes.values()),
        "difference": max(float((change - deltas.get(name, 0.0)).abs().max()) for name, change in changes.items()),
        "restored": all(torch.equal(raw[key], value) for key, value in model.state_dict().items()),
    }


def main(comfyui: str, job_file: str) -> None:
    sys.path.insert(0, comfyui)
    sys.argv = ["main.py", "--cpu"]
    import comfy.options

    comfy.options.enable_args_parsing()
    import torch

    with open(job_file, encoding="utf-8") as file:
        job = json.load(file)
    with torch.no_grad():
        full = {family: full_size(part) for family, part in job["full"].items()}
        models = {name: filled(built_model(of["class"], of["config"], "cpu")) for name, of in job["models"].items()}
        cases = [apply_lora(models[case["model"]], job["models"][case["model"]], case) for case in job["cases"]]
    import comfyui_version

    print(json.dumps({"version": comfyui_version.__version__, "full": full, "cases": cases}))


if __name__ == "__main__":
    main(*sys.argv[1:])
