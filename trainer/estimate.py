"""The Monte-Carlo estimate of the surrogate on collected outputs, and its gradient in micro-batches.

A row is one (output, pair) evaluation of the network. Rows are laid out output by output, and `batch_size` of them go
through the network at once. theta_old and theta are evaluated in the very same row batches, because in half precision
the batch's shape changes the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from .objective import PairDraw, add_noise, norm_excess, simple_kl, surrogate, velocity_from_clean, velocity_norm
from .policies.base import Policy
from .rollout import Rollout


@dataclass(frozen=True)
class RowBatch:
    """Rows that go through the network at once: `output` int64[R] indexes the rollout, `pair` int64[R] the pairs."""

    output: torch.Tensor
    pair: torch.Tensor


@dataclass(frozen=True)
class Block:
    """Outputs of one size whose rows are handled together; `local` int64[m] are their places in the minibatch.

    One row batch, unless the pairs of a single output do not fit into one.
    """

    local: torch.Tensor
    batches: tuple[RowBatch, ...]


def blocks(outputs: torch.Tensor, pairs: int, batch_size: int, size_ids: torch.Tensor) -> Iterator[Block]:
    """All rows of the outputs int64[M], in order, in batches of at most `batch_size` rows and of one size.

    size_ids: int64[B], the size of every output of the rollout.
    """
    per_block = max(1, batch_size // pairs)
    _, runs = size_ids[outputs].unique_consecutive(return_counts=True)
    for local in (part for run in torch.arange(len(outputs)).split(runs.tolist()) for part in run.split(per_block)):
        output = outputs[local].repeat_interleave(pairs)
        pair = torch.arange(pairs).repeat(len(local))
        cut = zip(output.split(batch_size), pair.split(batch_size), strict=True)
        yield Block(local, tuple(RowBatch(o, p) for o, p in cut))


@dataclass(frozen=True)
class NormGuard:
    """A penalty on velocities longer than the base's (see objective/norm_guard.py). base: [R] of each row batch, on the CPU."""

    weight: float
    margin: float
    base: list[torch.Tensor]


class SurrogateEstimate:
    """L_hat on fixed pairs: the same (t_j, eps_j) are shown to theta_old and to every later theta."""

    compares_velocity = False
    """Whether a KL compares x_theta / b_t, not x_theta."""

    def __init__(
        self, policy: Policy, rollout: Rollout, draw: PairDraw, weighting: str, batch_size: int, guidance: float = 1.0
    ):
        """guidance: the scale of the scored prediction, 1 = the conditional prediction alone."""
        self.policy, self.rollout, self.draw = policy, rollout, draw
        self.weighting, self.batch_size, self.guidance = weighting, batch_size, guidance
        self.pairs, self._size_ids = draw.t.shape[1], rollout.size_ids
        self.evaluations = 0  # network evaluations so far, one a row, two where it is guided by a second pass
        self.evaluations_old = 0  # those of a behaviour policy that is asked inside `rows`
        self.norm_excess = 0.0  # mean of the guard's hinge in the last `backward`

    def rows(self, batch: RowBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """(losses [R], x_theta [R, ...]) of some rows; differentiable unless gradients are off."""
        x0, z, t, a, b = self.noised(batch)
        x_theta = self.predict(batch, z, t)
        return surrogate(x_theta, x0, self.weighting, a, b), x_theta

    def weighted_rows(self, batch: RowBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """`rows`, each loss times the weight of its pair."""
        losses, compared = self.rows(batch)
        weights = self.draw.weights
        return losses if weights is None else losses * weights[batch.output, batch.pair].to(losses.device), compared

    def noised(self, batch: RowBatch) -> tuple[torch.Tensor, ...]:
        """(x0 [R, ...], z [R, ...], t [R], a_t [R], b_t [R]) of some rows, on the policy's device."""
        x0 = torch.stack([self.rollout.latents[i] for i in batch.output.tolist()])
        t = self.policy.visible_time(self.draw.t[batch.output, batch.pair]).to(x0.device)
        eps = torch.empty(x0.shape, dtype=torch.float32)
        for j in batch.pair.unique().tolist():
            where = (batch.pair == j).nonzero().flatten()
            eps[where] = self.draw.noise(batch.output[where], j, x0.shape[1:])
        a, b = self.policy.coefficients(t)
        return x0, add_noise(x0, eps.to(x0.device), a, b), t, a, b

    def predict(self, batch: RowBatch, z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """x_theta [R, ...] at z [R, ...] and t [R], counted."""
        self.evaluations += len(batch.output) * self.policy.passes(self.guidance)
        return self.policy.predict_clean(z, t, self.rollout.conditioning.rows(batch.output), self.guidance)

    def compared(self, batch: RowBatch) -> torch.Tensor:
        """What a KL compares [R, ...] of some rows, where their losses are not asked for."""
        return self.rows(batch)[1]

    def velocity(self, batch: RowBatch, compared: torch.Tensor) -> torch.Tensor:
        """v_theta [R, ...] of a rectified flow, from what `rows` gives to compare."""
        _, z, t, _, b = self.noised(batch)
        return velocity_from_clean(z, compared * b.view(-1, *[1] * (z.ndim - 1)) if self.compares_velocity else compared, t)

    @torch.no_grad()
    def velocity_norms(self, outputs: torch.Tensor) -> list[torch.Tensor]:
        """Norms [R] of the velocity of each row batch of the outputs int64[M], on the CPU."""
        cut = blocks(outputs, self.pairs, self.batch_size, self._size_ids)
        batches = (batch for block in cut for batch in block.batches)
        return [velocity_norm(self.velocity(batch, self.compared(batch))).cpu() for batch in batches]

    @torch.no_grad()
    def predictions(self, outputs: torch.Tensor) -> list[torch.Tensor]:
        """What a KL compares, of each row batch of the outputs int64[M], on the CPU."""
        cut = blocks(outputs, self.pairs, self.batch_size, self._size_ids)
        return [self.compared(batch).cpu() for block in cut for batch in block.batches]

    @torch.no_grad()
    def values(self, outputs: torch.Tensor, keep_predictions: bool = False) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """L_hat(theta | o_i) as [M, J] on the CPU without gradient; and x_theta of each row batch, if asked for."""
        losses, predictions = [], []
        for block in blocks(outputs, self.pairs, self.batch_size, self._size_ids):
            for batch in block.batches:
                loss, x_theta = self.weighted_rows(batch)
                losses.append(loss.cpu())
                if keep_predictions:
                    predictions.append(x_theta.cpu())
        return torch.cat(losses).view(len(outputs), self.pairs), predictions

    def backward(
        self,
        outputs: torch.Tensor,
        loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        kl_coef: float = 0.0,
        old_predictions: list[torch.Tensor] | None = None,
        guard: NormGuard | None = None,
    ) -> tuple[torch.Tensor, float]:
        """Add the gradient of `sum over blocks of loss_of(L_hat[m, J], local[m])` + kl_coef * simple KL to the parameters, and
        that of the guard's penalty, a mean over the rows.

        Only one row batch's activations are alive. Where the pairs of one output are spread over several batches, the chain
        rule is cut at L_hat: d loss / d L_hat is taken on its values, then each batch goes backward with its share; so every
        split gives the gradient of one big batch. Returns (L_hat [M, J], KL value); `old_predictions` as `values` gave them.
        """
        losses, total_kl, index = [], 0.0, 0
        self.norm_excess = 0.0
        total_rows = len(outputs) * self.pairs
        for block in blocks(outputs, self.pairs, self.batch_size, self._size_ids):
            whole = len(block.batches) == 1
            shares = None
            if not whole:
                with torch.no_grad():
                    leaf = torch.cat([self.weighted_rows(batch)[0] for batch in block.batches])
                leaf.requires_grad_()
                loss = loss_of(leaf.view(-1, self.pairs), block.local)
                shares = torch.autograd.grad(loss, leaf)[0].split([len(b.output) for b in block.batches])
            for k, batch in enumerate(block.batches):
                loss, x_theta = self.weighted_rows(batch)
                part = loss_of(loss.view(-1, self.pairs), block.local) if whole else (loss * shares[k]).sum()
                if kl_coef:
                    kl = simple_kl(x_theta, old_predictions[index].to(x_theta.device)) * (len(loss) / total_rows)
                    total_kl += float(kl.detach())
                    part = part + kl_coef * kl
                if guard is not None:
                    velocity = self.velocity(batch, x_theta)
                    excess = norm_excess(velocity, guard.base[index].to(velocity.device), guard.margin).sum() / total_rows
                    self.norm_excess += float(excess.detach())
                    part = part + guard.weight * excess
                part.backward()
                losses.append(loss.detach().cpu())
                index += 1
        return torch.cat(losses).view(len(outputs), self.pairs), total_kl
