"""How likely a picture is not safe for work: a monitor, or a penalty. Any transformers image classifier with such a label."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ..errors import UserError
from .learned import LearnedOptions, LearnedReward, WeightsPath
from .weights import MODEL, Weights

_TITLE = "NSFW classifier"


class NsfwOptions(LearnedOptions):
    model: WeightsPath = Field(
        "",
        description="a transformers folder of an image classifier; empty = look in the models folders, or a hub id, which is "
        "then downloaded",
    )
    labels: tuple[str, ...] = Field(
        ("nsfw", "porn", "hentai", "sexy", "unsafe"),
        description="labels of the classifier that warn; the score is the sum of their probabilities",
    )


class Nsfw(LearnedReward):
    """As a penalty set a low bound (`clip: [0.2, null]`): pictures under it then tie, and only those above are pushed down."""

    name = "nsfw"
    description = "Probability that the picture is not safe for work, by an image classifier."
    range = "0 (harmless) to 1"
    penalty = True
    licence = "the classifier's own; Falconsai's is Apache-2.0"
    Options = NsfwOptions

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._processor: Any = None
        self._warning: list[int] = []

    def weights(self):
        return (
            Weights(
                title=_TITLE,
                names=("nsfw_image_detection",),
                hub="Falconsai/nsfw_image_detection",
                licence="Apache-2.0",
                size=0,
                given=self.options.model,
                markers=MODEL,
            ),
        )

    def build(self):
        from transformers import AutoModelForImageClassification

        from .pretrained import image_processor, load_pretrained
        from .weights import locate

        folder = locate(self.weights()[0])
        model = load_pretrained(AutoModelForImageClassification, folder, _TITLE)
        self._processor = image_processor(folder, _TITLE)
        self._warning = warning_labels(model.config.id2label, self.options.labels, str(folder))
        return model

    def score(self, images, prompts, metadata):
        import torch

        model = self.module()

        def run(part: slice):
            pictures = list(images[part].numpy())
            pixels = self._processor(images=pictures, return_tensors="pt", input_data_format="channels_last")["pixel_values"]
            pixels = pixels.to(self._device)
            with torch.no_grad(), self.precision():
                return model(pixel_values=pixels).logits.float().softmax(-1)[:, self._warning].sum(-1)

        return self.in_batches(len(images), run)


def warning_labels(known: dict[int, str], wanted: tuple[str, ...], where: str) -> list[int]:
    """The numbers of the labels that warn. Raises UserError where the classifier has none of them, or nothing else."""
    numbers = [int(number) for number, label in known.items() if str(label).casefold() in {w.casefold() for w in wanted}]
    if not numbers or len(numbers) == len(known):
        raise UserError(
            f"labels = {', '.join(wanted)}: {'none' if not numbers else 'all'} of the labels of the classifier {where}, which "
            f"are {', '.join(map(str, known.values()))}; name those that warn"
        )
    return numbers
