"""A learner's whole state as a checkpoint's tensors and position, and back, bit for bit."""

from __future__ import annotations

from typing import Any

import torch

from .errors import UserError
from .loop import Learner
from .lora import LoraFactors
from .runs.optimizer_state import optimizer_from_tensors, optimizer_to_tensors, rng_from_tensors, rng_to_tensors


def learner_tensors(learner: Learner) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
    """(tensors by file name, JSON): raw LoRA, EMA, lagging copy, optimiser, every random generator."""
    optimizer, meta = optimizer_to_tensors(learner.stepper.optimizer, list(learner.stepper.named))
    tensors = {"lora": learner.adapter.snapshot().tensors(), "optimizer": optimizer, "rng": rng_to_tensors()}
    if learner.average is not None:
        tensors["ema"] = learner.average.tensors()
    if learner.lagged is not None:
        tensors["lagged"] = learner.lagged.tensors()
    position = {"optimizer": meta, "skipped_in_a_row": learner.stepper.skipped_in_a_row}
    if learner.policy.batches.sizes:  # a batch's size decides the last digits
        position["batches"] = dict(learner.policy.batches.sizes)
    if learner.memory.flat:
        position["flat_prompts"] = sorted(learner.memory.flat.items())
    return tensors, position


def restore_learner(learner: Learner, tensors: dict[str, dict[str, torch.Tensor]], position: dict[str, Any]) -> list[str]:
    """Put a checkpoint back; returns warnings (a generator that this machine lacks). Raises UserError if it does not fit."""
    if (learner.average is None) != ("ema" not in tensors):
        raise UserError(
            "the checkpoint and the configuration disagree about optimizer.ema_decay; resume with the run's own config.yaml"
        )
    if (learner.lagged is None) != ("lagged" not in tensors):
        raise UserError(
            "the checkpoint and the configuration disagree about a lagging copy, which diffusion_nft and awm keep; resume with "
            "the run's own config.yaml"
        )
    learner.adapter.load(LoraFactors.from_tensors(tensors["lora"]))
    device = learner.adapter.parameters()[0].device
    if learner.average is not None:
        learner.average = LoraFactors.from_tensors(tensors["ema"]).to(device=device).clone()
    if learner.lagged is not None:
        learner.lagged = LoraFactors.from_tensors(tensors["lagged"]).to(device=device).clone()
    optimizer_from_tensors(learner.stepper.optimizer, list(learner.stepper.named), tensors["optimizer"], position["optimizer"])
    learner.stepper.skipped_in_a_row = position["skipped_in_a_row"]
    learner.policy.batches.sizes.update(position.get("batches", {}))
    learner.memory.flat = {index: times for index, times in position.get("flat_prompts", [])}
    return rng_from_tensors(tensors["rng"])
