"""The values that travel on links (see `choices`) and the link types that ComfyUI knows them by."""

from __future__ import annotations

from comfy_api.latest import io

from .choices import Group, PolicyChoice, PromptSet, RewardChoice, RunRef, Settings

PROMPTS = io.Custom("VGRPO_PROMPTS")
POLICY = io.Custom("VGRPO_POLICY")
REWARDS = io.Custom("VGRPO_REWARDS")
SETTINGS = io.Custom("VGRPO_SETTINGS")
RUN = io.Custom("VGRPO_RUN")
GROUP = io.Custom("VGRPO_GROUP")

CATEGORY = "V-GRPO"

__all__ = [
    "CATEGORY",
    "GROUP",
    "POLICY",
    "PROMPTS",
    "REWARDS",
    "RUN",
    "SETTINGS",
    "Group",
    "PolicyChoice",
    "PromptSet",
    "RewardChoice",
    "RunRef",
    "Settings",
]
