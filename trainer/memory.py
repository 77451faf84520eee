"""Out of memory: recognised on every kind of device, and answered by smaller batches. Importing this loads no library."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from .errors import UserError

if TYPE_CHECKING:
    from .config import PolicyConfig

_T = TypeVar("_T")

UPDATE = "the update"  # the phase of surrogate and gradient

# What libraries say when they have no exception of their own for it, in lower case.
_SAYINGS = (
    "out of memory",  # CUDA's and MPS' own, and drivers'
    "can't allocate memory",  # torch's allocator of the CPU
    "not enough memory: you tried to allocate",  # the same on Windows
    "alloc_failed",  # CUBLAS_STATUS_ALLOC_FAILED and its kin
    "out_of_device_memory",  # Level Zero and Unified Runtime below XPU
    "out_of_resources",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device, or the machine, has no memory left for what was tried."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(saying in str(error).lower() for saying in _SAYINGS)


def release_cached() -> None:
    """Give back what torch's allocators keep for later, on every device that has one."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        torch.xpu.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()


def advice(policy: PolicyConfig) -> str:
    """What lowers the memory of a run and is not in use yet, for the end of a sentence."""
    ways = []
    if not policy.gradient_checkpointing:
        ways.append("policy.gradient_checkpointing to true")
    if policy.offload != "blocks":
        ways.append(f"policy.offload to {'model' if policy.offload == 'none' else 'blocks'}")
    if policy.quantization == "none":
        ways.append("policy.quantization to nf4")
    return f"set {', '.join(ways)}, or make the pictures smaller" if ways else "make the pictures smaller"


class MemoryShortage(UserError):
    """A phase has no memory even for a batch of 1."""


class PhaseBatches:
    """How much each phase of a run does at once: what was asked for, until memory does not suffice for it.

    A phase that runs out of memory is done anew with half its batch, which it keeps from then on.
    """

    def __init__(self, tell: Callable[[str], None] = lambda text: None, advice: str = "make the pictures smaller") -> None:
        """tell: called with a line for each batch that was halved. advice: what else helps, for the end of a sentence."""
        self.tell, self.advice = tell, advice
        self.sizes: dict[str, int] = {}
        """The batch of each phase that ran out of memory; a checkpoint holds it, as it decides the last digits."""

    def size(self, phase: str, wanted: int) -> int:
        return min(wanted, self.sizes.get(phase, wanted))

    def give_up(self, phase: str, instead: str) -> None:
        """A batch of 1 does not fit, but there is another way: from now on it is taken at once."""
        self.sizes[phase] = 0
        self.tell(f"out of memory in {phase}: not even 1 fits, so it is done {instead} for the rest of the run")

    def gave_up(self, phase: str) -> bool:
        return self.sizes.get(phase) == 0

    def attempt(self, phase: str, wanted: int, work: Callable[[int], _T]) -> _T:
        """What `work` returns for a batch of at most `wanted`. It is called again, with half, where memory did not suffice, so
        it must begin anew then. Raises MemoryShortage if 1 does not fit, and whatever else `work` raises.
        """
        while True:
            size = self.size(phase, wanted)
            try:
                return work(size)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                if size == 1:
                    what = "a batch of 1 does not fit either" if wanted > 1 else "it does not fit"
                    raise MemoryShortage(f"out of memory in {phase}: {what}; {self.advice}") from error
            # Only here, where the error is gone with the frames that it held, can their tensors be released.
            gc.collect()
            release_cached()
            self.sizes[phase] = size // 2
            self.tell(f"out of memory in {phase}: batch {size} -> {size // 2} for the rest of the run")

    def over(self, phase: str, wanted: int, count: int, work: Callable[[slice], _T]) -> list[_T]:
        """What `work` returns for each part of `count` things, of at most `wanted`; what is done already is not done again."""
        parts: list[_T] = []
        start = 0
        while start < count:

            def part(size: int, start: int = start) -> tuple[int, _T]:
                here = slice(start, min(start + size, count))
                return here.stop, work(here)

            start, result = self.attempt(phase, min(wanted, count - start), part)
            parts.append(result)
        return parts
