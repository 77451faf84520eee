"""Whether rewards stay on their device while the policy trains. Importing this loads no library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..memory import release_cached
from .base import Reward

if TYPE_CHECKING:
    import torch

FREE_SHARE = 0.25  # of a device's memory; with less of it free, a gradient step may not find room


def short_of_memory(device: torch.device) -> bool:
    """Whether less than `FREE_SHARE` of the device's memory is free, counting what torch keeps for its next tensors."""
    import torch

    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return (free + kept) / total < FREE_SHARE


def rest(rewards: Iterable[Reward]) -> list[str]:
    """After a round of scoring: networks that would be in the way wait in the CPU's memory, and come back when they score.

    Returns the names of those that were parked.
    """
    return _emptied([reward.name for reward in rewards if reward.rest()])


def park(rewards: Iterable[Reward]) -> list[str]:
    """The same for every network that may leave its device, whether it would be in the way or not."""
    return _emptied([reward.name for reward in rewards if reward.park()])


def _emptied(parked: list[str]) -> list[str]:
    if parked:
        release_cached()
    return parked
