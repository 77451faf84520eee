"""FLUX.2 klein: three layers of a language model as text, latents in 2 x 2 patches normalised by the decoder's statistics.

The base models are guided by two passes; the distilled ones take no guidance, and train with a warning.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from .base import Sampling
from .flow import RoundedTimeFlowPolicy
from .pipeline import Guidance, Rows

TEXT_TOKENS = 512  # the pipeline's default; shorter prompts are padded and the padding is seen


class Flux2KleinPolicy(RoundedTimeFlowPolicy):
    """Latents [B, C, h, w] are the patches, 16 pixels wide."""

    family = "flux2_klein"
    ENCODERS: ClassVar = ("text_encoder",)
    TOKENIZERS: ClassVar = ("tokenizer",)

    def prepare(self, index: dict[str, Any]) -> None:
        super().prepare(index)
        self._distilled = bool(self._pipe.config.get("is_distilled"))

    def guidance_kind(self) -> Guidance:
        return Guidance.NONE if self._distilled else Guidance.TWO_PASSES

    def notes(self) -> list[str]:
        if not self._distilled:
            return []
        return [
            f"{self.title} is distilled to few steps and turns blurry under this loss (DiffusionNFT#45): train the klein base "
            "model instead, or keep the change small with objective.gradient_steps 2, objective.kl_coef 0.3 and a third of the "
            "learning rate"
        ]

    def encoding_facts(self) -> tuple[str, ...]:
        return (str(TEXT_TOKENS),)

    def encode_prompts(self, pipe: Any, prompts: list[str]) -> list[Rows]:
        context, _ = pipe.encode_prompt(prompts, device=self.device, max_sequence_length=TEXT_TOKENS)
        return [{"context": c} for c in context]

    def call_arguments(self, rows: Rows, negative: Rows | None, sampling: Sampling) -> dict[str, Any]:
        arguments = {"prompt_embeds": rows["context"], "guidance_scale": sampling.guidance}
        if negative is not None:
            arguments["negative_prompt_embeds"] = negative["context"]
        return arguments

    def _latent_size(self, sampling: Sampling) -> tuple[int, int]:
        return sampling.height // self.size_step, sampling.width // self.size_step

    def tokens(self, height: int, width: int) -> int:
        return height * width

    def log_shift(self, tokens: int, steps: int) -> float:
        from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu

        return compute_empirical_mu(image_seq_len=tokens, num_steps=steps)

    def unpack(self, latents: torch.Tensor, height: int, width: int) -> torch.Tensor:
        return latents.transpose(1, 2).reshape(len(latents), -1, height, width)

    def output(self, z_t: torch.Tensor, t: torch.Tensor, rows: Rows, guidance: float) -> torch.Tensor:
        height, width = z_t.shape[-2:]
        with self.attention(self.tokens(height, width) + rows["context"].shape[1]):
            packed = self.denoiser(
                hidden_states=z_t.to(self.dtype).flatten(2).transpose(1, 2),
                timestep=self.told_time(t),
                encoder_hidden_states=rows["context"],
                txt_ids=self._pipe._prepare_text_ids(rows["context"]).to(z_t.device),
                img_ids=self._pipe._prepare_latent_ids(z_t).to(z_t.device),
                return_dict=False,
            )[0]
        return self.unpack(packed, height, width)

    def raw_latents(self, latents: torch.Tensor) -> torch.Tensor:
        norm = self._pipe.vae.bn
        mean = norm.running_mean.float().view(1, -1, 1, 1)
        std = (norm.running_var.float().view(1, -1, 1, 1) + self._pipe.vae.config.batch_norm_eps).sqrt()
        return self._pipe._unpatchify_latents(latents * std.to(latents.device) + mean.to(latents.device))
