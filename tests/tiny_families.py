"""A small diffusers folder of each model family, made on the spot with random weights from the real classes.

64 x 64 pixels are 8 x 8 latents, prompts are words of the embedded model's world.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.tiny import make_sd3_folder
from trainer.demo import parts as demo_parts
from trainer.lora import LoraAdapter, attach

WIDTH = 32  # of the CLIP encoders
TEXT = 48  # of T5 and the language models
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_folder(family: str, folder: Path, seed: int = 0, **changes: Any) -> Path:
    """The folder of a family. `changes` go to the denoiser's configuration; `scheduler` replaces the scheduler."""
    torch.manual_seed(seed)
    return MAKERS[family](folder, seed, **changes)


def _speaking(denoiser: torch.nn.Module) -> torch.nn.Module:
    """No layer stays at the zero that diffusers starts it with, or every prediction would be 0."""
    for parameter in denoiser.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.05)
    return denoiser.eval()


def _vivid(vae: torch.nn.Module) -> torch.nn.Module:
    """A decoder with random weights paints grey; its last layer is made strong enough that pictures differ."""
    with torch.no_grad():
        vae.decoder.conv_out.weight.mul_(4)
    return vae.eval()


def _kl_vae(channels: int, **changes: Any):
    from diffusers import AutoencoderKL

    return _vivid(
        AutoencoderKL(
            latent_channels=channels,
            block_out_channels=(8, 8, 8, 8),
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            layers_per_block=1,
            norm_num_groups=4,
            **changes,
        )
    )


def _clip(tokenizer, projection: bool):
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        projection_dim=WIDTH,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=demo_parts.TOKENS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return (CLIPTextModelWithProjection if projection else CLIPTextModel)(config).eval()


def _t5():
    """(tokenizer of letters, encoder): every prompt says something of its own."""
    from transformers import T5Config, T5EncoderModel, T5Tokenizer

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), *((chr(c), -3.0) for c in range(97, 123))]
    tokenizer = T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=512)
    encoder = T5EncoderModel(T5Config(vocab_size=len(tokenizer), d_model=TEXT, d_kv=12, d_ff=64, num_layers=1, num_heads=4))
    return tokenizer, encoder.eval()


def _qwen_tokenizer():
    """Every byte is a token, and the chat's marks are."""
    from tokenizers import pre_tokenizers
    from transformers import Qwen2Tokenizer

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {word: i for i, word in enumerate(["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet])}
    tokenizer = Qwen2Tokenizer(vocab=vocab, merges=[], additional_special_tokens=["<|im_start|>", "<|im_end|>"])
    tokenizer.chat_template = CHAT
    return tokenizer


def _qwen3(tokenizer, layers: int, causal: bool):
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3Model

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=TEXT // 3 if causal else TEXT,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    return (Qwen3ForCausalLM if causal else Qwen3Model)(config).eval()


def _flow_scheduler(**config: Any):
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(**config)


def vp_scheduler(**config: Any):
    """What the folders of SD 1.5 and SDXL hold; `config` changes it."""
    from diffusers import DDIMScheduler

    usual = {
        "beta_start": 0.00085,
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
        "steps_offset": 1,
        "clip_sample": False,
    }
    return DDIMScheduler(**{**usual, **config})


def settle(unet: Any, steps: int = 100) -> None:
    """Let a UNet learn a little to predict noise, on latents of unit variance: pictures of a random one explode by b / a."""
    from trainer.policies.vp_samplers import Schedule

    schedule = Schedule(vp_scheduler().config, "epsilon", False)
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(unet.parameters(), lr=2e-3)
    size, words = unet.config.sample_size, unet.config.cross_attention_dim
    for _ in range(steps):
        x, eps = torch.randn(2, 16, 4, size, size, generator=generator)
        k = torch.randint(0, 1000, (16,), generator=generator)
        a, b = (coefficient.view(-1, 1, 1, 1) for coefficient in schedule.coefficients(k))
        more = {}
        if unet.config.addition_embed_type:
            sizes = torch.tensor([[64.0, 64, 0, 0, 64, 64]]).expand(16, -1)
            more = {"added_cond_kwargs": {"text_embeds": torch.randn(16, WIDTH, generator=generator), "time_ids": sizes}}
        context = torch.randn(16, 8, words, generator=generator)
        loss = (unet(a * x + b * eps, k, encoder_hidden_states=context, **more).sample - eps).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _unet(settled: bool = False, **changes: Any):
    from diffusers import UNet2DConditionModel

    shape: dict[str, Any] = {
        "sample_size": 8,
        "in_channels": 4,
        "out_channels": 4,
        "block_out_channels": (32, 64),
        "layers_per_block": 1,
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        "cross_attention_dim": WIDTH,
        "attention_head_dim": 8,
        "norm_num_groups": 8,
    }
    unet = _speaking(UNet2DConditionModel(**{**shape, **changes}))
    if settled:
        settle(unet)
    return unet


def make_sd15(folder: Path, seed: int, scheduler=None, **changes: Any) -> Path:
    from diffusers import StableDiffusionPipeline

    tokenizer = demo_parts.build_tokenizer(seed)
    pipe = StableDiffusionPipeline(
        vae=_kl_vae(4, scaling_factor=0.18215),
        text_encoder=_clip(tokenizer, projection=False),
        tokenizer=tokenizer,
        unet=_unet(**changes),
        scheduler=scheduler or vp_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.save_pretrained(folder)
    return folder


def make_sdxl(folder: Path, seed: int, scheduler=None, **changes: Any) -> Path:
    from diffusers import StableDiffusionXLPipeline

    tokenizer = demo_parts.build_tokenizer(seed)
    shape = {
        "cross_attention_dim": 2 * WIDTH,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 6 * 8 + WIDTH,
        "transformer_layers_per_block": (1, 1),
        "use_linear_projection": True,
    }
    pipe = StableDiffusionXLPipeline(
        vae=_kl_vae(4, scaling_factor=0.13025, force_upcast=True),
        text_encoder=_clip(tokenizer, projection=False),
        text_encoder_2=_clip(tokenizer, projection=True),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        unet=_unet(**{**shape, **changes}),
        scheduler=scheduler or vp_scheduler(),
        add_watermarker=False,
    )
    pipe.save_pretrained(folder)
    return folder


def make_flux(folder: Path, seed: int, scheduler=None, **changes: Any) -> Path:
    from diffusers import FluxPipeline, FluxTransformer2DModel

    tokenizer, (tokenizer_2, t5) = demo_parts.build_tokenizer(seed), _t5()
    shape: dict[str, Any] = {
        "in_channels": 64,
        "num_layers": 1,
        "num_single_layers": 1,
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "joint_attention_dim": TEXT,
        "pooled_projection_dim": WIDTH,
        "guidance_embeds": True,
        "axes_dims_rope": (4, 6, 6),
    }
    pipe = FluxPipeline(
        vae=_kl_vae(16, scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False),
        text_encoder=_clip(tokenizer, projection=False),
        tokenizer=tokenizer,
        text_encoder_2=t5,
        tokenizer_2=tokenizer_2,
        transformer=_speaking(FluxTransformer2DModel(**{**shape, **changes})),
        scheduler=scheduler or _flow_scheduler(shift=3.0, use_dynamic_shifting=True),
    )
    pipe.save_pretrained(folder)
    return folder


def make_chroma(folder: Path, seed: int, scheduler=None, **changes: Any) -> Path:
    from diffusers import ChromaPipeline, ChromaTransformer2DModel

    tokenizer, t5 = _t5()
    shape: dict[str, Any] = {
        "in_channels": 64,
        "num_layers": 1,
        "num_single_layers": 1,
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "joint_attention_dim": TEXT,
        "axes_dims_rope": (4, 6, 6),
        "approximator_num_channels": 16,
        "approximator_hidden_dim": 32,
        "approximator_layers": 1,
    }
    pipe = ChromaPipeline(
        vae=_kl_vae(16, scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False),
        text_encoder=t5,
        tokenizer=tokenizer,
        transformer=_speaking(ChromaTransformer2DModel(**{**shape, **changes})),
        scheduler=scheduler or _flow_scheduler(shift=1.0),
    )
    pipe.save_pretrained(folder)
    return folder


def make_qwen_image(folder: Path, seed: int, scheduler=None, **changes: Any) -> Path:
    from diffusers import AutoencoderKLQwenImage, QwenImagePipeline, QwenImageTransformer2DModel
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    tokenizer = _qwen_tokenizer()
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": TEXT,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 2, 2], "rope_type": "default"},
    }
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": TEXT}
    shape: dict[str, Any] = {
        "in_channels": 64,
        "out_channels": 16,
        "num_layers": 2,
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "joint_attention_dim": TEXT,
        "axes_dims_rope": (4, 6, 6),
    }
    pipe = QwenImagePipeline(
        vae=_vivid(AutoencoderKLQwenImage(base_dim=8, dim_mult=[1, 1, 1, 1], num_res_blocks=1)),
        text_encoder=Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision)).eval(),
        tokenizer=tokenizer,
        transformer=_speaking(QwenImageTransformer2DModel(**{**shape, **changes})),
        scheduler=scheduler
        or _flow_scheduler(
            use_dynamic_shifting=True, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02, time_shift_type="exponential"
        ),
    )
    pipe.save_pretrained(folder)
    return folder


def make_z_image(folder: Path, seed: int, scheduler=None, **changes: Any) -> Path:
    from diffusers import ZImagePipeline, ZImageTransformer2DModel

    tokenizer = _qwen_tokenizer()
    shape: dict[str, Any] = {
        "in_channels": 16,
        "dim": 32,
        "n_layers": 1,
        "n_refiner_layers": 1,
        "n_heads": 2,
        "n_kv_heads": 2,
        "cap_feat_dim": TEXT,
        "axes_dims": [4, 6, 6],
        "axes_lens": [512, 64, 64],
    }
    pipe = ZImagePipeline(
        vae=_kl_vae(16, scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False),
        text_encoder=_qwen3(tokenizer, 2, causal=False),
        tokenizer=tokenizer,
        transformer=_speaking(ZImageTransformer2DModel(**{**shape, **changes})),
        scheduler=scheduler or _flow_scheduler(shift=6.0),
    )
    pipe.save_pretrained(folder)
    return folder


def make_flux2_klein(
    folder: Path, seed: int, scheduler=None, distilled: bool = False, loud: float = 1.0, **changes: Any
) -> Path:
    """`loud`: a factor on the network's output."""
    from diffusers import AutoencoderKLFlux2, Flux2KleinPipeline, Flux2Transformer2DModel

    tokenizer = _qwen_tokenizer()
    vae = AutoencoderKLFlux2(
        latent_channels=4, block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=4, sample_size=64
    )
    vae.bn.running_mean.copy_(torch.linspace(-0.5, 0.5, 16))
    vae.bn.running_var.copy_(torch.linspace(0.5, 2.0, 16))
    shape: dict[str, Any] = {
        "in_channels": 16,
        "num_layers": 1,
        "num_single_layers": 1,
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "joint_attention_dim": TEXT,
        "axes_dims_rope": (4, 4, 4, 4),
        "guidance_embeds": False,
    }
    transformer = _speaking(Flux2Transformer2DModel(**{**shape, **changes}))
    with torch.no_grad():
        transformer.proj_out.weight.mul_(loud)
    pipe = Flux2KleinPipeline(
        vae=_vivid(vae),
        text_encoder=_qwen3(tokenizer, 28, causal=True),  # the pipeline takes the outputs of layers 9, 18 and 27
        tokenizer=tokenizer,
        transformer=transformer,
        scheduler=scheduler or _flow_scheduler(use_dynamic_shifting=True, time_shift_type="exponential"),
        is_distilled=distilled,
    )
    pipe.save_pretrained(folder)
    return folder


def make_sd3(folder: Path, seed: int, depth: int = 1) -> Path:
    return make_sd3_folder(folder, seed, depth)


MAKERS: dict[str, Callable[..., Path]] = {
    "sd3": make_sd3,
    "sd15": make_sd15,
    "sdxl": make_sdxl,
    "flux": make_flux,
    "chroma": make_chroma,
    "qwen_image": make_qwen_image,
    "z_image": make_z_image,
    "flux2_klein": make_flux2_klein,
}


def rename_pipeline(folder: Path, pipeline: str) -> None:
    """Write another pipeline class into a folder's model_index.json."""
    file = folder / "model_index.json"
    index = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**index, "_class_name": pipeline}), encoding="utf-8")


def shaken_lora(policy: Any, family: str) -> LoraAdapter:
    """A LoRA on the policy that does something, the same each time."""
    adapter = attach(policy.denoiser, 2, 4.0, "attention", 0, family, policy.device)
    generator = torch.Generator().manual_seed(1)
    for parameter in adapter.parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator) * 0.2
    return adapter
