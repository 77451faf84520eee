"""FLUX.1 (dev and its kind; schnell, which is distilled, with a warning). arXiv 2604.23380 trains dev.

Differs by: the guidance scale is an input of dev's network, so rollout and scoring see the same one, and there is no second
pass; the timestep shift grows with the picture's size.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from .base import Sampling
from .flow import PackedFlowPolicy
from .pipeline import Guidance, Rows, pooled_arguments

T5_TOKENS = 512  # the pipeline's default, and that of Black Forest Labs for dev


class FluxPolicy(PackedFlowPolicy):
    family = "flux"
    ENCODERS: ClassVar = ("text_encoder", "text_encoder_2")
    TOKENIZERS: ClassVar = ("tokenizer", "tokenizer_2")
    NOT_LOADED: ClassVar = {"image_encoder": None, "feature_extractor": None}

    def guidance_kind(self) -> Guidance:
        return Guidance.EMBEDDED if self.denoiser.config.guidance_embeds else Guidance.TWO_PASSES

    def notes(self) -> list[str]:
        if self.guidance_kind() is Guidance.EMBEDDED:
            return []
        return [
            f"{self.title} takes no guidance scale: it is FLUX.1 schnell, which is distilled to few steps and turns blurry "
            "under this loss (DiffusionNFT#45), or a de-distilled dev; for schnell train dev instead, or keep the change small "
            "with objective.gradient_steps 2, objective.kl_coef 0.3 and a third of the learning rate"
        ]

    def encoding_facts(self) -> tuple[str, ...]:
        return (str(T5_TOKENS),)

    def encode_prompts(self, pipe: Any, prompts: list[str]) -> list[Rows]:
        context, pooled, _ = pipe.encode_prompt(prompts, None, device=self.device, max_sequence_length=T5_TOKENS)
        return [{"context": c, "pooled": p} for c, p in zip(context, pooled, strict=True)]

    def call_arguments(self, rows: Rows, negative: Rows | None, sampling: Sampling) -> dict[str, Any]:
        arguments = pooled_arguments(rows, negative, sampling)
        return arguments if negative is None else {**arguments, "true_cfg_scale": sampling.guidance}

    def output(self, z_t: torch.Tensor, t: torch.Tensor, rows: Rows, guidance: float) -> torch.Tensor:
        height, width = z_t.shape[-2:]
        embedded = self.guidance_kind() is Guidance.EMBEDDED
        text = rows["context"].shape[1]
        with self.attention(self.tokens(height, width) + text):
            packed = self.denoiser(
                hidden_states=self.pack(z_t.to(self.dtype)),
                timestep=self.told_time(t),
                guidance=torch.full((len(z_t),), guidance, device=z_t.device) if embedded else None,
                encoder_hidden_states=rows["context"],
                pooled_projections=rows["pooled"],
                txt_ids=torch.zeros(text, 3, device=z_t.device, dtype=self.dtype),
                img_ids=self.image_ids(z_t),
                return_dict=False,
            )[0]
        return self.unpack(packed, height, width)
