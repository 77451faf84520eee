"""Stable Diffusion XL and what was made of it (Pony, Illustrious; NoobAI with v prediction): two CLIPs, a UNet told of sizes.

The empty negative prompt is encoded as any other text, as ComfyUI does; diffusers would take zeros for it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from .base import Sampling
from .pipeline import Rows, pooled_arguments
from .unet import UNetPolicy


class SDXLPolicy(UNetPolicy):
    family = "sdxl"
    ENCODERS: ClassVar = ("text_encoder", "text_encoder_2")
    TOKENIZERS: ClassVar = ("tokenizer", "tokenizer_2")
    NOT_LOADED: ClassVar = {"image_encoder": None, "feature_extractor": None, "add_watermarker": False}

    def encode_prompts(self, pipe: Any, prompts: list[str]) -> list[Rows]:
        context, _, pooled, _ = pipe.encode_prompt(prompts, device=self.device, do_classifier_free_guidance=False)
        return [{"context": c, "pooled": p} for c, p in zip(context, pooled, strict=True)]

    def call_arguments(self, rows: Rows, negative: Rows | None, sampling: Sampling) -> dict[str, Any]:
        return pooled_arguments(rows, negative, sampling)

    def added_conditions(self, z_t: torch.Tensor, rows: Rows) -> dict[str, torch.Tensor]:
        """The pooled prompt, and size, crop and target size as the pipeline fills them in: the picture's own, uncropped."""
        height, width = (side * self._pipe.vae_scale_factor for side in z_t.shape[-2:])
        sizes = torch.tensor([[height, width, 0, 0, height, width]], dtype=self.dtype, device=z_t.device)
        return {"text_embeds": rows["pooled"], "time_ids": sizes.expand(len(z_t), -1)}
