"""A run's parts on a tiny model, and what tests watch them with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import trainer.loop
from trainer.config import RunConfig, load_config
from trainer.estimate import SurrogateEstimate
from trainer.loop import IterationResult, run_iteration
from trainer.rewards.base import Reward
from trainer.setup import Bench, build_bench

CPU = torch.device("cpu")
PROMPTS = ["a red square", "two blue circles", "a green star above a yellow triangle"]


def tiny_config(folder: Path, **changes: Any) -> RunConfig:
    """Two groups of four outputs, four sampler steps, three pairs, in float32. Sections in `changes` are merged."""
    data: dict[str, Any] = {
        "iterations": 100,
        "seed": 3,
        "policy": {"model": str(folder), "dtype": "float32", "vae_dtype": "float32", "lora": {"rank": 4}},
        "prompts": {"train": PROMPTS, "evaluate": ["a red star", "three green squares"]},
        "rollout": {"group_size": 4, "prompts_per_iteration": 2, "steps": 4, "width": 64, "height": 64, "batch_size": 16},
        "surrogate": {"pairs": 3, "batch_size": 64},
        "optimizer": {"lr": 1e-2},
        "evaluation": {"steps": 4, "seeds": 2, "prompts": 2},
        "rewards": {"brightness": {}},
    }
    for key, value in changes.items():
        merge = isinstance(value, dict) and key not in ("rewards", "monitors")
        data[key] = {**data.get(key, {}), **value} if merge else value
    return load_config(data)


class Scripted(Reward):
    """Scores are what `function(images, call)` says, `call` counting from 0."""

    name, description, range = "scripted", "for tests", "any"

    def __init__(self, function: Callable[[torch.Tensor, int], Any]) -> None:
        super().__init__()
        self.function, self.calls = function, 0

    def score(self, images, prompts, metadata):
        self.calls += 1
        return torch.as_tensor(self.function(images, self.calls - 1), dtype=torch.float64)


def bright(images: torch.Tensor, call: int = 0) -> torch.Tensor:
    """A different number for each of a tiny model's pictures."""
    return images.double().mean((1, 2, 3)) / 255


def constant(images: torch.Tensor, call: int = 0) -> torch.Tensor:
    """One number for all: nothing to learn."""
    return torch.full((len(images),), 0.25)


def tiny_bench(folder: Path, reward: Callable | None = None, **changes: Any) -> Bench:
    """`reward` replaces the function of the first reward."""
    bench = build_bench(tiny_config(folder, **changes), CPU)
    if reward is not None:
        bench.rewards[next(iter(bench.rewards))] = Scripted(reward)
    return bench


def iterate(bench: Bench, iteration: int = 0, **kw: Any) -> IterationResult:
    return run_iteration(bench.learner, bench.config, iteration, bench.train, bench.train_conditioning, bench.rewards, **kw)


def shake(bench: Bench, size: float = 0.3, seed: int = 0) -> None:
    """Move every factor away from its start, where B is 0 and half of all gradients are."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in bench.learner.adapter.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=size)


def factors(bench: Bench) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in bench.learner.adapter.named_parameters()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def watch_steps(bench: Bench) -> list[dict[str, torch.Tensor]]:
    """The gradients at each optimiser step from now on, before clipping is undone by anything."""
    seen: list[dict[str, torch.Tensor]] = []
    optimizer = bench.learner.stepper.optimizer
    step = optimizer.step

    def recorded(*args, **kw):
        seen.append({n: p.grad.detach().clone() for n, p in bench.learner.adapter.named_parameters() if p.grad is not None})
        return step(*args, **kw)

    optimizer.step = recorded
    return seen


@dataclass(frozen=True)
class Call:
    """One evaluation of the denoiser."""

    hidden: torch.Tensor
    timestep: torch.Tensor
    context: torch.Tensor
    pooled: torch.Tensor
    output: torch.Tensor
    with_gradient: bool


@contextmanager
def watch_denoiser(policy) -> Iterator[list[Call]]:
    calls: list[Call] = []

    def hook(_module, _args, kw, output):
        names = ("hidden_states", "timestep", "encoder_hidden_states", "pooled_projections")
        inputs = [kw[name].detach().clone() for name in names]
        calls.append(Call(*inputs, output[0].detach().clone(), torch.is_grad_enabled()))

    handle = policy.denoiser.register_forward_hook(hook, with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()


@contextmanager
def watch_estimates() -> Iterator[tuple[list[SurrogateEstimate], list[tuple[str, torch.Tensor]]]]:
    """The estimates that iterations make, and their calls in order: ("values" | "backward", outputs)."""
    made: list[SurrogateEstimate] = []
    events: list[tuple[str, torch.Tensor]] = []

    class Watched(SurrogateEstimate):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

        def values(self, outputs, keep_predictions=False):
            events.append(("values", outputs))
            return super().values(outputs, keep_predictions)

        def backward(self, outputs, *args):
            events.append(("backward", outputs))
            return super().backward(outputs, *args)

    trainer.loop.SurrogateEstimate = Watched
    try:
        yield made, events
    finally:
        trainer.loop.SurrogateEstimate = SurrogateEstimate
