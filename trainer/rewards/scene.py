"""The embedded model's reward: does the picture show the objects, colours and relation that the prompt asks for?"""

from __future__ import annotations

import math

from .base import Reward

_COUNTS = (1, 2, 3)


class SceneReward(Reward):
    """Verifiable, in the manner of GenEval: objects are detected in the pixels and compared with the prompt's metadata.

    Pictures of another size are brought to 64 x 64 by area averaging (the aspect ratio is not kept).
    """

    name = "scene"
    description = "Detects the objects in the picture and compares count, colour, shape, size, relation and background."
    range = "0 to 1, partial credit; the detail `accuracy` is 1 only where every demand is met"
    needs_metadata = True

    def score(self, images, prompts, metadata):
        return self._judge(images, prompts, metadata, lambda verdict: verdict.score)

    def details(self, images, prompts, metadata):
        return {"accuracy": self._judge(images, prompts, metadata, lambda verdict: float(verdict.correct))}

    def problem(self, prompt, metadata):
        from ..demo.world import BACKGROUNDS, RELATIONS

        objects = metadata.get("objects")
        if not isinstance(objects, list) or not objects:
            return "the prompt's metadata has no list 'objects' (use the .jsonl prompts of the demo)"
        for entry in objects:
            if wrong := _wrong_object(entry):
                return wrong
        relation = metadata.get("relation")
        if relation and len(objects) != 2:
            return f"'relation' needs exactly two entries in 'objects', found {len(objects)}"
        return _unknown("relation", relation, (None, *RELATIONS)) or _unknown(
            "background", metadata.get("background"), (None, *BACKGROUNDS)
        )

    def _judge(self, images, prompts, metadata, figure):
        import torch

        from ..demo.detect import judge

        pictures = _to_world_size(images).numpy()
        values = [
            math.nan if self.problem(prompt, spec) else figure(judge(picture, spec))
            for picture, prompt, spec in zip(pictures, prompts, metadata, strict=True)
        ]
        return torch.tensor(values, dtype=torch.float64)


def _wrong_object(entry) -> str | None:
    from ..demo.world import COLORS, SHAPES

    if not isinstance(entry, dict):
        return f"an entry of 'objects' is {type(entry).__name__}, not a mapping with color, shape and count"
    return (
        _unknown("color", entry.get("color"), COLORS)
        or _unknown("shape", entry.get("shape"), SHAPES)
        or _unknown("count", entry.get("count", 1), _COUNTS)
        or _unknown("size", entry.get("size"), (None, "small", "large"))
    )


def _unknown(key: str, value, allowed) -> str | None:
    if any(type(value) is type(choice) and value == choice for choice in allowed):
        return None
    return f"'{key}' is {value!r}; the scene reward knows {', '.join(str(a) for a in allowed if a is not None)}"


def _to_world_size(images):
    """uint8[B, H, W, 3] -> uint8[B, 64, 64, 3]."""
    import torch
    import torch.nn.functional as F

    from ..demo.world import IMAGE_SIZE

    if images.shape[1:3] == (IMAGE_SIZE, IMAGE_SIZE):
        return images
    averaged = F.interpolate(images.permute(0, 3, 1, 2).float(), size=(IMAGE_SIZE, IMAGE_SIZE), mode="area")
    return averaged.round().to(torch.uint8).permute(0, 2, 3, 1)
