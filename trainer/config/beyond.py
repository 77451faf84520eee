"""The sections of V-GRPO's options that its paper has not. docs/beyond.md has their formulas; all are off by default."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .section import Section


class TimestepWeightConfig(Section):
    """How much a pair's loss counts, by its noise level."""

    start: float = Field(
        0.0,
        ge=-10,
        le=10,
        description="lean of the weight e^(lean * s) on a pair's loss, s from 0 (finished) to 1 (pure noise): above 0 noisy "
        "levels count more, under 0 clean ones, 0 = off. After arXiv 2609.32665, the formula is ours",
    )
    end: float | None = Field(
        None, ge=-10, le=10, description="lean in the run's last iteration, null = as start throughout. Default: ours"
    )
    schedule: Literal["linear", "cosine"] = Field(
        "linear", description="how the lean moves from start to end over the iterations. Default: ours"
    )


class NormGuardConfig(Section):
    """What the velocity's norm may be."""

    weight: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="weight of max(0, |v| / |v of the base| - 1 - margin), 0 = off; the base is asked once an iteration. "
        "After arXiv 2606.27771, the formula is ours",
    )
    margin: float = Field(
        0.0, ge=0, le=10, description="share of the base's norm that the velocity may gain freely. Default: ours"
    )
