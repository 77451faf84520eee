"""Canonical factors under the names of a file layout: pure renaming and stacking, no file is touched."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .factors import LoraFactors
from .families import Family, Layout, NativeModule, Network


def spelled(factors: LoraFactors, family: Family, network: Network, layout: Layout) -> dict[str, Tensor]:
    """The tensors of a file in this layout.

    Flat layouts carry the real alpha. Dotted ones have no place for it that every reader looks at: their scale is 1 unless the
    caller has folded it (`LoraFactors.with_alpha(rank)`) or says the alpha elsewhere. A convolution's factors get their kernel
    back: A [rank, in, height, width], B [out, rank, 1, 1].
    """
    out = {}
    for name, shape, a, b in _modules(factors, family, network, layout):
        kernel = shape[2:]
        if kernel:
            a, b = a.unflatten(1, (-1, *kernel)), b[:, :, None, None]
        if layout.flat:
            key = layout.prefix + name.replace(".", "_")
            out |= {f"{key}.lora_down.weight": a, f"{key}.lora_up.weight": b}
            out[f"{key}.alpha"] = torch.tensor(factors.alpha * (a.shape[0] // factors.rank), dtype=torch.float32)
        else:
            key = layout.prefix + name
            out |= {f"{key}.lora_A.weight": a, f"{key}.lora_B.weight": b}
    return out


def unmapped(factors: LoraFactors, family: Family, network: Network, layout: Layout) -> list[str]:
    """The trained modules that ComfyUI does not map under this layout's names."""
    mapped = {part for module in family.native_modules(network).values() for part in module.parts}
    by_native_name = family.native_only if layout.names == "diffusers" else ()
    return [name for name in factors.factors if name not in mapped or name.startswith(by_native_name)]


def inferred_network(factors: LoraFactors, family: Family) -> dict[str, tuple[int, ...]]:
    """What the factors alone tell of the network they were trained on; convolutions are taken for Linears.

    Where only some parts of a fused module were trained, the others are taken to be of the same size.
    """
    network: dict[str, tuple[int, ...]] = {name: (a.shape[1], b.shape[0]) for name, (a, b) in factors.factors.items()}
    for module in family.candidates(network).values():
        trained = [part for part in module.parts if part in factors.factors]
        if trained:
            network |= {part: network[trained[0]] for part in module.parts if part not in network}
    return network


def _modules(
    factors: LoraFactors, family: Family, network: Network, layout: Layout
) -> Iterator[tuple[str, tuple[int, ...], Tensor, Tensor]]:
    """(name, shape of the diffusers module, A, B) of each module of the file."""
    if layout.names == "diffusers":
        for name, (a, b) in factors.factors.items():
            yield name, network[name], a, b
        return
    for native, module in family.native_modules(network).items():
        if any(part in factors.factors for part in module.parts):
            a, b = _stacked(factors, module, network)
            yield native, network[module.parts[0]], a, b


def _stacked(factors: LoraFactors, module: NativeModule, network: Network) -> tuple[Tensor, Tensor]:
    """One A and one block-diagonal B whose rank is the sum of the parts': every part keeps its own factors."""
    trained = [factors.factors[part] for part in module.parts if part in factors.factors]
    # A part that was not trained has no columns, so its rows stay 0.
    rows = [factors.factors[p][1] if p in factors.factors else torch.zeros(network[p][1], 0) for p in module.parts]
    a = torch.cat([a for a, _ in trained])
    b = torch.block_diag(*rows).to(a.dtype)
    return a, b.roll(b.shape[0] // 2, dims=0) if module.swap_halves else b
