"""ImageReward's network on transformers' BLIP classes: ViT-L/16, BERT with cross-attention, five linear layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import UserError, one_line
from .checkpoint import fill, read_state
from .clip_pixels import center_crop
from .linear_head import make_head, numbered
from .towers import with_positions
from .weights import Weights, size_hint

TOKENS = 35
# The authors normalise by what their model gave on average (ImageReward.py of image-reward 1.5).
MEAN, STD = 0.16717362830052426, 1.0333394966054072


@dataclass(frozen=True)
class BlipShape:
    """The sizes of BLIP large, as ImageReward's `med_config.json` and BLIP's `create_vit("large")` give them."""

    picture_width: int = 1024
    picture_layers: int = 24
    picture_heads: int = 16
    patch: int = 16
    size: int = 224
    text_width: int = 768
    text_layers: int = 12
    text_heads: int = 12
    words: int = 30524


BLIP_LARGE = BlipShape()


class Blip(nn.Module):
    """The picture tower, and the text encoder that attends to what it sees."""

    def __init__(self, shape: BlipShape) -> None:
        from transformers import BlipTextConfig, BlipVisionConfig, BlipVisionModel
        from transformers.models.blip.modeling_blip_text import BlipTextModel

        super().__init__()
        self.vision = BlipVisionModel(
            BlipVisionConfig(
                hidden_size=shape.picture_width,
                intermediate_size=4 * shape.picture_width,
                num_hidden_layers=shape.picture_layers,
                num_attention_heads=shape.picture_heads,
                image_size=shape.size,
                patch_size=shape.patch,
                hidden_act="gelu",
                layer_norm_eps=1e-6,
            )
        )
        self.text = BlipTextModel(
            BlipTextConfig(
                vocab_size=shape.words,
                hidden_size=shape.text_width,
                encoder_hidden_size=shape.picture_width,
                intermediate_size=4 * shape.text_width,
                num_hidden_layers=shape.text_layers,
                num_attention_heads=shape.text_heads,
                max_position_embeddings=512,
                layer_norm_eps=1e-12,
                is_decoder=True,  # gives its layers cross-attention; `forward` still reads in both directions
            ),
            add_pooling_layer=False,
        )

    def forward(self, ids: Tensor, mask: Tensor, pixels: Tensor) -> Tensor:
        """Features [B, D] of each prompt's first token, in view of its picture."""
        seen = self.vision(pixel_values=pixels).last_hidden_state
        everywhere = torch.ones(seen.shape[:2], dtype=torch.int64, device=seen.device)
        read = self.text(
            ids, attention_mask=mask, encoder_hidden_states=seen, encoder_attention_mask=everywhere, is_decoder=False
        )
        return read.last_hidden_state[:, 0]


class ImageRewardModel(nn.Module):
    def __init__(self, blip: Blip, head: nn.Module, tokenizer, size: int) -> None:
        super().__init__()
        self.blip, self.head, self._tokenizer, self._size = blip, head, tokenizer, size

    def pixels(self, pictures: Tensor) -> Tensor:
        """uint8[B, H, W, 3] -> float32[B, 3, S, S], cropped as torchvision does it."""
        return center_crop(pictures, self._size, "nearest")

    def tokens(self, prompts: Sequence[str]) -> Tensor:
        """int64[2, B, 35]: token ids, and 1 where there is one."""
        encoded = self._tokenizer.encode_batch(list(prompts))
        return torch.tensor([[e.ids for e in encoded], [e.attention_mask for e in encoded]])

    def read(self, tokens: Tensor, pixels: Tensor) -> Tensor:
        """Features [B, D]."""
        return self.blip(tokens[0], tokens[1], pixels)

    def rate(self, features: Tensor) -> Tensor:
        """Scores float32[B]."""
        return (self.head(features.float())[:, 0] - MEAN) / STD


def load_model(file: Weights, path: Path, vocabulary: Path, shape: BlipShape = BLIP_LARGE) -> ImageRewardModel:
    """Raises UserError of one line if a file can't be read or is another model."""
    tokenizer = bert_tokenizer(vocabulary)  # before the two gigabytes
    state = read_state(path, file.title, size_hint(file, path))
    with torch.device("meta"):
        blip = Blip(shape)
    head = make_head(shape.text_width)
    both = nn.ModuleDict({"blip": blip, "mlp": head})
    named = {_renamed(key): tensor for key, tensor in numbered(state, "mlp.").items()}
    unused = [name for name in named if name.startswith(_UNUSED) or name.endswith("position_ids")]
    fill(both, named, file.title, path, ignore=unused)
    return ImageRewardModel(with_positions(blip), head, tokenizer, shape.size)


def bert_tokenizer(vocabulary: Path):
    """BERT's lower-case word pieces: 35 ids a prompt, cut or padded. UserError if the file is no such vocabulary."""
    from tokenizers import BertWordPieceTokenizer

    try:
        words = {line.strip() for line in vocabulary.read_text(encoding="utf-8").splitlines()}
    except (OSError, ValueError) as error:
        raise UserError(f"BERT's vocabulary in {vocabulary} can't be read ({one_line(error)[:200]})") from error
    if lacking := [word for word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]") if word not in words]:
        raise UserError(f"{vocabulary} is not BERT's vocabulary: it lacks {', '.join(lacking)}; take bert-base-uncased's")
    tokenizer = BertWordPieceTokenizer(str(vocabulary), lowercase=True)
    tokenizer.enable_truncation(TOKENS)
    tokenizer.enable_padding(length=TOKENS, pad_id=tokenizer.token_to_id("[PAD]"))
    return tokenizer


_UNUSED = ("blip.vision_proj.", "blip.text_proj.")  # of BLIP's training
_TOP = {
    "cls_token": "embeddings.class_embedding",
    "pos_embed": "embeddings.position_embedding",
    "patch_embed.proj.weight": "embeddings.patch_embedding.weight",
    "patch_embed.proj.bias": "embeddings.patch_embedding.bias",
    "norm.weight": "post_layernorm.weight",
    "norm.bias": "post_layernorm.bias",
}
_IN_BLOCK = {"norm1": "layer_norm1", "norm2": "layer_norm2", "attn.qkv": "self_attn.qkv", "attn.proj": "self_attn.projection"}


def _renamed(key: str) -> str:
    """The authors' name of a weight -> ours. BERT's names are the same in transformers; the picture tower's are timm's."""
    if key.startswith("blip.text_encoder."):
        return key.replace("text_encoder", "text", 1)
    if not key.startswith("blip.visual_encoder."):
        return key
    rest = key.removeprefix("blip.visual_encoder.")
    if rest in _TOP:
        return f"blip.vision.{_TOP[rest]}"
    if not rest.startswith("blocks."):
        return key
    _, number, inside = rest.split(".", 2)
    module, _, kind = inside.rpartition(".")
    return f"blip.vision.encoder.layers.{number}.{_IN_BLOCK.get(module, module)}.{kind}"
