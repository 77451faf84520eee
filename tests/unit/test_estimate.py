from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest
import torch

from tests.bench import iterate, shake, tiny_bench, watch_denoiser, watch_steps
from trainer.estimate import SurrogateEstimate, blocks
from trainer.loop import sampling_of
from trainer.objective import PairDraw, clip_fraction, draw_pairs, importance_ratio, on_policy_ratio, policy_loss
from trainer.rollout import Rollout, pick_prompts, sample_groups
from trainer.setup import Bench

PAIRS = 3
SPLITS = (1, 2, 3, 5, 7, 1000)
ADVANTAGES = torch.tensor([1.0, -0.7, 0.4, -1.2, 0.9, 2.0, -0.3, -1.0])


@dataclass
class Scene:
    """Outputs made at theta_old, a theta that has moved away, and what theta_old said."""

    bench: Bench
    rollout: Rollout
    draw: PairDraw
    old_losses: torch.Tensor
    old_predictions: torch.Tensor

    def estimate(self, batch_size: int, weighting: str = "adaptive") -> SurrogateEstimate:
        return SurrogateEstimate(self.bench.policy, self.rollout, self.draw, weighting, batch_size)

    def gradient(self) -> dict[str, torch.Tensor]:
        """The accumulated gradient, taken out."""
        named = self.bench.learner.adapter.named_parameters()
        found = {name: p.grad.clone() for name, p in named if p.grad is not None}
        self.bench.learner.stepper.optimizer.zero_grad()
        return found

    def all_rows(self, outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(L_hat [M, J], x_theta [M * J, ...]) in one batch, written out from the paper's formulas."""
        output = outputs.repeat_interleave(PAIRS)
        pair = torch.arange(PAIRS).repeat(len(outputs))
        x0, t = torch.stack([self.rollout.latents[i] for i in output]), self.draw.t[output, pair].view(-1, 1, 1, 1)
        noise = torch.stack(
            [self.draw.noise([i], j, x0.shape[1:])[0] for i, j in zip(output.tolist(), pair.tolist(), strict=True)]
        )
        z = (1 - t) * x0 + t * noise
        x = self.bench.policy.predict_clean(z, t.flatten(), self.rollout.conditioning.rows(output))
        error = (x - x0).flatten(1)
        loss = error.square().mean(1) / error.abs().mean(1).detach()
        return loss.view(-1, PAIRS), x


@pytest.fixture(scope="module")
def scene(tiny_sd3, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VGRPO_CACHE", str(tmp_path_factory.mktemp("cache")))
        bench = tiny_bench(tiny_sd3)
    shake(bench, 0.2, seed=1)
    sampling = sampling_of(bench.config)
    picks = pick_prompts(bench.train, 2, 0, 0, bench.config.rollout.sizes)
    rollout = sample_groups(bench.policy, picks, bench.train_conditioning, 4, sampling, run_seed=0, iteration=0)
    draw = draw_pairs(bench.policy.noise_levels(sampling)[0], PAIRS, "group", 0, 0, range(2), 4)
    scene = Scene(bench, rollout, draw, torch.empty(0), torch.empty(0))
    with torch.no_grad():
        scene.old_losses, scene.old_predictions = scene.all_rows(torch.arange(8))
    shake(bench, 0.05, seed=2)
    return scene


def close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys() and len(found) > 0
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("batch_size", SPLITS)
@pytest.mark.parametrize("outputs", [[4], [5, 0, 3], [0, 1, 2, 3, 4, 5, 6, 7]])
def test_every_row_goes_through_once_in_order(outputs, batch_size):
    outputs = torch.tensor(outputs)
    found = list(blocks(outputs, PAIRS, batch_size, torch.zeros(8, dtype=torch.long)))
    batches = [batch for block in found for batch in block.batches]
    rows = [(o, p) for b in batches for o, p in zip(b.output.tolist(), b.pair.tolist(), strict=True)]
    assert rows == [(o, p) for o in outputs.tolist() for p in range(PAIRS)]
    assert all(1 <= len(b.output) <= batch_size for b in batches)
    assert torch.cat([block.local for block in found]).tolist() == list(range(len(outputs)))
    for block in found:  # an output is cut only where its pairs do not fit
        assert len(block.batches) == 1 or (len(block.local) == 1 and batch_size < PAIRS)


@pytest.mark.parametrize("batch_size", SPLITS)
def test_values_are_the_formula_for_every_split(scene, batch_size):
    outputs = torch.tensor([6, 1, 3, 0, 7])
    with torch.no_grad():
        expected, x = scene.all_rows(outputs)
    estimate = scene.estimate(batch_size)
    with watch_denoiser(scene.bench.policy) as calls:
        losses, predictions = estimate.values(outputs, keep_predictions=True)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.cat(predictions), x, rtol=0, atol=1e-5)
    assert estimate.evaluations == sum(len(call.hidden) for call in calls) == 15
    assert not any(call.with_gradient for call in calls)
    assert estimate.values(outputs)[1] == []


def test_v_weighting_is_the_flow_matching_loss(scene):
    """mean (v_theta - (eps - x0))^2: what the model was pre-trained with."""
    outputs = torch.arange(8)
    with watch_denoiser(scene.bench.policy) as calls:
        losses, _ = scene.estimate(1000, "v").values(outputs)
    expected = []
    for row, (i, j) in enumerate((i, j) for i in range(8) for j in range(PAIRS)):
        x0, noise = scene.rollout.latents[i], scene.draw.noise([i], j, (16, 8, 8))[0]
        expected.append((calls[0].output[row] - (noise - x0)).square().mean())
    torch.testing.assert_close(losses.flatten(), torch.stack(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch_size", SPLITS)
def test_the_gradient_of_one_step_is_that_of_one_big_batch(scene, batch_size):
    """Counted as accumulation, pairs or micro-batches made two steps of one or a wrong mean (Flow-Factory#85, DanceGRPO#45)."""
    outputs = torch.arange(8)
    losses, _ = scene.all_rows(outputs)
    (losses.mean(1) * ADVANTAGES).mean().backward()  # -mean(rho A) with rho = exp(sg(L) - L)
    expected = scene.gradient()

    def loss_of(part, local):
        return policy_loss(on_policy_ratio(part), ADVANTAGES[local]) * (len(local) / 8)

    found, kl = scene.estimate(batch_size).backward(outputs, loss_of)
    close(scene.gradient(), expected)
    torch.testing.assert_close(found, losses.detach(), rtol=1e-5, atol=1e-6)
    assert kl == 0.0 and not found.requires_grad


@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
@pytest.mark.parametrize("batch_size", SPLITS)
def test_the_gradient_of_the_clipped_ratio_and_the_kl_is_that_of_one_big_batch(scene, batch_size, kl_coef):
    outputs = torch.tensor([6, 1, 3, 0, 7, 2, 5])
    chosen, old = ADVANTAGES[outputs], scene.old_losses[outputs]
    losses, x = scene.all_rows(outputs)
    x_old = scene.old_predictions.view(8, PAIRS, *x.shape[1:])[outputs].flatten(0, 1)
    ratio = (old - losses).mean(1).exp()
    moved = (ratio.detach() - 1).abs().sort().values
    eps = float(moved[2:4].mean())  # between two outputs: one that lies on the bound is clipped or not by rounding
    assert 0 < clip_fraction(ratio, chosen, eps) < 1  # some outputs clipped, some not
    gain = torch.minimum(ratio * chosen, ratio.clamp(1 - eps, 1 + eps) * chosen)
    kl = (x - x_old).square().mean()
    (-gain.mean() + kl_coef * kl).backward()
    expected = scene.gradient()
    assert max(float(g.abs().max()) for g in expected.values()) > 1e-4

    cut = blocks(outputs, PAIRS, batch_size, torch.zeros(8, dtype=torch.long))
    batches = [batch for block in cut for batch in block.batches]
    predictions = [scene.old_predictions.view(8, PAIRS, *x.shape[1:])[batch.output, batch.pair] for batch in batches]

    def loss_of(part, local):
        return policy_loss(importance_ratio(part, old[local]), chosen[local], eps) * (len(local) / len(outputs))

    _, found_kl = scene.estimate(batch_size).backward(outputs, loss_of, kl_coef, predictions)
    close(scene.gradient(), expected)
    assert found_kl == pytest.approx(float(kl.detach()) if kl_coef else 0.0, rel=1e-4)


@pytest.fixture(scope="module")
def update(tiny_sd3, tmp_path_factory):
    """update(batch_size): the gradients of each step of one iteration at two steps, clip and KL, and its result."""

    def run(batch_size):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VGRPO_CACHE", str(tmp_path_factory.getbasetemp() / "update"))
            bench = tiny_bench(
                tiny_sd3,
                surrogate={"pairs": PAIRS, "batch_size": batch_size},
                objective={"gradient_steps": 2, "clip_eps": 1e-4, "kl_coef": 0.3},
                optimizer={"name": "sgd", "lr": 1.0, "max_grad_norm": None},
            )
        shake(bench, 0.2)
        seen = watch_steps(bench)
        result = iterate(bench)
        assert bench.learner.stepper.steps == len(seen) == 2 == result.metrics["steps/taken"]
        return seen, result.metrics

    return cache(run)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 7])
def test_the_micro_batch_split_of_a_whole_iteration_changes_no_gradient(update, batch_size):
    (whole, expected), (split, found) = update(1000), update(batch_size)
    for one, other in zip(split, whole, strict=True):
        close(one, other)
    assert 0 < expected["ratio/clip_frac"] < 1 and expected["kl"] > 0
    for name in ("surrogate/mean", "ratio/clip_frac", "kl", "grad_norm"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("batch_size", [2, 5, 7])
def test_theta_old_is_evaluated_in_the_row_batches_of_training(tiny_sd3, batch_size):
    """In half precision the batch shape changes the result, and the ratio with it (DanceGRPO#57, verl-omni#280)."""
    bench = tiny_bench(
        tiny_sd3, surrogate={"pairs": PAIRS, "batch_size": batch_size}, objective={"gradient_steps": 3, "clip_eps": 0.01}
    )
    with watch_denoiser(bench.policy) as calls:
        iterate(bench)
    update = calls[bench.config.rollout.steps :]
    trained = [call for call in update if call.with_gradient]
    first = next(i for i, call in enumerate(update) if call.with_gradient)
    # With pairs that do not fit into one batch each output is looked at once more before its gradient.
    before = update[: len(trained)] if batch_size < PAIRS else update[:first]
    assert sum(len(call.hidden) for call in trained) == 8 * PAIRS
    assert [call.hidden.shape for call in before] == [call.hidden.shape for call in trained]
    for old, new in zip(before, trained, strict=True):
        assert torch.equal(old.hidden, new.hidden) and torch.equal(old.timestep, new.timestep)
        assert torch.equal(old.context, new.context)
