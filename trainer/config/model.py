"""The configuration of a run, and its sections that have no module of their own.

A `RunConfig` is complete in itself: prompts are inlined, paths absolute.

Where a default has a source its description names it; "ours" marks the rest.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator

from ..algorithms import ALGORITHMS as _ALGORITHMS
from ..algorithms import VGRPO
from ..prompts import Prompt, load_prompts
from ..rewards.shaping import Shape
from ..sizes import Size, paired
from . import fields
from .checks import refusals, warnings
from .each import Each
from .later import LATER, without_later
from .peers import ForwardConfig, TrajectoryConfig
from .policy import PolicyConfig
from .problems import Problem, refuse
from .rewards import check_settings, options_model
from .section import STAGE_1, Section
from .shape import shape_of
from .table import KeyRow, key_rows
from .text import Row, dump
from .update import ObjectiveConfig, OptimizerConfig, SurrogateConfig

ALGORITHMS = tuple(_ALGORITHMS)
SAMPLERS = ("euler", "heun", "dpmsolver++", "unipc")

_Sides = Annotated[int | tuple[int, ...], Each(ge=16, le=4096, multiple_of=16)]


_PROMPT_SOURCE = {"takes": "a list of prompts, the path of a .txt or .jsonl file, demo or demo-letters"}


class PromptsConfig(Section):
    train: tuple[Prompt, ...] = Field(description="prompts to train on", json_schema_extra=_PROMPT_SOURCE)
    evaluate: tuple[Prompt, ...] = Field(description="held-out prompts, never trained on", json_schema_extra=_PROMPT_SOURCE)

    @field_validator("train", "evaluate", mode="before")
    @classmethod
    def _load(cls, value: Any, info: ValidationInfo) -> Any:
        key = f"prompts.{info.field_name}"
        return fields.reporting(key, lambda: tuple(load_prompts(value, key)))


_SIDES = {"takes": "an integer, or a list of integers, each"}
_LATER_SIDES = {"takes": f"null, {_SIDES['takes']}", **LATER}


class RolloutConfig(Section):
    group_size: int = Field(
        24, ge=2, le=1024, description=f"outputs a prompt; the advantage of a group of 1 is always 0. {STAGE_1}"
    )
    prompts_per_iteration: int = Field(48, ge=1, le=65536, description=f"prompts an iteration, one group each. {STAGE_1}")
    sampler: Literal[SAMPLERS] = Field(
        "euler", description="ODE solver. Any serves the method; the paper's SD 3.5 Medium solver: unknown"
    )
    steps: int = Field(40, ge=1, le=1000, description=f"solver steps an output. {STAGE_1} (40-step ODE)")
    guidance: float = Field(
        1.0,
        ge=1,
        le=50,
        description="classifier-free guidance scale, 1.0 = off; where the network has it as an input (FLUX.1 dev), that input. "
        f"{STAGE_1} (off)",
    )
    negative_prompt: str = Field(
        "",
        max_length=4000,
        description="what guidance leads away from, here and in evaluations. Default: ours (none)",
    )
    shift: float | None = Field(
        None,
        gt=0,
        le=100,
        description="timestep shift of a flow family, here and in evaluations; null = the base's own, which some let grow with "
        "the size. arXiv 2604.23380, FLUX.1-dev: 3",
    )
    width: _Sides = Field(
        512,
        description="pixels. A list with as many in height makes sizes (aspect buckets), of which each prompt group draws one. "
        "Default: ours (one transcription of the paper has 720)",
        json_schema_extra=_SIDES,
    )
    height: _Sides = Field(
        512, description="pixels. Default: ours (one transcription of the paper has 720)", json_schema_extra=_SIDES
    )
    batch_size: int = Field(8, ge=1, le=65536, description="outputs made at once; changes memory and speed only. Default: ours")
    refill: int = Field(
        0,
        ge=0,
        le=64,
        description="dynamic sampling: rounds in which the groups whose rewards do not differ are replaced by groups of "
        "further prompts, 0 = off. arXiv 2503.14476 (DAPO, without a bound)",
        json_schema_extra=LATER,
    )
    rest_flat: bool = Field(
        False,
        description="draw prompts more rarely whose rewards did not differ when they last had a turn: half as often for each "
        "such turn in a row, down to a 16th. After arXiv 2506.02177 (GRESO)",
        json_schema_extra=LATER,
    )

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The sizes of which every prompt group has one."""
        return paired(self.width, self.height)


class EvaluationConfig(Section):
    every: int = Field(
        10, ge=0, le=1_000_000, description="iterations between evaluations, 0 = only before and after. Default: ours"
    )
    prompts: int = Field(
        48, ge=1, le=65536, description="at most this many held-out prompts, the first of the file. Default: ours"
    )
    seeds: int = Field(1, ge=1, le=1024, description="images a prompt. Default: ours")
    steps: int = Field(40, ge=1, le=1000, description="solver steps an image. Default: the rollout's own in stage 1")
    guidance: float = Field(
        1.0, ge=1, le=50, description="classifier-free guidance scale, 1.0 = off. Default: the rollout's own in stage 1"
    )
    width: _Sides | None = Field(
        None,
        description="pixels. The sizes of a list take turns over the held-out prompts; null = the rollout's first size, or the "
        "one that a prompt names. Default: ours",
        json_schema_extra=_LATER_SIDES,
    )
    height: _Sides | None = Field(None, description="pixels. Default: ours", json_schema_extra=_LATER_SIDES)

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The sizes that held-out prompts have in turn; none where it is the rollout that decides."""
        return () if self.width is None or self.height is None else paired(self.width, self.height)


class CheckpointConfig(Section):
    every: int = Field(10, ge=1, le=1_000_000, description="iterations between checkpoints. Default: ours")
    keep: int = Field(3, ge=1, le=100_000, description="how many of the newest checkpoints stay. Default: ours")


class RunConfig(Section):
    """Everything that a run depends on. Made by `load_config`, which reads what `to_yaml` writes back as an equal object."""

    name: str = Field("run", max_length=80, description="what people call the run")
    seed: int = Field(0, ge=0, le=2**64 - 1, description="seed that every random number derives from")
    iterations: int = Field(150, ge=1, le=1_000_000, description=f"outer iterations. {STAGE_1}")
    algorithm: Literal[ALGORITHMS] = Field(
        VGRPO,
        description="the method: V-GRPO (arXiv 2604.23380) or a peer, see docs/algorithms.md",
        json_schema_extra=LATER,
    )
    policy: PolicyConfig = Field(description="what is trained")
    prompts: PromptsConfig = Field(description="what it is trained and judged on")
    rollout: RolloutConfig = Field(default_factory=RolloutConfig, description="how outputs are made")
    surrogate: SurrogateConfig = Field(default_factory=SurrogateConfig, description="how an output's likelihood is estimated")
    objective: ObjectiveConfig = Field(default_factory=ObjectiveConfig, description="the policy gradient")
    trajectory: TrajectoryConfig = Field(
        default_factory=TrajectoryConfig,
        description="the algorithms that train on the rollout's own steps",
        json_schema_extra=LATER,
    )
    forward: ForwardConfig = Field(default_factory=ForwardConfig, description="DiffusionNFT and AWM", json_schema_extra=LATER)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig, description="the weight update")
    rewards: dict[str, dict[str, Any]] = Field(
        description="what is maximised: reward name -> its options, weight (default 1, negative = penalty), clip and "
        "transform; see Rewards below",
        json_schema_extra={"takes": "a mapping such as {scene: {weight: 1.0}} with at least one reward"},
    )
    monitors: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="scored and plotted, never trained on: reward name -> its options",
        json_schema_extra={"takes": "a mapping such as {brightness: {}}", "default_text": "{}"},
    )
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig, description="judging on held-out prompts")
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig, description="saving")

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        return fields.printable(value)

    @field_validator("rewards", "monitors", mode="before")
    @classmethod
    def _check_rewards(cls, value: Any, info: ValidationInfo) -> Any:
        return check_settings(value, info.field_name)

    @model_validator(mode="before")
    @classmethod
    def _rewards_given(cls, data: Any) -> Any:
        """Without a `rewards` key the error is the one about an empty mapping."""
        return {**data, "rewards": data.get("rewards")} if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _can_act(self) -> RunConfig:
        problems = [Problem(key, text) for key, text in refusals(self)]
        if problems:
            raise refuse(problems)
        return self

    def warnings(self) -> list[str]:
        """What is allowed but known to disappoint; one line each."""
        return warnings(self)

    def reward_weights(self) -> dict[str, float]:
        """The weight of each reward, in the configuration's order."""
        return {name: settings["weight"] for name, settings in self.rewards.items()}

    def reward_shapes(self) -> dict[str, Shape]:
        """How the scores of each reward are shaped before they count, in the configuration's order."""
        return {name: shape_of(settings) for name, settings in self.rewards.items()}

    def reward_options(self) -> dict[str, BaseModel]:
        """The typed options of each reward, then of each monitor that is not a reward as well."""
        settings = {**self.monitors, **self.rewards}
        names = [*self.rewards, *(name for name in self.monitors if name not in self.rewards)]
        return {name: options_model(name, settings[name]) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """Plain data: strings, numbers, lists, mappings."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """A configuration file that reproduces this run by itself."""
        data = self.to_dict()
        data["prompts"] = {key: [Row(prompt) for prompt in prompts] for key, prompts in data["prompts"].items()}
        return dump(data)

    def digest(self) -> str:
        """12 hexadecimal digits that two configurations share when they differ in nothing but the name."""
        data = {key: value for key, value in without_later(self, self.to_dict()).items() if key != "name"}
        for section, entries in (("rewards", self.rewards), ("monitors", self.monitors)):
            data[section] = {name: without_later(options_model(name, given), given) for name, given in entries.items()}
        text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def diff_from(self, other: RunConfig) -> list[str]:
        """Dotted keys whose values differ, in the configuration's order; a list of prompts counts as one value."""
        mine, theirs = _flat(self.to_dict()), _flat(other.to_dict())
        return [key for key in {**mine, **theirs} if key not in mine or key not in theirs or mine[key] != theirs[key]]

    @classmethod
    def key_table(cls) -> list[KeyRow]:
        """(key, type, default, range, description) of every key, for the documentation and --help."""
        return key_rows(cls)


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
