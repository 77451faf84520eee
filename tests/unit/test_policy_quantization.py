"""A frozen base in fewer bits: real kernels of bitsandbytes and torchao on the CPU, where they are installed."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.family_bench import CPU, PROMPTS, ROWS, SAMPLING, SEEDS
from tests.small_run import assert_same_outcome, go, new_run, series, small_config, stopped_and_resumed
from tests.tiny_families import shaken_lora
from trainer import extras
from trainer.config import load_config
from trainer.errors import UserError
from trainer.extras import installed, require, require_all
from trainer.lora import attach, export_lora, layer_shapes
from trainer.policies import policy_class
from trainer.policies.frozen import FrozenTensors
from trainer.policies.quantization import check_device, quantise, quantised_linears
from trainer.policies.resources import Resources
from trainer.preflight import preflight

PACKAGES = {"nf4": "bitsandbytes", "int8": "bitsandbytes", "fp8": "torchao"}
BITS = {"nf4": 4, "int8": 8, "fp8": 8}
NEEDED = [
    pytest.param(kind, marks=pytest.mark.skipif(not installed(package), reason=f"needs {package}"))
    for kind, package in PACKAGES.items()
]
needs_bitsandbytes = pytest.mark.skipif(not installed("bitsandbytes"), reason="needs bitsandbytes")


def build(folder, family: str = "flux", quantization: str = "none", **kw):
    resources = Resources(quantization=quantization, offload=kw.pop("offload", "none"))
    return policy_class(family)(folder, CPU, torch.float32, resources=resources, **kw)


def size(tensor: torch.Tensor) -> int:
    """Bytes of a weight with everything that belongs to it."""
    if names := getattr(tensor, "tensor_data_names", None):
        return sum(size(getattr(tensor, name)) for name in names)
    total = tensor.numel() * tensor.element_size()
    if (state := getattr(tensor, "quant_state", None)) is not None:
        total += size(state.absmax) + (size(state.state2.absmax) if state.nested else 0)
    if (scales := getattr(tensor, "SCB", None)) is not None:
        total += size(scales)
    return total


def learn(policy, family: str = "flux"):
    adapter = shaken_lora(policy, family)
    conditioning = policy.encode(PROMPTS).rows(ROWS)
    latents = policy.sample(conditioning, SEEDS, SAMPLING)
    t = policy.visible_time(torch.linspace(0.2, 0.9, len(latents)))
    x = policy.predict_clean(latents, t, conditioning)
    x.square().mean().backward()
    return latents, x.detach(), {n: p.grad for n, p in adapter.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", NEEDED)
def test_the_weights_shrink_to_their_bits(folders, kind):
    whole, small = build(folders("flux")), build(folders("flux"), quantization=kind)
    names = quantised_linears(whole.denoiser)
    assert names and all(any(part in name for part in ("blocks", "layers")) for name in names)
    for name, layer in names.items():
        weight = small.denoiser.get_submodule(name).weight
        values = layer.weight.numel()
        assert size(weight) <= values * BITS[kind] / 8 + values / 8 + 4 * max(layer.weight.shape), name
        assert not weight.requires_grad
    others = {n: m.weight for n, m in small.denoiser.named_modules() if isinstance(m, nn.Linear) and n not in names}
    assert others and all(torch.equal(weight, whole.denoiser.get_submodule(n).weight) for n, weight in others.items())


@pytest.mark.parametrize("kind", NEEDED)
@pytest.mark.parametrize("family", ["flux", "sdxl"])
def test_the_policy_is_nearly_the_same_and_its_lora_learns(folders, kind, family):
    whole, small = (learn(build(folders(family), family, quantization), family) for quantization in ("none", kind))
    error = (small[1] - whole[1]).norm() / whole[1].norm()
    assert 0 < error < (0.25 if kind == "nf4" else 0.05)
    gradients = torch.cat([g.flatten() for g in small[2].values()]), torch.cat([g.flatten() for g in whole[2].values()])
    assert small[2].keys() == whole[2].keys() and all(g.dtype == torch.float32 for g in small[2].values())
    assert torch.cosine_similarity(*gradients, dim=0) > (0.8 if kind == "nf4" else 0.97)


@pytest.mark.parametrize("kind", NEEDED)
@pytest.mark.parametrize("offload", ["model", "blocks"])
def test_offloading_quantised_weights_changes_no_number(folders, kind, offload):
    """Scales and the like come along, also to a backward pass that begins when the weights have gone again."""
    policies = [build(folders("flux"), "flux", kind, offload=how, gradient_checkpointing=True) for how in ("none", offload)]
    expected, found = map(learn, policies)
    assert torch.equal(expected[0], found[0]) and torch.equal(expected[1], found[1])
    assert all(torch.equal(gradient, expected[2][name]) for name, gradient in found[2].items())
    again = [policy.predict_clean(found[0], torch.full((5,), 0.5), policy.encode(PROMPTS).rows(ROWS)) for policy in policies]
    assert torch.equal(*again)


@pytest.mark.parametrize("kind", NEEDED)
def test_a_paused_run_gets_its_quantised_weights_back(folders, kind):
    """Also after they have computed, when an int8 layer has taken the scales out of its weight."""
    policy = build(folders("flux"), "flux", kind)
    conditioning, z, t = policy.encode(PROMPTS).rows(ROWS), torch.randn(5, policy.latent_channels, 8, 8), torch.full((5,), 0.5)
    with torch.no_grad():
        before = policy.predict_clean(z, t, conditioning)
        for part in policy._placement._parts.values():
            part.lend(part.copies(CPU))  # every tensor is put elsewhere and back, as on the way to another device
            part.take_back()
        policy.to(CPU)
        assert torch.equal(policy.predict_clean(z, t, conditioning), before)


@pytest.mark.parametrize("kind", NEEDED)
def test_a_lora_is_never_merged_into_a_quantised_weight(folders, kind):
    policy = build(folders("flux"), "flux", kind)
    adapter = attach(policy.denoiser, 2, 4.0, "attention", 0, "flux", policy.device)
    before = [size(tensor) for tensor in FrozenTensors(policy.denoiser).tensors()]
    with adapter.for_sampling():
        assert [size(tensor) for tensor in FrozenTensors(policy.denoiser).tensors()] == before
    with pytest.raises(RuntimeError, match=r"LoraAdapter\.merged needs"), adapter.merged():
        pass


@pytest.mark.parametrize("kind", NEEDED)
def test_the_export_is_the_same_file(folders, kind, tmp_path):
    """What a LoRA's file says of shapes and names does not depend on how the base was kept."""
    files = []
    for quantization in ("none", kind):
        policy = build(folders("flux"), "flux", quantization)
        adapter = attach(policy.denoiser, 2, 4.0, "attention+mlp", 0, "flux", policy.device)
        network = layer_shapes(policy.denoiser)
        path = tmp_path / f"{quantization}.safetensors"
        files.append(export_lora(adapter.snapshot(), path, network=network, family="flux", format="comfyui").read_bytes())
    assert files[0] == files[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", NEEDED)
def test_brightness_rises_on_a_quantised_base(folders, kind, tmp_path):
    data = small_config(
        folders("flux"),
        iterations=15,
        policy={"family": "flux", "quantization": kind, "lora": {"rank": 4, "targets": "attention+mlp"}},
        rollout={"group_size": 8, "prompts_per_iteration": 2, "steps": 3, "batch_size": 16, "guidance": 3.5},
        surrogate={"pairs": 2, "batch_size": 32},
        optimizer={"lr": 0.03},
        evaluation={"every": 0, "prompts": 2, "seeds": 4, "steps": 3, "guidance": 3.5},
        checkpoint={"every": 100},
        monitors={},
    )
    run = new_run(tmp_path, data)
    go(run)
    values = [value for _, value in series(run)["eval/total/mean"]]
    assert values[-1] > values[0] + 0.01 and all(map(math.isfinite, values))


# What is absent, and what a device can't


@pytest.mark.parametrize(
    ("key", "value", "package"),
    [
        ("policy.quantization", "nf4", "bitsandbytes"),
        ("policy.quantization", "fp8", "torchao"),
        ("policy.attention", "flash", "flash-attn"),
        ("policy.attention", "sage", "sageattention"),
        ("policy.attention", "xformers", "xformers"),
        ("optimizer.name", "adamw8bit", "bitsandbytes"),
    ],
)
def test_an_absent_package_is_named_with_the_command_that_installs_it(monkeypatch, folders, tmp_path, key, value, package):
    monkeypatch.setattr(extras, "installed", lambda module: False)
    with pytest.raises(UserError) as caught:
        require(key, value)
    line = str(caught.value)
    assert line.startswith(f"{key} = {value} needs {package}, which is not installed") and "\n" not in line
    options = {"xformers": "--no-deps ", "flash-attn": "--no-build-isolation "}.get(package, "")
    assert line.endswith(f"-m pip install {options}{package}")
    section, name = key.split(".")
    data = small_config(folders("flux"), **{"policy": {"family": "flux"}, section: {"family": "flux", name: value}})
    if section == "optimizer":
        data["optimizer"].pop("family")
    config = load_config(data)
    for check in (lambda: require_all(config), lambda: preflight(config, tmp_path)):
        with pytest.raises(UserError, match=f"needs {package}"):
            check()


def test_what_is_not_chosen_is_not_asked_for(monkeypatch, folders):
    monkeypatch.setattr(extras, "installed", lambda module: False)
    require_all(load_config(small_config(folders("flux"), policy={"family": "flux"})))


def test_a_device_without_kernels_is_refused():
    with pytest.raises(UserError, match=r"policy.quantization = nf4: mps has no kernels"):
        check_device("nf4", torch.device("mps"))
    check_device("none", torch.device("mps"))


def test_a_kernel_that_is_missing_is_one_line(monkeypatch, folders):
    monkeypatch.setattr(
        "trainer.policies.quantization._to_float8", lambda *_: (_ for _ in ()).throw(NotImplementedError("no\nkernel"))
    )
    with pytest.raises(UserError, match=r"policy.quantization = fp8 failed on cpu: no kernel; choose another, or none"):
        quantise(build(folders("flux")).denoiser, "fp8", torch.float32, CPU)


# The optimiser in 8 bits


@needs_bitsandbytes
def test_adamw8bit_stops_and_resumes_bit_for_bit(tiny_sd3, tmp_path):
    """Factors of more than 4096 numbers have moments of 8 bits, smaller ones of 32; both are in the checkpoint."""
    from safetensors.torch import load_file

    data = small_config(
        tiny_sd3, optimizer={"name": "adamw8bit", "lr": 0.01}, policy={"lora": {"rank": 32, "targets": "attention+mlp"}}
    )
    whole = new_run(tmp_path / "whole", data)
    go(whole)
    assert_same_outcome(stopped_and_resumed(tmp_path / "broken", data, 1), whole)
    saved = load_file(next((whole.path / "checkpoints").rglob("optimizer.safetensors")))
    kinds = {value.dtype for name, value in saved.items() if name.endswith("state1")}
    assert kinds == {torch.uint8, torch.float32}
