"""The sections of V-GRPO's peers. Null means the algorithm's own value, which `trainer/algorithms/__init__.py` holds."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .section import Section


class TrajectoryConfig(Section):
    """Of the algorithms that train on the steps of their own rollout: flow_grpo, mix_grpo, dance_grpo."""

    noise: float | None = Field(
        None,
        gt=0,
        le=10,
        description="how stochastic a step is; null = the algorithm's own: a = 0.7 (arXiv 2505.05470, 2507.21802), eta = 0.3 "
        "(code of arXiv 2505.07818), there on a UNet DDIM's eta = 1",
    )
    share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of the stochastic steps that an output is trained on, drawn anew for each; null = the algorithm's "
        "own: 1, of dance_grpo 0.6 (its code)",
    )
    same_start: bool | None = Field(
        None,
        description="whether the outputs of a group start from one noise; null = the algorithm's own: yes in mix_grpo and "
        "dance_grpo, no in flow_grpo (their code)",
    )
    log_probs: Literal["rollout", "recomputed"] = Field(
        "rollout",
        description="the behaviour policy's log-probabilities: as the rollout computed them (all three codes), or computed "
        "again in the update's batches, which costs an evaluation a step and takes half precision's noise out of the ratio",
    )
    window: int = Field(4, ge=1, le=999, description="stochastic steps of mix_grpo. arXiv 2507.21802")
    window_every: int = Field(
        25, ge=1, le=1_000_000, description="iterations until the window of mix_grpo moves. Its code: 25, Flash 20"
    )
    window_stride: int = Field(1, ge=1, le=999, description="steps that the window of mix_grpo moves by. Its code")
    compress: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of the steps after the window that mix_grpo takes, null = all; MixGRPO-Flash: 0.4 with "
        "rollout.sampler dpmsolver++ (its code)",
    )


class ForwardConfig(Section):
    """Of diffusion_nft and awm, which train on outputs that are noised anew, as V-GRPO does."""

    strength: float = Field(
        1.0,
        gt=0,
        le=10,
        description="beta of diffusion_nft: how far the positive policy goes from the old to the new one. Its code: 1, for OCR "
        "and several rewards 0.1",
    )
    power: float = Field(
        0.25,
        gt=0,
        le=1,
        description="power of the velocity's error in awm; 1 is the plain loss times t. Its code: 0.25",
    )
    lag_after: int = Field(
        0, ge=0, le=1_000_000, description="gradient steps before the policy's copy begins to lag. Their code: 0, for OCR 75"
    )
    lag_rate: float = Field(
        0.001, ge=0, le=1, description="growth of the lag a gradient step. Their code: 0.001, of diffusion_nft for OCR 0.0075"
    )
    lag_most: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="most of the copy that is kept at an update, 0 = no lag; null = the algorithm's own: diffusion_nft 0.5 "
        "(for OCR 0.999), awm 0.3 (their code)",
    )
    lag_kl_coef: float | None = Field(
        None, ge=0, le=1000, description="weight of awm's KL to the lagging copy, 0 = off; null = its code's 1"
    )
