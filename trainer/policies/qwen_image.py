"""Qwen-Image: a language model as text encoder, prompts of different length, and guidance that keeps the prediction's norm."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from .base import Sampling
from .flow import PackedFlowPolicy, valid_text
from .pipeline import Rows


class QwenImagePolicy(PackedFlowPolicy):
    family = "qwen_image"
    ENCODERS: ClassVar = ("text_encoder",)
    TOKENIZERS: ClassVar = ("tokenizer",)
    TOLD_IN_THOUSANDTHS = False

    def encode_prompts(self, pipe: Any, prompts: list[str]) -> list[Rows]:
        context, mask = pipe.encode_prompt(prompts, device=self.device)
        lengths = [context.shape[1]] * len(context) if mask is None else (mask > 0).sum(1).tolist()
        return [{"context": c[:n], "mask": c.new_ones(n)} for c, n in zip(context, lengths, strict=True)]

    def call_arguments(self, rows: Rows, negative: Rows | None, sampling: Sampling) -> dict[str, Any]:
        context, mask = valid_text(rows)
        arguments = {"prompt_embeds": context, "prompt_embeds_mask": mask, "true_cfg_scale": sampling.guidance}
        if negative is not None:
            context, mask = valid_text(negative)
            arguments |= {"negative_prompt_embeds": context, "negative_prompt_embeds_mask": mask}
        return arguments

    def output(self, z_t: torch.Tensor, t: torch.Tensor, rows: Rows, guidance: float) -> torch.Tensor:
        height, width = z_t.shape[-2:]
        context, mask = valid_text(rows)
        with self.attention(self.tokens(height, width) + context.shape[1]):
            packed = self.denoiser(
                hidden_states=self.pack(z_t.to(self.dtype)),
                timestep=self.told_time(t),
                encoder_hidden_states=context,
                encoder_hidden_states_mask=None if mask.all() else mask,
                img_shapes=[[(1, height // 2, width // 2)]] * len(z_t),
                return_dict=False,
            )[0]
        return self.unpack(packed, height, width)

    def guided(self, positive: torch.Tensor, negative: torch.Tensor, guidance: float) -> torch.Tensor:
        """Each token is scaled back to the norm that it has without guidance."""
        height, width = positive.shape[-2:]
        given = self.pack(positive)
        mixed = self.pack(super().guided(positive, negative, guidance))
        return self.unpack(mixed * (given.norm(dim=-1, keepdim=True) / mixed.norm(dim=-1, keepdim=True)), height, width)
