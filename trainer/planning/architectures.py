"""The sizes of published bases, for plans of models that are not here, in the form of `policies.references.REFERENCES`.

Those of SD 1.5, SDXL and FLUX.1 dev are there. The others are diffusers' own defaults where a family's first model set them
(Chroma, Qwen-Image, Z-Image), and the published configurations of the models named here; a test compares parameter counts.
"""

from __future__ import annotations

from typing import Any

from ..policies.references import _CLIP_G, _CLIP_L, _T5_XXL, REFERENCES

Parts = dict[str, tuple[str, str, dict[str, Any]]]

_FLOW = ("diffusers", "FlowMatchEulerDiscreteScheduler")
_FLUX_VAE = REFERENCES["flux"]["vae"]
_T5 = ("transformers", "T5EncoderModel", _T5_XXL)
_WORDS = {"tokenizer_class": "PreTrainedTokenizerFast"}
_TOKENIZER = ("transformers", "PreTrainedTokenizerFast", _WORDS)
# Qwen3-4B (arXiv 2505.09388, table 1).
_QWEN3_4B = {
    "model_type": "qwen3",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
# Qwen2.5-VL-7B (arXiv 2502.13923, table 1).
_QWEN25_VL_7B = {
    "model_type": "qwen2_5_vl",
    "text_config": {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24], "rope_type": "default"},
    },
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
    },
}

_OTHERS: dict[str, tuple[str, Parts]] = {
    "sd3": (
        "Stable Diffusion 3.5 Medium",
        {
            "scheduler": (*_FLOW, {"shift": 3.0}),
            "tokenizer": _TOKENIZER,
            "tokenizer_2": _TOKENIZER,
            "tokenizer_3": _TOKENIZER,
            "text_encoder": ("transformers", "CLIPTextModelWithProjection", _CLIP_L),
            "text_encoder_2": ("transformers", "CLIPTextModelWithProjection", _CLIP_G),
            "text_encoder_3": _T5,
            "vae": ("diffusers", "AutoencoderKL", {**_FLUX_VAE[2], "scaling_factor": 1.5305, "shift_factor": 0.0609}),
            "transformer": (
                "diffusers",
                "SD3Transformer2DModel",
                {
                    "num_layers": 24,
                    "num_attention_heads": 24,
                    "caption_projection_dim": 1536,
                    "pos_embed_max_size": 384,
                    "dual_attention_layers": list(range(13)),
                    "qk_norm": "rms_norm",
                },
            ),
        },
    ),
    "chroma": (
        "Chroma1",
        {
            "scheduler": (*_FLOW, {"shift": 1.0}),
            "tokenizer": _TOKENIZER,
            "text_encoder": _T5,
            "vae": _FLUX_VAE,
            "transformer": ("diffusers", "ChromaTransformer2DModel", {}),
        },
    ),
    "qwen_image": (
        "Qwen-Image",
        {
            "scheduler": (*_FLOW, {"use_dynamic_shifting": True, "max_shift": 0.9, "shift_terminal": 0.02}),
            "tokenizer": _TOKENIZER,
            "text_encoder": ("transformers", "Qwen2_5_VLForConditionalGeneration", _QWEN25_VL_7B),
            "vae": ("diffusers", "AutoencoderKLQwenImage", {}),
            "transformer": ("diffusers", "QwenImageTransformer2DModel", {}),
        },
    ),
    "z_image": (
        "Z-Image",
        {
            "scheduler": (*_FLOW, {"shift": 6.0}),
            "tokenizer": _TOKENIZER,
            "text_encoder": ("transformers", "Qwen3Model", _QWEN3_4B),
            "vae": _FLUX_VAE,
            "transformer": ("diffusers", "ZImageTransformer2DModel", {}),
        },
    ),
    "flux2_klein": (
        "FLUX.2 klein base 4B",
        {
            "scheduler": (*_FLOW, {"use_dynamic_shifting": True, "time_shift_type": "exponential"}),
            "tokenizer": _TOKENIZER,
            "text_encoder": ("transformers", "Qwen3ForCausalLM", _QWEN3_4B),
            "vae": ("diffusers", "AutoencoderKLFlux2", {}),
            "transformer": (
                "diffusers",
                "Flux2Transformer2DModel",
                {
                    "num_layers": 5,
                    "num_single_layers": 20,
                    "num_attention_heads": 24,
                    "joint_attention_dim": 7680,
                    "guidance_embeds": False,
                },
            ),
        },
    ),
}
_TITLES = {"sd15": "Stable Diffusion 1.5", "sdxl": "Stable Diffusion XL", "flux": "FLUX.1 dev"}


def published(family: str) -> tuple[str, Parts] | None:
    """(whose sizes they are, the parts), or None for a family without."""
    if family in REFERENCES:
        return _TITLES[family], REFERENCES[family]
    return _OTHERS.get(family)
