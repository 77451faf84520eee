"""From what four nodes say to the configuration of a run. Imports nothing of ComfyUI."""

from __future__ import annotations

import re
from typing import Any

from ..trainer.config import RunConfig, load_config
from ..trainer.errors import UserError, one_line
from ..trainer.prompts import Prompt
from ..trainer.rewards.registry import create_entry
from . import bases, knobs, prompt_text, reward_options
from .choices import PolicyChoice, PromptSet, RewardChoice, Settings

_NODES = {"policy": bases.NODE, "prompts": prompt_text.NODE, "name": "V-GRPO Train LoRA"}
_KEY = re.compile(rf"\b({'|'.join(RunConfig.model_fields)})\b(?:\.(\w+))?")


def assemble(policy: PolicyChoice, prompts: PromptSet, rewards: RewardChoice, settings: Settings, name: str) -> RunConfig:
    """The checked configuration: what the nodes say, over the preset. Rewards and monitors are those of the nodes alone.

    Raises UserError: one line that names the node, the key, its value and what is allowed.
    """
    if not rewards.rewards:
        watched = ", ".join(reward_options.title(reward) for reward in rewards.monitors)
        raise UserError(
            f"rewards: {f'{watched} only watched (monitor_only)' if watched else 'none given'}, so there is nothing to train "
            "on; turn monitor_only off on one reward node, or add a reward"
        )
    data: dict[str, Any] = {
        **settings.changes,
        "name": name,
        "policy": {**settings.changes.get("policy", {}), **_policy(policy, settings)},
        "prompts": {"train": list(prompts.train), "evaluate": list(prompts.evaluate)},
        "rewards": rewards.rewards,
        "monitors": rewards.monitors,
    }
    if settings.preset:
        data["preset"] = settings.preset
    try:
        config = load_config(data)
    except UserError as error:
        raise UserError(f"{_node(str(error))}: {error}") from error
    for reward in config.rewards:
        _refuse_unscorable(config, reward, prompts.train)
    return config


def _policy(policy: PolicyChoice, settings: Settings) -> dict[str, Any]:
    """What the Policy node says. Its switch for checkpointing can't say "preset", so with a hardware, off leaves it to that."""
    if settings.changes.get("hardware", knobs.NO_HARDWARE) == knobs.NO_HARDWARE:
        return policy.config
    return {key: value for key, value in policy.config.items() if (key, value) != ("gradient_checkpointing", False)}


def _node(text: str) -> str:
    """The node to look at: the one that holds the first key in the error."""
    found = _KEY.search(text)
    section, below = (found[1], found[2]) if found else ("", None)
    if section in ("rewards", "monitors"):
        return reward_options.title(below) if below in reward_options.names() else "rewards"
    return _NODES.get(section, knobs.NODE)


def _refuse_unscorable(config: RunConfig, name: str, prompts: tuple[Prompt, ...]) -> None:
    """A reward that can score none of the prompts would train on nothing; said before anything is started."""
    reward = create_entry(name, config.rewards[name])
    reason = None
    for prompt in prompts:
        try:
            reason = reward.problem(prompt.text, prompt.metadata)
        except Exception as error:  # a stranger's reward; scoring decides
            reason = one_line(error)
        if reason is None:
            return
    raise UserError(f"{reward_options.title(name)}: it can score none of the {len(prompts)} training prompts: {reason}")
