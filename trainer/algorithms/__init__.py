"""The algorithms by name. Plain data: configuration, nodes and the loop read it, and it imports nothing heavy.

Each declares its traits, so that a setting which can't act under it is refused before a run starts. V-GRPO is the loop itself
(`loop.py`); a peer is a line here and a module beside, which says in what it differs. docs/algorithms.md has their formulas.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base import Algorithm

VGRPO = "vgrpo"

_PAIRS = ("surrogate.pairs", "surrogate.share", "surrogate.stratified", "surrogate.weighting")
_TRAJECTORY = ("trajectory.noise", "trajectory.share", "trajectory.same_start", "trajectory.log_probs")
_WINDOW = ("trajectory.window", "trajectory.window_every", "trajectory.window_stride", "trajectory.compress")
_LAG = ("forward.lag_after", "forward.lag_rate", "forward.lag_most")
_LAG_KL, _STRENGTH, _POWER = ("forward.lag_kl_coef",), ("forward.strength",), ("forward.power",)
_CLIP = ("objective.clip_eps",)
_DEFERRED = ("objective.deferred",)
# What acts on outputs that are noised anew, and not on the rollout's own steps.
_NOISED = (
    "surrogate.timestep_weight.start",
    "surrogate.timestep_weight.end",
    "surrogate.timestep_weight.schedule",
    "objective.norm_guard.weight",
    "objective.norm_guard.margin",
)


@dataclass(frozen=True)
class Traits:
    """What an algorithm is, for those who only look at a configuration."""

    name: str
    title: str
    paper: str
    module: str
    """`module:class` below `trainer.algorithms`; empty for V-GRPO."""
    idle: tuple[str, ...]
    """Keys that can't act under it: they must keep their default."""
    trajectory: bool = False
    """Whether it scores the steps of the rollout itself, so that it samples by itself and at the rollout's guidance."""
    kl_to_base: bool = True
    """Whether `objective.kl_coef` holds the policy to the base (it then acts in every step), else to the behaviour policy."""
    lags: bool = False
    """Whether it keeps a lagging copy of the policy."""
    kinds: tuple[str, ...] = ("flow", "unet")
    """The kinds of families (see `families.py`) that its paper covers."""
    samplers: tuple[str, ...] | None = None
    """The samplers that it can step by itself; None = any, it does not step."""
    own: dict[str, Any] = field(default_factory=dict)
    """What null means for it, by key."""


ALGORITHMS: dict[str, Traits] = {
    traits.name: traits
    for traits in (
        Traits(
            VGRPO,
            "V-GRPO",
            "arXiv 2604.23380",
            "",
            idle=_TRAJECTORY + _WINDOW + _LAG + _LAG_KL + _STRENGTH + _POWER,
            kl_to_base=False,
        ),
        Traits(
            "flow_grpo",
            "Flow-GRPO",
            "arXiv 2505.05470",
            "flow_grpo:FlowGRPO",
            idle=_PAIRS + _NOISED + _WINDOW + _LAG + _LAG_KL + _STRENGTH + _POWER + _DEFERRED,
            trajectory=True,
            kinds=("flow",),
            samplers=("euler",),
            own={"trajectory.noise": 0.7, "trajectory.share": 1.0, "trajectory.same_start": False},
        ),
        Traits(
            "mix_grpo",
            "MixGRPO",
            "arXiv 2507.21802",
            "mix_grpo:MixGRPO",
            idle=(*_PAIRS, *_NOISED, "trajectory.share", *_LAG, *_LAG_KL, *_STRENGTH, *_POWER, *_DEFERRED),
            trajectory=True,
            kinds=("flow",),
            samplers=("euler", "dpmsolver++"),
            own={"trajectory.noise": 0.7, "trajectory.share": 1.0, "trajectory.same_start": True},
        ),
        Traits(
            "dance_grpo",
            "DanceGRPO",
            "arXiv 2505.07818",
            "dance_grpo:DanceGRPO",
            idle=_PAIRS + _NOISED + _WINDOW + _LAG + _LAG_KL + _STRENGTH + _POWER + _DEFERRED,
            trajectory=True,
            samplers=("euler",),
            own={"trajectory.noise": 0.3, "trajectory.share": 0.6, "trajectory.same_start": True},
        ),
        Traits(
            "diffusion_nft",
            "DiffusionNFT",
            "arXiv 2509.16117",
            "diffusion_nft:DiffusionNFT",
            idle=_TRAJECTORY + _WINDOW + _CLIP + _LAG_KL + _POWER + _DEFERRED,
            lags=True,
            own={"objective.advantage.clip": 5.0, "forward.lag_most": 0.5},
        ),
        Traits(
            "awm",
            "AWM",
            "arXiv 2509.25050",
            "awm:AWM",
            idle=(*_TRAJECTORY, *_WINDOW, "surrogate.weighting", *_STRENGTH, *_DEFERRED),
            lags=True,
            own={"objective.advantage.clip": 5.0, "forward.lag_most": 0.3, "forward.lag_kl_coef": 1.0},
        ),
        Traits(
            "rvm",
            "RVM",
            "arXiv 2608.23664",
            "rvm:RVM",
            idle=(*_TRAJECTORY, *_WINDOW, *_LAG, *_LAG_KL, *_STRENGTH, *_POWER, *_CLIP, "surrogate.weighting", *_DEFERRED),
        ),
    )
}


def load_algorithm(name: str) -> type[Algorithm]:
    """The class of a peer; V-GRPO's is in `loop.py`."""
    module, _, attribute = ALGORITHMS[name].module.partition(":")
    return getattr(importlib.import_module(f".{module}", __package__), attribute)
