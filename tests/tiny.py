"""Small real models that tests make on the spot, from the same classes as the models people use."""

from __future__ import annotations

from pathlib import Path

import torch

from trainer.demo import parts as demo_parts


def make_sd3_folder(folder: Path, seed: int = 0, depth: int = 1) -> Path:
    """A `StableDiffusion3Pipeline` folder with random weights: 64 x 64 pixels, 16 latent channels, no T5 worth the name.

    The transformer's output layer is not left at diffusers' zero, or every prediction would be 0.
    """
    from diffusers import AutoencoderTiny, SD3Transformer2DModel

    torch.manual_seed(seed)
    width = 64 * depth
    tokenizer = demo_parts.build_tokenizer(seed)
    tokenizer_3, text_encoder_3 = demo_parts.build_placeholder_t5(width)
    transformer = SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=16,
        out_channels=16,
        num_layers=depth,
        attention_head_dim=64,
        num_attention_heads=depth,
        joint_attention_dim=width,
        caption_projection_dim=width,
        pooled_projection_dim=width,
        pos_embed_max_size=16,
    )
    for parameter in transformer.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)
    vae = AutoencoderTiny(
        latent_channels=16,
        encoder_block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        num_encoder_blocks=(1, 1, 1, 1),
        num_decoder_blocks=(1, 1, 1, 1),
        scaling_factor=demo_parts.SCALING,
        shift_factor=demo_parts.SHIFT,
    )
    parts = {
        "tokenizer": tokenizer,
        "tokenizer_3": tokenizer_3,
        "vae": vae.eval(),
        "transformer": transformer.eval(),
        "text_encoder": demo_parts.build_text_encoder(tokenizer, width // 2, 2).eval(),
        "text_encoder_2": demo_parts.build_text_encoder(tokenizer, width // 2, 2).eval(),
        "text_encoder_3": text_encoder_3,
    }
    demo_parts.assemble(parts).save_pretrained(folder)
    return folder
