"""The two networks behind GenEval: one that finds objects, one that names their colour. Both are transformers models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize

from .clipscore_towers import AnyTowers, load_towers
from .geneval_rules import COLORS, Found
from .pretrained import image_processor, load_pretrained, load_processor

DETECTOR = "GenEval's detector"
BACKGROUND = 0x99  # grey that stands for all but the object, as in GenEval
# GenEval's names for three of COCO's classes.
ALIASES = {"computer mouse": "mouse", "tv remote": "remote", "computer keyboard": "keyboard"}
_TEMPLATES = ("a photo of a {color} {name}", "a photo of a {color}-colored {name}", "a photo of a {color} object")


@dataclass(frozen=True)
class Detections:
    """What one picture shows. masks: bool[N, H, W], the pixels of each; None for a detector that has boxes only."""

    by_class: dict[str, list[Found]]
    masks: Tensor | None


class GenEvalModels(nn.Module):
    """`find` objects in a picture, and name their `colors`."""

    def __init__(self, detector: nn.Module, processor, towers: AnyTowers, batch_size: int) -> None:
        super().__init__()
        self.detector, self.towers, self._processor, self._batch_size = detector, towers, processor, batch_size
        self._classifiers: dict[str, Tensor] = {}
        labels = {str(name).lower(): int(number) for number, name in detector.config.id2label.items()}
        self.labels = {**labels, **{alias: labels[name] for alias, name in ALIASES.items() if name in labels}}

    @torch.no_grad()
    def find(self, picture: Tensor, names: Sequence[str], threshold: float) -> Detections:
        """picture: uint8[H, W, 3] on the CPU. Only objects of `names` with more confidence than `threshold` are looked for."""
        device = next(self.detector.parameters()).device
        inputs = self._processor(images=[picture.numpy()], return_tensors="pt", input_data_format="channels_last").to(device)
        outputs = self.detector(**{k: v for k, v in inputs.items() if k in ("pixel_values", "pixel_mask")})
        wanted = {self.labels[name]: name for name in names}
        if hasattr(outputs, "masks_queries_logits"):
            return _from_masks(outputs, wanted, threshold, picture.shape[:2], inputs["pixel_values"].shape[-2:])
        sizes = torch.tensor([picture.shape[:2]], device=device)
        (found,) = self._processor.post_process_object_detection(outputs, threshold=threshold, target_sizes=sizes)
        return Detections(_sorted_in(wanted, found["labels"], found["scores"], found["boxes"]), None)

    @torch.no_grad()
    def colors(self, picture: Tensor, found: Sequence[Found], masks: Tensor | None, name: str) -> list[str]:
        """The colour of each object, one of COLORS, by CLIP on the object cut out of its background."""
        if name not in self._classifiers:
            self._classifiers[name] = self._classifier(name)
        device = next(self.towers.parameters()).device
        crops = torch.cat([self.towers.pixels(_cut_out(picture, one, masks)[None]) for one in found]).to(device)
        seen = torch.cat([self.towers.see(part) for part in crops.split(self._batch_size)])
        alike = normalize(seen.float(), dim=-1) @ self._classifiers[name].to(device).T
        return [COLORS[i] for i in alike.argmax(-1).tolist()]

    def _classifier(self, name: str) -> Tensor:
        """float32[colours, D]: of each colour, the mean of what the templates say about a `name` of it."""
        rows = []
        for color in COLORS:
            texts = [template.format(color=color, name=name) for template in _TEMPLATES]
            said = normalize(torch.stack([self.towers.read(text) for text in texts]).float(), dim=-1)
            rows.append(normalize(said.mean(0), dim=-1))
        return torch.stack(rows)


def load_models(detector: Path, clip: Path, batch_size: int) -> GenEvalModels:
    """Raises UserError of one line for a folder that holds something else."""
    from transformers import AutoConfig, AutoModelForObjectDetection, AutoModelForUniversalSegmentation
    from transformers.models.auto.modeling_auto import MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING_NAMES as SEGMENTERS

    config = load_processor(AutoConfig, detector, DETECTOR)
    kind = AutoModelForUniversalSegmentation if config.model_type in SEGMENTERS else AutoModelForObjectDetection
    return GenEvalModels(
        load_pretrained(kind, detector, DETECTOR), image_processor(detector, DETECTOR), load_towers(clip), batch_size
    )


def _from_masks(outputs, wanted: dict[int, str], threshold: float, size, seen_size) -> Detections:
    """Mask2Former's and MaskFormer's answer as instances: of each query each class, its probability times how sure its mask is.

    So does mmdet's detector, which GenEval uses; transformers' own post-processing lets one instance hide another.
    """
    probabilities = outputs.class_queries_logits[0].float().softmax(-1)[:, :-1]
    queries, classes = (probabilities > threshold).nonzero(as_tuple=True)
    here = torch.tensor([int(c) in wanted for c in classes], dtype=torch.bool, device=classes.device)
    queries, classes = queries[here], classes[here]
    if not len(queries):
        return Detections({}, None)
    logits = outputs.masks_queries_logits[0][queries].float()[None]
    # The network saw the picture at another size, perhaps padded below and on the right.
    scale = min(seen_size[0] / size[0], seen_size[1] / size[1])
    logits = interpolate(logits, size=tuple(seen_size), mode="bilinear", align_corners=False)
    logits = logits[..., : round(size[0] * scale), : round(size[1] * scale)]
    logits = interpolate(logits, size=tuple(size), mode="bilinear", align_corners=False)[0]
    masks = logits > 0
    area = masks.flatten(1).sum(1)
    sure = (logits.sigmoid() * masks).flatten(1).sum(1) / (area + 1e-6)
    scores = probabilities[queries, classes] * sure
    return Detections(_sorted_in(wanted, classes, scores, _boxes(masks), area > 0), masks.cpu())


def _boxes(masks: Tensor) -> Tensor:
    """float32[N, 4] around bool[N, H, W]; zeros for an empty one."""
    boxes = torch.zeros(len(masks), 4)
    for i, mask in enumerate(masks):
        rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
        if len(rows):
            boxes[i] = torch.tensor([int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1])
    return boxes


def _sorted_in(wanted: dict[int, str], classes, scores, boxes, there=None) -> dict[str, list[Found]]:
    found: dict[str, list[Found]] = {}
    for i, (number, score, box) in enumerate(zip(classes.tolist(), scores.tolist(), boxes.tolist(), strict=True)):
        if number in wanted and (there is None or bool(there[i])):
            found.setdefault(wanted[number], []).append(Found(tuple(box), score, i))
    return found


def _cut_out(picture: Tensor, found: Found, masks: Tensor | None) -> Tensor:
    """The object's box of the picture, uint8[h, w, 3] with at least one pixel; all that is not the object is grey."""
    height, width = picture.shape[:2]
    left, top, right, bottom = found.box
    left, top = min(max(0, int(left)), width - 1), min(max(0, int(top)), height - 1)
    right, bottom = min(width, max(left + 1, round(right))), min(height, max(top + 1, round(bottom)))
    if masks is not None:
        picture = picture.masked_fill(~masks[found.what][..., None], BACKGROUND)
    return picture[top:bottom, left:right]
