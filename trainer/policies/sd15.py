"""Stable Diffusion 1.x (and 2.x, whose pipeline is the same): one CLIP, a UNet, epsilon or v prediction."""

from __future__ import annotations

from typing import Any, ClassVar

from .base import Sampling
from .pipeline import Rows
from .unet import UNetPolicy


class SD15Policy(UNetPolicy):
    family = "sd15"
    ENCODERS: ClassVar = ("text_encoder",)
    TOKENIZERS: ClassVar = ("tokenizer",)
    NOT_LOADED: ClassVar = {
        "safety_checker": None,
        "feature_extractor": None,
        "image_encoder": None,
        "requires_safety_checker": False,
    }

    def encode_prompts(self, pipe: Any, prompts: list[str]) -> list[Rows]:
        context, _ = pipe.encode_prompt(prompts, self.device, 1, False)
        return [{"context": c} for c in context]

    def call_arguments(self, rows: Rows, negative: Rows | None, sampling: Sampling) -> dict[str, Any]:
        arguments = {"prompt_embeds": rows["context"], "guidance_scale": sampling.guidance}
        if negative is not None:
            arguments["negative_prompt_embeds"] = negative["context"]
        return arguments
