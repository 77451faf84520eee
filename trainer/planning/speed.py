"""How fast this device computes a base: one block with random weights and one small picture, measured, and scaled by FLOPs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from ..config import RunConfig
from ..policies.frozen import blocks_of
from .plan import DECODE, OLD, ROLLOUT, UPDATE, Plan
from .probe import Probe
from .tracking import Usage

_REPEATS = 3


def measured(plan: Plan, probe: Probe, config: RunConfig, device: torch.device) -> Plan:
    """The plan with seconds. The time of quantised weights, offloading and compilation is not in it; a note says so.

    Raises RuntimeError where the device has no memory left for a block.
    """
    forward, both = _block_speed(probe, config, device)
    decode = _decoder_speed(probe, config, device)
    rates = {ROLLOUT: forward, OLD: forward, UPDATE: both, DECODE: decode}
    phases = tuple(replace(p, seconds=p.flops / rates[p.name]) if p.name in rates and p.flops else p for p in plan.phases)
    notes = list(plan.notes)
    policy = config.policy
    if policy.quantization != "none" or policy.offload != "none" or policy.compile:
        notes.append("the time is that of plain weights on the device, without quantisation, offloading or compilation")
    return replace(plan, phases=phases, notes=tuple(notes))


def _block_speed(probe: Probe, config: RunConfig, device: torch.device) -> tuple[float, float]:
    """FLOPs a second of the denoiser's first block: forward alone, and forward and backward."""
    block, args, kwargs = _first_block(probe, config)
    real = _real(block, device)
    inputs, named = tree_map(lambda value: _random(value, device), (args, kwargs))

    def forward() -> None:
        with torch.no_grad():
            real(*inputs, **named)

    def both() -> None:
        out = real(*inputs, **named)
        outs = out if isinstance(out, tuple | list) else (out,)
        sum(o.float().sum() for o in outs if isinstance(o, torch.Tensor) and o.requires_grad).backward()

    return _rate(forward, device), _rate(both, device)


def _decoder_speed(probe: Probe, config: RunConfig, device: torch.device) -> float:
    """FLOPs a second of decoding one picture, a quarter of its size."""
    vae = _real(probe.vae, device)
    small = probe.raw_latent(config)
    latent = torch.randn(small.shape, device=device, dtype=vae.dtype)

    def run() -> None:
        with torch.no_grad():
            vae.decode(latent, return_dict=False)

    return _rate(run, device)


def _first_block(probe: Probe, config: RunConfig) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The denoiser's first block and what it is called with in an update."""
    block = (blocks_of(probe.policy.denoiser) or [probe.policy.denoiser])[0]
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    hook = block.register_forward_pre_hook(lambda _, args, kwargs: seen.append((args, kwargs)), with_kwargs=True)
    try:
        probe.surrogate_values(config, config.surrogate.batch_size)
    finally:
        hook.remove()
    return block, *seen[0]


def _real(module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """A copy with small random weights on the device."""
    import copy

    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        value = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        value = value.normal_(std=0.02) if value.is_floating_point() else value.zero_()
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        memo[id(tensor)] = torch.nn.Parameter(value, requires_grad=tensor.requires_grad) if is_parameter else value
    return copy.deepcopy(module, memo)


def _random(value: Any, device: torch.device) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_floating_point():
        return torch.randn(value.shape, dtype=value.dtype, device=device)
    if value.dtype == torch.bool:
        return torch.ones(value.shape, dtype=value.dtype, device=device)
    if value.is_complex():
        return torch.randn(value.shape, dtype=value.dtype, device=device)
    return torch.zeros(value.shape, dtype=value.dtype, device=device)


def _rate(run: Callable[[], None], device: torch.device) -> float:
    """FLOPs a second: the fastest of a few runs after one that warms up."""
    with Usage() as usage:
        run()
    seconds = []
    for _ in range(_REPEATS):
        _wait(device)
        started = time.perf_counter()
        run()
        _wait(device)
        seconds.append(time.perf_counter() - started)
    return usage.flops / min(seconds)


def _wait(device: torch.device) -> None:
    if device.type in ("cuda", "xpu", "mps"):
        getattr(torch, device.type).synchronize()
