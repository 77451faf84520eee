"""The scene reward: the detector behind the reward protocol."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from trainer.demo.detect import HALF_RIGHT
from trainer.demo.world import Group, Scene, draw, sample_scene
from trainer.rewards import create
from trainer.rewards.scoring import score_rewards


def batch(number, seed=0):
    rng = random.Random(seed)
    scenes = [sample_scene(rng) for _ in range(number)]
    images = torch.stack([torch.from_numpy(np.array(draw(scene, rng))) for scene in scenes])
    return images, ["a scene"] * number, [scene.metadata() for scene in scenes]


def test_scores_and_accuracy_of_drawn_ground_truth():
    images, prompts, metadata = batch(400)
    table = score_rewards({"scene": create("scene")}, images, prompts, metadata, details=True)
    assert table.scores["scene"].mean() >= 0.99 and table.details["scene/accuracy"].mean() >= 0.99
    shifted = score_rewards({"scene": create("scene")}, images, prompts, metadata[1:] + metadata[:1], details=True)
    assert shifted.scores["scene"].mean() < 0.2 and shifted.details["scene/accuracy"].mean() < 0.02
    assert not table.failures and not table.warnings


def test_partial_credit_is_not_accuracy():
    images = torch.from_numpy(np.array(draw(Scene((Group("red", "circle"),)), random.Random(0))))[None]
    specs = [Scene((Group("red", shape),)).metadata() for shape in ("circle", "cross")]
    reward = create("scene")
    assert reward.score(images.expand(2, -1, -1, -1), ["", ""], specs).tolist() == pytest.approx([1, HALF_RIGHT])
    assert reward.details(images.expand(2, -1, -1, -1), ["", ""], specs)["accuracy"].tolist() == [1, 0]


@pytest.mark.parametrize("factor", [2, 3])
def test_other_sizes_are_averaged_down(factor):
    images, prompts, metadata = batch(20)
    larger = images.repeat_interleave(factor, 1).repeat_interleave(factor, 2)
    reward = create("scene")
    assert torch.equal(reward.score(larger, prompts, metadata), reward.score(images, prompts, metadata))


def test_averaging_mixes_pixels_instead_of_picking_some():
    picture = torch.full((128, 128, 3), 250, dtype=torch.uint8)
    picture[40:80:2, 40:80] = torch.tensor([250, 30, 20], dtype=torch.uint8)
    picture[41:80:2, 40:80] = torch.tensor([250, 250, 20], dtype=torch.uint8)  # rows of red and yellow: orange from afar
    scores = {
        color: create("scene").score(picture[None], [""], [Scene((Group(color, "square"),)).metadata()]).item()
        for color in ("orange", "red", "yellow")
    }
    assert scores == pytest.approx({"orange": 1, "red": HALF_RIGHT, "yellow": HALF_RIGHT})


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "no list 'objects'"),
        ({"objects": []}, "no list 'objects'"),
        ({"objects": "red circle"}, "no list 'objects'"),
        ({"objects": ["red circle"]}, "not a mapping"),
        ({"objects": [{"color": "pink", "shape": "circle"}]}, "'color' is 'pink'; the scene reward knows red"),
        ({"objects": [{"color": "red"}]}, "'shape' is None"),
        ({"objects": [{"color": ["red"], "shape": "circle"}]}, "'color' is"),
        ({"objects": [{"color": "red", "shape": "circle", "count": "2"}]}, "'count' is '2'; the scene reward knows 1, 2, 3"),
        ({"objects": [{"color": "red", "shape": "circle", "count": True}]}, "'count' is True"),
        ({"objects": [{"color": "red", "shape": "circle", "size": "huge"}]}, "'size' is 'huge'"),
        ({"objects": [{"color": "red", "shape": "circle"}], "relation": "above"}, "exactly two entries"),
        ({"objects": [{"color": "red", "shape": "circle"}] * 2, "relation": "behind"}, "'relation' is 'behind'"),
        ({"objects": [{"color": "red", "shape": "circle"}], "background": "pink"}, "'background' is 'pink'"),
    ],
)
def test_a_prompt_that_cannot_be_judged_is_nan_with_a_reason(metadata, message):
    images, prompts, specs = batch(2)
    specs[1] = metadata
    reward = create("scene")
    assert reward.problem(prompts[0], specs[0]) is None
    assert message in reward.problem(prompts[1], metadata)
    table = score_rewards({"scene": reward}, images, prompts, specs, details=True)
    assert table.scores["scene"].isnan().tolist() == table.details["scene/accuracy"].isnan().tolist() == [False, True]
    assert table.scores["scene"][0] == 1
    ((name, text),) = table.warnings
    assert name == "scene" and text.startswith("1 of 2 outputs not scored: ") and message in text and not table.failures
