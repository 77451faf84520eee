"""Where a base's weights are: on the device while a phase needs them, else on the CPU.

diffusers and accelerate have hooks for this that serve inference: they move whatever a module holds, the trained factors too,
whose gradients and optimiser then are elsewhere, and they put other weights into tensors that a backward pass still needs. Here
frozen tensors have a home on the CPU that never changes, and copies on the device come and go; the LoRA always stays there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..memory import release_cached
from .frozen import CPU, FrozenTensors, blocks_of


class BlockStream:
    """Brings each block's weights to the device for as long as it computes.

    On CUDA those of the block that is next come along meanwhile, on a stream of their own, so that two blocks' are there. A
    block that is recomputed for its backward pass gets them again, and the pass holds them until it is through; without
    checkpointing it would hold all of them.
    """

    def __init__(self, blocks: Sequence[nn.Module], device: torch.device) -> None:
        self._device = device
        self._parts = [FrozenTensors(block) for block in blocks]
        for part in self._parts:
            part.settle(pinned=device.type == "cuda")
        ahead = device.type == "cuda" and all(part.is_plain() for part in self._parts)
        self._side = torch.cuda.Stream(device) if ahead else None
        self._coming: tuple[int, list[Tensor]] | None = None
        self._last = -1
        for index, block in enumerate(blocks):
            block.register_forward_pre_hook(lambda *_, index=index: self._enter(index))
            # Also after an exception: checkpointing ends a recomputation by one as soon as it has what it needs.
            block.register_forward_hook(lambda *_, index=index: self._parts[index].take_back(), always_call=True)

    def release(self) -> None:
        """Nothing of the blocks is left on the device."""
        self._coming = None
        for part in self._parts:
            part.take_back()

    def _enter(self, index: int) -> None:
        coming, self._coming = self._coming, None
        current = torch.cuda.current_stream(self._device) if self._side is not None else None
        if coming is not None and coming[0] == index:
            current.wait_stream(self._side)
            for tensor in coming[1]:
                tensor.record_stream(current)  # or its memory could be given away while this stream still reads it
            copies = coming[1]
        else:
            copies = self._parts[index].copies(self._device)
        self._parts[index].lend(copies)
        following = 2 * index - self._last  # forwards, or backwards in a recomputation
        self._last = index
        if current is not None and abs(following - index) == 1 and 0 <= following < len(self._parts):
            current.synchronize()  # the program runs ahead of the device, and would fill it with blocks
            with torch.cuda.stream(self._side):
                self._coming = following, self._parts[following].copies(self._device)


class Placement:
    """Which of denoiser and decoder is on the device; `offload` as the configuration's `policy.offload`."""

    def __init__(self, denoiser: nn.Module, decoder: nn.Module, device: torch.device, offload: str) -> None:
        self._device, self._offload = device, offload
        blocks = blocks_of(denoiser) if offload == "blocks" else []
        self._stream = BlockStream(blocks, device) if blocks else None
        self._parts = {"denoiser": FrozenTensors(denoiser, blocks), "decoder": FrozenTensors(decoder)}
        for part in self._parts.values():
            if offload == "none":
                part.move(device)
            else:
                part.settle(pinned=device.type == "cuda")
        self._here: str | None = None  # the part that is lent, where parts take turns

    def need(self, name: str | None) -> None:
        """Before a phase: this part is on the device, and the other one is not where they take turns. None: neither is."""
        if self._offload == "none" or name == self._here:
            return
        self._leave()
        if name is not None:
            part = self._parts[name]
            part.lend(part.copies(self._device))
            self._here = name

    def to(self, device: torch.device) -> None:
        """Away from the run's device, or back to it."""
        if self._offload != "none":
            self._leave()
            return
        for part in self._parts.values():
            part.move(device)

    def _leave(self) -> None:
        if self._here is None:
            return
        self._parts[self._here].take_back()
        if self._stream is not None:
            self._stream.release()
        self._here = None
        release_cached()


def place_encoders(encoders: Sequence[nn.Module], device: torch.device, offload: str) -> None:
    """Networks that encode prompts, one after the other, and are then thrown away. They only infer, so diffusers' hooks serve.

    none: all are on the device. model: the one that computes is. blocks: the layer of it that computes is.
    """
    if offload == "none":
        for encoder in encoders:
            encoder.to(device)
    elif offload == "blocks":
        from diffusers.hooks import apply_group_offloading

        for encoder in encoders:
            apply_group_offloading(encoder, onload_device=device, offload_device=CPU, offload_type="leaf_level")
    else:
        for encoder in encoders:
            encoder.register_forward_pre_hook(lambda module, _: _take_the_place(module, encoders, device))


def _take_the_place(encoder: nn.Module, encoders: Sequence[nn.Module], device: torch.device) -> None:
    for other in encoders:
        if other is not encoder:
            other.to(CPU)
    encoder.to(device)
