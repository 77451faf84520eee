"""What the diffusers folders of the published bases say besides their weights: the classes of their parts and their sizes.

Sources: arXiv 2112.10752 (SD), 2307.01952 (SDXL), 2403.03206 (SD 3), 2505.09388 (Qwen3), 2502.13923 (Qwen2.5-VL), and the
configurations beside the weights of SD 3.5 Medium, FLUX.1 dev, Qwen-Image, Z-Image and FLUX.2 klein base 4B; Chroma's shift is
ComfyUI's. What is not said is diffusers' or transformers' own default. A file of another size changes some (`inferred.py`).
"""

from __future__ import annotations

from typing import Any

Parts = dict[str, tuple[str, str, dict[str, Any]]]
"""Part -> (library, class, its configuration). A tokenizer's configuration is its tokenizer_config.json."""

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
_CLIP_TOKENIZER = ("transformers", "CLIPTokenizer", _CLIP_WORDS)
_CLIP_G_TOKENIZER = ("transformers", "CLIPTokenizer", {**_CLIP_WORDS, "pad_token": "!"})
_T5_TOKENIZER = (
    "transformers",
    "T5TokenizerFast",
    {"tokenizer_class": "T5Tokenizer", "model_max_length": 512, "eos_token": "</s>", "pad_token": "<pad>"},
)
_T5 = ("transformers", "T5EncoderModel", _T5_XXL)
_FLUX_VAE = {
    **_VAE,
    "latent_channels": 16,
    "scaling_factor": 0.3611,
    "shift_factor": 0.1159,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
    "sample_size": 1024,
}
_QWEN_WORDS = {"tokenizer_class": "Qwen2Tokenizer", "model_max_length": 131072}
# The rest of Qwen3's template is about tools and further turns. The four words are those that Qwen2.5's tokenizer lacks.
_QWEN3_WORDS = {
    **_QWEN_WORDS,
    "chat_template": (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n"
        "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
    ),
    "added_tokens_decoder": {
        str(151665 + place): {"content": word, "normalized": False, "special": False}
        for place, word in enumerate(("<tool_response>", "</tool_response>", "<think>", "</think>"))
    },
}
_QWEN3_4B = {
    "model_type": "qwen3",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
}
# What Qwen3-8B has otherwise.
QWEN3_8B = {"hidden_size": 4096, "intermediate_size": 12288, "tie_word_embeddings": False}
_QWEN25_VL_7B = {
    "model_type": "qwen2_5_vl",
    "tie_word_embeddings": False,
    "text_config": {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
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
_FLOW = "FlowMatchEulerDiscreteScheduler"

PUBLISHED: dict[str, Parts] = {
    "sd15": {
        "scheduler": ("diffusers", "DDIMScheduler", {**_BETAS, "clip_sample": False, "steps_offset": 1}),
        "tokenizer": _CLIP_TOKENIZER,
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
        "tokenizer": _CLIP_TOKENIZER,
        "tokenizer_2": _CLIP_G_TOKENIZER,
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
        "tokenizer": _CLIP_TOKENIZER,
        "tokenizer_2": _T5_TOKENIZER,
        "text_encoder": ("transformers", "CLIPTextModel", _CLIP_L),
        "text_encoder_2": _T5,
        "vae": ("diffusers", "AutoencoderKL", _FLUX_VAE),
        "transformer": ("diffusers", "FluxTransformer2DModel", {"guidance_embeds": True}),
    },
    "sd3": {
        "scheduler": ("diffusers", _FLOW, {"shift": 3.0}),
        "tokenizer": _CLIP_TOKENIZER,
        "tokenizer_2": _CLIP_G_TOKENIZER,
        "tokenizer_3": _T5_TOKENIZER,
        "text_encoder": ("transformers", "CLIPTextModelWithProjection", _CLIP_L),
        "text_encoder_2": ("transformers", "CLIPTextModelWithProjection", _CLIP_G),
        "text_encoder_3": _T5,
        "vae": ("diffusers", "AutoencoderKL", {**_FLUX_VAE, "scaling_factor": 1.5305, "shift_factor": 0.0609}),
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
    "chroma": {
        "scheduler": ("diffusers", _FLOW, {"shift": 1.0}),
        "tokenizer": _T5_TOKENIZER,
        "text_encoder": _T5,
        "vae": ("diffusers", "AutoencoderKL", _FLUX_VAE),
        "transformer": ("diffusers", "ChromaTransformer2DModel", {}),
    },
    "qwen_image": {
        "scheduler": (
            "diffusers",
            _FLOW,
            {
                "use_dynamic_shifting": True,
                "base_shift": 0.5,
                "max_shift": 0.9,
                "max_image_seq_len": 8192,
                "shift_terminal": 0.02,
                "time_shift_type": "exponential",
            },
        ),
        "tokenizer": ("transformers", "Qwen2Tokenizer", _QWEN_WORDS),
        "text_encoder": ("transformers", "Qwen2_5_VLForConditionalGeneration", _QWEN25_VL_7B),
        "vae": ("diffusers", "AutoencoderKLQwenImage", {}),
        "transformer": ("diffusers", "QwenImageTransformer2DModel", {}),
    },
    "z_image": {
        "scheduler": ("diffusers", _FLOW, {"shift": 6.0}),
        "tokenizer": ("transformers", "Qwen2Tokenizer", _QWEN3_WORDS),
        "text_encoder": ("transformers", "Qwen3Model", _QWEN3_4B),
        "vae": ("diffusers", "AutoencoderKL", _FLUX_VAE),
        "transformer": ("diffusers", "ZImageTransformer2DModel", {}),
    },
    "flux2_klein": {
        "scheduler": ("diffusers", _FLOW, {"use_dynamic_shifting": True, "time_shift_type": "exponential"}),
        "tokenizer": ("transformers", "Qwen2Tokenizer", _QWEN3_WORDS),
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
}
