"""From a configuration to everything that an iteration needs: policy, prompts, rewards, LoRA, optimiser."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from .algorithms import ALGORITHMS
from .config import RunConfig
from .deferred import check_memory
from .device import free_memory
from .errors import UserError, one_line
from .evaluation import evaluation_prompts, evaluation_sampling, evaluation_sizes
from .extras import require_all
from .loop import Learner, sampling_of
from .lora import LoraAdapter, attach, layer_shapes, read_lora
from .optimization import GuardedStepper, build_optimizer
from .policies import load_policy
from .policies.base import Conditioning, Policy
from .prompts import Prompt
from .rewards.base import Reward
from .rewards.registry import create_entry
from .rewards.residency import park
from .rewards.scoring import load_rewards

_T = TypeVar("_T")


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
    held_out = evaluation_prompts(config)
    rewards, notes = _create_rewards(config, held_out)  # before the base, which may take minutes
    require_all(config)
    policy = load_policy(config.policy, device, cache)
    policy.batches.tell = notes.append
    for size in config.rollout.sizes:
        policy.check(sampling_of(config).at(size), config.rollout.negative_prompt, "rollout")
    for size in dict.fromkeys(evaluation_sizes(config, held_out)):
        policy.check(evaluation_sampling(config).at(size), "", "evaluation")
    adapter, more = _attach_lora(config, policy)
    notes += [*_load_rewards(config, rewards, device), *policy.notes(), *more]
    optimizer = build_optimizer(config.optimizer, adapter.parameters())
    stepper = GuardedStepper(optimizer, dict(adapter.named_parameters()), config.optimizer.max_grad_norm)
    average = adapter.snapshot() if config.optimizer.ema_decay else None
    if config.objective.deferred:
        most = min(config.objective.deferred, config.rollout.prompts_per_iteration * config.rollout.group_size)
        check_memory(most, sum(4 * p.numel() for p in adapter.parameters()), free_memory(torch.device("cpu")))
    lagged = adapter.snapshot() if ALGORITHMS[config.algorithm].lags else None
    texts = [p.text for p in (*config.prompts.train, *held_out)]
    if config.policy.offload != "none":
        park(rewards.values())  # the encoders need the room now; a reward's network comes back when it scores
    with adapter.disabled():
        encoded = policy.encode(texts, config.rollout.negative_prompt)
    split = len(config.prompts.train)
    return Bench(
        config=config,
        learner=Learner(policy, adapter, stepper, average, lagged),
        train=config.prompts.train,
        train_conditioning=encoded.rows(range(split)),
        held_out=held_out,
        held_out_conditioning=encoded.rows(range(split, len(texts))),
        rewards=rewards,
        notes=notes,
    )


def _create_rewards(config: RunConfig, held_out: tuple[Prompt, ...]) -> tuple[dict[str, Reward], list[str]]:
    """Rewards and monitors, and notes about prompts that they can't score; a reward that can train on none is a UserError."""
    rewards, notes = {}, []
    for name in (*config.rewards, *(n for n in config.monitors if n not in config.rewards)):
        rewards[name] = create_entry(name, config.rewards.get(name, config.monitors.get(name, {})))
        if name in config.rewards and (lacking := rewards[name].missing()):
            raise UserError(f"rewards.{name}: {lacking}")
        for key, prompts in (("prompts.train", config.prompts.train), ("prompts.evaluate", held_out)):
            reasons = [r for r in (_problem(rewards[name], p) for p in prompts) if r]
            if key == "prompts.train" and name in config.rewards and len(reasons) == len(prompts):
                raise UserError(f"rewards.{name} can score none of prompts.train: {reasons[0]}")
            if reasons:
                notes.append(f"{name} can't score {len(reasons)} of {len(prompts)} {key}: {reasons[0]}")
    return rewards, notes


def _problem(reward: Reward, prompt: Prompt) -> str | None:
    try:
        return reward.problem(prompt.text, prompt.metadata)
    except Exception as error:  # a stranger's reward; scoring decides
        return f"{type(error).__name__}: {one_line(error)}"


def _load_rewards(config: RunConfig, rewards: dict[str, Reward], device: torch.device) -> list[str]:
    """Load all; a monitor that can't be loaded is taken out, with a note."""
    notes = []
    for name, message in load_rewards(rewards, device, None):
        if name in config.rewards:
            raise UserError(f"rewards.{name} can't be loaded: {message}")
        notes.append(f"monitor {name} can't be loaded and is left out: {message}")
        del rewards[name]
    return notes


def _attach_lora(config: RunConfig, policy: Policy) -> tuple[LoraAdapter, list[str]]:
    lora, notes = config.policy.lora, []
    adapter = _named(
        "policy.lora.targets",
        lambda: attach(policy.denoiser, lora.rank, lora.alpha, lora.targets, config.seed, policy.family, policy.device),
    )
    if lora.init:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            start = _named("policy.lora.init", lambda: read_lora(Path(lora.init), layer_shapes(policy.denoiser), policy.family))
            error = _named("policy.lora.init", lambda: adapter.start_from(start))
        notes += [" ".join(str(warning.message).split()) for warning in caught]
        notes.append(f"continuing from {lora.init} ({len(start)} modules, rank {start.rank})")
        if error:
            notes.append(f"its rank {start.rank} was reduced to {lora.rank}; the change of the weights differs by {error:.1%}")
    adapter.assert_trainable()
    return adapter, notes


def _named(key: str, build: Callable[[], _T]) -> _T:
    """What `build` returns; its UserError then names the key."""
    try:
        return build()
    except UserError as error:
        raise UserError(f"{key}: {error}") from error
