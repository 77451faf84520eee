"""One node for each built-in reward, made from the registry and the reward's own options. They are chained."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from . import reward_options
from .reward_options import MAX_WEIGHT, Option
from .values import CATEGORY, REWARDS, RewardChoice


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
                    default=1.0,
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
            ],
            outputs=[REWARDS.Output(display_name="rewards", tooltip="This reward and all those before it in the chain.")],
        )

    @classmethod
    def execute(
        cls, weight: float = 1.0, monitor_only: bool = False, rewards: RewardChoice | None = None, **options: Any
    ) -> io.NodeOutput:
        return io.NodeOutput(reward_options.add_reward(cls.reward, weight, monitor_only, options, rewards))


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
    return io.String.Input(option.id, dynamic_prompts=False, **common)


def _node(name: str) -> type[RewardNode]:
    return type(reward_options.node_id(name), (RewardNode,), {"reward": name, "__module__": __name__})


NODES: list[type[io.ComfyNode]] = [_node(name) for name in reward_options.names()]
