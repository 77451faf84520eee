"""The reward nodes."""

from __future__ import annotations

import contextlib
from typing import Literal

import pytest
from pydantic import Field

from tests.comfy_api import ComfyNodes, NodeError, pack

reward_options = pack("nodes.reward_options")
registry = pack("trainer.rewards.registry")
base = pack("trainer.rewards.base")
UserError = pack("trainer.errors").UserError


def refusal(*arguments):
    with pytest.raises(UserError) as caught:
        reward_options.add_reward(*arguments)
    text = str(caught.value)
    assert len(text.splitlines()) == 1 and text.startswith("Reward: ")
    return text


class EveryType(base.RewardOptions):
    mode: Literal["a", "b"] = Field("b", description="a choice")
    count: int = Field(3, ge=1, lt=10, description="a count")
    share: float = Field(0.5, gt=0, le=1, description="a share")
    flag: bool = Field(True, description="a flag")
    word: str = Field("x", description="a word")
    limit: float | None = Field(None, description="a limit, null = none")
    words: tuple[str, ...] = Field(("p", "q"), description="some words")


@pytest.fixture
def every_type(monkeypatch):
    """A reward whose options have every type that an input can be made for."""
    kind = type("Every", (base.Reward,), {
        "name": "every_type", "description": "d.", "range": "0 to 1", "Options": EveryType, "score": lambda *_: None,
    })  # fmt: skip
    monkeypatch.setattr(reward_options, "reward_class", lambda name: kind)
    return kind


def test_every_built_in_reward_has_a_node(comfy_nodes):
    expected = {reward_options.node_id(name) for name in registry.BUILT_IN}
    assert {name for name in comfy_nodes.names() if name.startswith("VGRPOReward")} == expected
    assert "VGRPORewardJpegSize" in expected and reward_options.title("jpeg_size") == "Reward: JPEG size"


THEIRS = """
from vgrpo_pack.trainer.rewards import Reward, RewardOptions

class Options(RewardOptions):
    share: float = 0.5

class Good(Reward):
    name, description, range, Options = "my_reward", "What they like.", "0 to 1", Options

    def score(self, images, prompts, metadata):
        return images.float().mean((1, 2, 3))

class TakesTheWeight(Good):
    name = "greedy"
    class Options(RewardOptions):
        monitor_only: bool = False
"""
INFO = "my_rewards-1.0.dist-info"


def test_a_reward_of_another_package_has_a_node(tmp_path):
    """Installed for real. One that cannot be imported or shown is left out, its reason in the log, and takes no node away."""
    (tmp_path / "site" / INFO).mkdir(parents=True)
    (tmp_path / "site" / INFO / "METADATA").write_text("Metadata-Version: 2.1\nName: my-rewards\nVersion: 1.0\n")
    (tmp_path / "site" / INFO / "entry_points.txt").write_text(
        "[vgrpo.rewards]\nmy_reward = my_rewards:Good\ngreedy = my_rewards:TakesTheWeight\ngone = no_such_module:Gone\n"
    )
    (tmp_path / "site" / "my_rewards.py").write_text(THEIRS)
    with contextlib.closing(ComfyNodes(tmp_path, tmp_path / "site")) as nodes:
        assert {"VGRPORewardMyReward", "VGRPORewardScene", "VGRPOShapeReward"} <= set(nodes.names())
        assert not {"VGRPORewardGone", "VGRPORewardGreedy"} & set(nodes.names())
        shown = nodes.info("VGRPORewardMyReward")
        assert "What they like." in shown["description"] and "share" in shown["input"]["required"]
        made = nodes.run("VGRPORewardMyReward", weight=2.0, monitor_only=False, share=0.25)
    assert made.outputs[0]["rewards"] == {"my_reward": {"weight": 2.0, "share": 0.25}}
    log = (tmp_path / "probe.log").read_text(encoding="utf-8")
    assert "the reward 'gone' has no node" in log and "the reward 'greedy' has no node" in log


@pytest.mark.parametrize("name", list(registry.BUILT_IN))
def test_the_nodes_values_are_what_the_configuration_takes(comfy_nodes, name):
    from trainer.config import load_config

    inputs = comfy_nodes.info(reward_options.node_id(name))["input"]["required"]
    made = comfy_nodes.run(reward_options.node_id(name), **{key: options["default"] for key, (_, options) in inputs.items()})
    chosen = made.outputs[0]["rewards"]
    config = load_config({"policy": {"model": "demo"}, "prompts": {"train": ["a"] * 48, "evaluate": ["b"]}, "rewards": chosen})
    assert config.rewards == chosen and list(chosen) == [name]
    assert chosen[name]["weight"] == (-1.0 if name == "nsfw" else 1.0)


def test_options_become_inputs_by_their_type(every_type):
    made = {option.id: option for option in reward_options.options_of("every_type")}
    assert {key: (option.kind, option.default) for key, option in made.items()} == {
        "mode": ("combo", "b"),
        "count": ("int", 3),
        "share": ("float", 0.5),
        "flag": ("bool", True),
        "word": ("text", "x"),
        "limit": ("yaml", ""),
        "words": ("yaml", '["p", "q"]'),
    }
    assert made["mode"].choices == ("a", "b") and made["mode"].tooltip == "A choice"
    assert (made["count"].low, made["count"].high) == (1, 9)
    assert made["share"].low > 0 and made["share"].high == 1


def test_options_survive_the_way_through_the_inputs(every_type):
    options = {option.id: option.default for option in reward_options.options_of("every_type")}
    chosen = reward_options.add_reward("every_type", 1.0, False, options, None).rewards["every_type"]
    chosen.pop("weight")
    assert EveryType.model_validate(chosen) == EveryType()
    chosen = reward_options.add_reward("every_type", 1.0, True, {"limit": "0.25", "words": "[r]"}, None).monitors["every_type"]
    assert EveryType.model_validate(chosen) == EveryType(limit=0.25, words=("r",))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "c"}, "mode = 'c'; allowed: a, b"),
        ({"count": 10}, "count = 10; allowed: 1 to 9"),
        ({"share": 0.0}, "share = 0; allowed: 1e-06 to 1"),
        ({"words": "[a"}, "words"),
    ],
)
def test_wrong_options(every_type, options, said):
    assert said in refusal("every_type", 1.0, False, options, None)


def test_an_option_must_not_hide_an_input_of_every_node(monkeypatch):
    options = type("Options", (base.RewardOptions,), {"__annotations__": {"weight": float}, "weight": 1.0})
    monkeypatch.setattr(reward_options, "reward_class", lambda name: type("R", (), {"Options": options}))
    with pytest.raises(ValueError, match="must not be called 'weight'"):
        reward_options.options_of("some")


def test_rewards_are_chained_in_order():
    one = reward_options.add_reward("scene", 1.0, False, {}, None)
    two = reward_options.add_reward("brightness", -0.30000000000000004, False, {}, one)
    three = reward_options.add_reward("jpeg_size", 0.0, True, {"quality": 80}, two)
    assert three.rewards == {"scene": {"weight": 1.0}, "brightness": {"weight": -0.3}}
    assert three.monitors == {"jpeg_size": {"prefer": "small", "quality": 80}}
    assert list(one.rewards) == ["scene"] and not one.monitors


@pytest.mark.parametrize(
    ("weight", "said"),
    [(0.0, "weight = 0 trains on nothing"), (1000.5, "weight = 1000.5; allowed"), (float("nan"), "nan"), (float("inf"), "inf")],
)
def test_weights(weight, said):
    assert said in refusal("scene", weight, False, {}, None)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_a_reward_stands_once(first, second):
    before = reward_options.add_reward("scene", 1.0, first, {}, None)
    assert refusal("scene", 1.0, second, {}, before).startswith("Reward: Scene stands twice")


def test_a_penalty_is_never_trained_towards():
    assert reward_options.default_weight("nsfw") == -1 and reward_options.default_weight("scene") == 1
    assert "weight = 1 trains towards what it warns of" in refusal("nsfw", 1.0, False, {}, None)
    assert reward_options.add_reward("nsfw", 1.0, True, {}, None).monitors["nsfw"]["labels"]


def test_several_of_a_kind_have_names():
    one = reward_options.add_reward("judge", 1.0, False, {"model": "m"}, None)
    text = refusal("judge", 1.0, False, {}, one)
    assert (
        text
        == "Reward: Judge stands twice in the chain of rewards; keep one of the two nodes, or give one of them another name"
    )
    two = reward_options.add_reward("judge", 0.5, False, {"model": "m"}, one, " taste ")
    assert list(two.rewards) == ["judge", "taste"] and two.rewards["taste"]["kind"] == "judge"
    assert "kind" not in two.rewards["judge"]
    three = reward_options.add_reward("http", 1.0, True, {}, two, "http")
    assert list(three.monitors) == ["http"] and "kind" not in three.monitors["http"]


@pytest.mark.parametrize(
    ("values", "shape"),
    [
        (("", "", "none", 0.5), {}),
        ((" -1.5 ", "", "none", 0.5), {"clip": [-1.5, None]}),
        (("0.1", "1e1", "log", 0.5), {"clip": [0.1, 10.0], "transform": "log"}),
        (("", "", "threshold", 0.30000000000000004), {"transform": {"threshold": 0.3}}),
    ],
)
def test_shapes(values, shape):
    before = reward_options.add_reward("brightness", 2.0, False, {}, reward_options.add_reward("scene", 1.0, False, {}, None))
    made = reward_options.shape_reward(before, "", *values)
    assert made.rewards == {"scene": {"weight": 1.0}, "brightness": {"weight": 2.0, **shape}}
    again = reward_options.shape_reward(made, "brightness", "", "", "none", 0.5)
    assert again.rewards == before.rewards  # the newer shape takes the place of the older
    assert list(reward_options.shape_reward(before, "scene", *values).rewards) == ["scene", "brightness"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (("beauty", "", "", "none", 0.5), "Shape Reward: reward = 'beauty'; allowed: scene, or empty for the last one"),
        (("", "low", "", "none", 0.5), "Shape Reward: low = 'low'; allowed: a number, or nothing for no bound"),
        (("", "true", "", "none", 0.5), "Shape Reward: low = 'true'; allowed"),
        (("", "2", "1", "none", 0.5), "Shape Reward: clip = [2, 1]: the low bound must lie under the high one"),
        (("", "", "", "log", 0.5), "Shape Reward: transform = log needs clip with a low bound above 0"),
        (("", "", "", "exp", 0.5), "Shape Reward: transform = 'exp'; allowed: none, log, threshold"),
        (("", "1", "", "threshold", 0.5), "Shape Reward: threshold = 0.5 lies beyond clip"),
    ],
)
def test_wrong_shapes(values, said):
    with pytest.raises(UserError) as caught:
        reward_options.shape_reward(reward_options.add_reward("scene", 1.0, False, {}, None), *values)
    assert str(caught.value).startswith(said) and len(str(caught.value).splitlines()) == 1


def test_a_monitor_is_not_shaped():
    watched = reward_options.add_reward("scene", 1.0, True, {}, None)
    with pytest.raises(UserError, match="no reward of the chain is trained on"):
        reward_options.shape_reward(watched, "", "0", "", "none", 0.5)


# In ComfyUI


def test_shape_reward_in_a_chain(comfy_nodes):
    one = comfy_nodes.run("VGRPORewardNsfw", monitor_only=False)
    two = comfy_nodes.run("VGRPOShapeReward", rewards=one[0], low="0.2")
    shaped = two.outputs[0]["rewards"]["nsfw"]
    assert shaped["weight"] == -1 and shaped["clip"] == [0.2, None]


def test_nodes_chain(comfy_nodes):
    one = comfy_nodes.run("VGRPORewardScene", weight=2.0, monitor_only=False)
    two = comfy_nodes.run("VGRPORewardJpegSize", weight=-1.0, monitor_only=True, rewards=one[0], prefer="large", quality=90)
    assert two.outputs[0]["rewards"] == {"scene": {"weight": 2.0}}
    assert two.outputs[0]["monitors"] == {"jpeg_size": {"prefer": "large", "quality": 90}}
    with pytest.raises(NodeError, match="twice") as caught:
        comfy_nodes.run("VGRPORewardScene", weight=1.0, monitor_only=True, rewards=two[0])
    assert caught.value.kind == "UserError"
