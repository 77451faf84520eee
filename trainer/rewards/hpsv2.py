"""Human Preference Score v2 and v2.1 (X. Wu et al., arXiv 2306.09341): CLIP ViT-H-14 fine-tuned on people's choices."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from .clip_text import vocabulary_problem
from .learned import LearnedOptions, TwoTowerReward
from .weights import Weights, find, locate

_FILES = {
    "v2.1": ("HPS_v2.1_compressed.pt", 1_972_490_005, "c57a38fb4a2f7e7c15bf00da2ea377cdf165448b4dd1052a484c215a998c9837"),
    "v2.0": ("HPS_v2_compressed.pt", 1_972_484_501, "07cb0d20626232204ca3a6ec53ff5984e7e53212a8a7b0e0ec2bac1bdaf125a1"),
}


class HpsV2Options(LearnedOptions):
    version: Literal["v2.1", "v2.0"] = Field(
        "v2.1", description="v2.1 is the authors' newer model and the one that papers on RL report"
    )
    backend: Literal["transformers", "package"] = Field(
        "transformers",
        description="transformers = this program's own scorer; package = the code of an installed hpsv2 or hpsv2x, same scores",
    )


class HpsV2(TwoTowerReward):
    """The plain cosine of the features, without CLIP's logit scale. The longer side is brought to 224 and the rest padded.

    Loaded once, its text features kept, its pictures in batches, where `hpsv2.score` reads its checkpoint at every call, reads
    the prompt for each picture, and takes v2.0 unless told otherwise.
    """

    name = "hpsv2"
    description = "Human Preference Score v2.1: how much people would like the picture for this prompt."
    range = "a cosine, -1 to 1; FLUX.1-dev has 0.313 before and 0.372 after training in arXiv 2604.23380 (v2.1)"
    licence = "Apache-2.0"
    packages: ClassVar = {"ftfy": "ftfy"}
    half_on_cuda = True
    Options = HpsV2Options

    def weights(self):
        name, size, digest = _FILES[self.options.version]
        return (
            Weights(
                title=f"HPS {self.options.version}",
                names=(name,),
                hub="xswu/HPSv2",
                licence=self.licence,
                size=size,
                given=self.options.model,
                sha256=digest,
            ),
        )

    def missing(self):
        if absent := super().missing():
            return absent
        if self.options.backend == "package":
            from .hpsv2_package import package_problem

            return package_problem()
        found = find(self.weights()[0])
        return vocabulary_problem(found.parent if found else None)

    def build(self):
        (file,) = self.weights()
        path = locate(file)
        if self.options.backend == "package":
            from .hpsv2_package import load_towers
        else:
            from .hpsv2_towers import load_towers
        return load_towers(file, path)
