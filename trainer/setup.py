"""From a configuration to everything that an iteration needs: policy, prompts, rewards, LoRA, optimiser."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from .config import RunConfig
from .errors import UserError
from .evaluation import evaluation_prompts
from .loop import Learner
from .lora import LoraAdapter, attach, linear_shapes, read_lora
from .optimization import GuardedStepper, build_optimizer
from .policies import load_policy
from .policies.base import Conditioning, Policy
from .prompts import Prompt
from .rewards.base import Reward
from .rewards.registry import create
from .rewards.scoring import load_rewards


@dataclass
class Bench:
    """A run's parts, built once; only `learner` changes while training."""

    config: RunConfig
    learner: Learner
    train: tuple[Prompt, ...]
    train_conditioning: Conditioning
    held_out: tuple[Prompt, ...]
    held_out_conditioning: Conditioning
    rewards: dict[str, Reward]  # those that train, then the monitors
    notes: list[str]  # what a user should know about how the parts were made

    @property
    def policy(self) -> Policy:
        return self.learner.policy


def build_bench(config: RunConfig, device: torch.device, cache: Path | None = None) -> Bench:
    """Load and connect all parts. Raises UserError for whatever the configuration names and is not usable."""
    policy = load_policy(config.policy, device, cache)
    policy.check_size(config.rollout.width, config.rollout.height, "rollout.width x rollout.height")
    rewards, notes = _build_rewards(config, device)
    adapter, more = _attach_lora(config, policy)
    optimizer = build_optimizer(config.optimizer, adapter.parameters())
    stepper = GuardedStepper(optimizer, dict(adapter.named_parameters()), config.optimizer.max_grad_norm)
    average = adapter.snapshot() if config.optimizer.ema_decay else None
    held_out = evaluation_prompts(config)
    texts = [p.text for p in (*config.prompts.train, *held_out)]
    with adapter.disabled():
        encoded = policy.encode(texts)
    split = len(config.prompts.train)
    return Bench(
        config=config,
        learner=Learner(policy, adapter, stepper, average),
        train=config.prompts.train,
        train_conditioning=encoded.rows(range(split)),
        held_out=held_out,
        held_out_conditioning=encoded.rows(range(split, len(texts))),
        rewards=rewards,
        notes=[*notes, *more],
    )


def _build_rewards(config: RunConfig, device: torch.device) -> tuple[dict[str, Reward], list[str]]:
    rewards = {}
    for name in (*config.rewards, *(n for n in config.monitors if n not in config.rewards)):
        settings = dict(config.rewards.get(name, config.monitors.get(name, {})))
        settings.pop("weight", None)
        rewards[name] = create(name, settings)
    notes = []
    for name, message in load_rewards(rewards, device, None):
        if name in config.rewards:
            raise UserError(f"rewards.{name} can't be loaded: {message}")
        notes.append(f"monitor {name} can't be loaded and is left out: {message}")
        del rewards[name]
    for name, reward in rewards.items():
        reasons = [r for r in (reward.problem(p.text, p.metadata) for p in config.prompts.train) if r]
        if name in config.rewards and len(reasons) == len(config.prompts.train):
            raise UserError(f"rewards.{name} can score none of prompts.train: {reasons[0]}")
        if reasons:
            notes.append(f"{name} can't score {len(reasons)} of {len(config.prompts.train)} training prompts: {reasons[0]}")
    return rewards, notes


def _attach_lora(config: RunConfig, policy: Policy) -> tuple[LoraAdapter, list[str]]:
    lora, notes = config.policy.lora, []
    start = read_lora(Path(lora.init), linear_shapes(policy.denoiser), policy.family) if lora.init else None
    adapter = attach(policy.denoiser, lora.rank, lora.alpha, lora.targets, config.seed, policy.family)
    if start is not None:
        error = adapter.start_from(start)
        notes.append(f"continuing from {lora.init} ({len(start)} modules, rank {start.rank})")
        if error:
            notes.append(f"its rank {start.rank} was reduced to {lora.rank}; the change of the weights differs by {error:.1%}")
    adapter.assert_trainable()
    return adapter, notes
