"""GenEval (D. Ghosh et al., arXiv 2310.11513): count, colour, position, two objects, and which colour belongs to which."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import Field

from .geneval_rules import Verdict, classes_of, judge, kept, problem_of, threshold_of
from .learned import LearnedOptions, LearnedReward, WeightsPath
from .weights import MODEL, Weights

_KEPT = 4096  # verdicts, so that details judge nothing twice


class GenEvalOptions(LearnedOptions):
    model: WeightsPath = Field(
        "",
        description="the detector: a transformers folder of a Mask2Former, MaskFormer or object detection model that knows "
        "COCO's classes; empty = look in the models folders, or a hub id, which is then downloaded",
    )
    clip_model: WeightsPath = Field(
        "", description="the CLIP model that names colours, in the same words; GenEval's is OpenAI's ViT-L/14"
    )
    score_by: Literal["parts", "correct"] = Field(
        "parts",
        description="parts: the share of the prompt's demands that is met; correct: 1 only if all are, GenEval's own answer",
    )
    batch_size: int = Field(16, ge=1, le=1024, description="objects whose colour is looked at at once")
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        "float32", description="precision; in half precision objects near the threshold come and go"
    )


class GenEval(LearnedReward):
    name = "geneval"
    description = "Finds the objects that the prompt asks for, counts them, and compares their colours and places."
    range = "0 to 1; the detail `accuracy` is 1 only where every demand is met, which is GenEval's own answer"
    needs_metadata = True
    licence = "the detector's and CLIP's own"
    Options = GenEvalOptions

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._verdicts: dict[str, Verdict] = {}

    def weights(self):
        detector = Weights(
            title="GenEval's detector",
            names=("mask2former-swin-small-coco-instance",),
            hub="facebook/mask2former-swin-small-coco-instance",
            licence="its own, see its page",
            size=0,
            given=self.options.model,
            markers=MODEL,
        )
        clip = Weights(
            title="GenEval's judge of colours (CLIP ViT-L/14)",
            names=("clip-vit-large-patch14",),
            hub="openai/clip-vit-large-patch14",
            licence="MIT",
            size=0,
            given=self.options.clip_model,
            option="clip_model",
            markers=MODEL,
        )
        return (detector, clip)

    def build(self):
        from .geneval_models import load_models
        from .weights import locate

        return load_models(*map(locate, self.weights()), self.options.batch_size)

    def problem(self, prompt, metadata):
        if wrong := problem_of(metadata):
            return wrong
        if self._module is not None:
            unknown = [name for name in classes_of(metadata) if name not in self._module.labels]
            if unknown:
                return f"the detector knows no {unknown[0]!r}"
        return None

    def score(self, images, prompts, metadata):
        strict = self.options.score_by == "correct"
        return self._judge(images, prompts, metadata, lambda verdict: float(verdict.correct) if strict else verdict.score)

    def details(self, images, prompts, metadata):
        return {"accuracy": self._judge(images, prompts, metadata, lambda verdict: float(verdict.correct))}

    def _judge(self, images, prompts, metadata, figure):
        import torch

        self.module()
        values = [
            torch.nan if self.problem(prompt, spec) else figure(self._verdict(image, spec))
            for image, prompt, spec in zip(images, prompts, metadata, strict=True)
        ]
        return torch.tensor(values, dtype=torch.float64)

    def _verdict(self, image, spec) -> Verdict:
        digest = hashlib.blake2b(image.contiguous().numpy(), digest_size=16)
        digest.update(json.dumps([list(image.shape), dict(spec)], sort_keys=True).encode())
        key = digest.hexdigest()
        if key not in self._verdicts:
            models, threshold = self.module(), threshold_of(spec)
            with self.precision():
                seen = models.find(image, classes_of(spec), threshold)
                found = {name: kept(objects, threshold) for name, objects in seen.by_class.items()}
                verdict = judge(found, spec, lambda name, objects: models.colors(image, objects, seen.masks, name))
            while len(self._verdicts) >= _KEPT:
                self._verdicts.pop(next(iter(self._verdicts)))
            self._verdicts[key] = verdict
        return self._verdicts[key]
