"""Model families behind one protocol (`base.Policy`)."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ..device import multiplies_bfloat16
from ..errors import UserError
from ..families import FAMILIES

if TYPE_CHECKING:
    import torch

    from ..config import PolicyConfig
    from .base import Policy
    from .files import CheckpointFile
    from .folders import Folder
    from .pipeline import PipelinePolicy


def policy_class(family: str) -> type[PipelinePolicy]:
    """The class that trains a family."""
    module, _, name = FAMILIES[family].policy.partition(":")
    return getattr(import_module(f".{module}", __package__), name)


def load_policy(
    config: PolicyConfig, device: torch.device, cache: Path | None = None, source: Folder | CheckpointFile | None = None
) -> Policy:
    """The policy that a configuration's `policy` section names, on `device`; its parts come from `source` if there is one.

    Raises UserError.
    """
    import torch

    from ..demo import EMBEDDED_MODELS
    from ..extras import require
    from ..memory import advice, is_out_of_memory
    from .resources import Resources

    require("policy.quantization", config.quantization)
    require("policy.attention", config.attention)

    family = policy_class(config.family)
    dtype = getattr(torch, config.dtype)
    options = {
        "gradient_checkpointing": config.gradient_checkpointing,
        "cache": cache,
        "source": source,
        "vae_dtype": getattr(torch, decoder_format(config, device)),
        "resources": Resources(*(getattr(config, key.name) for key in fields(Resources))),
        **{
            key: value
            for key in ("parts", "files", "tokenizers", *family.OPTIONS)
            if (value := getattr(config, key)) is not None
        },
    }
    embedded = EMBEDDED_MODELS.get(config.model)
    try:
        policy = family(embedded.model if embedded else config.model, device, dtype, **options)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(f"policy.model: {config.model} does not fit into the memory of {device}; {advice(config)}") from error
    if embedded:
        policy.title = embedded.title
    policy.batches.advice = advice(config)
    return policy


def decoder_format(config: PolicyConfig, device: torch.device) -> str:
    """The name of the decoder's number format: what `policy.vae_dtype` says, `auto` resolved for the device."""
    if config.vae_dtype != "auto":
        return config.vae_dtype
    return "bfloat16" if device.type == "cpu" and multiplies_bfloat16() else config.dtype
