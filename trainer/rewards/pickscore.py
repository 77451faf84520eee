"""PickScore (Y. Kirstain et al., arXiv 2305.01569): CLIP ViT-H-14 fine-tuned on the choices of Pick-a-Pic's users."""

from __future__ import annotations

from .clip_text import vocabulary_problem
from .learned import LearnedOptions, TwoTowerReward
from .weights import MODEL, Weights, find, locate


class PickScore(TwoTowerReward):
    """Logit scale x cosine, of the whole picture's centre: the shorter side is brought to 224 and the longer one cropped."""

    name = "pickscore"
    description = "PickScore: how much Pick-a-Pic's users would prefer the picture for this prompt."
    range = "about 22; arXiv 2604.23380 prints it divided by 100 (FLUX.1-dev 0.227 before, 0.241 after)"
    licence = "not stated"
    Options = LearnedOptions

    def weights(self):
        return (
            Weights(
                title="PickScore",
                names=("PickScore_v1",),
                hub="yuvalkirstain/PickScore_v1",
                licence="licence not stated",
                size=3_940_000_000,
                given=self.options.model,
                markers=MODEL,
                sha256="ef31ef6fc5ff4d9bb90dd232df4e145887ba62c5a03aa2841415f8c25f18d52e",
                hashed="model.safetensors",
            ),
        )

    def missing(self):
        return super().missing() or vocabulary_problem(find(self.weights()[0]))

    def build(self):
        from functools import partial

        from transformers import CLIPModel

        from .clip_pixels import center_crop
        from .clip_text import clean_like_transformers, load_tokenizer
        from .pretrained import load_pretrained
        from .towers import ClipTowers

        folder = locate(self.weights()[0])
        tokenize = load_tokenizer(clean_like_transformers, folder)
        clip = load_pretrained(CLIPModel, folder, "PickScore")
        return ClipTowers(clip, partial(center_crop, size=clip.config.vision_config.image_size), tokenize)

    def from_cosine(self, cosine):
        return self.module().clip.logit_scale.double().exp().cpu() * cosine
