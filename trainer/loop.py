"""One iteration of V-GRPO (arXiv 2604.23380, Algorithm 1)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from .config import RunConfig
from .estimate import SurrogateEstimate
from .lora import LoraAdapter, LoraFactors
from .memory import UPDATE
from .objective import (
    clip_fraction,
    combine_advantages,
    draw_pairs,
    importance_ratio,
    on_policy_ratio,
    policy_loss,
    soft_clip,
    zero_variance_groups,
)
from .optimization import GuardedStepper, learning_rate, move_optimizer, update_average
from .policies.base import Conditioning, Policy, Sampling
from .prompts import Prompt
from .rewards.base import Reward
from .rewards.phase import ScoringPhase
from .rewards.scoring import ScoreTable
from .rewards.shaping import shape_all
from .rollout import Rollout, pick_prompts, sample_groups
from .seeds import derive_seed


@dataclass
class Learner:
    """What an iteration changes: the LoRA on the policy, its optimiser, its moving average."""

    policy: Policy
    adapter: LoraAdapter
    stepper: GuardedStepper
    average: LoraFactors | None = None

    def to(self, device: torch.device) -> None:
        """Move all of it but the base, whose weights the policy moves."""
        self.adapter.to(device)
        move_optimizer(self.stepper.optimizer, device)
        if self.average is not None:
            self.average = self.average.to(device=device)


@dataclass
class IterationResult:
    metrics: dict[str, float]
    rollout: Rollout
    scores: ScoreTable
    advantages: torch.Tensor  # float32 [B], after the soft clip
    warnings: list[str] = field(default_factory=list)


def sampling_of(config: RunConfig) -> Sampling:
    """How the rollout samples, at the first of its sizes."""
    r = config.rollout
    return Sampling(r.sampler, r.steps, r.guidance, *r.sizes[0], r.batch_size, r.shift)


def run_iteration(
    learner: Learner,
    config: RunConfig,
    iteration: int,
    prompts: Sequence[Prompt],
    conditioning: Conditioning,
    rewards: dict[str, Reward],
    on_step: Callable[[], None] | None = None,
) -> IterationResult:
    """Algorithm 1's body for the 0-based `iteration`. `conditioning` has a row for each of `prompts`.

    Until the gradient steps begin nothing is changed, so that an exception from `on_step` leaves the learner as it was.
    """
    policy, adapter, clock = learner.policy, learner.adapter, {}
    objective, seed = config.objective, config.seed

    # theta_old <- theta, frozen for the whole iteration.
    behaviour = adapter.snapshot()

    # For each prompt: sample a group of G outputs with theta_old. Their rewards, while further outputs are decoded.
    with ScoringPhase(rewards) as scoring:
        with _timed(clock, "rollout"):
            picks = pick_prompts(prompts, config.rollout.prompts_per_iteration, seed, iteration, config.rollout.sizes)
            sampling, members = sampling_of(config), config.rollout.group_size
            with adapter.for_sampling(policy.weights_stay):
                rollout = sample_groups(policy, picks, conditioning, members, sampling, seed, iteration, on_step, scoring.add)
        with _timed(clock, "reward"):
            scores = scoring.result(on_step)

    # Group-relative advantages, optional soft clip.
    weights = config.reward_weights()
    trained = shape_all(scores.scores, config.reward_shapes())
    advantages = combine_advantages(trained, weights, rollout.group_ids, objective.advantage.combine, objective.advantage.scale)
    advantages = soft_clip(advantages, objective.soft_clip_eta).float()  # some devices have no float64

    # N_MC pairs (t_j, eps_j), shared by the group.
    grids = {size: policy.noise_levels(sampling.at(size)) for size in dict.fromkeys(pick.size for pick in picks)}
    rollout_evaluations = max(evaluations for _, evaluations in grids.values())  # the size changes the levels, not the steps
    draw = draw_pairs(
        torch.stack([grids[pick.size][0] for pick in picks]),
        config.surrogate.pairs,
        config.surrogate.share,
        seed,
        iteration,
        range(len(picks)),
        config.rollout.group_size,
        config.surrogate.stratified,
    )
    guidance = policy.scored_guidance(config.rollout.guidance, same=config.surrogate.guidance == "same")
    estimate = SurrogateEstimate(policy, rollout, draw, config.surrogate.weighting, config.surrogate.batch_size, guidance)

    with _timed(clock, "update"):
        minibatches = _minibatches(advantages, rollout.size_ids, config, iteration)
        old: list[_Old | None] = [None] * len(minibatches)
        if objective.gradient_steps > 1:
            # L_hat(theta_old | o_i, c) in the row batches that training will use. theta is still theta_old here.
            old = [_losses_old(learner, config, estimate, outputs, behaviour) for outputs in minibatches]

        # N gradient steps on minibatches of the collected outputs.
        _set_lr(learner.stepper.optimizer, lr := learning_rate(config.optimizer, iteration, config.iterations))
        steps = []
        for n, outputs in enumerate(minibatches):
            step, old[n] = _gradient_step(learner, config, estimate, outputs, advantages, behaviour, old[n])
            steps.append(step)
        if learner.average is not None:
            update_average(learner.average, adapter.snapshot(), config.optimizer.ema_decay)

    metrics = _metrics(scores, trained, weights, rollout, advantages, steps, minibatches, clock)
    metrics["lr"] = lr
    metrics["nfe/behaviour"] = rollout_evaluations + sum(o.evaluations for o in old if o) / len(rollout)
    metrics["nfe/policy"] = sum(step.evaluations for step in steps) / len(rollout)
    return IterationResult(metrics, rollout, scores, advantages, _warnings(config, metrics, steps))


@dataclass(frozen=True)
class _Old:
    """theta_old on a minibatch of M outputs."""

    losses: torch.Tensor  # L_hat [M, J]
    predictions: list[torch.Tensor]  # x_theta_old of each row batch, for the KL
    rows: int  # at most so many rows at once: in half precision the losses hold for theta in the same batches only
    evaluations: int


@dataclass(frozen=True)
class _Step:
    losses: torch.Tensor  # L_hat [M, J] as the step saw it
    ratio: torch.Tensor  # [M]
    clipped: float
    kl: float
    grad_norm: float
    skipped: str | None
    evaluations: int


def _minibatches(advantages: torch.Tensor, size_ids: torch.Tensor, config: RunConfig, iteration: int) -> list[torch.Tensor]:
    """The collected outputs in N near-equal parts, in an order drawn for the iteration; in each those of one size together.

    Outputs whose advantage is exactly 0 (failed scorers, zero-variance groups) carry no policy gradient: they are left
    out, so that they neither cost evaluations nor dilute the mean (trl#6365). With a KL term every output counts.
    """
    useful = torch.arange(len(advantages)) if config.objective.kl_coef else advantages.nonzero().flatten()
    generator = torch.Generator().manual_seed(derive_seed(config.seed, "minibatches", iteration))
    steps = config.objective.gradient_steps
    if steps > 1:
        useful = useful[torch.randperm(len(useful), generator=generator)]
    return [part[size_ids[part].argsort(stable=True)] for part in useful.tensor_split(steps) if len(part)]


def _rows(config: RunConfig, outputs: torch.Tensor) -> int:
    """How many (output, pair) rows may go through the network at once; not more than there are, so that half is less."""
    return min(config.surrogate.batch_size, len(outputs) * config.surrogate.pairs)


def _losses_old(
    learner: Learner, config: RunConfig, estimate: SurrogateEstimate, outputs: torch.Tensor, behaviour: LoraFactors
) -> _Old:
    def measure(rows: int) -> _Old:
        estimate.batch_size, estimate.evaluations = rows, 0
        with learner.adapter.using(behaviour):
            losses, predictions = estimate.values(outputs, keep_predictions=config.objective.kl_coef > 0)
        return _Old(losses, predictions, rows, estimate.evaluations)

    return learner.policy.batches.attempt(UPDATE, _rows(config, outputs), measure)


def _gradient_step(
    learner: Learner,
    config: RunConfig,
    estimate: SurrogateEstimate,
    outputs: torch.Tensor,
    advantages: torch.Tensor,
    behaviour: LoraFactors,
    old: _Old | None,
) -> tuple[_Step, _Old | None]:
    """One optimiser step, and `old` as it was used. Without memory all of the step is done anew in smaller row batches."""
    objective = config.objective
    chosen = advantages[outputs]
    share = 1 / max(1, int((chosen != 0).sum()))

    def ratio_of(losses: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
        if old is None:
            return on_policy_ratio(losses)
        return importance_ratio(losses, old.losses[local].to(losses.device))

    def loss_of(losses: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
        part = chosen[local].to(losses.device)
        return policy_loss(ratio_of(losses, local), part, objective.clip_eps) * (len(local) * share)

    def gradient(rows: int) -> tuple[torch.Tensor, float]:
        nonlocal old
        learner.stepper.optimizer.zero_grad(set_to_none=True)  # what an attempt without memory has left
        if old is not None and old.rows != rows:
            old = _losses_old(learner, config, estimate, outputs, behaviour)
        estimate.batch_size, estimate.evaluations = rows, 0
        return estimate.backward(outputs, loss_of, objective.kl_coef, old.predictions if old else None)

    losses, kl = learner.policy.batches.attempt(UPDATE, _rows(config, outputs), gradient)
    ratio = ratio_of(losses, torch.arange(len(outputs)))
    clipped = clip_fraction(ratio, chosen, objective.clip_eps) if objective.clip_eps else 0.0
    outcome = learner.stepper.step(loss_finite=bool(torch.isfinite(losses).all()))
    return _Step(losses, ratio, float(clipped), kl, outcome.grad_norm, outcome.skipped, estimate.evaluations), old


def _metrics(
    scores: ScoreTable,
    trained: dict[str, torch.Tensor],
    weights: dict[str, float],
    rollout: Rollout,
    advantages: torch.Tensor,
    steps: list[_Step],
    minibatches: list[torch.Tensor],
    clock: dict[str, float],
) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name, values in scores.scores.items():
        good = values[values.isfinite()]
        metrics[f"reward/{name}/mean"] = float(good.mean()) if len(good) else float("nan")
        metrics[f"reward/{name}/std"] = float(good.std(correction=0)) if len(good) else float("nan")
        if len(good) < len(values):
            metrics[f"reward/{name}/failed"] = float(len(values) - len(good))
    metrics.update({f"reward/{name}": value for name, value in scores.counts.items()})
    total = sum(values * weights[name] for name, values in trained.items())
    metrics["reward/total/mean"] = float(total[total.isfinite()].mean()) if total.isfinite().any() else float("nan")
    metrics["reward/nan_outputs"] = float((~total.isfinite()).sum())
    metrics["advantage/frac_zero_std"] = float(zero_variance_groups(total, rollout.group_ids))
    metrics["advantage/max_abs"] = float(advantages.abs().max())
    if steps:
        values = torch.cat([s.losses for s in steps]).double().mean(1)
        groups = rollout.group_ids[torch.cat(minibatches)]
        metrics["surrogate/mean"] = float(values.mean())
        metrics["surrogate/cv"] = float(values.std(correction=0) / values.mean())
        inside = [values[groups == g] for g in groups.unique()]
        spreads = [float(v.std(correction=0) / v.mean()) for v in inside if len(v) > 1]
        metrics["surrogate/cv_group"] = sum(spreads) / len(spreads) if spreads else float("nan")
        metrics["ratio/max_abs_dev"] = max(float((s.ratio - 1).abs().max()) for s in steps)
        # Before the first update theta is theta_old, so whatever differs from 1 is numerical noise.
        metrics["ratio/noise"] = float((steps[0].ratio - 1).abs().max())
        metrics["ratio/clip_frac"] = sum(s.clipped for s in steps) / len(steps)
        metrics["kl"] = sum(s.kl for s in steps) / len(steps)
        metrics["grad_norm"] = max(s.grad_norm for s in steps)
    metrics["steps/taken"] = float(sum(s.skipped is None for s in steps))
    metrics["steps/skipped"] = float(sum(s.skipped is not None for s in steps))
    metrics.update({f"time/{name}": seconds for name, seconds in clock.items()})
    return metrics


def _warnings(config: RunConfig, metrics: dict[str, float], steps: list[_Step]) -> list[str]:
    found = [f"gradient step skipped: {s.skipped}" for s in steps if s.skipped]
    if not steps:
        found.append(
            "no gradient step: every group's rewards are equal or failed; raise rollout.group_size, "
            "or choose a reward that tells these outputs apart"
        )
    eps = config.objective.clip_eps
    if eps and metrics.get("ratio/noise", 0.0) > eps / 5:
        found.append(
            f"the ratio differs from 1 by {metrics['ratio/noise']:.1e} before any update, above clip_eps/5 = {eps / 5:.1e}; "
            "set policy.dtype to float32 or raise clip_eps"
        )
    return found


def _set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


@contextmanager
def _timed(clock: dict[str, float], name: str):
    started = time.perf_counter()
    yield
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    clock[name] = time.perf_counter() - started
