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
    "collapsed",
]


def collapsed(made: io.Input) -> io.Input:
    """Shown only under Show Advanced. The page has long known this; ComfyUI 0.3.75 has no argument for it."""
    made.extra_dict = {**made.extra_dict, "advanced": True}
    return made
