"""The canonical LoRA: two factors a module, one rank and one alpha, whatever file they came from or go to."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import UserError


@dataclass(frozen=True)
class LoraFactors:
    """Low-rank changes of a denoiser's layers: `W + alpha / rank * B @ A` (LoRA, arXiv 2106.09685, section 4.1).

    `factors` maps a module's name inside the diffusers denoiser (`transformer_blocks.0.attn.to_q`) to its
    `(A[rank, in], B[out, rank])`; a convolution's weight is laid flat, so its `in` is channels x kernel. Every module has the
    same rank and the same alpha. Raises ValueError when shapes, rank or alpha disagree.
    """

    factors: dict[str, tuple[Tensor, Tensor]]
    rank: int
    alpha: float

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"a LoRA's rank is at least 1, got {self.rank}")
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ValueError(f"a LoRA's alpha is a positive number, got {self.alpha}")
        for name, (a, b) in self.factors.items():
            if a.ndim != 2 or b.ndim != 2 or a.shape[0] != self.rank or b.shape[1] != self.rank:
                raise ValueError(f"{name}: A {tuple(a.shape)} and B {tuple(b.shape)} are not factors of rank {self.rank}")

    def __len__(self) -> int:
        return len(self.factors)

    @property
    def scale(self) -> float:
        """What multiplies B @ A: alpha / rank."""
        return self.alpha / self.rank

    def delta(self, name: str) -> Tensor:
        """The change of one module's weight, [out, in]; a convolution's laid flat."""
        a, b = self.factors[name]
        return self.scale * (b @ a)

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> LoraFactors:
        """The same LoRA in another dtype or on another device; tensors that fit already are shared."""
        where = {"device": device, "dtype": dtype}
        return self._with({name: (a.to(**where), b.to(**where)) for name, (a, b) in self.factors.items()})

    def clone(self) -> LoraFactors:
        """A copy that shares no memory with this one."""
        return self._with({name: (a.detach().clone(), b.detach().clone()) for name, (a, b) in self.factors.items()})

    def with_alpha(self, alpha: float) -> LoraFactors:
        """The same change of the weights written with another alpha: B carries the quotient.

        Exact when the quotient is a power of two, otherwise within one rounding of B.
        """
        if alpha == self.alpha:
            return self
        factors = {name: (a, scaled(b, self.alpha / alpha)) for name, (a, b) in self.factors.items()}
        return LoraFactors(factors, self.rank, float(alpha))

    def resize(self, rank: int) -> tuple[LoraFactors, float]:
        """The LoRA at another rank with the same alpha / rank, and its relative error ||delta - delta'|| / ||delta||.

        Upward, zeros are appended: the change is exact (the error is 0), but a pair of zero vectors gets no gradient, which is
        why `LoraAdapter.start_from` gives A's new rows fresh values. Downward, each module keeps its best approximation
        (Eckart-Young).
        """
        alpha = self.scale * rank
        if rank >= self.rank:
            return LoraFactors({name: padded(a, b, rank) for name, (a, b) in self.factors.items()}, rank, alpha), 0.0
        factors, lost, total = {}, 0.0, 0.0
        for name, (a, b) in self.factors.items():
            small_a, small_b, singular = _truncated(a, b, rank)
            factors[name] = (small_a, small_b)
            lost += float(singular[rank:].square().sum())
            total += float(singular.square().sum())
        return LoraFactors(factors, rank, alpha), math.sqrt(lost / total) if total > 0 else 0.0

    def tensors(self) -> dict[str, Tensor]:
        """Everything as named tensors, for a safetensors checkpoint; `from_tensors` reads them back bit for bit."""
        out = {"alpha": torch.tensor(self.alpha, dtype=torch.float64)}
        for name, (a, b) in self.factors.items():
            out[f"{name}.lora_A"] = a.detach().cpu().contiguous()
            out[f"{name}.lora_B"] = b.detach().cpu().contiguous()
        return out

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> LoraFactors:
        """The factors that `tensors()` wrote. Raises UserError when the set is not complete."""
        names = [key.removesuffix(".lora_A") for key in tensors if key.endswith(".lora_A")]
        expected = {"alpha"} | {f"{name}.lora_{which}" for name in names for which in "AB"}
        wrong = sorted(expected.symmetric_difference(tensors))
        if not names or wrong:
            raise UserError(f"these tensors are not a complete LoRA checkpoint: {', '.join(wrong[:3]) or 'no factors'}")
        factors = {name: (tensors[f"{name}.lora_A"], tensors[f"{name}.lora_B"]) for name in names}
        try:
            return cls(factors, factors[names[0]][0].shape[0], float(tensors["alpha"]))
        except ValueError as error:
            raise UserError(f"these tensors are not a LoRA checkpoint: {error}") from error

    def checksum(self) -> str:
        """32 hex digits over names, shapes, dtypes, values and alpha, whatever the order of the modules."""
        digest = hashlib.blake2b(f"{self.rank} {self.alpha!r}".encode(), digest_size=16)
        for name in sorted(self.factors):
            for tensor in self.factors[name]:
                digest.update(f"\n{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
                digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _with(self, factors: dict[str, tuple[Tensor, Tensor]]) -> LoraFactors:
        return LoraFactors(factors, self.rank, self.alpha)


def scaled(b: Tensor, factor: float) -> Tensor:
    """B times a number with a single rounding (in float64, then back to B's dtype)."""
    return b if factor == 1.0 else (b.double() * factor).to(b.dtype)


def padded(a: Tensor, b: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """A and B with zero rows and columns up to the rank: the product does not change by a bit."""
    more = rank - a.shape[0]
    return torch.nn.functional.pad(a, (0, 0, 0, more)), torch.nn.functional.pad(b, (0, more))


def _truncated(a: Tensor, b: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best factors of this rank for B @ A, and all its singular values; the [out, in] product is never built."""
    q_b, r_b = torch.linalg.qr(b.double())
    q_a, r_a = torch.linalg.qr(a.double().T)
    u, s, vh = torch.linalg.svd(r_b @ r_a.T, full_matrices=False)
    root = s[:rank].sqrt()
    small_b = (q_b @ u[:, :rank]) * root
    small_a = root[:, None] * (vh[:rank] @ q_a.T)
    # Fewer singular values than the rank exist only if a module is narrower than the rank itself.
    small_a, small_b = padded(small_a, small_b, rank)
    return small_a.to(a.dtype), small_b.to(b.dtype), s
