"""Any model of transformers with `get_image_features` and `get_text_features`, with its own processor and tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer

from ..errors import UserError
from .pretrained import image_processor, load_pretrained, load_processor
from .towers import Towers, pooled

_TITLE = "CLIPScore's model"
# SigLIP was trained on prompts padded to its full length, the padding not masked, and gives other scores otherwise.
_PADDED = ("siglip", "siglip2")


class AnyTowers(Towers):
    def __init__(self, model: nn.Module, processor: Any, tokenizer: Any) -> None:
        super().__init__()
        self.model, self._processor, self._tokenizer = model, processor, tokenizer
        padded = model.config.model_type in _PADDED
        self._padding, self._inputs = ("max_length", ("input_ids",)) if padded else (True, ("input_ids", "attention_mask"))
        self._length = model.config.text_config.max_position_embeddings

    def pixels(self, pictures):
        return self._processor(
            images=list(pictures.numpy()), return_tensors="pt", input_data_format="channels_last"
        ).pixel_values

    def see(self, pixels):
        return pooled(self.model.get_image_features(pixel_values=pixels))

    def read(self, prompt):
        tokens = self._tokenizer(
            [prompt], padding=self._padding, truncation=True, max_length=self._length, return_tensors="pt"
        ).to(self.model.device)
        wanted = {name: tokens[name] for name in self._inputs if name in tokens}
        return pooled(self.model.get_text_features(**wanted))[0]

    def logit(self, cosine: Tensor) -> Tensor:
        """The model's own scale, and bias where it has one, on cosines float64[B]."""
        scaled = self.model.logit_scale.double().exp().cpu() * cosine
        bias = getattr(self.model, "logit_bias", None)
        return scaled if bias is None else scaled + bias.double().cpu()


def load_towers(folder: Path) -> AnyTowers:
    """Raises UserError if the folder holds no model with a picture and a text tower, or lacks its processor's files."""
    config = load_processor(AutoConfig, folder, _TITLE)
    tokenizer = load_processor(AutoTokenizer, folder, _TITLE)
    processor = image_processor(folder, _TITLE)
    model = load_pretrained(AutoModel, folder, _TITLE)
    if not all(hasattr(model, name) for name in ("get_image_features", "get_text_features", "logit_scale")):
        raise UserError(
            f"{_TITLE}: {folder} holds a {config.model_type}, which has no picture and text tower; take a CLIP or SigLIP"
        )
    return AnyTowers(model, processor, tokenizer)
