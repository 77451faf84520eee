"""LAION's improved aesthetic predictor (C. Schuhmann): a small network on the features of OpenAI's CLIP ViT-L/14."""

from __future__ import annotations

from pydantic import Field

from .learned import LearnedOptions, LearnedReward, WeightsPath
from .weights import MODEL, Weights, locate


class AestheticOptions(LearnedOptions):
    clip_model: WeightsPath = Field(
        "",
        description="where CLIP ViT-L/14 is, a folder with its model.safetensors or that file: empty = look in the models "
        "folders, else a path, or a hub id such as org/name, which is then downloaded",
    )


class Aesthetic(LearnedReward):
    """How much the picture would please, whatever the prompt says: the average rating that people might give it."""

    name = "aesthetic"
    description = "LAION aesthetic score (sac+logos+ava1-l14-linearMSE): how much people like the look; ignores the prompt."
    range = "about 1 to 10, the ratings it was trained on; SD 3.5 M reaches 6.02 in arXiv 2604.23380"
    licence = "of the predictor not stated; CLIP: MIT"
    half_on_cuda = True
    Options = AestheticOptions

    def weights(self):
        return (
            Weights(
                title="aesthetic predictor",
                names=("sac+logos+ava1-l14-linearMSE.pth", "sac+logos+ava1-l14-linearMSE.safetensors"),
                hub="",
                licence="licence not stated",
                size=3_714_759,
                given=self.options.model,
                sha256="21dd590f3ccdc646f0d53120778b296013b096a035a2718c9cb0d511bff0f1e0",
                source="https://github.com/christophschuhmann/improved-aesthetic-predictor",
            ),
            Weights(
                title="CLIP ViT-L/14 (for the aesthetic predictor)",
                names=("clip-vit-large-patch14",),
                hub="openai/clip-vit-large-patch14",
                licence="MIT",
                size=1_710_540_580,
                given=self.options.clip_model,
                option="clip_model",
                markers=MODEL,
                single=True,
                sha256="a2bf730a0c7debf160f7a6b50b3aaf3703e7e88ac73de7a314903141db026dcb",
                hashed="model.safetensors",
            ),
        )

    def build(self):
        from .aesthetic_model import load_model

        head, clip = self.weights()
        return load_model((head, locate(head)), (clip, locate(clip)))

    def score(self, images, prompts, metadata):
        import torch

        with torch.no_grad():
            return self.in_batches(len(images), lambda part: self._rate(images[part]))

    def cast(self, module, dtype):
        module.clip.to(dtype)  # the head has no activation that would keep rounding errors small

    def _rate(self, pictures):
        model = self.module()
        pixels = model.pixels(pictures).to(self._device)
        with self.precision():
            features = model.see(pixels)
        return model.rate(features)
