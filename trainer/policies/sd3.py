"""Stable Diffusion 3 and 3.5 (any size). The embedded model is one instance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from .base import Sampling
from .flow import FlowPolicy
from .pipeline import Rows, pooled_arguments
from .samplers import TRAIN_TIMESTEPS

T5_TOKENS = 256  # the pipeline's default


class SD3Policy(FlowPolicy):
    family = "sd3"
    ENCODERS: ClassVar = ("text_encoder", "text_encoder_2", "text_encoder_3")
    TOKENIZERS: ClassVar = ("tokenizer", "tokenizer_2", "tokenizer_3")
    T5: ClassVar = ("text_encoder_3", "tokenizer_3")

    def __init__(
        self,
        model: str | Path,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        use_t5: bool = True,
        unused: Sequence[str] = (),
        **options: Any,
    ) -> None:
        """`use_t5=False` leaves T5 out even where the folder has one; a placeholder that always says 0 is never used."""
        silent = _t5_is_silent(Path(options.get("parts") or model))
        if not use_t5 or silent:
            unused = (*unused, *self.T5)
        self._made_without_t5 = silent
        super().__init__(model, device, dtype, unused=unused, **options)

    def notes(self) -> list[str]:
        if self.T5[0] not in self._unused or self._made_without_t5:
            return []
        return [
            f"{self.title} is trained without T5, which is not there: the two CLIPs alone read its prompts, up to 77 tokens; "
            "use the LoRA without T5 too, or give one (policy.files.text_encoder_3, or a folder that has it)"
        ]

    @property
    def size_step(self) -> int:
        return self._pipe.vae_scale_factor * self._pipe.patch_size

    @property
    def largest_side(self) -> int:
        return self.denoiser.config.pos_embed_max_size * self.size_step

    def tokens(self, height: int, width: int) -> int:
        return height * width // self._pipe.patch_size**2

    @property
    def _t5_tokens(self) -> int:
        # Without a T5 diffusers would append 256 tokens of zeros. ComfyUI, where the LoRA is used, appends none.
        return 0 if self.T5[0] in self._unused else T5_TOKENS

    def encoding_facts(self) -> tuple[str, ...]:
        return (str(self._t5_tokens),)

    def encode_prompts(self, pipe: Any, prompts: list[str]) -> list[Rows]:
        context, _, pooled, _ = pipe.encode_prompt(
            prompts, None, None, device=self.device, do_classifier_free_guidance=False, max_sequence_length=self._t5_tokens
        )
        return [{"context": c, "pooled": p} for c, p in zip(context, pooled, strict=True)]

    def call_arguments(self, rows: Rows, negative: Rows | None, sampling: Sampling) -> dict[str, Any]:
        return pooled_arguments(rows, negative, sampling)

    def output(self, z_t: torch.Tensor, t: torch.Tensor, rows: Rows, guidance: float) -> torch.Tensor:
        with self.attention(self.tokens(*z_t.shape[-2:]) + rows["context"].shape[1]):
            return self.denoiser(
                hidden_states=z_t.to(self.dtype),
                timestep=t.float() * TRAIN_TIMESTEPS,
                encoder_hidden_states=rows["context"],
                pooled_projections=rows["pooled"],
                return_dict=False,
            )[0]


def _t5_is_silent(folder: Path) -> bool:
    """Whether the folder's T5 is a placeholder whose output is 0 for every prompt, by the weight of its last norm.

    Its tokens would be what diffusers fills in without a T5, and cost several times the network's work on a small picture.
    """
    from safetensors import safe_open

    file, key = folder / "text_encoder_3" / "model.safetensors", "encoder.final_layer_norm.weight"
    if not file.is_file():
        return False
    try:
        with safe_open(file, "pt") as tensors:
            return key in tensors.keys() and not tensors.get_tensor(key).any()
    except Exception:  # a damaged file is named when the encoders are loaded
        return False
