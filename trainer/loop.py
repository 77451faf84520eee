"""One iteration of V-GRPO (arXiv 2604.23380, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from .algorithms import VGRPO, load_algorithm
from .algorithms.base import Algorithm, Reference
from .collecting import collect, timed
from .config import RunConfig
from .deferred import Deferred, defer
from .dynamic_sampling import PromptMemory
from .estimate import NormGuard, SurrogateEstimate
from .lora import LoraAdapter, LoraFactors
from .memory import UPDATE
from .objective import (
    PairDraw,
    draw_pairs,
    is_uniform,
    lean_at,
    noise_share,
    on_policy_ratio,
    policy_loss,
    timestep_weights,
    zero_variance_groups,
)
from .optimization import GuardedStepper, learning_rate, move_optimizer, update_average
from .policies.base import Conditioning, Policy, Sampling
from .prompts import Prompt
from .rewards.base import Reward
from .rewards.phase import ScoringPhase
from .rewards.scoring import ScoreTable
from .rollout import PromptPick, Rollout
from .seeds import derive_seed


@dataclass
class Learner:
    """What an iteration changes: the LoRA on the policy, its optimiser, its moving average.

    `lagged`: the copy that follows the policy with a lag, for the algorithms that keep one. `memory`: the prompts that taught
    nothing lately, where the configuration asks for it.
    """

    policy: Policy
    adapter: LoraAdapter
    stepper: GuardedStepper
    average: LoraFactors | None = None
    lagged: LoraFactors | None = None
    memory: PromptMemory = field(default_factory=PromptMemory)

    def to(self, device: torch.device) -> None:
        """Move all of it but the base, whose weights the policy moves."""
        self.adapter.to(device)
        move_optimizer(self.stepper.optimizer, device)
        if self.average is not None:
            self.average = self.average.to(device=device)
        if self.lagged is not None:
            self.lagged = self.lagged.to(device=device)


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


class VGRPOAlgorithm(Algorithm):
    """Pairs of the outputs' own groups, one ratio an output, the KL to theta_old; the loop below is written for it."""

    name = VGRPO

    def estimate(self, rollout: Rollout, draw: PairDraw, advantages: torch.Tensor) -> SurrogateEstimate:
        return SurrogateEstimate(*self.estimate_arguments(rollout, draw))

    def reference(self, estimate: SurrogateEstimate, outputs: torch.Tensor, behaviour: LoraFactors) -> Reference:
        if self.on_policy:
            return Reference()
        with self.learner.adapter.using(behaviour):
            return Reference(*estimate.values(outputs, keep_predictions=self.kl_coef() > 0))

    def loss(self, losses: torch.Tensor, old: torch.Tensor | None, advantages: torch.Tensor) -> torch.Tensor:
        return policy_loss(self.ratio(losses, old), advantages, self.config.objective.clip_eps)


def algorithm_of(config: RunConfig, learner: Learner, iteration: int) -> Algorithm:
    """The configured algorithm's decisions for the 0-based `iteration`."""
    kind = VGRPOAlgorithm if config.algorithm == VGRPO else load_algorithm(config.algorithm)
    return kind(config, learner, iteration)


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
    algorithm = algorithm_of(config, learner, iteration)

    # theta_old <- theta, frozen for the whole iteration.
    behaviour = algorithm.behaviour()

    # For each prompt: sample a group of G outputs with theta_old. Their rewards, while further outputs are decoded.
    # Group-relative advantages, optionally bounded.
    sampling = sampling_of(config)
    deferred: Deferred | None = None

    def ahead(picks: Sequence[PromptPick], rollout: Rollout) -> None:
        """While the outputs are being scored: the pairs don't depend on their rewards, nor does each output's own gradient."""
        nonlocal deferred
        estimate = algorithm.estimate(rollout, draw_for(config, policy, picks, iteration), torch.zeros(len(rollout)))
        deferred = defer(algorithm, estimate, rollout.group_ids, scoring, clock, on_step)

    with ScoringPhase(rewards) as scoring:
        found = collect(
            algorithm,
            behaviour,
            prompts,
            conditioning,
            sampling,
            learner.memory,
            scoring,
            clock,
            on_step,
            ahead if config.objective.deferred else None,
        )
    rollout, scores, advantages = found.rollout, found.scores, found.advantages

    # N_MC pairs (t_j, eps_j), shared by the group.
    draw = draw_for(config, policy, found.picks, iteration)
    estimate = algorithm.estimate(rollout, draw, advantages)

    with timed(clock, "update"):
        minibatches = _minibatches(advantages, rollout.size_ids, config, iteration)
        _set_lr(learner.stepper.optimizer, lr := learning_rate(config.optimizer, iteration, config.iterations))
        if deferred is not None:
            old, steps = [], [_deferred_step(learner, deferred, outputs) for outputs in minibatches]
        else:
            # L_hat(theta_old | o_i, c) in the row batches that training will use, if there are several steps. theta is still
            # theta_old here.
            old = [_measured_old(learner, algorithm, estimate, outputs, behaviour) for outputs in minibatches]

            # N gradient steps on minibatches of the collected outputs.
            steps = []
            for n, outputs in enumerate(minibatches):
                step, old[n] = _gradient_step(learner, algorithm, estimate, outputs, advantages, behaviour, old[n])
                steps.append(step)
        algorithm.after()
        if learner.average is not None:
            update_average(learner.average, adapter.snapshot(), config.optimizer.ema_decay)
    if config.rollout.rest_flat:
        learner.memory.update(found.picks, found.useful)

    metrics = _metrics(
        scores, found.trained, config.reward_weights(), rollout, advantages, steps, minibatches, clock, algorithm.measured
    )
    metrics["lr"] = lr
    spent_old = sum(o.evaluations for o in old) + sum(step.evaluations_old for step in steps)
    spent = sum(step.evaluations for step in steps) if deferred is None else deferred.evaluations
    # An output's share is that of the outputs that were asked for: what a refill makes beyond them is their cost.
    asked = config.rollout.prompts_per_iteration * config.rollout.group_size
    solver = policy.noise_levels(sampling)[1]
    metrics["nfe/behaviour"] = algorithm.rollout_evaluations(solver) * (len(rollout) / asked) + spent_old / asked
    metrics["nfe/policy"] = spent / asked
    if config.rollout.refill:
        metrics["rollout/refilled"] = float(len(found.picks) - config.rollout.prompts_per_iteration)
        metrics["rollout/dropped"] = float(len(found.picks) - found.useful.count(True))
    return IterationResult(metrics, rollout, scores, advantages, _warnings(config, metrics, steps))


def draw_for(config: RunConfig, policy: Policy, picks: Sequence[PromptPick], iteration: int) -> PairDraw:
    """N_MC pairs (t_j, eps_j) for the outputs of each pick."""
    sampling = sampling_of(config)
    grids = {size: policy.noise_levels(sampling.at(size))[0] for size in dict.fromkeys(pick.size for pick in picks)}
    levels = torch.stack([grids[pick.size] for pick in picks])
    draw = draw_pairs(
        levels,
        config.surrogate.pairs,
        config.surrogate.share,
        config.seed,
        iteration,
        range(len(picks)),
        config.rollout.group_size,
        config.surrogate.stratified,
    )
    return _weighted(draw, levels, policy, config, iteration)


@dataclass(frozen=True)
class _Old:
    """What a minibatch is compared with: theta_old's losses, and predictions for the KL, where the algorithm asks for them."""

    reference: Reference
    guard: NormGuard | None
    rows: int  # at most so many rows at once: in half precision the losses hold for theta in the same batches only
    evaluations: int


@dataclass(frozen=True)
class _Step:
    losses: torch.Tensor  # L_hat [M, J] as the step saw it
    ratio: torch.Tensor | None  # [M], or [M, J] of an algorithm with a ratio a step
    clipped: float
    kl: float
    norm_excess: float | None  # None without a norm guard
    grad_norm: float
    skipped: str | None
    evaluations: int
    evaluations_old: int  # of the behaviour policy, beside theta's


def _weighted(draw: PairDraw, levels: torch.Tensor, policy: Policy, config: RunConfig, iteration: int) -> PairDraw:
    """The draw with the weights of its levels. levels: [P, S], the grid of each prompt group."""
    weight = config.surrogate.timestep_weight
    if is_uniform(weight.start, weight.end):
        return draw
    lean = lean_at(weight.start, weight.end, weight.schedule, iteration, config.iterations)
    share, grid = (noise_share(*policy.coefficients(policy.visible_time(t))) for t in (draw.t, levels))
    return replace(draw, weights=timestep_weights(share, grid.repeat_interleave(config.rollout.group_size, 0), lean).float())


def _minibatches(advantages: torch.Tensor, size_ids: torch.Tensor, config: RunConfig, iteration: int) -> list[torch.Tensor]:
    """The collected outputs in N near-equal parts, in an order drawn for the iteration; in each those of one size together.

    Outputs whose advantage is exactly 0 (failed scorers, zero-variance groups) carry no policy gradient: they are left
    out, so that they neither cost evaluations nor dilute the mean (trl#6365). With a KL term every output counts, unless they
    were left out to save evaluations, or others were made in their place.
    """
    every = config.objective.kl_coef and not config.rollout.refill and config.objective.advantage.keep == 1
    useful = torch.arange(len(advantages)) if every else advantages.nonzero().flatten()
    generator = torch.Generator().manual_seed(derive_seed(config.seed, "minibatches", iteration))
    steps = config.objective.gradient_steps
    if steps > 1:
        useful = useful[torch.randperm(len(useful), generator=generator)]
    return [part[size_ids[part].argsort(stable=True)] for part in useful.tensor_split(steps) if len(part)]


def _rows(estimate: SurrogateEstimate, config: RunConfig, outputs: torch.Tensor) -> int:
    """How many (output, pair) rows may go through the network at once; not more than there are, so that half is less."""
    return min(config.surrogate.batch_size, len(outputs) * estimate.pairs)


def _measured_old(
    learner: Learner, algorithm: Algorithm, estimate: SurrogateEstimate, outputs: torch.Tensor, behaviour: LoraFactors
) -> _Old:
    def measure(rows: int) -> _Old:
        estimate.batch_size, estimate.evaluations = rows, 0
        reference, guard = algorithm.reference(estimate, outputs, behaviour), algorithm.norm_guard(estimate, outputs)
        return _Old(reference, guard, rows, estimate.evaluations)

    return learner.policy.batches.attempt(UPDATE, _rows(estimate, algorithm.config, outputs), measure)


def _gradient_step(
    learner: Learner,
    algorithm: Algorithm,
    estimate: SurrogateEstimate,
    outputs: torch.Tensor,
    advantages: torch.Tensor,
    behaviour: LoraFactors,
    old: _Old,
) -> tuple[_Step, _Old]:
    """One optimiser step, and `old` as it was used. Without memory all of the step is done anew in smaller row batches."""
    chosen = advantages[outputs]
    share = 1 / max(1, int((chosen != 0).sum()))

    def loss_of(losses: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
        part = chosen[local].to(losses.device)
        losses_old = old.reference.losses
        return algorithm.loss(losses, None if losses_old is None else losses_old[local], part) * (len(local) * share)

    def gradient(rows: int) -> tuple[torch.Tensor, float]:
        nonlocal old
        learner.stepper.optimizer.zero_grad(set_to_none=True)  # what an attempt without memory has left
        if old.rows != rows:
            old = _measured_old(learner, algorithm, estimate, outputs, behaviour)
        estimate.batch_size, estimate.evaluations, estimate.evaluations_old = rows, 0, 0
        return estimate.backward(outputs, loss_of, algorithm.kl_coef(), old.reference.predictions, old.guard)

    losses, kl = learner.policy.batches.attempt(UPDATE, _rows(estimate, algorithm.config, outputs), gradient)
    ratio = algorithm.ratio(losses, old.reference.losses)
    clipped = 0.0 if ratio is None else algorithm.clipped(ratio, chosen)
    outcome = learner.stepper.step(loss_finite=bool(torch.isfinite(losses).all()))
    spent = estimate.evaluations, estimate.evaluations_old
    excess = None if old.guard is None else estimate.norm_excess
    return _Step(losses, ratio, clipped, kl, excess, outcome.grad_norm, outcome.skipped, *spent), old


def _deferred_step(learner: Learner, deferred: Deferred, outputs: torch.Tensor) -> _Step:
    """The optimiser step by the gradient that is there already; `outputs`: those with an advantage."""
    deferred.put(learner.adapter.parameters(), 1 / len(outputs))
    losses = deferred.losses[outputs]
    outcome = learner.stepper.step(loss_finite=bool(torch.isfinite(losses).all()))
    return _Step(losses, on_policy_ratio(losses), 0.0, 0.0, None, outcome.grad_norm, outcome.skipped, 0, 0)


def _metrics(
    scores: ScoreTable,
    trained: dict[str, torch.Tensor],
    weights: dict[str, float],
    rollout: Rollout,
    advantages: torch.Tensor,
    steps: list[_Step],
    minibatches: list[torch.Tensor],
    clock: dict[str, float],
    measured: str,
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
        metrics[f"{measured}/mean"] = float(values.mean())
        if measured == "surrogate":  # above 0, so that a spread can be told in shares of it
            metrics["surrogate/cv"] = float(values.std(correction=0) / values.mean())
            groups = rollout.group_ids[torch.cat(minibatches)]
            inside = [values[groups == g] for g in groups.unique()]
            spreads = [float(v.std(correction=0) / v.mean()) for v in inside if len(v) > 1]
            metrics["surrogate/cv_group"] = sum(spreads) / len(spreads) if spreads else float("nan")
        if steps[0].ratio is not None:
            metrics["ratio/max_abs_dev"] = max(float((s.ratio - 1).abs().max()) for s in steps)
            # Before the first update theta is theta_old, so whatever differs from 1 is numerical noise.
            metrics["ratio/noise"] = float((steps[0].ratio - 1).abs().max())
            metrics["ratio/clip_frac"] = sum(s.clipped for s in steps) / len(steps)
        metrics["kl"] = sum(s.kl for s in steps) / len(steps)
        if steps[0].norm_excess is not None:
            metrics["norm_guard"] = sum(s.norm_excess for s in steps) / len(steps)
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
