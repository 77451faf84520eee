"""Which outputs share their `(t, eps)` pairs, and that nothing else moves the draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trainer.objective import draw_pairs

SIGMAS = torch.linspace(1.0, 0.05, 40)
SHAPE = (3, 4, 4)
GROUPS, SIZE, PAIRS = 3, 4, 4


def draw(share="group", run_seed=7, iteration=0, group_keys=range(GROUPS), **rest):
    arguments = {"sigmas": SIGMAS, "pairs": PAIRS, "group_size": SIZE, "stratified": True, **rest}
    return draw_pairs(share=share, run_seed=run_seed, iteration=iteration, group_keys=list(group_keys), **arguments)


def all_noise(pairs, pair=0):
    return pairs.noise(range(pairs.t.shape[0]), pair, SHAPE)


def distinct(rows: torch.Tensor) -> int:
    return len(torch.unique(rows.flatten(1), dim=0))


@pytest.mark.parametrize(("share", "owners"), [("group", GROUPS), ("batch", 1), ("none", GROUPS * SIZE)])
def test_outputs_share_noise_and_levels_exactly_as_asked(share, owners):
    pairs = draw(share)
    assert pairs.t.shape == (GROUPS * SIZE, PAIRS) and pairs.t.dtype == torch.float32 and pairs.pairs == PAIRS
    assert distinct(pairs.t) == owners
    for pair in range(PAIRS):
        noise = all_noise(pairs, pair)
        assert noise.shape == (GROUPS * SIZE, *SHAPE) and noise.dtype == torch.float32 and noise.device.type == "cpu"
        assert distinct(noise) == owners


def test_a_group_shares_and_its_members_follow_each_other():
    pairs = draw("group")
    by_group = all_noise(pairs).reshape(GROUPS, SIZE, -1)
    assert torch.equal(by_group, by_group[:, :1].expand_as(by_group))
    levels = pairs.t.reshape(GROUPS, SIZE, PAIRS)
    assert torch.equal(levels, levels[:, :1].expand_as(levels))
    assert distinct(by_group[:, 0]) == GROUPS


@pytest.mark.parametrize("share", ["group", "batch", "none"])
def test_fresh_in_every_iteration_run_and_pair(share):
    base = draw(share)
    for other in (draw(share, iteration=1), draw(share, run_seed=8)):
        assert not torch.equal(other.t, base.t)
        assert not (all_noise(other) == all_noise(base)).any()
    assert distinct(torch.stack([all_noise(base, pair) for pair in range(PAIRS)])) == PAIRS


def test_noise_is_standard_normal():
    noise = draw("none").noise(range(GROUPS * SIZE), 0, (16, 32, 32)).flatten(1)
    assert noise.mean(1).abs().max() < 0.04 and (noise.std(1) - 1).abs().max() < 0.03
    correlation = torch.corrcoef(noise) - torch.eye(len(noise))
    assert correlation.abs().max() < 0.04


@pytest.mark.parametrize("share", ["group", "batch", "none"])
def test_noise_does_not_depend_on_batch_split_order_or_global_random_state(share):
    pairs = draw(share)
    whole = all_noise(pairs, 2)
    torch.manual_seed(123)
    split = torch.cat([pairs.noise(rows, 2, SHAPE) for rows in (torch.arange(0, 5), [5], torch.arange(6, 12))])
    assert torch.equal(split, whole)
    shuffled = torch.randperm(GROUPS * SIZE)
    assert torch.equal(pairs.noise(shuffled, 2, SHAPE), whole[shuffled])


@pytest.mark.parametrize("share", ["group", "batch", "none"])
def test_a_rank_with_some_of_the_groups_draws_the_same(share):
    whole, part = draw(share), draw(share, group_keys=[2, 0])
    rows = [*range(2 * SIZE, 3 * SIZE), *range(SIZE)]
    assert torch.equal(part.t, whole.t[rows])
    assert torch.equal(all_noise(part), all_noise(whole)[rows])


def test_integer_keys_of_any_kind_name_the_same_group_and_text_keys_work():
    plain = draw(group_keys=[0, 1, 2])
    for keys in (np.arange(3), torch.arange(3)):
        assert torch.equal(all_noise(draw(group_keys=keys)), all_noise(plain))
    assert distinct(all_noise(draw(group_keys=["0", "1", "a cat"]))) == 3


def test_an_owner_is_drawn_once_per_call(monkeypatch):
    calls, real = [], torch.randn
    monkeypatch.setattr(torch, "randn", lambda *args, **kwargs: calls.append(1) or real(*args, **kwargs))
    all_noise(draw("group"))
    assert len(calls) == GROUPS


def test_rows_of_one_owner_are_separate_memory():
    noise = draw("batch").noise([0, 1], 0, SHAPE)
    noise[0].zero_()
    assert noise[1].abs().sum() > 0


def test_levels_lie_on_the_grid_one_per_chunk_or_free():
    chunks = SIGMAS.reshape(PAIRS, -1)
    levels = draw("none").t
    assert all(torch.isin(levels[:, j], chunks[j]).all() for j in range(PAIRS))
    free = draw("none", stratified=False).t
    assert torch.isin(free, SIGMAS).all()
    assert not all(torch.isin(free[:, j], chunks[j]).all() for j in range(PAIRS))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"share": "prompt"}, "group, batch, none"),
        ({"group_keys": [0, 1, 0]}, "group_keys"),
        ({"group_keys": []}, "group_keys"),
        ({"group_size": 0}, "group_size is 0"),
        ({"sigmas": torch.tensor([1.0, 0.0])}, "leave the final 0 out"),
    ],
)
def test_bad_arguments_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        draw(**change)


@pytest.mark.parametrize(("rows", "pair"), [([12], 0), ([-1], 0), ([0], PAIRS), ([0], -1)])
def test_an_output_or_pair_that_does_not_exist_is_refused(rows, pair):
    with pytest.raises(ValueError, match="does not exist"):
        draw().noise(rows, pair, SHAPE)


def test_no_rows_give_an_empty_batch():
    assert draw().noise([], 0, SHAPE).shape == (0, *SHAPE)
