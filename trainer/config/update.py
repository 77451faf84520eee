"""The sections of the update: the surrogate, the objective with its advantages, the optimiser."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .beyond import NormGuardConfig, TimestepWeightConfig
from .later import LATER
from .section import STAGE_1, Section


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
