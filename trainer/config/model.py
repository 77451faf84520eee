"""The configuration of a run, section by section. A `RunConfig` is complete in itself: prompts are inlined, paths absolute.

Where a default has a source its description names it; "ours" marks the rest.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from ..algorithms import ALGORITHMS as _ALGORITHMS
from ..algorithms import VGRPO
from ..demo import EMBEDDED_MODELS
from ..families import FAMILIES as _FAMILIES
from ..prompts import Prompt, load_prompts
from ..rewards.shaping import Shape
from ..sizes import Size, paired
from . import fields
from .beyond import NormGuardConfig, TimestepWeightConfig
from .checks import refusals, warnings
from .each import Each
from .later import LATER, without_later
from .peers import ForwardConfig, TrajectoryConfig
from .problems import Problem, refuse
from .rewards import check_settings, options_model
from .section import Section
from .shape import shape_of
from .table import KeyRow, key_rows
from .text import Row, dump

FAMILIES = tuple(_FAMILIES)
ALGORITHMS = tuple(_ALGORITHMS)
PARTS = ("vae", "text_encoder", "text_encoder_2", "text_encoder_3")  # that may lie in files of their own
SAMPLERS = ("euler", "heun", "dpmsolver++", "unipc")
TARGETS = ("attention", "attention+mlp", "attention+mlp+conv")

STAGE_1 = "arXiv 2604.23380, SD 3.5 Medium stage 1"
_Sides = Annotated[int | tuple[int, ...], Each(ge=16, le=4096, multiple_of=16)]
_NullIsNone = BeforeValidator(lambda value: "none" if value is None else value)


class LoraConfig(Section):
    rank: int = Field(32, ge=1, le=1024, description=f"rank of the LoRA factors. {STAGE_1}")
    alpha: float = Field(
        None,
        gt=0,
        le=4096,
        description=f"LoRA strength times rank; null = 2 x rank. {STAGE_1} (64 at rank 32)",
        json_schema_extra={"default_text": "2 x rank"},
    )
    targets: str | tuple[str, ...] = Field(
        "attention",
        description="which layers get a LoRA; attention+mlp+conv is for the UNet families. The names in a list are ends of "
        "module names. Default: ours",
        json_schema_extra={"takes": "attention, attention+mlp, attention+mlp+conv or a list of module name endings"},
    )
    init: str | None = Field(
        None,
        description="LoRA to continue from. A .safetensors file or a folder that holds one (diffusers, kohya or peft)",
        json_schema_extra={"takes": "null, or the path of a .safetensors file or a folder"},
    )

    @model_validator(mode="before")
    @classmethod
    def _default_alpha(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("alpha") is None:
            rank = data.get("rank", cls.model_fields["rank"].default)
            # A rank that is itself wrong is reported as such; the alpha made up here must not add a second error.
            valid = isinstance(rank, int) and not isinstance(rank, bool) and 1 <= rank <= 1024
            return {**data, "alpha": 2.0 * rank if valid else 1.0}
        return data

    @field_validator("targets", mode="before")
    @classmethod
    def _check_targets(cls, value: Any) -> Any:
        return fields.targets(value, TARGETS)

    @field_validator("init")
    @classmethod
    def _check_init(cls, value: str | None, info: ValidationInfo) -> str | None:
        return value if value is None else fields.lora_path(value, _checks_files(info))


class PolicyConfig(Section):
    family: Literal[FAMILIES] = Field("sd3", description="model family of the base")
    model: str = Field(
        description="the base: the embedded model, a diffusers folder, a hub id, or a checkpoint file",
        json_schema_extra={
            "takes": "demo, demo-letters, the path of a diffusers folder or of a .safetensors file, "
            "or a hub id such as org/name"
        },
    )
    parts: str | None = Field(
        None,
        description="what completes a checkpoint file: configurations, tokenizers, and parts that the file lacks",
        json_schema_extra={"takes": "null, the path of a diffusers folder, or a hub id such as org/name"},
    )
    files: dict[str, str] = Field(
        default_factory=dict,
        description="parts of a checkpoint file's model in files of their own: part -> .safetensors file",
        json_schema_extra={"takes": "a mapping such as {vae: ae.safetensors}", "default_text": "{}"},
    )
    tokenizers: str | None = Field(
        None,
        description="where the tokenizers of a checkpoint file are, laid out as in ComfyUI's folder comfy",
        json_schema_extra={"takes": "null, or the path of a folder"},
    )
    prediction: Literal["epsilon", "v_prediction"] | None = Field(
        None, description="what the network of a UNet family predicts, null = as the base's scheduler says"
    )
    zero_terminal_snr: bool | None = Field(
        None,
        description="whether a UNet family's last timestep is pure noise (arXiv 2305.08891), null = as the base's scheduler "
        "says",
    )
    lora: LoraConfig = Field(default_factory=lambda: LoraConfig.model_validate({}), description="the trained factors")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "bfloat16", description="number format of the frozen base; the LoRA itself is always float32. Default: ours"
    )
    vae_dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="number format of the decoder; auto = as dtype, but bfloat16 on a CPU that multiplies it in hardware "
        "(decoding is several times faster then). Default: ours",
    )
    quantization: Annotated[Literal["none", "nf4", "int8", "fp8"], _NullIsNone] = Field(
        "none",
        description="compression of the frozen denoiser: 4 or 8 bits by bitsandbytes, or float8 by torchao; installed "
        "separately. Default: ours",
    )
    offload: Annotated[Literal["none", "model", "blocks"], _NullIsNone] = Field(
        "none",
        description="what waits in the CPU's memory: nothing; model = what a phase does not need; blocks = also the blocks of "
        "the denoiser that do not compute now. Default: ours",
    )
    vae_tiling: Literal["auto", "on", "off"] = Field(
        "auto",
        description="decode in overlapping tiles: less memory, pixels that differ a little; auto = pictures of more than 4 "
        "megapixels, and where a whole one does not fit. Default: ours",
        json_schema_extra=LATER,
    )
    attention: Literal["auto", "native", "flash", "xformers", "sage"] = Field(
        "auto",
        description="library that computes the attention, where the family lets it be chosen; auto = torch's own as diffusers "
        "calls it. Default: ours",
        json_schema_extra=LATER,
    )
    compile: bool = Field(
        False,
        description="translate the denoiser's blocks by torch.compile: faster after a slow start. Default: ours",
        json_schema_extra=LATER,
    )
    gradient_checkpointing: bool = Field(
        False, description="recompute activations in the backward pass: less memory, more time. Default: ours"
    )

    @field_validator("model")
    @classmethod
    def _check_model(cls, value: str, info: ValidationInfo) -> str:
        return value if value in EMBEDDED_MODELS else fields.model_source(value, _checks_files(info))

    @field_validator("parts")
    @classmethod
    def _check_parts(cls, value: str | None, info: ValidationInfo) -> str | None:
        return value if value is None else fields.model_source(value, _checks_files(info), files=False)

    @field_validator("files")
    @classmethod
    def _check_part_files(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if unknown := [part for part in value if part not in PARTS]:
            raise ValueError(f"{unknown[0]!r} is no part; allowed: {', '.join(PARTS)}")
        return {part: fields.weights_file(path, _checks_files(info)) for part, path in value.items()}

    @field_validator("tokenizers")
    @classmethod
    def _check_tokenizers(cls, value: str | None, info: ValidationInfo) -> str | None:
        return value if value is None else fields.folder(value, _checks_files(info))


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


class SurrogateConfig(Section):
    pairs: int = Field(4, ge=1, le=1000, description=f"(t, eps) pairs an output is scored on. {STAGE_1} (N_MC)")
    share: Literal["group", "batch", "none"] = Field(
        "group", description="which outputs share their pairs: a prompt's group, the whole iteration, or none. arXiv 2604.23380"
    )
    stratified: bool = Field(True, description="draw each t from its own chunk of the sampler's grid. arXiv 2604.23380")
    weighting: Literal["adaptive", "x", "v", "eps"] = Field(
        "adaptive", description="loss weighting: self-normalised x, plain x, v or eps. arXiv 2604.23380"
    )
    guidance: Literal["none", "same"] = Field(
        "none",
        description="guidance of the scored prediction: none, or the same as the rollout's (two network passes a row). A scale "
        "that the network has as an input is the rollout's in any case. Default: ours",
    )
    batch_size: int = Field(
        8,
        ge=1,
        le=65536,
        description="(output, pair) rows in one forward or backward pass; changes memory and speed only. Default: ours",
    )
    timestep_weight: TimestepWeightConfig = Field(
        default_factory=TimestepWeightConfig, description="weight of a pair by its noise level", json_schema_extra=LATER
    )


class AdvantageConfig(Section):
    combine: Literal["normalize_then_sum", "sum_then_normalize"] = Field(
        "normalize_then_sum", description="order in which several rewards are normalised and summed. arXiv 2604.23380"
    )
    scale: Literal["group", "batch", "none"] = Field(
        "group", description="whose standard deviation divides the advantages (none: not divided). arXiv 2604.23380 (group)"
    )
    clip: float | None = Field(
        None,
        gt=0,
        le=1000,
        description="hard bound of the advantages, null = off, but 5 in diffusion_nft and awm, which scale by it. The code of "
        "Flow-GRPO, MixGRPO, DanceGRPO, DiffusionNFT and AWM: 5",
        json_schema_extra=LATER,
    )
    keep: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of each group that is trained on: those of its outputs whose advantages vary most, 1 = all. "
        "arXiv 2504.13818 (PODS)",
        json_schema_extra=LATER,
    )
    simplex: float | None = Field(
        None,
        gt=0,
        le=1000,
        description="projects each group's advantages onto the simplex so that none is under minus this and their mean stays "
        "0, null = off. After arXiv 2609.33444, the formula is ours",
        json_schema_extra=LATER,
    )


class ObjectiveConfig(Section):
    gradient_steps: int = Field(
        1, ge=1, le=1024, description=f"optimiser steps an iteration; its outputs are split into as many minibatches. {STAGE_1}"
    )
    clip_eps: float | None = Field(
        None, gt=0, lt=1, description=f"ratio clip, null = off; the paper's typical range is 6e-3 to 1e-2. {STAGE_1} (off)"
    )
    kl_coef: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="weight of the simple KL to the behaviour policy (of the peers: of their KL to the base), 0 = off; 0.3 in "
        f"stage 5. {STAGE_1} (off)",
    )
    soft_clip_eta: float | None = Field(
        3.0, gt=0, le=1000, description=f"soft bound of the advantages, eta * tanh(A / eta), null = off. {STAGE_1}"
    )
    deferred: int = Field(
        0,
        ge=0,
        le=65536,
        description="take the outputs' gradients while their rewards are awaited, this many of them waiting in the CPU's "
        "memory at most (each as large as the LoRA); 0 = off. For slow rewards. After arXiv 2609.03528",
        json_schema_extra=LATER,
    )
    advantage: AdvantageConfig = Field(default_factory=AdvantageConfig, description="how rewards become advantages")
    norm_guard: NormGuardConfig = Field(
        default_factory=NormGuardConfig, description="hinge on the velocity's norm against the base", json_schema_extra=LATER
    )


class OptimizerConfig(Section):
    name: Literal["adamw", "adam", "sgd", "adamw8bit"] = Field(
        "adamw", description="optimiser of the LoRA factors; adamw8bit is bitsandbytes', installed separately. Default: ours"
    )
    lr: float = Field(3e-4, gt=0, le=1, description=f"learning rate. {STAGE_1}")
    weight_decay: float = Field(0.0, ge=0, le=1, description="weight decay. Default: ours")
    max_grad_norm: float | None = Field(
        1.0, gt=0, le=1_000_000, description="gradients are scaled down to this norm, null = off. Default: ours"
    )
    warmup: int = Field(
        0, ge=0, le=1_000_000, description="iterations over which the learning rate rises from 0. Default: ours"
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        description="the learning rate after the warm-up: constant, or falling to nearly 0 over the run's iterations in a "
        "straight line or half a cosine. Default: ours",
    )
    ema_decay: float = Field(
        0.9,
        ge=0,
        lt=1,
        description="share of the old average kept at each iteration's update of the EMA weights, 0 = off. Default: ours",
    )


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


def _checks_files(info: ValidationInfo) -> bool:
    return (info.context or {}).get("check_files", True)


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
