"""How a reward counts, as the configuration says it: weight, clip, transform; several of a kind; penalties."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.config import load_config
from trainer.errors import UserError
from trainer.rewards.shaping import Shape

BASE = {"policy": {"model": "demo"}, "prompts": {"train": ["a"] * 48, "evaluate": ["b"]}}


def load(rewards: Any, monitors: Any = None):
    return load_config({**BASE, "rewards": rewards, "monitors": monitors or {}})


def refusal(rewards: Any, monitors: Any = None) -> str:
    with pytest.raises(UserError) as caught:
        load(rewards, monitors)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_shapes_are_typed_and_read_back_equal():
    config = load(
        {
            "jpeg_size": {"clip": [-1, None], "transform": {"threshold": 0}},
            "brightness": {"clip": [0.01, 1], "transform": "log"},
            "saturation": {"clip": None, "transform": None},
        }
    )
    assert config.reward_shapes() == {
        "jpeg_size": Shape(low=-1.0, threshold=0.0),
        "brightness": Shape(low=0.01, high=1.0, log=True),
        "saturation": Shape(),
    }
    assert load_config(config.to_yaml()) == config
    assert all(isinstance(bound, float) for bound in config.rewards["brightness"]["clip"])
    assert config.reward_options()["jpeg_size"].quality == 95


def test_what_is_not_said_is_not_written():
    """A configuration from before these keys existed has the digest that it had."""
    assert load({"scene": {}}).rewards == {"scene": {"weight": 1.0}}
    assert (
        load({"scene": {"clip": None}}).digest() == load({"scene": {}}).digest() != load({"scene": {"clip": [0, 1]}}).digest()
    )


def test_a_key_on_the_command_line():
    data = {**BASE, "rewards": {"jpeg_size": {}}}
    config = load_config(data, ["rewards.jpeg_size.clip=[-1, null]", "rewards.jpeg_size.transform={threshold: 0.5}"])
    assert config.reward_shapes()["jpeg_size"] == Shape(low=-1.0, threshold=0.5)
    assert load_config(data, ["rewards.jpeg_size.transform.threshold=0.25"]).reward_shapes()["jpeg_size"].threshold == 0.25


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"clip": [1]}, "rewards.brightness.clip = [1]; allowed: [low, high]"),
        ({"clip": 1}, "rewards.brightness.clip = 1; allowed: [low, high]"),
        ({"clip": [0, "1"]}, "rewards.brightness.clip = [0, '1']; allowed"),
        ({"clip": [True, 2]}, "rewards.brightness.clip = [True, 2]; allowed"),
        ({"clip": [1, 0]}, "the low bound must lie under the high one"),
        ({"transform": "exp"}, "rewards.brightness.transform = exp; allowed: null, log, or {threshold: a score}"),
        ({"transform": {"treshold": 1}}, "allowed: null, log, or {threshold: a score}"),
        ({"transform": {"threshold": None}}, "allowed: null, log, or {threshold: a score}"),
        ({"transform": "log"}, "transform = log needs clip with a low bound above 0, such as clip: [0.001, null]"),
        ({"clip": [0.5, None], "transform": {"threshold": 0.5}}, "lies beyond clip"),
        ({"clp": [0, 1]}, "unknown key 'rewards.brightness.clp' (did you mean 'rewards.brightness.clip'?)"),
        ({"threshold": 1}, "unknown key 'rewards.brightness.threshold'"),
    ],
)
def test_wrong_shapes(settings, said):
    assert said in refusal({"brightness": settings})


@pytest.mark.parametrize("key", ["weight", "clip", "transform"])
def test_a_monitor_is_never_shaped(key):
    assert refusal({"scene": {}}, {"brightness": {key: 1}}) == (
        f"monitors.brightness.{key}: a monitor has no {key}, it is never trained on; use rewards.brightness"
    )


def test_two_of_a_kind():
    config = load(
        {"small": {"kind": "jpeg_size", "weight": 2}, "large": {"kind": "jpeg_size", "prefer": "large"}},
        {"coarse": {"kind": "jpeg_size", "quality": 10}},
    )
    assert config.rewards == {
        "small": {"kind": "jpeg_size", "weight": 2.0, "prefer": "small", "quality": 95},
        "large": {"kind": "jpeg_size", "weight": 1.0, "prefer": "large", "quality": 95},
    }
    assert config.monitors == {"coarse": {"kind": "jpeg_size", "prefer": "small", "quality": 10}}
    assert [(name, options.prefer) for name, options in config.reward_options().items()] == [
        ("small", "small"),
        ("large", "large"),
        ("coarse", "small"),
    ]
    assert load_config(config.to_yaml()) == config


def test_a_kind_that_is_the_name_says_nothing():
    assert load({"scene": {"kind": "scene"}}).rewards == load({"scene": {}}).rewards


@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        ({"mine": {"kind": "jpeg_sice"}}, "rewards.mine.kind: unknown reward 'jpeg_sice' (did you mean 'jpeg_size'?"),
        ({"mine": {"kind": 3}}, "rewards.mine.kind: unknown reward 3"),
        ({"scene": {"kind": "jpeg_size"}}, "rewards.scene: scene is the name of another reward"),
        ({"My Judge": {"kind": "judge"}}, "rewards.My Judge: 'My Judge' is no name for an entry; allowed beside kind: a-z"),
        ({"a/b": {"kind": "judge"}}, "is no name for an entry"),
        ({"total": {"kind": "judge"}}, "total is what the weighted sum is called"),
        (
            {"mine": {"kind": "jpeg_size", "qualty": 3}},
            "unknown key 'rewards.mine.qualty' (did you mean 'rewards.mine.quality'?)",
        ),
        ({"mine": {"kind": "jpeg_size", "quality": 0}}, "rewards.mine.quality = 0; allowed: an integer from 1 to 100"),
    ],
)
def test_wrong_kinds(rewards, said):
    assert said in refusal(rewards)


def test_a_penalty_has_a_negative_weight():
    assert load({"scene": {}, "nsfw": None}).reward_weights() == {"scene": 1.0, "nsfw": -1.0}
    assert load({"scene": {}, "risk": {"kind": "nsfw", "weight": -0.5}}).reward_weights()["risk"] == -0.5
    assert load({"scene": {}}, {"nsfw": {}}).monitors["nsfw"]["labels"]
    text = refusal({"nsfw": {"weight": 1}})
    assert "rewards.nsfw.weight = 1 trains towards what this score warns of" in text and "monitors" in text


def test_several_mistakes_are_counted():
    assert refusal({"brightness": {"clip": 1}, "qqq": {}}).endswith("(and 1 more error)")
