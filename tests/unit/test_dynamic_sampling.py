"""Groups that teach nothing are replaced, and their prompts rest."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from tests.bench import bright, constant, factors, iterate, same, tiny_bench, watch_denoiser
from trainer.dynamic_sampling import LONGEST_REST, PromptMemory, first_picks, spare_picks
from trainer.prompts import Prompt
from trainer.rollout import PromptPick, pick_prompts
from trainer.snapshot import learner_tensors, restore_learner

MANY = [f"a picture of {n} things" for n in range(9)]
LIST = [Prompt(text) for text in MANY]
SIZES = [(64, 64)]
G, PAIRS = 4, 3


def bench_of(folder, reward, refill=0, **changes):
    rollout = {"refill": refill, **changes.pop("rollout", {})}
    return tiny_bench(folder, reward, prompts={"train": MANY}, rollout=rollout, **changes)


def flat_first(groups: int):
    """Each iteration's first so many groups score alike; every call scores whole groups."""
    seen = []

    def reward(images, call):
        values = bright(images)
        for start in range(0, len(images), G):
            if len(seen) < groups:
                values[start : start + G] = 0.5
            seen.append(start)
        return values

    return reward


def test_flat_groups_are_replaced_and_all_evaluations_are_counted(tiny_sd3):
    bench = bench_of(tiny_sd3, flat_first(1), refill=3)
    with watch_denoiser(bench.policy) as calls:
        result = iterate(bench)
    assert len(result.rollout) == 3 * G and result.rollout.group_ids.tolist() == [g for g in range(3) for _ in range(G)]
    assert result.advantages[:G].tolist() == [0] * G and (result.advantages[G:] != 0).all()
    assert result.metrics["rollout/refilled"] == 1 == result.metrics["rollout/dropped"]
    assert result.metrics["advantage/frac_zero_std"] == pytest.approx(1 / 3)
    assert len({prompt.text for prompt in result.rollout.prompts}) == 3 and len(set(result.rollout.seeds)) == 3 * G
    spent = sum(len(call.hidden) for call in calls)
    assert spent == 3 * G * 4 + 2 * G * PAIRS
    assert (result.metrics["nfe/behaviour"] + result.metrics["nfe/policy"]) * 2 * G == spent  # of the outputs asked for
    assert bench.learner.stepper.steps == 1


def test_what_was_dropped_is_not_trained_on_even_where_a_kl_would_take_it_in(tiny_sd3):
    several = {"gradient_steps": 2, "clip_eps": 0.01, "kl_coef": 0.3}
    bench = bench_of(tiny_sd3, flat_first(1), refill=3, objective=several)
    with watch_denoiser(bench.policy) as calls:
        result = iterate(bench)
    assert sum(len(call.hidden) for call in calls if call.with_gradient) == 2 * G * PAIRS
    assert result.metrics["steps/taken"] == 2
    kept = bench_of(tiny_sd3, flat_first(1), refill=0, objective=several)
    with watch_denoiser(kept.policy) as calls:
        iterate(kept)
    assert sum(len(call.hidden) for call in calls if call.with_gradient) == 2 * G * PAIRS  # the flat one among them


def test_the_rounds_are_bounded(tiny_sd3):
    result = iterate(bench_of(tiny_sd3, constant, refill=2))
    assert len(result.rollout) == 3 * 2 * G and result.metrics["rollout/dropped"] == 6
    assert any("no gradient step" in w for w in result.warnings)
    every = iterate(bench_of(tiny_sd3, constant, refill=64))  # until no prompt is left
    assert len(every.rollout) == len(MANY) * G and len({p.text for p in every.rollout.prompts}) == len(MANY)


def test_a_scorer_that_is_down_costs_no_further_pictures(tiny_sd3):
    def down(images, call):
        raise RuntimeError("no answer")

    bench = bench_of(tiny_sd3, down, refill=5, rollout={"rest_flat": True})
    assert len(iterate(bench).rollout) == 2 * G and bench.learner.memory.flat == {}


def test_off_or_nothing_to_replace_changes_nothing(tiny_sd3):
    plain, filled = bench_of(tiny_sd3, bright), bench_of(tiny_sd3, bright, refill=4, rollout={"rest_flat": True})
    for iteration in range(3):
        one, other = iterate(plain, iteration), iterate(filled, iteration)
        assert one.rollout.seeds == other.rollout.seeds and torch.equal(one.advantages, other.advantages)
        assert set(other.metrics) - set(one.metrics) == {"rollout/refilled", "rollout/dropped"}
        assert other.metrics["rollout/refilled"] == 0
    assert same(factors(plain), factors(filled))


def test_the_same_again(tiny_sd3):
    runs = [bench_of(tiny_sd3, flat_first(2), refill=2) for _ in range(2)]
    first, second = (iterate(bench, 5).rollout for bench in runs)
    assert first.seeds == second.seeds and first.prompts == second.prompts
    assert same(*map(factors, runs))


@pytest.mark.parametrize("algorithm", ["flow_grpo", "dance_grpo", "mix_grpo", "diffusion_nft", "awm"])
def test_the_peers_refill_too(tiny_sd3, algorithm):
    changes = {"algorithm": algorithm, "objective": {"gradient_steps": 2, "soft_clip_eta": None}}
    if algorithm.endswith("_grpo"):
        changes["surrogate"] = {"pairs": 4}  # the default, which these have no use for
    if algorithm == "mix_grpo":
        changes["trajectory"] = {"window": 2}
    bench = bench_of(tiny_sd3, flat_first(1), refill=1, **changes)
    before = factors(bench)
    result = iterate(bench)
    assert len(result.rollout) == 3 * G and result.metrics["steps/taken"] == 2
    assert not same(factors(bench), before)
    if hasattr(result.rollout, "trajectory"):
        trajectory = result.rollout.trajectory
        assert len(trajectory.states) == len(trajectory.levels) == len(trajectory.log_probs) == 3 * G
        assert result.metrics["ratio/noise"] < 1e-3  # each output is scored on its own steps


def test_groups_of_several_sizes_are_joined(tiny_sd3):
    bench = bench_of(tiny_sd3, flat_first(1), refill=2, rollout={"width": [64, 96], "height": [64, 64]})
    for iteration in range(3):
        result = iterate(bench, iteration)
        assert len({image.shape for image in result.rollout.images}) <= 2 and result.metrics["steps/taken"] == 1


# Prompts that rest


def flat(*indices: int, times: int = 1) -> PromptMemory:
    return PromptMemory({index: times for index in indices})


def test_memory_counts_flat_turns_in_a_row():
    picks, memory = [PromptPick(i, LIST[i], SIZES[0]) for i in (2, 5)], PromptMemory()
    memory.update(picks, [False, True])
    memory.update(picks, [False, True])
    assert memory.flat == {2: 2}
    memory.update(picks, [True, False])
    assert memory.flat == {5: 1}
    memory.update(picks, [None, None])  # the scorer was down
    assert memory.flat == {5: 1}


@pytest.mark.parametrize(("times", "share"), [(0, 0), (1, 0.5), (2, 0.75), (LONGEST_REST, 15 / 16), (50, 15 / 16)])
def test_how_often_a_prompt_rests(times, share):
    memory = flat(3, times=times)
    rests = [memory.rests(3, seed, iteration) for seed in range(20) for iteration in range(200)]
    assert sum(rests) / len(rests) == pytest.approx(share, abs=0.03)
    assert rests == [memory.rests(3, seed, iteration) for seed in range(20) for iteration in range(200)]


def test_resting_prompts_give_their_place_to_others():
    memory, shown = flat(0, 1, 2, times=LONGEST_REST), Counter()
    for iteration in range(300):
        picks = first_picks(LIST, 3, 0, iteration, SIZES, memory)
        assert len({pick.index for pick in picks}) == 3
        shown.update(pick.index for pick in picks)
    often, rarely = min(shown[i] for i in range(3, 9)), max(shown[i] for i in range(3))
    assert 0 < rarely < often / 4


def test_without_memory_the_order_is_the_epochs():
    for iteration in range(10):
        assert first_picks(LIST, 3, 1, iteration, SIZES, PromptMemory()) == pick_prompts(LIST, 3, 1, iteration, SIZES)


def test_where_all_rest_they_are_drawn_all_the_same():
    everybody = flat(*range(9), times=LONGEST_REST)
    assert all(len(first_picks(LIST, 9, 0, iteration, SIZES, everybody)) == 9 for iteration in range(20))


def test_spare_prompts_are_none_that_are_taken():
    drawn, alike = Counter(), 0
    for iteration in range(300):
        first, second = (spare_picks(LIST, 2, 0, iteration, SIZES, PromptMemory(), {0, 4}, turn) for turn in (1, 2))
        drawn.update(pick.index for pick in first)
        alike += first == second
    assert alike < 30  # each turn draws anew
    assert set(drawn) == {1, 2, 3, 5, 6, 7, 8} and max(drawn.values()) < 1.5 * min(drawn.values())
    assert len(spare_picks(LIST, 20, 0, 0, SIZES, PromptMemory(), range(7), turn=1)) == 2


def test_memory_is_kept_by_a_checkpoint(tiny_sd3):
    def bench():
        return bench_of(tiny_sd3, flat_first(99), rollout={"rest_flat": True})

    whole, resumed = bench(), bench()
    iterate(whole, 0)
    assert len(whole.learner.memory.flat) == 2
    restore_learner(resumed.learner, *learner_tensors(whole.learner))
    assert resumed.learner.memory.flat == whole.learner.memory.flat
    for iteration in range(1, 9):
        assert iterate(whole, iteration).rollout.seeds == iterate(resumed, iteration).rollout.seeds
    assert max(whole.learner.memory.flat.values()) > 1
