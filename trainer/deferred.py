"""The gradient of one step, taken before the rewards are known (after the idea of LeanGRPO, arXiv 2609.03528; how it is done
here is ours).

At the behaviour policy itself the gradient is the mean of A_i grad L_i over the outputs, so grad L_i can be found while the
reward that makes A_i is still awaited: with a slow reward the two take as long as the longer of them. What it costs is a
backward pass for each output by itself, also for those whose advantage turns out to be 0, and memory for gradients that wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .algorithms.base import Algorithm
from .collecting import advantages_of, timed
from .errors import UserError
from .estimate import SurrogateEstimate
from .memory import UPDATE
from .rewards.phase import ScoringPhase


@dataclass(frozen=True)
class Deferred:
    """sum_i A_i grad L_i of all outputs, their losses float32 [B, J] on the CPU, and the network evaluations it took."""

    total: torch.Tensor  # float32 on the CPU: the gradients of all parameters, flat and end to end
    losses: torch.Tensor
    evaluations: int

    def put(self, parameters: Sequence[torch.nn.Parameter], share: float) -> None:
        """Make `share` times it the parameters' gradient."""
        for parameter, part in zip(parameters, self.total.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = (part * share).view_as(parameter).to(parameter.device)


def defer(
    algorithm: Algorithm,
    estimate: SurrogateEstimate,
    group_ids: torch.Tensor,
    scoring: ScoringPhase,
    clock: dict[str, float],
    check: Callable[[], None] | None = None,
) -> Deferred:
    """Take each output's gradient in turn and add it, times its advantage, as soon as its group is scored.

    At most `objective.deferred` gradients wait; the sum has one order, whenever the rewards come. `check` is called between
    outputs and while waiting, and may raise.
    """
    parameters = algorithm.learner.adapter.parameters()
    total = torch.zeros(sum(p.numel() for p in parameters))
    losses: list[torch.Tensor] = []
    waiting: deque[tuple[int, torch.Tensor]] = deque()
    advantages = _Advantages(algorithm, group_ids, scoring, clock, check)

    def settle(most: int) -> None:
        """Add what is known, and wait for rewards until no more than `most` gradients are left."""
        while waiting and (len(waiting) > most or advantages.known(waiting[0][0])):
            output, gradient = waiting.popleft()
            if advantage := advantages.of(output):
                total.add_(gradient, alpha=advantage)

    for output in range(len(group_ids)):
        if check is not None:
            check()
        with timed(clock, "update"):
            loss, gradient = _gradient(algorithm, estimate, torch.tensor([output]), parameters)
        losses.append(loss)
        waiting.append((output, gradient))
        settle(algorithm.config.objective.deferred - 1)
    settle(0)
    return Deferred(total, torch.cat(losses), estimate.evaluations)


def check_memory(waiting: int, each: int, free: int | None) -> None:
    """Raises UserError if `waiting` gradients of `each` bytes do not fit into the CPU's free memory (None: not known)."""
    if free is not None and waiting * each > free:
        raise UserError(
            f"objective.deferred: {waiting} gradients of {each / 2**20:.0f} MiB may wait, which is more than the "
            f"{free / 2**30:.1f} GiB of memory that are free; allowed here: up to {free // each}, or 0 to turn it off"
        )


class _Advantages:
    """The advantages of whole groups, as soon as these are scored."""

    def __init__(
        self,
        algorithm: Algorithm,
        group_ids: torch.Tensor,
        scoring: ScoringPhase,
        clock: dict[str, float],
        check: Callable[[], None] | None,
    ) -> None:
        self.algorithm, self.group_ids, self.scoring, self.clock, self.check = algorithm, group_ids, scoring, clock, check
        self._known = torch.zeros(0)

    def known(self, output: int) -> bool:
        return self._end(output) <= max(len(self._known), self.scoring.scored())

    def of(self, output: int) -> float:
        """Waits for it."""
        if output >= len(self._known):
            with timed(self.clock, "reward"):
                scores = self.scoring.result(self.check, self._end(output))
            self._known = advantages_of(self.algorithm, scores, self.group_ids[: self._end(output)])[1]
        return float(self._known[output])

    def _end(self, output: int) -> int:
        """How many outputs there are up to the end of this one's group."""
        return int((self.group_ids <= self.group_ids[output]).sum())


def _gradient(
    algorithm: Algorithm, estimate: SurrogateEstimate, output: torch.Tensor, parameters: Sequence[torch.nn.Parameter]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(losses [1, J], grad L flat) of one output, on the CPU; the parameters are left without a gradient."""

    before = estimate.evaluations

    def of(rows: int) -> torch.Tensor:
        algorithm.learner.stepper.optimizer.zero_grad(set_to_none=True)  # what an attempt without memory has left
        estimate.batch_size, estimate.evaluations = rows, before
        return estimate.backward(output, lambda losses, local: losses.mean())[0]

    rows = min(algorithm.config.surrogate.batch_size, estimate.pairs)
    losses = algorithm.learner.policy.batches.attempt(UPDATE, rows, of)
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters]).cpu()
    algorithm.learner.stepper.optimizer.zero_grad(set_to_none=True)
    return losses, flat.float()
