"""Group-relative advantages: closed forms, failed scorers, groups without variance, several rewards."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from trainer.objective import combine_advantages, down_sample, group_advantages, soft_clip, zero_variance_groups

NAN = math.nan
REWARDS = torch.tensor([0.0, 1.0, 2.0, 5.0, 5.0, 8.0])
IDS = torch.tensor([0, 0, 0, 1, 1, 1])


def random_rewards(seed: int, groups: int = 5, size: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return torch.rand(groups * size, generator=source), torch.arange(groups).repeat_interleave(size)


def test_closed_forms_by_hand():
    centred = torch.tensor([-1.0, 0.0, 1.0, -1.0, -1.0, 2.0])
    torch.testing.assert_close(group_advantages(REWARDS, IDS, scale="none"), centred)
    torch.testing.assert_close(group_advantages(REWARDS, IDS, scale="batch"), centred / (8 / 6) ** 0.5)
    std = torch.tensor([2 / 3] * 3 + [2.0] * 3).sqrt()
    torch.testing.assert_close(group_advantages(REWARDS, IDS), centred / std)


def test_group_scale_is_numpys_z_score():
    rewards, ids = random_rewards(0)
    expected = np.concatenate([(g - g.mean()) / g.std() for g in rewards.double().numpy().reshape(5, 6)])
    np.testing.assert_allclose(group_advantages(rewards.double(), ids).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_order_and_names_of_groups_do_not_matter(scale):
    rewards, ids = random_rewards(1)
    expected = group_advantages(rewards, ids, scale)
    order = torch.randperm(len(rewards), generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(group_advantages(rewards[order], 100 - 7 * ids[order], scale), expected[order])
    torch.testing.assert_close(group_advantages(rewards, ids.tolist(), scale), expected)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf])
def test_a_failed_score_gets_zero_and_counts_for_nothing(scale, bad):
    rewards, ids = random_rewards(3)
    kept = torch.ones(len(rewards), dtype=torch.bool)
    kept[[1, 8, 9]] = False
    advantages = group_advantages(rewards.masked_fill(~kept, bad), ids, scale)
    assert torch.equal(advantages[~kept], torch.zeros(3))
    torch.testing.assert_close(advantages[kept], group_advantages(rewards[kept], ids[kept], scale))


def test_groups_that_failed_wholly_or_but_for_one_are_zero():
    rewards = torch.tensor([NAN, NAN, 0.7, NAN, 0.0, 1.0])
    ids = torch.tensor([0, 0, 1, 1, 2, 2])
    for scale in ("group", "batch", "none"):
        advantages = group_advantages(rewards, ids, scale)
        assert torch.equal(advantages[:4], torch.zeros(4)) and advantages[5] > 0
    assert zero_variance_groups(rewards, ids) == pytest.approx(2 / 3)
    assert torch.equal(group_advantages(torch.full((4,), NAN), [0, 0, 1, 1]), torch.zeros(4))


RESIDUES = {
    "float64": torch.tensor([0.3, 0.3, 0.1 + 0.2], dtype=torch.float64),
    "float32": torch.tensor([0.3, 0.3, torch.tensor(0.1) + torch.tensor(0.2)]).nextafter(torch.tensor([0.0, 0.3, 1.0])),
    "large": torch.tensor([1000.0, 1000.00006, 1000.0]),
    "cancelled": 1 - torch.tensor([1.0, 1 - 6e-8, 1 - 1.2e-7]),
    "equal": torch.full((3,), 0.1),
    "zero": torch.zeros(3),
}


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("rewards", RESIDUES.values(), ids=RESIDUES.keys())
def test_a_rounding_residue_is_no_variance(rewards, scale):
    both = torch.cat([rewards, torch.tensor([0.0, 1.0, 2.0], dtype=rewards.dtype)])
    ids = [4, 4, 4, 9, 9, 9]
    advantages = group_advantages(both, ids, scale)
    assert torch.equal(advantages[:3], torch.zeros_like(rewards))
    assert advantages[3] < -0.5 and advantages[5] > 0.5
    assert zero_variance_groups(both, ids) == 0.5
    assert torch.equal(group_advantages(rewards, [0, 0, 0], scale), torch.zeros_like(rewards))


def test_the_residue_cases_are_no_copies_of_each_other():
    assert all(len(set(RESIDUES[name].tolist())) > 1 for name in ("float64", "float32", "large", "cancelled"))


def test_a_small_true_variance_is_kept():
    # Close but unequal rewards keep z-scores of full size (verl#6348).
    close = group_advantages(torch.tensor([1.0, 1.00001, 2.0, 2.00001]), [0, 0, 1, 1])
    torch.testing.assert_close(close, torch.tensor([-1.0, 1.0, -1.0, 1.0]))
    advantages = group_advantages(torch.tensor([0.5, 0.50001, 0.49999]), [0, 0, 0])
    torch.testing.assert_close(advantages, torch.tensor([0.0, 1.5**0.5, -(1.5**0.5)]), rtol=0.02, atol=0.02)


def test_large_offsets_do_not_lose_the_variance():
    small = torch.tensor([0.0, 1.0, 2.0, 4.0], dtype=torch.float64)
    torch.testing.assert_close(group_advantages(small + 1e5, [0] * 4), group_advantages(small, [0] * 4), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("factor", [1e-3, 7.0, 1e6])
def test_normalised_advantages_do_not_depend_on_the_unit(factor):
    rewards, ids = random_rewards(4)
    for scale in ("group", "batch"):
        torch.testing.assert_close(
            group_advantages(factor * rewards + 1, ids, scale), group_advantages(rewards, ids, scale), rtol=2e-3, atol=1e-3
        )


def test_results_are_float32_or_what_is_finer():
    assert group_advantages(REWARDS.bfloat16(), IDS).dtype == torch.float32
    assert group_advantages(REWARDS.long(), IDS).dtype == torch.float32
    assert group_advantages(REWARDS.double(), IDS).dtype == torch.float64


def test_paper_order_is_the_weighted_sum_of_z_scores():
    first, ids = random_rewards(5)
    second, _ = random_rewards(6)
    combined = combine_advantages({"a": first, "b": second}, {"a": 1.0, "b": 0.5}, ids)
    torch.testing.assert_close(combined, group_advantages(first, ids) + 0.5 * group_advantages(second, ids))


def test_other_order_is_the_z_score_of_the_weighted_sum():
    first, ids = random_rewards(5)
    second, _ = random_rewards(6)
    combined = combine_advantages({"a": first, "b": second}, {"a": 1.0, "b": 0.5}, ids, combine="sum_then_normalize")
    torch.testing.assert_close(combined, group_advantages(first + 0.5 * second, ids))


def test_rescaling_one_reward_changes_nothing_in_the_papers_order_and_much_in_the_other():
    first, ids = random_rewards(5)
    second, _ = random_rewards(6)
    weights = {"a": 1.0, "b": 1.0}

    def combined(factor, combine):
        return combine_advantages({"a": first, "b": factor * second}, weights, ids, combine=combine)

    torch.testing.assert_close(combined(100.0, "normalize_then_sum"), combined(1.0, "normalize_then_sum"), rtol=1e-4, atol=1e-5)
    assert (combined(100.0, "sum_then_normalize") - combined(1.0, "sum_then_normalize")).abs().max() > 0.3


@pytest.mark.parametrize("combine", ["normalize_then_sum", "sum_then_normalize"])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_an_output_that_one_scorer_failed_is_left_out_of_all(combine, scale):
    first, ids = random_rewards(5)
    second, _ = random_rewards(6)
    kept = torch.ones(len(ids), dtype=torch.bool)
    kept[[2, 13]] = False
    weights = {"a": 1.0, "b": 2.0}
    broken = {"a": first.clone(), "b": second.clone()}
    broken["a"][2], broken["b"][13] = NAN, math.inf
    advantages = combine_advantages(broken, weights, ids, combine, scale)
    assert torch.equal(advantages[~kept], torch.zeros(2))
    expected = combine_advantages({"a": first[kept], "b": second[kept]}, weights, ids[kept], combine, scale)
    torch.testing.assert_close(advantages[kept], expected)


def test_a_reward_of_weight_zero_plays_no_part_even_when_it_fails():
    first, ids = random_rewards(5)
    combined = combine_advantages({"a": first, "monitor": torch.full_like(first, NAN)}, {"a": 1.0, "monitor": 0.0}, ids)
    torch.testing.assert_close(combined, group_advantages(first, ids))


def test_one_flat_reward_leaves_the_others_advantage():
    first, ids = random_rewards(5)
    combined = combine_advantages({"a": first, "flat": torch.full_like(first, 0.1)}, {"a": 1.0, "flat": 1.0}, ids)
    torch.testing.assert_close(combined, group_advantages(first, ids))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"combine": "sum"}, "normalize_then_sum, sum_then_normalize"),
        ({"scale": "global"}, "group, batch, none"),
        ({"weights": {"a": 1.0, "b": 1.0}}, "same rewards"),
        ({"weights": {"a": NAN}}, "must be finite"),
        ({"rewards": {}, "weights": {}}, "at least one"),
        ({"group_ids": [0, 1]}, "group_ids has shape"),
        ({"rewards": {"a": REWARDS, "b": REWARDS[:3]}, "weights": {"a": 1.0, "b": 1.0}}, "differ in shape"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        combine_advantages(**{"rewards": {"a": REWARDS}, "weights": {"a": 1.0}, "group_ids": IDS, **arguments})


def test_soft_clip_closed_form_limits_and_identity():
    advantages = torch.tensor([-50.0, -3.0, -0.01, 0.0, 0.01, 3.0, 50.0])
    clipped = soft_clip(advantages, 3.0)
    assert clipped.tolist() == pytest.approx([3 * math.tanh(a / 3) for a in advantages.tolist()], rel=1e-6)
    torch.testing.assert_close(clipped[2:5], advantages[2:5], rtol=1e-4, atol=0)
    assert clipped.abs().max() <= 3 and torch.equal(clipped, -soft_clip(-advantages, 3.0))
    assert torch.equal(soft_clip(advantages, None), advantages)


def test_soft_clip_gradient_matches_finite_differences():
    advantages = torch.tensor([-4.0, -0.5, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: soft_clip(a, 3.0), advantages)


@pytest.mark.parametrize("eta", [0.0, -1.0, NAN, math.inf])
def test_soft_clip_refuses_an_eta_that_cannot_be_meant(eta):
    with pytest.raises(ValueError, match="eta is"):
        soft_clip(torch.ones(2), eta)


# Training on a share of each group


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_down_sampling_keeps_the_subset_of_largest_variance_of_all_subsets(share):
    rewards, ids = random_rewards(3)
    advantages = group_advantages(rewards, ids)
    kept = down_sample(advantages, ids, share)
    count = math.ceil(share * 6)
    for group in range(5):
        members = (ids == group).nonzero().flatten()
        variances = {
            chosen: float(advantages[list(chosen)].double().var(correction=0))
            for chosen in combinations(members.tolist(), count)
        }
        best = max(variances, key=variances.get)
        assert sorted(best) == (members[kept[members] != 0]).tolist()
        expected = advantages[list(best)] - advantages[list(best)].mean()
        torch.testing.assert_close(kept[list(best)], expected)
        assert abs(float(kept[members].sum())) < 1e-5


def test_down_sampling_of_right_and_wrong_keeps_the_rare_ones():
    """2 of 8 are right: half of the group are these two and two of the others."""
    advantages = group_advantages(torch.tensor([0.0, 1, 0, 0, 0, 1, 0, 0]), torch.zeros(8))
    kept = down_sample(advantages, torch.zeros(8), 0.5)
    assert (kept > 0).nonzero().flatten().tolist() == [1, 5] and int((kept < 0).sum()) == 2
    assert float(kept.sum()) == pytest.approx(0, abs=1e-6)


def test_down_sampling_passes_over_outputs_without_an_advantage():
    rewards = torch.tensor([NAN, 1.0, 2.0, 4.0, 9.0, 5.0, 5.0, 5.0, NAN, NAN])
    ids = torch.tensor([0] * 5 + [1] * 5)
    kept = down_sample(group_advantages(rewards, ids), ids, 0.5)
    assert kept.nonzero().flatten().tolist() == [1, 4]
    few = down_sample(torch.tensor([1.0, -1.0, 0.0]), torch.zeros(3), 0.01)
    assert few.tolist() == [1.0, -1.0, 0.0]  # two are the least that can be compared


def test_down_sampling_depends_on_no_other_group():
    rewards, ids = random_rewards(4)
    advantages = group_advantages(rewards, ids)
    alone = torch.cat([down_sample(advantages[ids == g], ids[ids == g], 0.5) for g in range(5)])
    assert torch.equal(down_sample(advantages, ids, 0.5), alone)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, NAN])
def test_down_sampling_refuses_a_share_that_is_none(share):
    with pytest.raises(ValueError, match="share is"):
        down_sample(torch.ones(4), torch.zeros(4), share)
