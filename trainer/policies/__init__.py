"""Model families behind one protocol (`base.Policy`)."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from ..config import PolicyConfig
    from .base import Policy

FAMILIES = {"sd3": (".sd3", "SD3Policy")}
EMBEDDED = "demo"


def load_policy(config: PolicyConfig, device: torch.device, cache: Path | None = None) -> Policy:
    """The policy that a configuration's `policy` section names, on `device`. Raises UserError."""
    import torch

    from ..demo import MODEL_DIR

    module, name = FAMILIES[config.family]
    family = getattr(import_module(module, __package__), name)
    dtype = getattr(torch, config.dtype)
    if config.model != EMBEDDED:
        return family(config.model, device, dtype, config.gradient_checkpointing, cache)
    # The embedded model's T5 is a placeholder that says nothing.
    policy = family(MODEL_DIR, device, dtype, config.gradient_checkpointing, cache, use_t5=False)
    policy.title = "V-GRPO embedded model"
    return policy
