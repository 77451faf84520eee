"""ImageReward (J. Xu et al., arXiv 2304.05977): BLIP ViT-L/16 reads the prompt while it looks at the picture."""

from __future__ import annotations

from .learned import LearnedOptions, LearnedReward
from .weights import Weights, locate

VOCABULARY = Weights(
    title="BERT's vocabulary, vocab.txt",
    names=("bert-base-uncased",),
    hub="google-bert/bert-base-uncased",
    licence="Apache-2.0",
    size=231_508,
    option="",
    markers=("vocab.txt",),
)


class ImageReward(LearnedReward):
    """Trained on people's rankings of pictures of one prompt; prompts are cut after 35 tokens, as in the authors' code."""

    name = "imagereward"
    description = "ImageReward: how people would rank the picture among others for the same prompt."
    range = "about -2 to 2, normalised to mean 0; FLUX.1-dev has 1.09 before and about 1.7 after in arXiv 2604.23380"
    licence = "Apache-2.0"
    Options = LearnedOptions

    def weights(self):
        return (
            Weights(
                title="ImageReward",
                names=("ImageReward.pt",),
                hub="THUDM/ImageReward",
                licence=self.licence,
                size=1_786_880_927,
                given=self.options.model,
                sha256="d71dc8d4912bc633c06ab8ef1ef6a81e8199d4369f14b47b29baf1d19de561f6",
            ),
            VOCABULARY,
        )

    def build(self):
        from .imagereward_model import load_model

        file, vocabulary = self.weights()
        return load_model(file, locate(file), locate(vocabulary) / "vocab.txt")

    def cast(self, module, dtype):
        module.blip.to(dtype)  # the head has no activation that would keep rounding errors small

    def score(self, images, prompts, metadata):
        import torch

        with torch.no_grad():
            return self.in_batches(len(images), lambda part: self._rate(images[part], prompts[part]))

    def _rate(self, pictures, prompts):
        model = self.module()
        pixels, tokens = model.pixels(pictures).to(self._device), model.tokens(prompts).to(self._device)
        with self.precision():
            features = model.read(tokens, pixels)
        return model.rate(features)
