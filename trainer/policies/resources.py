"""What is done to save memory and time: named by the configuration's `policy` section, applied to a denoiser here."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from ..errors import UserError, one_line

_NO_BACKWARD = ("sage",)


@dataclass(frozen=True)
class Resources:
    """The keys of the same names in the configuration's `policy` section."""

    quantization: str = "none"
    offload: str = "none"
    vae_tiling: str = "auto"
    attention: str = "auto"
    compile: bool = False


def choose_attention(denoiser: Any, backend: str) -> None:
    """Let the denoiser's attention be computed by another library, as diffusers' dispatcher names it. Raises UserError."""
    try:
        if backend in _NO_BACKWARD:
            with attention_while_sampling(backend):
                return
        denoiser.set_attention_backend(backend)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"policy.attention = {backend} can't be used here: {one_line(error)[:300]}; set it to auto") from error


def attention_while_sampling(backend: str) -> AbstractContextManager[Any]:
    """Around the sampler: a library that has no backward pass serves there alone."""
    if backend not in _NO_BACKWARD:
        return nullcontext()
    from diffusers.models.attention_dispatch import attention_backend

    return attention_backend(backend)


def compile_blocks(denoiser: Any) -> None:
    """Let torch.compile translate each kind of repeated block once, when it is first called."""
    from .frozen import blocks_of

    for block in blocks_of(denoiser):
        block.compile()
