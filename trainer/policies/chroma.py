"""Chroma: FLUX.1's blocks without a guidance input, one T5, and prompts that are masked to their length.

diffusers makes the mask a number, which attention then adds instead of hiding the padding (diffusers#12116); here it is a
truth value. Its checkpointed single blocks are not told the mask at all; here they are.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.utils.checkpoint import checkpoint

from .base import Sampling
from .flow import PackedFlowPolicy, valid_text
from .pipeline import Rows

T5_TOKENS = 512  # at most; the pipeline's default


class ChromaPolicy(PackedFlowPolicy):
    family = "chroma"
    ENCODERS: ClassVar = ("text_encoder",)
    TOKENIZERS: ClassVar = ("tokenizer",)
    NOT_LOADED: ClassVar = {"image_encoder": None, "feature_extractor": None}

    def prepare(self, index: dict[str, Any]) -> None:
        super().prepare(index)
        self._mask: torch.Tensor | None = None
        if self._checkpointing:
            self.denoiser.enable_gradient_checkpointing(self._checkpoint)

    def _checkpoint(self, block: torch.nn.Module, *inputs: Any) -> Any:
        if len(inputs) == 3:  # a single block: (hidden states, modulation, positions)
            inputs = (*inputs, self._mask)
        return checkpoint(block, *inputs, use_reentrant=False)

    def encoding_facts(self) -> tuple[str, ...]:
        return (str(T5_TOKENS),)

    def encode_prompts(self, pipe: Any, prompts: list[str]) -> list[Rows]:
        context, _, mask, *_ = pipe.encode_prompt(
            prompts, device=self.device, do_classifier_free_guidance=False, max_sequence_length=T5_TOKENS
        )
        # The mask has the prompt's own tokens and one of the padding, as Chroma was trained.
        lengths = (mask > 0).sum(1).tolist()
        return [{"context": c[:n], "mask": c.new_ones(n)} for c, n in zip(context, lengths, strict=True)]

    def call_arguments(self, rows: Rows, negative: Rows | None, sampling: Sampling) -> dict[str, Any]:
        context, mask = valid_text(rows)
        arguments = {"prompt_embeds": context, "prompt_attention_mask": mask, "guidance_scale": sampling.guidance}
        if negative is not None:
            context, mask = valid_text(negative)
            arguments |= {"negative_prompt_embeds": context, "negative_prompt_attention_mask": mask}
        return arguments

    def output(self, z_t: torch.Tensor, t: torch.Tensor, rows: Rows, guidance: float) -> torch.Tensor:
        height, width = z_t.shape[-2:]
        context, mask = valid_text(rows)
        tokens = self.tokens(height, width)
        self._mask = torch.cat([mask, mask.new_ones(len(mask), tokens)], dim=1)
        with self.attention(tokens + context.shape[1]):
            packed = self.denoiser(
                hidden_states=self.pack(z_t.to(self.dtype)),
                timestep=self.told_time(t),
                encoder_hidden_states=context,
                txt_ids=torch.zeros(context.shape[1], 3, device=z_t.device, dtype=self.dtype),
                img_ids=self.image_ids(z_t),
                attention_mask=self._mask,
                return_dict=False,
            )[0]
        return self.unpack(packed, height, width)
