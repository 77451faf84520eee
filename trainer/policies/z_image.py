"""Z-Image (base; Turbo, which is distilled, with a warning): one stream of image and text tokens.

Its network counts time from noise to picture and predicts the way to the picture, both opposite to the other flows; the
pipeline turns both round, and so does `output`. Its `guidance_scale` is what is added to 1; here it is the usual scale.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from .base import Sampling
from .flow import FlowPolicy
from .pipeline import Rows
from .samplers import TRAIN_TIMESTEPS


class ZImagePolicy(FlowPolicy):
    family = "z_image"
    ENCODERS: ClassVar = ("text_encoder",)
    TOKENIZERS: ClassVar = ("tokenizer",)

    @property
    def size_step(self) -> int:
        return 2 * self._pipe.vae_scale_factor

    @property
    def sampling_dtype(self) -> torch.dtype:
        return torch.float32  # the pipeline insists

    def encode_prompts(self, pipe: Any, prompts: list[str]) -> list[Rows]:
        contexts, _ = pipe.encode_prompt(list(prompts), device=self.device, do_classifier_free_guidance=False)
        return [{"context": context, "mask": context.new_ones(len(context))} for context in contexts]

    def call_arguments(self, rows: Rows, negative: Rows | None, sampling: Sampling) -> dict[str, Any]:
        arguments: dict[str, Any] = {"prompt_embeds": _texts(rows), "guidance_scale": 0.0}
        if negative is not None:
            arguments |= {"negative_prompt_embeds": _texts(negative), "guidance_scale": sampling.guidance - 1}
        return arguments

    def output(self, z_t: torch.Tensor, t: torch.Tensor, rows: Rows, guidance: float) -> torch.Tensor:
        texts = _texts(rows)
        with self.attention(self.tokens(*z_t.shape[-2:]) + max(map(len, texts))):
            pictures = self.denoiser(
                list(z_t.to(self.dtype)[:, :, None].unbind(0)),
                (TRAIN_TIMESTEPS - t.float() * TRAIN_TIMESTEPS) / TRAIN_TIMESTEPS,
                texts,
                return_dict=False,
            )[0]
        return -torch.stack(pictures).squeeze(2)


def _texts(rows: Rows) -> list[torch.Tensor]:
    """Each prompt's tokens [L, D]; the network takes them as a list."""
    lengths = (rows["mask"] > 0).sum(1).tolist()
    return [context[:n] for context, n in zip(rows["context"], lengths, strict=True)]
