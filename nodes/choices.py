"""What travels on the links between the pack's nodes, as plain frozen data. Imports nothing of ComfyUI and no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..trainer.prompts import Prompt

if TYPE_CHECKING:
    from torch import Tensor

    from ..trainer.rewards import Reward


def typed(value: float) -> float:
    """A number as it was typed: the page's rounding leaves 0.00029999999999999997 of 0.0003, which would be another run."""
    return float(f"{value:.10g}")


@dataclass(frozen=True)
class PromptSet:
    """Prompts to train on and held-out prompts to judge on; none stands in both."""

    train: tuple[Prompt, ...]
    evaluate: tuple[Prompt, ...]


@dataclass(frozen=True)
class PolicyChoice:
    """What is trained: the `policy` section of a configuration."""

    config: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class RewardChoice:
    """What is maximised and what is only watched: the `rewards` and `monitors` sections of a configuration.

    `loaded` keeps what Score Group has loaded for it, so that the next execution finds it. A chain shares it. ComfyUI keeps a
    node's output until its inputs change or its caches are emptied, so that is when networks leave the memory.
    """

    rewards: dict[str, dict[str, Any]] = field(default_factory=dict, hash=False)
    monitors: dict[str, dict[str, Any]] = field(default_factory=dict, hash=False)
    loaded: dict[Any, Reward] = field(default_factory=dict, hash=False, compare=False, repr=False)


@dataclass(frozen=True)
class Settings:
    """The method's knobs: `changes`, nested like a configuration, are laid over the preset (None: over the defaults)."""

    preset: str | None
    changes: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class RunRef:
    """A run by its id, and which of its checkpoints: `latest`, `best` or an iteration's number as text."""

    id: str
    checkpoint: str = "latest"


@dataclass(frozen=True, eq=False)  # tensors have no single truth value, so two groups are equal only if they are the same one
class Group:
    """Outputs of prompt groups; every tuple has one entry an output.

    images: float[B, H, W, 3] in [0, 1]. prompt_index counts the distinct prompts from 0: equal numbers are one group.
    """

    images: Tensor
    prompts: tuple[Prompt, ...]
    prompt_index: tuple[int, ...]
    seeds: tuple[int, ...]
