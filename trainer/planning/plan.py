"""From a configuration to what each phase of an iteration takes, without loading anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..config import RunConfig
from ..policies.base import Sampling
from ..policies.pipeline import ENCODED_AT_ONCE
from .probe import Cost, Probe, largest_judged, largest_sampling, outputs_of
from .reward_needs import RewardNeed, reward_needs
from .weights import OPTIMIZER_BYTES, bytes_of, encoders_resident

ENCODE, ROLLOUT, DECODE = "encode prompts", "rollout", "decode"
OLD, UPDATE, EVALUATE = "theta_old surrogate", "update", "evaluate"
REWARD = "reward "
RESERVE = 0.10
"""Share of the memory that a plan leaves free, for what is no tensor: the driver's context, workspaces of matrix products and
convolutions, and gaps between tensors. Ours; docs/memory-plan.md says what it was compared with."""
PARKED_BELOW = 0.25  # rewards/residency.py: with less of the device free, rewards leave it between rounds
_FLOAT32 = 4


@dataclass(frozen=True)
class Phase:
    """Bytes on the device: `weights` of networks, `trained` (LoRA, gradients, optimiser, averages), `tensors` made meanwhile.

    `evaluations` and `flops` are of a whole iteration; 0 for what happens once a run. None: not known.
    """

    name: str
    weights: int
    trained: int
    tensors: int
    evaluations: int = 0
    flops: float | None = 0.0
    seconds: float | None = None

    @property
    def peak(self) -> int:
        return self.weights + self.trained + self.tensors


@dataclass(frozen=True)
class Plan:
    """`memory`: bytes that are free on the device, None where nobody said."""

    title: str
    device: str
    phases: tuple[Phase, ...]
    memory: int | None
    notes: tuple[str, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)
    """Keys that differ from what was asked for, in a plan that the advice made."""

    @property
    def usable(self) -> int | None:
        return _usable(self.memory)

    def too_large(self) -> Phase | None:
        """The first phase that does not fit."""
        if self.usable is None:
            return None
        return next((phase for phase in self.phases if phase.peak > self.usable), None)

    @property
    def fits(self) -> bool:
        return self.too_large() is None

    @property
    def peak(self) -> Phase:
        return max(self.phases, key=lambda phase: phase.peak)

    @property
    def evaluations(self) -> int:
        return sum(phase.evaluations for phase in self.phases)

    @property
    def flops(self) -> float:
        return sum(phase.flops or 0.0 for phase in self.phases)

    @property
    def seconds(self) -> float | None:
        """Of an iteration, without scoring; None until it is measured."""
        known = [phase.seconds for phase in self.phases if phase.flops]
        return sum(known) if known and None not in known else None


def _usable(memory: int | None) -> int | None:
    return None if memory is None else int(memory * (1 - RESERVE))


class Planner:
    """Plans for one device. What was run once is remembered, so that a search over settings costs little."""

    def __init__(self, device: torch.device, memory: int | None = None) -> None:
        """memory: bytes."""
        self.device, self.memory = device, memory
        self.rough = False
        """Whether batches are told from those of one, which saves runs and mostly errs on the safe side: for a search."""
        self._probes: dict[str, Probe] = {}
        self._costs: dict[tuple[int, str, str], Any] = {}

    @property
    def usable(self) -> int | None:
        """Bytes that a plan may use."""
        return _usable(self.memory)

    def probe(self, config: RunConfig) -> Probe:
        policy = config.policy.model_dump(mode="json", exclude={"quantization", "offload", "compile", "attention"})
        key = json.dumps(policy, sort_keys=True)
        if key not in self._probes:
            self._probes[key] = Probe(config, self.device)
        self._probes[key].check(config)
        return self._probes[key]

    def plan(self, config: RunConfig, changes: dict[str, Any] | None = None) -> Plan:
        """Raises UserError for whatever training would refuse of the base."""
        probe = self.probe(config)
        parts = _Parts(config, probe, reward_needs(config, self.device), self)
        phases = tuple(parts.phases())
        notes = (*probe.blueprint.notes, *parts.notes)
        return Plan(probe.blueprint.title, str(self.device), phases, self.memory, notes, changes or {})

    def remember(self, probe: Probe, phase: str, relevant: Any, run: Callable[[], Any]) -> Any:
        """What `run` returns, run once for the same probe, phase and relevant settings."""
        key = (id(probe), phase, repr(relevant))
        if key not in self._costs:
            self._costs[key] = run()
        return self._costs[key]


class _Parts:
    """One configuration's phases."""

    def __init__(self, config: RunConfig, probe: Probe, rewards: list[RewardNeed], planner: Planner) -> None:
        self.config, self.probe, self.rewards, self.planner = config, probe, rewards, planner
        self.device = device = planner.device
        policy = config.policy
        # A CPU has one memory: what is away from the device is there all the same.
        self.offload = "none" if device.type == "cpu" else policy.offload
        self.stays = self.offload == "none"
        self.denoiser = probe.sizes.resident(policy.quantization, self.offload)
        self.whole = probe.sizes.made_whole(policy.quantization)
        held = "block" if policy.gradient_checkpointing else "all"
        self.whole_in_update = probe.sizes.made_whole(policy.quantization, held)
        self.vae = bytes_of(probe.vae)
        self.numbers = sum(parameter.numel() for parameter in probe.trained)
        self.factors = _FLOAT32 * self.numbers
        average = self.factors if config.optimizer.ema_decay else 0
        self.algorithm = probe.algorithm(config)
        self.kept = self.factors + average + self.factors * self.algorithm.traits.lags
        self.optimizer = int(OPTIMIZER_BYTES[config.optimizer.name] * self.numbers)
        self.outputs = outputs_of(config)
        self.latents = _FLOAT32 * self.outputs * probe.latent_numbers(config)
        self.scorers = sum(need.size or 0 for need in rewards)
        parked = self._parked(planner.memory)
        self.waiting = sum(need.size or 0 for need in rewards if not parked[need.name])
        self.notes = [need.note for need in rewards if need.note]
        if any(need.size for need in rewards):
            self.notes.append("tensors that a reward's network makes while it scores are not counted")

    def _parked(self, memory: int | None) -> dict[str, bool]:
        """Which rewards leave the device between two rounds, by their own rule (rewards/residency.py)."""
        if self.device.type == "cpu":
            return {need.name: False for need in self.rewards}
        there = self.denoiser + self.vae * self.stays + self.kept + self.optimizer + self.scorers
        short = memory is not None and memory - there < PARKED_BELOW * memory
        return {need.name: need.parks == "always" or (need.parks == "auto" and short) for need in self.rewards}

    def phases(self):
        c, probe = self.config, self.probe
        both = self.denoiser + self.vae
        network = both if self.stays else self.denoiser
        decoder = both if self.stays else self.vae
        during = self.kept + self.optimizer + self.factors  # the last: theta_old's
        yield self._encode(both if self.stays else 0)

        sampling = largest_sampling(c)
        cost = self._sampled(ROLLOUT, sampling, self.outputs)
        each = self.probe.policy.noise_levels(sampling)[1]
        merged = probe.merged_bytes(c) if self.device.type == "cpu" and self.stays else 0
        network_at_work = network + self.whole
        made = round(self.algorithm.rollout_evaluations(each) * self.outputs)
        yield self._phase(ROLLOUT, network_at_work + merged + self.waiting, during + self.latents, cost, made)

        count = min(c.rollout.batch_size, self.outputs)
        decoded = self.planner.remember(probe, DECODE, (sampling.width, sampling.height, count), lambda: probe.decode(c, count))
        flops = decoded.flops_each() * self.outputs
        yield Phase(DECODE, decoder + self.waiting, during + self.latents, decoded.peak, 0, flops)
        for need in self.rewards:
            if need.size != 0:  # they score while the next pictures are decoded
                yield Phase(REWARD + need.name, decoder + self.scorers, during + self.latents, decoded.peak, 0, None)

        evaluations = self.outputs * self.algorithm.rows_an_output()
        passes = probe.policy.passes(self.algorithm.scored_guidance())
        if frozen := self.algorithm.frozen_passes() + (c.objective.norm_guard.weight > 0):  # the base, for the guard
            cost = self._estimated(OLD, probe.surrogate_values)
            weights = network_at_work + self.waiting
            yield self._phase(OLD, weights, during + self.latents, cost, frozen * evaluations, passes)
        cost = self._estimated(UPDATE, probe.update)
        gradients = self.factors
        # The step itself works on copies of the factors, two of them at most, when the activations are gone.
        cost = Cost(max(cost.peak, 2 * self.factors), cost.flops, cost.count)
        weights = network + self.whole_in_update + self.waiting
        yield self._phase(UPDATE, weights, during + self.latents + gradients, cost, evaluations, passes)

        judged = largest_judged(c)
        area, passes = judged.width * judged.height, probe.policy.passes(judged.guidance)
        if area > sampling.width * sampling.height or passes > probe.policy.passes(sampling.guidance):
            count = c.evaluation.prompts * c.evaluation.seeds
            cost = self._sampled(ROLLOUT, judged, count)
            latents = self.latents // self.outputs * count * area // (sampling.width * sampling.height)
            yield Phase(EVALUATE, network_at_work + merged + self.waiting, self.kept + self.optimizer + latents, cost.peak)

    def _encode(self, others: int) -> Phase:
        texts = hash((self.config.rollout.negative_prompt, self.config.prompts))

        def encoded(count: int) -> tuple[Cost, list[torch.nn.Module]]:
            return self.planner.remember(self.probe, ENCODE, (texts, count), lambda: self.probe.encode(self.config, count))

        cost, encoders = encoded(ENCODED_AT_ONCE)
        size = encoders_resident(encoders, self.offload)
        phase = Phase(ENCODE, size + others + self.scorers * self.stays, self.kept, cost.peak)
        usable = self.planner.usable
        if usable is not None and phase.peak > usable:  # the trainer then takes fewer prompts at once, by itself
            fewer = replace(phase, tensors=encoded(1)[0].peak)
            if fewer.peak <= usable:
                self.notes.append(
                    f"there is no room to encode {ENCODED_AT_ONCE} prompts at once, so the trainer will take fewer"
                )
                return fewer
        return phase

    def _sampled(self, phase: str, sampling: Sampling, outputs: int) -> Cost:
        relevant = replace(
            sampling, batch_size=0, steps=min(sampling.steps, 2), guidance=self.probe.policy.passes(sampling.guidance)
        )
        count = min(sampling.batch_size, outputs)
        return self._at(phase, relevant, count, lambda n: self.probe.sample(self.config, replace(sampling, batch_size=n)))

    def _estimated(self, phase: str, run: Callable[[RunConfig, int], Cost]) -> Cost:
        c = self.config
        relevant = (
            largest_sampling(c),
            c.surrogate.model_copy(update={"batch_size": 0}),
            self.probe.policy.passes(self.algorithm.scored_guidance()),
        )
        most = -(-self.outputs // c.objective.gradient_steps) * self.algorithm.rows_an_output()  # rows of a minibatch
        return self._at(phase, relevant, min(c.surrogate.batch_size, most), lambda n: run(c, n))

    def _at(self, phase: str, relevant: Any, count: int, run: Callable[[int], Cost]) -> Cost:
        """What `run` says of a batch of so many."""

        def exactly(number: int) -> Cost:
            return self.planner.remember(self.probe, phase, (relevant, number), lambda: run(number))

        if not self.planner.rough:
            return exactly(count)
        one = exactly(1)
        return Cost(count * one.peak, count * one.flops, count * one.count)

    def _phase(self, name: str, weights: int, trained: int, cost: Cost, evaluations: int, passes: int = 1) -> Phase:
        return Phase(name, weights, trained, cost.peak, evaluations * passes, cost.flops_each() * evaluations)
