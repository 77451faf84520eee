"""Which prompts and seeds Sample Prompt Group takes, and what it refuses."""

from __future__ import annotations

import pytest

from tests.comfy_api import pack
from trainer.prompts import Prompt
from trainer.rollout import rollout_seed
from trainer.seeds import derive_seed

groups = pack("nodes.prompt_groups")
PROMPTS = [Prompt(f"prompt {i}") for i in range(5)]


def plan(split="train", first=1, count=2, group_size=3, seed=7, prompts=PROMPTS):
    return groups.plan_groups(prompts, split, first, count, group_size, seed)


def test_the_seeds_are_the_trainers_own():
    for group in plan("train", first=2, count=0):
        assert group.seeds == tuple(rollout_seed(7, 0, group.place, member) for member in range(3))
    for group in plan("held-out", count=0):
        assert group.seeds == tuple(derive_seed(7, "evaluation", group.place, member) for member in range(3))


def test_a_seed_depends_on_run_seed_prompt_and_member_alone():
    many = {s for seed in (0, 1) for split in groups.SPLITS for g in plan(split, count=0, seed=seed) for s in g.seeds}
    assert len(many) == 2 * 2 * 5 * 3 and all(0 <= seed < 2**63 for seed in many)
    assert plan(first=3, count=1)[0] == plan(count=0)[2]
    assert plan(group_size=8)[1].seeds[:3] == plan(group_size=3)[1].seeds


@pytest.mark.parametrize(("first", "count", "expected"), [(1, 2, [0, 1]), (1, 0, [0, 1, 2, 3, 4]), (4, 9, [3, 4]), (5, 0, [4])])
def test_which_prompts(first, count, expected):
    assert [g.place for g in plan(first=first, count=count)] == expected
    assert [g.prompt for g in plan(first=first, count=count)] == [PROMPTS[i] for i in expected]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prompts": []}, "no train prompts"),
        ({"first": 6}, "first_prompt is 6, but there are 5 train prompts"),
        ({"group_size": 0}, "at least 1"),
        ({"split": "test"}, "allowed: train, held-out"),
    ],
)
def test_what_is_refused_is_said_in_one_line(changes, said):
    with pytest.raises(Exception, match=said) as error:
        plan(**changes)
    assert "\n" not in str(error.value) and str(error.value).startswith("Sample Prompt Group: ")


def test_batches_keep_all_seeds_in_order():
    seeds = tuple(range(7))
    assert groups.batches(seeds, "euler", 3) == [(0, 1, 2), (3, 4, 5), (6,)]
    assert groups.batches(seeds, "euler", 100) == [seeds]


@pytest.mark.parametrize("sampler", ["euler_ancestral", "dpmpp_sde", "lcm", "dpm_adaptive", "a sampler of tomorrow"])
def test_a_sampler_that_draws_noise_for_a_batch_gets_one_picture_at_a_time(sampler):
    assert groups.batches((1, 2, 3), sampler, 8) == [(1,), (2,), (3,)]


def test_sizes():
    assert groups.check_size(64, 128, 8, 256) == (8, 16)
    assert groups.check_size(1000, 1030, 8, None) == (125, 128)
    with pytest.raises(Exception, match="512 x 64 is too large for this model; a side is at most 256"):
        groups.check_size(512, 64, 8, 256)
    with pytest.raises(Exception, match="at least 32 pixels"):
        groups.check_size(16, 64, 32, None)
