"""The phases of an iteration on a real base, cut as a plan cuts them: what a plan says is compared with what they take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trainer.config import RunConfig, load_config
from trainer.estimate import SurrogateEstimate
from trainer.loop import sampling_of
from trainer.objective import draw_pairs
from trainer.planning.plan import DECODE, ENCODE, OLD, ROLLOUT, UPDATE
from trainer.rollout import Rollout
from trainer.setup import build_bench


def phases_config(folder: Path, family: str, pixels: int, **changes: Any) -> RunConfig:
    """A configuration with every phase that a plan knows of but rewards with a network. Sections in `changes` are merged."""
    data: dict[str, Any] = {
        "policy": {"family": family, "model": str(folder), "dtype": "float32", "vae_dtype": "float32", "lora": {"rank": 4}},
        "prompts": {"train": ["a red square", "two blue circles above a green star"], "evaluate": ["a green star"]},
        "rewards": {"brightness": {}},
        "rollout": {
            "group_size": 4,
            "prompts_per_iteration": 1,
            "width": pixels,
            "height": pixels,
            "batch_size": 4,
            "steps": 6,
        },
        "surrogate": {"pairs": 2, "batch_size": 4},
        "objective": {"gradient_steps": 2},
        "evaluation": {"steps": 6},
    }
    for key, value in changes.items():
        data[key] = {**data.get(key, {}), **value} if isinstance(value, dict) and key != "rewards" else value
    return load_config(data)


def real_phases(
    config: RunConfig, device: torch.device, cache: Path | None = None
) -> Iterator[tuple[str, Callable[[], object]]]:
    """(phase, what it runs) for batches as large as the configuration says."""
    bench = build_bench(config, device, cache)
    policy, adapter = bench.policy, bench.learner.adapter
    texts = [prompt.text for prompt in (*config.prompts.train, *config.prompts.evaluate)]
    texts = [config.rollout.negative_prompt, *texts]
    pipe = policy._encoders()

    def encode():
        with torch.no_grad():
            return policy.encode_prompts(pipe, texts)

    yield ENCODE, encode
    sampling = replace(sampling_of(config), steps=2)
    rows = bench.train_conditioning.rows([0] * sampling.batch_size)
    yield ROLLOUT, lambda: policy.sample(rows, range(sampling.batch_size), sampling)
    with torch.no_grad():
        latents = policy.sample(rows, range(sampling.batch_size), replace(sampling, steps=1))
    yield DECODE, lambda: policy.decode(latents)

    count, surrogate = config.surrogate.batch_size // config.surrogate.pairs, config.surrogate
    levels, _ = policy.noise_levels(sampling_of(config))
    draw = draw_pairs(levels, surrogate.pairs, surrogate.share, 0, 0, range(1), count, surrogate.stratified)
    rollout = Rollout(
        latents=tuple(latents[:count]),
        images=(),
        conditioning=rows.rows(range(count)),
        group_ids=torch.zeros(count, dtype=torch.long),
        prompts=(),
        seeds=(0,) * count,
    )
    estimate = SurrogateEstimate(policy, rollout, draw, surrogate.weighting, surrogate.batch_size)
    yield OLD, lambda: estimate.values(torch.arange(count))
    for parameter in adapter.parameters():
        parameter.grad = torch.zeros_like(parameter)
    yield UPDATE, lambda: estimate.backward(torch.arange(count), lambda losses, _: losses.sum())
