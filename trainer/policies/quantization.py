"""A frozen denoiser in fewer bits.

nf4 and int8 are bitsandbytes' (arXiv 2305.14314, 2208.07339), fp8 is torchao's weight-only float8. Quantised are the Linears of
the repeated blocks; what is around them is small, and the first and last layers are the most sensitive ones.
"""

from __future__ import annotations

import torch
from torch import nn

from ..errors import UserError, one_line
from ..memory import is_out_of_memory
from .frozen import CPU, blocks_of, moved

OUTLIERS = 6.0  # inputs beyond it are multiplied in half precision: int8's threshold in its paper and in diffusers


def quantised_linears(denoiser: nn.Module) -> dict[str, nn.Linear]:
    """The layers that are quantised, by name; reads shapes and classes only, so a network on the meta device will do."""
    inside = {module for block in blocks_of(denoiser) for module in block.modules()}
    return {name: module for name, module in denoiser.named_modules() if module in inside and isinstance(module, nn.Linear)}


def quantise(denoiser: nn.Module, kind: str, dtype: torch.dtype, device: torch.device) -> None:
    """Quantise a denoiser on the CPU in place, layer by layer on the device; the result is on the CPU.

    dtype: what it computes in. Raises UserError where the device can't.
    """
    check_device(kind, device)
    layers = quantised_linears(denoiser)
    try:
        if kind == "fp8":
            _to_float8(layers, device)
            return
        for name in list(layers):
            parent, _, last = name.rpartition(".")
            setattr(denoiser.get_submodule(parent), last, _bitsandbytes_layer(layers.pop(name), kind, dtype, device))
    except (RuntimeError, NotImplementedError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        raise UserError(
            f"policy.quantization = {kind} failed on {device}: {one_line(error)[:300]}; choose another, or none"
        ) from error


def check_device(kind: str, device: torch.device) -> None:
    """Raises UserError for a device that has no kernels for it."""
    if kind != "none" and device.type == "mps":
        raise UserError(
            f"policy.quantization = {kind}: {device} has no kernels for it; set it to none (policy.offload saves memory too)"
        )


def _bitsandbytes_layer(layer: nn.Linear, kind: str, dtype: torch.dtype, device: torch.device) -> nn.Linear:
    import bitsandbytes as bnb

    shape, weight = (layer.in_features, layer.out_features, layer.bias is not None), layer.weight.data
    if kind == "nf4":
        with torch.device("meta"):  # its own weights are replaced at once
            new = bnb.nn.Linear4bit(*shape, compute_dtype=dtype, compress_statistics=True, quant_type="nf4")
        packed = bnb.nn.Params4bit(weight, requires_grad=False, compress_statistics=True, quant_type="nf4", module=new)
        new.support_avx512bf16_for_cpu = False  # it packs weights anew for inference, which no backward pass reads
    else:
        with torch.device("meta"):
            new = bnb.nn.Linear8bitLt(*shape, has_fp16_weights=False, threshold=OUTLIERS)
        packed = bnb.nn.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
    new.weight = moved(packed.to(device), CPU, copy=False)  # it is quantised on its way to a device
    if layer.bias is not None:
        new.bias = nn.Parameter(layer.bias.data, requires_grad=False)
    return new.eval()


def _to_float8(layers: dict[str, nn.Linear], device: torch.device) -> None:
    from torchao.quantization import Float8WeightOnlyConfig, quantize_

    for layer in layers.values():
        holder = nn.Sequential(layer)
        layer.weight = nn.Parameter(layer.weight.data.to(device), requires_grad=False)
        quantize_(holder, Float8WeightOnlyConfig())
        layer.weight = nn.Parameter(layer.weight.detach().to(CPU), requires_grad=False)
