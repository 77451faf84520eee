"""What weights and trained factors take, by arithmetic on shapes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ..policies.frozen import blocks_of
from ..policies.quantization import quantised_linears

# Blocks that are on the device at once with offload: blocks (policies/placement.py): one computes, one is on its way, and the
# one before may not be done yet.
STREAMED_BLOCKS = 3
# Leaves of a text encoder that are on the device at once while it is streamed: one computes, one is on its way.
STREAMED_LEAVES = 2
# Bytes that an optimiser keeps for each trained number. bitsandbytes' moments are a byte each, with a float32 scale for 256.
OPTIMIZER_BYTES = {"adamw": 8.0, "adam": 8.0, "sgd": 0.0, "adamw8bit": 2 * (1 + 4 / 256)}


def bytes_of(modules: torch.nn.Module | Iterable[torch.nn.Module]) -> int:
    """Of all parameters and buffers; one that is shared counts once."""
    if isinstance(modules, torch.nn.Module):
        modules = [modules]
    found = {id(t): t.numel() * t.element_size() for m in modules for t in (*m.parameters(), *m.buffers())}
    return sum(found.values())


def bytes_a_weight(quantization: str, inputs: int, outputs: int) -> float:
    """Bytes that each weight of a Linear takes when quantised.

    nf4 with its scales compressed: half a byte, a byte for 64 weights, 4 bytes for 64 x 256 (arXiv 2305.14314, 3); int8: a byte
    and a float32 scale a row of the output (arXiv 2208.07339); fp8: the same by torchao.
    """
    return {"nf4": 0.5 + 1 / 64 + 4 / (64 * 256), "int8": 1 + 4 / inputs, "fp8": 1 + 4 / inputs}[quantization]


@dataclass(frozen=True)
class DenoiserSizes:
    """A denoiser without its LoRA: bytes of its blocks and of the rest, and of what quantisation changes in them."""

    blocks: tuple[int, ...]
    rest: int
    linears: tuple[tuple[int, int, int, int], ...]  # of each Linear that is quantised: block, inputs, outputs, bytes

    @classmethod
    def of(cls, denoiser: torch.nn.Module) -> DenoiserSizes:
        """Reads shapes only."""
        blocks = blocks_of(denoiser)
        owner = {id(module): number for number, block in enumerate(blocks) for module in block.modules()}
        linears = tuple(
            (owner[id(layer)], layer.in_features, layer.out_features, layer.weight.numel() * layer.weight.element_size())
            for layer in quantised_linears(denoiser).values()
        )
        inside = tuple(map(bytes_of, blocks))
        return cls(inside, bytes_of(denoiser) - sum(inside), linears)

    def resident(self, quantization: str, offload: str) -> int:
        """Bytes of weights on the device while it computes."""
        blocks = list(self.blocks)
        if quantization != "none":
            for block, inputs, outputs, size in self.linears:
                blocks[block] += round(bytes_a_weight(quantization, inputs, outputs) * inputs * outputs) - size
        if offload == "blocks":
            blocks = sorted(blocks)[-STREAMED_BLOCKS:]
        return self.rest + sum(blocks)

    def made_whole(self, quantization: str, held: str = "") -> int:
        """Bytes of quantised weights in the number format that they compute in, at most at once.

        They are made one by one, and let go. torchao's backward pass needs them again and holds them: with checkpointing
        those of a block (`held` = "block"), else all of them ("all").
        """
        if quantization == "none" or not self.linears:
            return 0
        if quantization != "fp8" or not held:
            return max(size for *_, size in self.linears)
        blocks = [0] * len(self.blocks)
        for block, _, _, size in self.linears:
            blocks[block] += size
        return sum(blocks) if held == "all" else max(blocks)


def encoders_resident(encoders: Iterable[torch.nn.Module], offload: str) -> int:
    """Bytes of the text encoders that are on the device at once."""
    encoders = list(encoders)
    if not encoders:
        return 0
    if offload == "none":
        return bytes_of(encoders)
    if offload == "model":  # one after the other
        return max(map(bytes_of, encoders))
    leaves = [bytes_of(m) for encoder in encoders for m in encoder.modules() if not any(True for _ in m.children())]
    return sum(sorted(leaves)[-STREAMED_LEAVES:])
