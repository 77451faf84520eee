from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest
import torch

from tests.bench import CPU, PROMPTS
from trainer.policies.base import Sampling
from trainer.policies.sd3 import SD3Policy
from trainer.prompts import Prompt
from trainer.rollout import PromptPick, decode_in_batches, pick_prompts, rollout_seed, sample_groups

SAMPLING = Sampling("euler", steps=3, guidance=1.0, width=64, height=64, batch_size=8)
SIZE = (64, 64)
LIST = tuple(Prompt(text, {"n": i}) for i, text in enumerate(PROMPTS))


@pytest.fixture(scope="module")
def policy(tiny_sd3, tmp_path_factory):
    return SD3Policy(tiny_sd3, CPU, cache=tmp_path_factory.mktemp("conditioning"))


@pytest.fixture(scope="module")
def conditioning(policy):
    return policy.encode(PROMPTS)


def picks(*indices: int) -> list[PromptPick]:
    return [PromptPick(i, LIST[i], SIZE) for i in indices]


def test_outputs_are_ordered_by_prompt_then_member(policy, conditioning):
    rollout = sample_groups(policy, picks(2, 0), conditioning, 3, SAMPLING, run_seed=5, iteration=7)
    assert len(rollout) == 6
    assert rollout.group_ids.tolist() == [0, 0, 0, 1, 1, 1]
    assert [p.text for p in rollout.prompts] == [PROMPTS[2]] * 3 + [PROMPTS[0]] * 3
    assert [p.metadata for p in rollout.prompts] == [{"n": 2}] * 3 + [{"n": 0}] * 3
    assert rollout.seeds == tuple(rollout_seed(5, 7, i, m) for i in (2, 0) for m in range(3))
    given, full = (c.gather(CPU, torch.float32)["context"] for c in (rollout.conditioning, conditioning))
    assert torch.equal(given, full[[2, 2, 2, 0, 0, 0]])
    latents = torch.stack(rollout.latents)
    assert latents.shape == (6, 16, 8, 8) and latents.dtype == torch.float32
    assert torch.equal(torch.stack(rollout.images), policy.decode(latents))


@pytest.mark.parametrize("batch_size", [1, 2, 4, 5])
def test_the_batch_split_changes_nothing(policy, conditioning, batch_size):
    whole = sample_groups(policy, picks(0, 1), conditioning, 3, SAMPLING, 0, 0)
    split = Sampling(**{**vars(SAMPLING), "batch_size": batch_size})
    parts = sample_groups(policy, picks(0, 1), conditioning, 3, split, 0, 0)
    torch.testing.assert_close(parts.latents, whole.latents, rtol=0, atol=1e-5)


def test_an_output_does_not_depend_on_its_neighbours(policy, conditioning):
    """Another process may make the second prompt alone (flow_grpo#137: two processes made identical pictures)."""
    both = sample_groups(policy, picks(0, 1), conditioning, 3, SAMPLING, 0, 4)
    alone = sample_groups(policy, picks(1), conditioning, 3, SAMPLING, 0, 4)
    assert alone.seeds == both.seeds[3:]
    torch.testing.assert_close(alone.latents, both.latents[3:], rtol=0, atol=1e-5)


def test_all_outputs_differ(policy, conditioning):
    """Within a group, between groups, iterations and run seeds."""
    rollouts = [
        sample_groups(policy, picks(0, 1), conditioning, 4, SAMPLING, run_seed, iteration)
        for run_seed, iteration in ((0, 0), (0, 1), (1, 0))
    ]
    latents = torch.stack([latent for r in rollouts for latent in r.latents])
    distance = torch.cdist(latents.flatten(1), latents.flatten(1)) + torch.eye(len(latents)) * 100
    assert float(distance.min()) > 1
    assert len({bytes(image.numpy()) for r in rollouts for image in r.images}) == 24
    seeds = [seed for r in rollouts for seed in r.seeds]
    assert len(set(seeds)) == 24 and all(0 <= seed < 2**63 for seed in seeds)


def test_every_seed_part_counts():
    seeds = {rollout_seed(r, i, p, m) for r in range(4) for i in range(4) for p in range(4) for m in range(4)}
    assert len(seeds) == 256
    assert rollout_seed(0, 1, 23, 4) != rollout_seed(0, 12, 3, 4)  # no concatenation of digits


def test_an_epoch_uses_each_prompt_at_most_once_and_the_next_is_shuffled():
    prompts = [Prompt(str(i), {}) for i in range(10)]
    chosen = [[p.index for p in pick_prompts(prompts, 3, 0, i, [SIZE])] for i in range(300)]
    assert all(len(set(c)) == 3 for c in chosen)
    epochs = [list(chain.from_iterable(chosen[e * 3 : e * 3 + 3])) for e in range(100)]
    assert all(len(set(e)) == 9 for e in epochs)
    assert len({tuple(e) for e in epochs}) == 100
    counts = Counter(i for e in epochs for i in e)
    assert set(counts) == set(range(10)) and min(counts.values()) > 70  # the one left over is not always the same
    assert all(p.prompt is prompts[p.index] for p in pick_prompts(prompts, 3, 0, 5, [SIZE]))


def test_the_order_is_a_function_of_seed_and_iteration():
    prompts = [Prompt(str(i), {}) for i in range(10)]
    there = [[p.index for p in pick_prompts(prompts, 4, 1, i, [SIZE])] for i in range(20)]
    back = [[p.index for p in pick_prompts(prompts, 4, 1, i, [SIZE])] for i in reversed(range(20))]
    assert there == back[::-1]
    assert there != [[p.index for p in pick_prompts(prompts, 4, 2, i, [SIZE])] for i in range(20)]


def test_all_prompts_at_once():
    assert sorted(p.index for p in pick_prompts(LIST, 3, 0, 17, [SIZE])) == [0, 1, 2]


def test_pictures_are_handed_over_batch_by_batch_as_they_are_decoded():
    """So that one batch is scored while the next is decoded; together they are what one decode of all would give."""
    told = []

    class Decoder:
        def decode(self, latents):
            told.append(("decoded", len(latents)))
            return latents.to(torch.uint8)[:, None, None, None].expand(-1, 2, 2, 3)

    prompts = [Prompt(str(number)) for number in range(7)]

    def tell(part, owners):
        told.append((part[:, 0, 0, 0].tolist(), [p.text for p in owners]))

    images = decode_in_batches(Decoder(), torch.arange(7.0), prompts, 3, tell)
    assert [int(image[0, 0, 0]) for image in images] == list(range(7))
    assert told == [
        ("decoded", 3),
        ([0, 1, 2], ["0", "1", "2"]),
        ("decoded", 3),
        ([3, 4, 5], ["3", "4", "5"]),
        ("decoded", 1),
        ([6], ["6"]),
    ]
