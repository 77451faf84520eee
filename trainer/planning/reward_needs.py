"""What a reward's network takes on the run's device, read off its files' headers or their published sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..config import RunConfig
from ..errors import UserError
from ..policies.checkpoint import read_shapes
from ..rewards.learned import LearnedReward
from ..rewards.registry import create_entry
from ..rewards.weights import Weights, find


@dataclass(frozen=True)
class RewardNeed:
    """`size`: bytes on the run's device while it scores, None where nobody says; `parks`: "auto", "always" or "never"."""

    name: str
    size: int | None
    parks: str = "never"
    note: str = ""


def reward_needs(config: RunConfig, device: torch.device) -> list[RewardNeed]:
    """Of each reward and monitor. Arithmetic on pixels and servers take nothing there."""
    names = dict.fromkeys((*config.rewards, *config.monitors))
    return [_need(name, {**config.monitors.get(name, {}), **config.rewards.get(name, {})}, device) for name in names]


def _need(name: str, settings: dict[str, Any], device: torch.device) -> RewardNeed:
    reward = create_entry(name, settings)
    if not isinstance(reward, LearnedReward):
        return RewardNeed(name, 0)
    own = reward.options
    if own.device != "auto" and torch.device(own.device).type != device.type:
        return RewardNeed(name, 0, own.offload, f"{name} runs on {own.device}")
    dtype = torch.float16 if reward.half_on_cuda and device.type == "cuda" else torch.float32
    dtype = dtype if own.dtype == "auto" else getattr(torch, own.dtype)
    size, notes = 0, []
    for weights in reward.weights():
        count = _count(weights)
        if count is not None:
            size += count * dtype.itemsize
        elif weights.size:
            size += weights.size
            notes.append(f"{name}: {weights.title} is not here, so it counts with its published size")
        else:
            return RewardNeed(name, None, own.offload, f"{name}: the size of {weights.title} is not known until it is here")
    return RewardNeed(name, size, own.offload, "; ".join(notes))


def _count(weights: Weights) -> int | None:
    """How many numbers its tensors have; None where it is not on this machine, or can't be told without reading it."""
    found = find(weights)
    if found is None:
        return None
    try:
        return sum(_numbers(file) for file in _files(found)) or None
    except (UserError, OSError, RuntimeError, ValueError):  # scoring will name what is wrong with it
        return None


def _files(found: Path) -> Iterator[Path]:
    if found.is_file():
        yield found
        return
    safe = sorted(found.glob("*.safetensors"))
    yield from safe or sorted(found.glob("*.bin"))


def _numbers(file: Path) -> int:
    if file.suffix.lower() == ".safetensors":
        return sum(torch.Size(shape).numel() for shape in read_shapes(file).values())
    # Only names and shapes: the data stay on the disk.
    content = torch.load(file, map_location="meta", weights_only=True, mmap=True)
    return sum(tensor.numel() for tensor in _tensors(content))


def _tensors(content: Any) -> Iterator[torch.Tensor]:
    if isinstance(content, torch.Tensor):
        yield content
    elif isinstance(content, dict):
        for value in content.values():
            yield from _tensors(value)
