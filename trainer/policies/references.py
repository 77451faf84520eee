"""What a diffusers folder of SD 1.5, SDXL or FLUX.1 dev says besides its weights: so that a checkpoint file needs no download.

The sizes are those of the published models (arXiv 2112.10752, 2307.01952; FLUX.1's are diffusers' own defaults, with guidance).
Tokenizers are files that this program does not carry; ComfyUI's folder `comfy` has them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from ..cache import cache_folder
from ..errors import UserError

_CLIP_L = {
    "model_type": "clip_text_model",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "projection_dim": 768,
    "max_position_embeddings": 77,
    "vocab_size": 49408,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "bos_token_id": 49406,
    "eos_token_id": 49407,
    "pad_token_id": 1,
}
_CLIP_G = {
    **_CLIP_L,
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "projection_dim": 1280,
    "hidden_act": "gelu",
}
_T5_XXL = {
    "model_type": "t5",
    "d_model": 4096,
    "d_ff": 10240,
    "d_kv": 64,
    "num_layers": 24,
    "num_heads": 64,
    "vocab_size": 32128,
    "feed_forward_proj": "gated-gelu",
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "layer_norm_epsilon": 1e-6,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "is_encoder_decoder": True,
    "tie_word_embeddings": False,
}
_VAE = {
    "in_channels": 3,
    "out_channels": 3,
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "layers_per_block": 2,
    "latent_channels": 4,
    "norm_num_groups": 32,
    "act_fn": "silu",
}
_BETAS = {
    "num_train_timesteps": 1000,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "prediction_type": "epsilon",
}
_UNET = {"sample_size": 64, "in_channels": 4, "out_channels": 4, "layers_per_block": 2, "norm_num_groups": 32, "act_fn": "silu"}
_CLIP_WORDS = {
    "tokenizer_class": "CLIPTokenizer",
    "model_max_length": 77,
    "bos_token": "<|startoftext|>",
    "eos_token": "<|endoftext|>",
    "unk_token": "<|endoftext|>",
    "pad_token": "<|endoftext|>",
}

# Part -> (library, class, its configuration). A tokenizer's configuration is its tokenizer_config.json.
REFERENCES: dict[str, dict[str, tuple[str, str, dict[str, Any]]]] = {
    "sd15": {
        "scheduler": ("diffusers", "DDIMScheduler", {**_BETAS, "clip_sample": False, "steps_offset": 1}),
        "tokenizer": ("transformers", "CLIPTokenizer", _CLIP_WORDS),
        "text_encoder": ("transformers", "CLIPTextModel", _CLIP_L),
        "vae": ("diffusers", "AutoencoderKL", {**_VAE, "scaling_factor": 0.18215, "sample_size": 512}),
        "unet": (
            "diffusers",
            "UNet2DConditionModel",
            {
                **_UNET,
                "block_out_channels": [320, 640, 1280, 1280],
                "down_block_types": [*["CrossAttnDownBlock2D"] * 3, "DownBlock2D"],
                "up_block_types": ["UpBlock2D", *["CrossAttnUpBlock2D"] * 3],
                "cross_attention_dim": 768,
                "attention_head_dim": 8,
            },
        ),
    },
    "sdxl": {
        "scheduler": ("diffusers", "EulerDiscreteScheduler", {**_BETAS, "steps_offset": 1}),
        "tokenizer": ("transformers", "CLIPTokenizer", _CLIP_WORDS),
        "tokenizer_2": ("transformers", "CLIPTokenizer", {**_CLIP_WORDS, "pad_token": "!"}),
        "text_encoder": ("transformers", "CLIPTextModel", _CLIP_L),
        "text_encoder_2": ("transformers", "CLIPTextModelWithProjection", _CLIP_G),
        "vae": ("diffusers", "AutoencoderKL", {**_VAE, "scaling_factor": 0.13025, "sample_size": 1024, "force_upcast": True}),
        "unet": (
            "diffusers",
            "UNet2DConditionModel",
            {
                **_UNET,
                "sample_size": 128,
                "block_out_channels": [320, 640, 1280],
                "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
                "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
                "transformer_layers_per_block": [1, 2, 10],
                "cross_attention_dim": 2048,
                "attention_head_dim": [5, 10, 20],
                "use_linear_projection": True,
                "addition_embed_type": "text_time",
                "addition_time_embed_dim": 256,
                "projection_class_embeddings_input_dim": 2816,
            },
        ),
    },
    "flux": {
        "scheduler": (
            "diffusers",
            "FlowMatchEulerDiscreteScheduler",
            {"shift": 3.0, "use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15},
        ),
        "tokenizer": ("transformers", "CLIPTokenizer", _CLIP_WORDS),
        "tokenizer_2": (
            "transformers",
            "T5TokenizerFast",
            {"tokenizer_class": "T5Tokenizer", "model_max_length": 512, "eos_token": "</s>", "pad_token": "<pad>"},
        ),
        "text_encoder": ("transformers", "CLIPTextModel", _CLIP_L),
        "text_encoder_2": ("transformers", "T5EncoderModel", _T5_XXL),
        "vae": (
            "diffusers",
            "AutoencoderKL",
            {
                **_VAE,
                "latent_channels": 16,
                "scaling_factor": 0.3611,
                "shift_factor": 0.1159,
                "use_quant_conv": False,
                "use_post_quant_conv": False,
                "sample_size": 1024,
            },
        ),
        "transformer": ("diffusers", "FluxTransformer2DModel", {"guidance_embeds": True}),
    },
}
# Class of a tokenizer -> its files, and where they lie below ComfyUI's folder `comfy`.
_TOKENIZER_FILES = {
    "CLIPTokenizer": ("sd1_tokenizer", ("vocab.json", "merges.txt")),
    "T5TokenizerFast": ("text_encoders/t5_tokenizer", ("tokenizer.json",)),
}


def tokenizers_folder() -> Path:
    """Where a user without ComfyUI may put tokenizers: `$VGRPO_CACHE/tokenizers`, else `~/.cache/vgrpo/tokenizers`."""
    return cache_folder("tokenizers")


def write_reference(family: str, pipeline: str, folder: Path, tokenizers: Path | None, changes: dict[str, Any]) -> None:
    """A diffusers folder without weights. `changes`: keys of the denoiser's configuration that the file decides.

    Raises UserError for a family that has none here, and for a tokenizer that is nowhere.
    """
    if family not in REFERENCES:
        raise UserError(
            f"policy.parts: a file of family {family} needs a diffusers folder or hub id of that family here, for "
            f"configurations, tokenizers and what the file lacks (only {', '.join(REFERENCES)} go without)"
        )
    index: dict[str, Any] = {"_class_name": pipeline, "_diffusers_version": "0.39.0"}
    for part, (library, kind, config) in REFERENCES[family].items():
        index[part] = [library, kind]
        below = folder / part
        below.mkdir(parents=True)
        if kind in _TOKENIZER_FILES:
            for file in _tokenizer_files(kind, tokenizers):
                shutil.copyfile(file, below / file.name)
            name = "tokenizer_config.json"
        else:
            name = "scheduler_config.json" if part == "scheduler" else "config.json"
            if part in ("unet", "transformer"):
                config = {**config, **changes}
        (below / name).write_text(json.dumps({"_class_name": kind, **config}), encoding="utf-8")
    (folder / "model_index.json").write_text(json.dumps(index), encoding="utf-8")


def _tokenizer_files(kind: str, tokenizers: Path | None) -> list[Path]:
    name, files = _TOKENIZER_FILES[kind]
    for root in filter(None, (tokenizers, tokenizers_folder())):
        found = [root / name / file for file in files]
        if all(file.is_file() for file in found):
            return found
    raise UserError(
        f"policy.tokenizers: the tokenizer files {' and '.join(files)} are in no folder {name}; set policy.tokenizers to "
        f"ComfyUI's folder `comfy`, which has them, or put them into {tokenizers_folder() / name}"
    )
