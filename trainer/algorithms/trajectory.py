"""What Flow-GRPO, MixGRPO and DanceGRPO share: a rollout by steps of our own, some of them Gaussian, and the log-probability
of those steps as what is trained on. A row is one (output, trained step) evaluation of the network.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..errors import UserError
from ..estimate import RowBatch, SurrogateEstimate
from ..lora import LoraFactors
from ..objective import PairDraw, gaussian_log_prob, ode_step, policy_loss
from ..policies.base import Conditioning, Policy, Sampling
from ..rollout import Rollout, sample_groups
from ..seeds import derive_seed
from .base import Algorithm, Reference, base_predictions

Transition = tuple[torch.Tensor, torch.Tensor]
"""(mean [B, ...], std [B]) of the state that a step leads to."""


@dataclass(frozen=True)
class Trajectory:
    """The K stochastic steps of each output, which follow one another."""

    states: tuple[torch.Tensor, ...]  # of each output, float32 [K + 1, ...] on the CPU: before, between and after the steps
    levels: torch.Tensor  # float32 [B, K + 1], the noise levels of those states
    log_probs: torch.Tensor  # float32 [B, K], of each step under the behaviour policy as it was taken

    def joined(self, more: Trajectory) -> Trajectory:
        levels, log_probs = torch.cat([self.levels, more.levels]), torch.cat([self.log_probs, more.log_probs])
        return Trajectory(self.states + more.states, levels, log_probs)


@dataclass(frozen=True)
class TrajectoryRollout(Rollout):
    """Collected outputs with the way that led to them."""

    trajectory: Trajectory

    def joined(self, more: TrajectoryRollout) -> TrajectoryRollout:
        return replace(super().joined(more), trajectory=self.trajectory.joined(more.trajectory))


class SteppingPolicy:
    """A policy whose `sample` steps by itself, as the algorithm says, and remembers the stochastic steps."""

    def __init__(self, algorithm: TrajectoryAlgorithm, policy: Policy) -> None:
        self.algorithm, self.policy, self.decode = algorithm, policy, policy.decode
        self._states: list[torch.Tensor] = []
        self._levels: list[torch.Tensor] = []
        self._log_probs: list[torch.Tensor] = []

    def trajectory(self) -> Trajectory:
        """The steps of all outputs sampled so far, in their order."""
        return Trajectory(tuple(self._states), torch.cat(self._levels), torch.cat(self._log_probs))

    @torch.no_grad()
    def sample(
        self, conditioning: Conditioning, seeds: Sequence[int], sampling: Sampling, on_step: Callable[[], None] | None = None
    ) -> torch.Tensor:
        """As `Policy.sample`. The noise of each output and step comes from its own seed, whatever the batch."""
        grid = self.algorithm.grid(self.policy, sampling)

        def made(here: slice) -> torch.Tensor:
            return self._batch(conditioning.rows(range(here.start, here.stop)), seeds[here], sampling, grid, on_step)

        phase = f"sampling {sampling.width} x {sampling.height} step by step"
        return torch.cat(self.policy.batches.over(phase, sampling.batch_size, len(seeds), made))

    def _batch(
        self,
        rows: Conditioning,
        seeds: Sequence[int],
        sampling: Sampling,
        grid: torch.Tensor,
        on_step: Callable[[], None] | None,
    ) -> torch.Tensor:
        algorithm, policy = self.algorithm, self.policy
        z = policy.first_noise(algorithm.start_seeds(seeds, rows), sampling).to(policy.device)
        stochastic = algorithm.stochastic(sampling.steps)
        a, b = (tuple(values.tolist()) for values in policy.coefficients(grid))
        a, b = (*a, 1.0), (*b, 0.0)  # the finished output
        levels = torch.cat([grid, grid.new_zeros(1)]).expand(len(seeds), -1)
        before, states, log_probs = None, [], []
        for k in range(len(grid)):
            t = levels[:, k].to(policy.device)
            x_hat = policy.predict_clean(z, t, rows, sampling.guidance)
            if k in stochastic:
                mean, std = algorithm.transition(policy, z, x_hat, t, levels[:, k + 1].to(policy.device))
                states.append(z.cpu())
                z = mean + std.view(-1, *[1] * (mean.ndim - 1)) * _step_noise(seeds, k, mean)
                log_probs.append(gaussian_log_prob(z, mean, std).cpu())
            else:
                z = ode_step(z, x_hat, a[k], b[k], a[k + 1], b[k + 1], before)
            if k == stochastic.stop - 1:
                states.append(z.cpu())
            before = (x_hat, a[k], b[k]) if sampling.sampler == "dpmsolver++" else None
            if on_step is not None:
                on_step()
        self._states += torch.stack(states, 1).unbind()
        self._levels.append(levels[:, stochastic.start : stochastic.stop + 1])
        self._log_probs.append(torch.stack(log_probs, 1))
        return z


def _step_noise(seeds: Sequence[int], step: int, like: torch.Tensor) -> torch.Tensor:
    generators = (torch.Generator().manual_seed(derive_seed(seed, "sde-step", step)) for seed in seeds)
    return torch.stack([torch.randn(like.shape[1:], generator=generator) for generator in generators]).to(like.device)


class TransitionEstimate(SurrogateEstimate):
    """Minus the log-probability of the trained steps: the same steps are shown to theta_old and to every later theta."""

    def __init__(self, algorithm: TrajectoryAlgorithm, rollout: TrajectoryRollout, draw: PairDraw, steps: torch.Tensor) -> None:
        """steps: int64 [B, J], the trained steps of each output."""
        super().__init__(*algorithm.estimate_arguments(rollout, draw))
        self.algorithm, self.trajectory, self.steps = algorithm, rollout.trajectory, steps
        self.pairs = steps.shape[1]

    def rows(self, batch: RowBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """(-log p [R], mean / (sqrt(2) spread) [R, ...]): with the step's std for spread (see `kl_spread`) the mean square
        difference of the latter is the KL of two Gaussians."""
        device, trajectory = self.policy.device, self.trajectory
        k = self.steps[batch.output, batch.pair]
        places = list(zip(batch.output.tolist(), k.tolist(), strict=True))
        z, after = (torch.stack([trajectory.states[i][s + n] for i, s in places]).to(device) for n in (0, 1))
        t, t_next = (trajectory.levels[batch.output, k + n].to(device) for n in (0, 1))
        x_hat = self.predict(batch, z, t)
        mean, std = self.algorithm.transition(self.policy, z, x_hat, t, t_next)
        spread = self.algorithm.kl_spread(std, t, t_next)
        return -gaussian_log_prob(after, mean, std), mean / (math.sqrt(2) * spread).view(-1, *[1] * (mean.ndim - 1))


class TrajectoryAlgorithm(Algorithm):
    """PPO's clipped objective on each trained step, all of them with the advantage of the finished output."""

    measured = "nll"

    # What one of them says

    @abstractmethod
    def transition(
        self, policy: Policy, z: torch.Tensor, x_hat: torch.Tensor, t: torch.Tensor, t_next: torch.Tensor
    ) -> Transition:
        """Where a stochastic step from z [B, ...] at levels t [B] leads, given the predicted clean output."""

    def kl_spread(self, std: torch.Tensor, t: torch.Tensor, t_next: torch.Tensor) -> torch.Tensor:
        """What the KL divides the difference of two means by, [B]; std [B] of the steps from t to t_next makes it exact."""
        return std

    def stochastic(self, steps: int) -> range:
        """The steps, of so many, that are stochastic. The last never is: it only takes noise away, so that none is decoded."""
        return range(steps - 1)

    def grid(self, policy: Policy, sampling: Sampling) -> torch.Tensor:
        """The levels that the rollout visits, float32[S] without the final 0, as the network sees them."""
        levels = policy.visible_time(policy.noise_levels(sampling)[0])
        if bool((levels.diff() >= 0).any()):
            raise UserError(
                f"rollout.steps = {sampling.steps}: two of the steps are one noise level to this network in its number format; "
                "take fewer steps, or set policy.dtype to float32"
            )
        return levels

    # The rollout

    def start_seeds(self, seeds: Sequence[int], rows: Conditioning) -> list[int]:
        """The seeds of the first noise: an output's own, or one a prompt."""
        if not self.setting("trajectory.same_start"):
            return list(seeds)
        return [derive_seed(self.config.seed, "group-start", self.iteration, prompt) for prompt in rows.index.tolist()]

    def sample(self, policy: Policy, *args: Any) -> TrajectoryRollout:
        stepping = SteppingPolicy(self, policy)
        rollout = sample_groups(stepping, *args)
        return TrajectoryRollout(**vars(rollout), trajectory=stepping.trajectory())

    # The update

    def trained_steps(self, outputs: int, steps: int) -> torch.Tensor:
        """int64 [B, J], rising: the steps, of K stochastic ones, that each output is trained on."""
        count = self._trained_of(steps)
        if count == steps:
            return torch.arange(steps).expand(outputs, -1)
        drawn = []
        for output in range(outputs):
            seed = derive_seed(self.config.seed, "trained-steps", self.iteration, output)
            drawn.append(torch.randperm(steps, generator=torch.Generator().manual_seed(seed))[:count].sort().values)
        return torch.stack(drawn)

    def _trained_of(self, steps: int) -> int:
        return max(1, int(steps * self.setting("trajectory.share")))

    def rows_an_output(self) -> int:
        return self._trained_of(len(self.stochastic(self.config.rollout.steps)))

    def frozen_passes(self) -> int:
        recomputed = self.config.trajectory.log_probs == "recomputed" and not self.on_policy
        return recomputed + (self.kl_coef() > 0)

    def estimate(self, rollout: TrajectoryRollout, draw: PairDraw, advantages: torch.Tensor) -> TransitionEstimate:
        return TransitionEstimate(self, rollout, draw, self.trained_steps(*rollout.trajectory.log_probs.shape))

    def reference(self, estimate: TransitionEstimate, outputs: torch.Tensor, behaviour: LoraFactors) -> Reference:
        predictions = base_predictions(self, estimate, outputs, self.kl_coef() > 0)
        if self.config.trajectory.log_probs == "rollout" and not self.on_policy:
            steps = estimate.steps[outputs]
            return Reference(-estimate.trajectory.log_probs[outputs].gather(1, steps), predictions)
        return Reference(self.old_losses(estimate, outputs, behaviour), predictions)

    def ratio(self, losses: torch.Tensor, old: torch.Tensor | None) -> torch.Tensor:
        return ((losses if old is None else old).detach().to(losses.device) - losses).exp()

    def loss(self, losses: torch.Tensor, old: torch.Tensor | None, advantages: torch.Tensor) -> torch.Tensor:
        ratio, repeated = self.ratio(losses, old), advantages.repeat_interleave(losses.shape[1])
        return policy_loss(ratio.flatten(), repeated, self.config.objective.clip_eps)
