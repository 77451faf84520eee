"""The parts of the embedded model, untrained, and what is done with all of them together: assemble, save, sample."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

import numpy as np
import torch

from .world import IMAGE_SIZE, caption, sample_scene

LATENT_CHANNELS = 16
TOKENS = 20
T5_TOKENS = 256  # the pipeline's default; the model is shown that many zeros now and then, so that it bears them
DEPTH = 3  # hidden size 64 * DEPTH is how ComfyUI recognises an SD3 of any size
WIDTH = 64 * DEPTH
CLIP_WIDTHS = (128, 64)  # together WIDTH, like CLIP-L and CLIP-G in SD3
SCALING, SHIFT = 1.5305, 0.0609
TIMESTEP_SHIFT = 3.0
_SAMPLED_AT_ONCE = 96


def build_tokenizer(seed: int):
    """A CLIP tokenizer of the scenes' words; unknown words fall back to bytes."""
    rng = random.Random(seed)
    return train_tokenizer([caption(sample_scene(rng), rng) for _ in range(4000)], vocabulary=700, tokens=TOKENS)


def train_tokenizer(texts: list[str], vocabulary: int, tokens: int):
    """A `CLIPTokenizer` of at most `vocabulary` entries learnt on `texts`, which pads to `tokens`; no `texts`: bytes alone."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import CLIPTokenizer

    bpe = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    bpe.normalizer = normalizers.Lowercase()
    bpe.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, end_of_word_suffix="</w>", show_progress=False),
    )
    merges = [tuple(pair) for pair in json.loads(bpe.to_str())["model"]["merges"]]
    words = [*alphabet, *(a + "</w>" for a in alphabet), *("".join(pair) for pair in merges)]
    vocab = {word: i for i, word in enumerate(dict.fromkeys(words))}
    vocab["<|startoftext|>"], vocab["<|endoftext|>"] = len(vocab), len(vocab) + 1
    return CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=tokens)


def build_text_encoder(tokenizer, width: int, layers: int):
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        projection_dim=width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 32),
        max_position_embeddings=tokenizer.model_max_length,
        hidden_act="quick_gelu",
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return CLIPTextModelWithProjection(config)


def build_placeholder_t5(width: int = WIDTH):
    """An encoder whose output is 0, as diffusers fills in for SD3 without a T5; `from_pretrained` wants all parts."""
    from transformers import T5Config, T5EncoderModel, T5Tokenizer

    tokenizer = T5Tokenizer(extra_ids=0, model_max_length=T5_TOKENS)
    config = T5Config(vocab_size=len(tokenizer), d_model=width, d_kv=16, d_ff=32, num_layers=1, num_heads=1)
    encoder = T5EncoderModel(config)
    torch.nn.init.zeros_(encoder.encoder.final_layer_norm.weight)
    return tokenizer, encoder.eval()


def build_transformer(layers: int = DEPTH, heads: int = DEPTH, clip_widths: tuple[int, int] = CLIP_WIDTHS):
    from diffusers import SD3Transformer2DModel

    return SD3Transformer2DModel(
        sample_size=IMAGE_SIZE // 8,
        patch_size=2,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_layers=layers,
        attention_head_dim=64,
        num_attention_heads=heads,
        joint_attention_dim=sum(clip_widths),
        caption_projection_dim=64 * heads,
        pooled_projection_dim=sum(clip_widths),
        pos_embed_max_size=16,
    )


def tokenize(tokenizer, texts: list[str]) -> torch.Tensor:
    return tokenizer(texts, padding="max_length", truncation=True, return_tensors="pt").input_ids


@torch.no_grad()
def encode_texts(parts: dict, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """What `StableDiffusion3Pipeline.encode_prompt` computes without a T5: penultimate states and pooled projections."""
    ids = tokenize(parts["tokenizer"], texts)
    outputs = [parts[k](ids, output_hidden_states=True) for k in ("text_encoder", "text_encoder_2")]
    context = torch.cat([o.hidden_states[-2] for o in outputs], dim=-1)
    return context, torch.cat([o.text_embeds for o in outputs], dim=-1)


def assemble(parts: dict):
    from diffusers import FlowMatchEulerDiscreteScheduler, StableDiffusion3Pipeline

    return StableDiffusion3Pipeline(
        transformer=parts["transformer"],
        scheduler=FlowMatchEulerDiscreteScheduler(shift=TIMESTEP_SHIFT),
        vae=parts["vae"],
        text_encoder=parts["text_encoder"],
        tokenizer=parts["tokenizer"],
        text_encoder_2=parts["text_encoder_2"],
        tokenizer_2=parts["tokenizer"],
        text_encoder_3=parts["text_encoder_3"],
        tokenizer_3=parts["tokenizer_3"],
    )


def save(parts: dict, output: Path) -> None:
    """The pipeline in half precision, which halves the download; it is loaded and trained in float32."""
    halves = {k: v if k.startswith("tokenizer") else copy.deepcopy(v).half() for k, v in parts.items()}
    assemble(halves).save_pretrained(output)
    for file in output.glob("*/config.json"):  # where a part lay on the machine that made it
        config = json.loads(file.read_text())
        if config.pop("_name_or_path", None):
            file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    # diffusers loads its own classes in float32 unless told otherwise; transformers does as the configuration says.
    for name in ("text_encoder", "text_encoder_2", "text_encoder_3"):
        file = output / name / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "dtype": "float32"}, indent=2) + "\n")


def load_parts(folder: Path) -> dict:
    """The parts of a saved pipeline, in float32."""
    from diffusers import StableDiffusion3Pipeline

    pipe = StableDiffusion3Pipeline.from_pretrained(folder)
    return {name: part for name, part in pipe.components.items() if part is not None and name != "scheduler"}


def sample(
    parts: dict, captions: list[str], seed: int, width: int, height: int, steps: int = 12, guidance: float = 1.0
) -> np.ndarray:
    """A picture of each caption, uint8[N, H, W, 3], by the pipeline itself."""
    pipe = assemble(parts)
    pipe.set_progress_bar_config(disable=True)
    pipe.text_encoder_3 = None  # with no T5 and no T5 tokens, as training and ComfyUI use the model
    pictures = []
    for i in range(0, len(captions), _SAMPLED_AT_ONCE):
        pictures.append(
            pipe(
                captions[i : i + _SAMPLED_AT_ONCE],
                num_inference_steps=steps,
                guidance_scale=guidance,
                height=height,
                width=width,
                max_sequence_length=0,
                generator=torch.Generator().manual_seed(seed + i),
                output_type="np",
            ).images
        )
    return (np.concatenate(pictures) * 255).round().astype(np.uint8)
