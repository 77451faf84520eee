"""One node for each reward, made from the registry and the options of its class; Shape Reward. They are chained."""

from __future__ import annotations

import logging
from typing import Any

from comfy_api.latest import io

from ..trainer.errors import one_line
from . import reward_options
from .reward_options import MAX_WEIGHT, Option
from .values import CATEGORY, REWARDS, RewardChoice

log = logging.getLogger("vgrpo.nodes")


class RewardNode(io.ComfyNode):
    """What all reward nodes share; a subclass sets `reward`, the name in the registry."""

    reward: str

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id=reward_options.node_id(cls.reward),
            display_name=reward_options.title(cls.reward),
            category=f"{CATEGORY}/rewards",
            description=reward_options.describe(cls.reward),
            inputs=[
                REWARDS.Input(
                    "rewards", optional=True, tooltip="Rewards to add this one to: the output of another reward node."
                ),
                io.Float.Input(
                    "weight",
                    default=reward_options.default_weight(cls.reward),
                    min=-MAX_WEIGHT,
                    max=MAX_WEIGHT,
                    step=0.1,
                    round=0.001,
                    tooltip="How much this reward counts beside the others. Negative = penalty. 0 is refused: it would train "
                    "on nothing. Not used with monitor_only.",
                ),
                io.Boolean.Input(
                    "monitor_only",
                    default=False,
                    tooltip="Score and plot it, never train on it: a guard against a reward that is gained at the pictures' "
                    "cost.",
                ),
                *(_input(option) for option in reward_options.options_of(cls.reward)),
                *([_NAME] if cls.reward in reward_options.SEVERAL else []),
            ],
            outputs=[REWARDS.Output(display_name="rewards", tooltip="This reward and all those before it in the chain.")],
        )

    @classmethod
    def execute(
        cls,
        weight: float | None = None,
        monitor_only: bool = False,
        rewards: RewardChoice | None = None,
        name: str = "",
        **options: Any,
    ) -> io.NodeOutput:
        weight = reward_options.default_weight(cls.reward) if weight is None else weight
        return io.NodeOutput(reward_options.add_reward(cls.reward, weight, monitor_only, options, rewards, name))


class ShapeReward(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="VGRPOShapeReward",
            display_name=reward_options.SHAPE_NODE,
            category=f"{CATEGORY}/rewards",
            description="Bounds, a logarithm or a threshold for the scores of one reward before they are compared. The curves "
            "go on showing the scores themselves.",
            inputs=[
                REWARDS.Input("rewards", tooltip="A chain of rewards; one of them is shaped."),
                io.String.Input(
                    "reward",
                    default="",
                    dynamic_prompts=False,
                    tooltip="Which one, by its name in the curves, such as jpeg_size. Empty = the last of the chain that is "
                    "trained on.",
                ),
                io.String.Input(
                    "low",
                    default="",
                    dynamic_prompts=False,
                    tooltip="Scores under this count as this. Pictures that all lie under it do not differ, so a penalty with "
                    "a low bound acts only on those above. Empty = no bound.",
                ),
                io.String.Input(
                    "high", default="", dynamic_prompts=False, tooltip="Scores above this count as this. Empty = no bound."
                ),
                io.Combo.Input(
                    "transform",
                    options=list(reward_options.TRANSFORMS),
                    default="none",
                    tooltip="log: the natural logarithm, which needs a low bound above 0. threshold: 1 where the score reaches "
                    "it, else 0.",
                ),
                io.Float.Input(
                    "threshold",
                    default=0.5,
                    min=-1e9,
                    max=1e9,
                    step=0.01,
                    round=0.000001,
                    tooltip="In the unit of the score. Used only with transform = threshold.",
                ),
            ],
            outputs=[REWARDS.Output(display_name="rewards", tooltip="The same rewards, one of them shaped.")],
        )

    @classmethod
    def execute(
        cls,
        rewards: RewardChoice,
        reward: str = "",
        low: str = "",
        high: str = "",
        transform: str = "none",
        threshold: float = 0.5,
    ) -> io.NodeOutput:
        return io.NodeOutput(reward_options.shape_reward(rewards, reward, low, high, transform, threshold))


_NAME = io.String.Input(
    "name",
    default="",
    dynamic_prompts=False,
    tooltip="What its curves are called, for a chain with several of this kind. Empty = the reward's own name.",
)


def _input(option: Option) -> io.Input:
    common = {"default": option.default, "tooltip": option.tooltip}
    if option.kind == "combo":
        return io.Combo.Input(option.id, options=list(option.choices), **common)
    if option.kind == "bool":
        return io.Boolean.Input(option.id, **common)
    if option.kind == "int":
        # False: the page would add a widget that draws a new number at each run to an input called seed.
        return io.Int.Input(option.id, min=option.low, max=option.high, control_after_generate=False, **common)
    if option.kind == "float":
        return io.Float.Input(option.id, min=option.low, max=option.high, step=0.01, round=0.000001, **common)
    return io.String.Input(option.id, dynamic_prompts=False, multiline=option.kind == "lines", **common)


def _node(name: str) -> type[RewardNode]:
    return type(reward_options.node_id(name), (RewardNode,), {"reward": name, "__module__": __name__})


def third_party_nodes() -> list[type[io.ComfyNode]]:
    """A node for each reward that another package offers; one that can't have a node is a line in the log and left out."""
    nodes = []
    for name in reward_options.third_party():
        try:
            node = _node(name)
            node.GET_SCHEMA()
        except Exception as error:  # whatever a stranger's class does
            log.error("V-GRPO: the reward '%s' has no node: %s", name, one_line(error))
        else:
            nodes.append(node)
    return nodes


NODES: list[type[io.ComfyNode]] = [*map(_node, reward_options.built_in()), *third_party_nodes(), ShapeReward]
