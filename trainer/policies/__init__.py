"""Model families behind one protocol (`base.Policy`)."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ..device import multiplies_bfloat16
from ..families import FAMILIES

if TYPE_CHECKING:
    import torch

    from ..config import PolicyConfig
    from .base import Policy
    from .pipeline import PipelinePolicy


def policy_class(family: str) -> type[PipelinePolicy]:
    """The class that trains a family."""
    module, _, name = FAMILIES[family].policy.partition(":")
    return getattr(import_module(f".{module}", __package__), name)


def load_policy(config: PolicyConfig, device: torch.device, cache: Path | None = None) -> Policy:
    """The policy that a configuration's `policy` section names, on `device`. Raises UserError."""
    import torch

    from ..demo import EMBEDDED_MODELS

    family = policy_class(config.family)
    dtype = getattr(torch, config.dtype)
    options = {
        "gradient_checkpointing": config.gradient_checkpointing,
        "cache": cache,
        "vae_dtype": getattr(torch, decoder_format(config, device)),
        **{
            key: value
            for key in ("parts", "files", "tokenizers", *family.OPTIONS)
            if (value := getattr(config, key)) is not None
        },
    }
    if not (embedded := EMBEDDED_MODELS.get(config.model)):
        return family(config.model, device, dtype, **options)
    policy = family(embedded.model, device, dtype, **options)
    policy.title = embedded.title
    return policy


def decoder_format(config: PolicyConfig, device: torch.device) -> str:
    """The name of the decoder's number format: what `policy.vae_dtype` says, `auto` resolved for the device."""
    if config.vae_dtype != "auto":
        return config.vae_dtype
    return "bfloat16" if device.type == "cpu" and multiplies_bfloat16() else config.dtype
