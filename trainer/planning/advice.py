"""The smallest change with which a run fits, tried by the planner itself."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from ..config import RunConfig
from ..config.load import load_config
from ..errors import UserError
from .plan import DECODE, ENCODE, OLD, REWARD, UPDATE, Plan, Planner

Change = tuple[str, Any]
MEMORY_KEYS = (
    "policy.gradient_checkpointing",
    "surrogate.batch_size",
    "rollout.batch_size",
    "policy.vae_tiling",
    "policy.offload",
    "policy.quantization",
    "optimizer.name",
)
_SMALLER = (0.875, 0.75, 0.625, 0.5)  # of a side


def advise(planner: Planner, config: RunConfig) -> Plan | None:
    """A plan that fits, with as few keys changed as `search` finds; None where nothing helps."""
    for rough in (True, False):  # what the rough one finds is planned exactly
        planner.rough = rough
        found = search(planner, config)
        planner.rough = False
        if found is None:
            return None
        exact = planner.plan(changed(config, found.changes), found.changes)
        if exact.fits:
            return exact
    return None


def search(planner: Planner, config: RunConfig, sizes: bool = True) -> Plan | None:
    """A plan that fits, by what costs least first.

    That is checkpointing, smaller batches, tiles, the base away between phases, fewer bits, the optimiser in 8 bits, streamed
    blocks; then a smaller picture, if `sizes`. A change is kept if the phase that is too large becomes smaller.
    """
    changes: dict[str, Any] = {}
    plan = planner.plan(config)
    while (phase := plan.too_large()) is not None:
        before = phase.peak
        for step in _steps(changed(config, changes), config, phase.name, sizes, planner.device.type):
            tried = {**changes, **step}
            found = _plan(planner, config, tried)
            if found is not None and _peak(found, phase.name) < before:
                changes, plan = tried, found
                break
        else:
            return None
    for key in list(changes):  # an early change may not be needed beside the later ones
        fewer = {k: v for k, v in changes.items() if k != key}
        found = _plan(planner, config, fewer)
        if found is not None and found.fits:
            changes, plan = fewer, found
    return plan


def _peak(plan: Plan, name: str) -> int:
    return next((phase.peak for phase in plan.phases if phase.name == name), 0)


def changed(config: RunConfig, changes: dict[str, Any]) -> RunConfig:
    """The configuration with some keys changed. Raises UserError for a combination that is refused."""
    data = copy.deepcopy(config.to_dict())
    for key, value in changes.items():
        *sections, last = key.split(".")
        inner = data
        for name in sections:
            inner = inner[name]
        inner[last] = value
    return load_config(data, check_files=False)


def _plan(planner: Planner, config: RunConfig, changes: dict[str, Any]) -> Plan | None:
    try:
        return planner.plan(changed(config, changes), changes)
    except UserError:  # not with this base, or not together
        return None


def _steps(config: RunConfig, asked: RunConfig, phase: str, sizes: bool, device: str) -> Iterator[dict[str, Any]]:
    """What may help a phase that is too large, one step each, in the order of trying."""
    policy = config.policy
    update = phase in (OLD, UPDATE)
    if phase == UPDATE and not policy.gradient_checkpointing:
        yield {"policy.gradient_checkpointing": True}
    if update and config.surrogate.batch_size > 1:
        yield {"surrogate.batch_size": config.surrogate.batch_size // 2}
    decoded = phase == DECODE or phase.startswith(REWARD)
    if not update and phase != ENCODE and config.rollout.batch_size > 1:
        yield {"rollout.batch_size": config.rollout.batch_size // 2}
    if decoded and policy.vae_tiling != "on":
        yield {"policy.vae_tiling": "on"}
    if policy.offload == "none" and device != "cpu":
        yield {"policy.offload": "model"}
    for quantization in ("int8", "nf4") if device != "mps" else ():
        if policy.quantization in ("none", "fp8") or (policy.quantization, quantization) == ("int8", "nf4"):
            yield {"policy.quantization": quantization}
    if config.optimizer.name in ("adamw", "adam"):
        yield {"optimizer.name": "adamw8bit"}
    if policy.offload != "blocks" and device != "cpu":
        yield {"policy.offload": "blocks", "policy.gradient_checkpointing": True}
    if sizes:
        yield from _smaller(config, asked)


def _smaller(config: RunConfig, asked: RunConfig) -> Iterator[dict[str, Any]]:
    """The sides that were asked for, a step smaller than now; several sizes shrink together."""
    now = max(width * height for width, height in config.rollout.sizes)
    for share in _SMALLER:
        sizes = [tuple(max(64, int(side * share) // 64 * 64) for side in size) for size in asked.rollout.sizes]
        if max(width * height for width, height in sizes) < now:
            width, height = (list(sides) for sides in zip(*sizes, strict=True))
            single = isinstance(asked.rollout.width, int)
            yield {"rollout.width": width[0] if single else width, "rollout.height": height[0] if single else height}
            return
