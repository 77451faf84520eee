"""CLIPScore (J. Hessel et al., arXiv 2104.08718) with any CLIP or SigLIP model that transformers loads."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .learned import LearnedOptions, TwoTowerReward
from .weights import MODEL, Weights, locate

_WEIGHT = 2.5  # w of the paper, section 3


class ClipScoreOptions(LearnedOptions):
    formula: Literal["clipscore", "cosine", "logit"] = Field(
        "clipscore",
        description="clipscore = 2.5 x max(cosine, 0), as in the paper; cosine; logit = the model's own scale (and bias) on it",
    )


class ClipScore(TwoTowerReward):
    """Whether the picture shows what the prompt says, by a model that was trained on pairs from the web."""

    name = "clipscore"
    description = "CLIPScore: how well the picture fits its prompt, by any CLIP or SigLIP model."
    range = "0 to 2.5 (clipscore), -1 to 1 (cosine); comparable only with the same model"
    licence = "MIT (OpenAI's CLIP); another model has its own"
    half_on_cuda = True
    Options = ClipScoreOptions

    def weights(self):
        return (
            Weights(
                title="CLIPScore's model",
                names=("clip-vit-large-patch14",),
                hub="openai/clip-vit-large-patch14",
                licence="MIT",
                size=1_710_540_580,
                given=self.options.model,
                markers=MODEL,
                sha256="" if self.options.model else "a2bf730a0c7debf160f7a6b50b3aaf3703e7e88ac73de7a314903141db026dcb",
                hashed="model.safetensors",
            ),
        )

    def build(self):
        from .clipscore_towers import load_towers

        return load_towers(locate(self.weights()[0]))

    def from_cosine(self, cosine):
        if self.options.formula == "clipscore":
            return _WEIGHT * cosine.clamp(min=0)
        return cosine if self.options.formula == "cosine" else self.module().logit(cosine)
