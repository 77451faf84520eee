"""Find the objects of a demo picture and compare them with what a prompt asked for.

The detector is arithmetic only (nearest palette colour, connected components, best-matching template), so a score can be
checked by hand. `trainer/rewards/scene.py` wraps it as a reward.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage
from scipy.optimize import linear_sum_assignment

from .world import BACKGROUNDS, COLORS, SHAPES, SIZE_RADII, shape_outline

MIN_AREA = 24  # pixels at 64 x 64; the smallest drawn cross covers about 90
TEMPLATE = 24
HALF_RIGHT = 0.3  # credit of an object whose colour or shape, but not both, is the one asked for
WRONG_SIZE = 0.7
WRONG_RELATION = 0.5
WRONG_BACKGROUND = 0.8
# The radius at which "small" ends and "large" begins, half-way to the unnamed size.
SMALL_BELOW = (SIZE_RADII["small"][1] + SIZE_RADII[None][0]) / 2
LARGE_ABOVE = (SIZE_RADII["large"][0] + SIZE_RADII[None][1]) / 2

_NAMES = (*COLORS, *BACKGROUNDS)
_PALETTE = np.array([*COLORS.values(), *BACKGROUNDS.values()], dtype=np.float32)


@dataclass(frozen=True)
class Detection:
    """One object found in a picture; positions and the radius are in pixels of a 64 x 64 picture."""

    color: str
    shape: str
    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Verdict:
    """`score` in [0, 1] gives partial credit; `correct` says whether every demand of the prompt is met."""

    score: float
    correct: bool


def detect(picture: np.ndarray) -> tuple[list[Detection], str]:
    """Objects and background of an RGB picture uint8[64, 64, 3]."""
    pixels = np.asarray(picture, dtype=np.float32)
    distance = ((pixels[:, :, None, :] - _PALETTE) ** 2).sum(-1)
    nearest = distance.argmin(-1)
    border = np.concatenate([nearest[:2].ravel(), nearest[-2:].ravel(), nearest[:, :2].ravel(), nearest[:, -2:].ravel()])
    counts = np.bincount(border, minlength=len(_NAMES))[len(COLORS) :]
    background = _NAMES[len(COLORS) + int(counts.argmax())]
    found = []
    for index, color in enumerate(COLORS):
        mask = nearest == index
        if mask.sum() < MIN_AREA:
            continue
        # Opening removes the thin rims where an edge blends into another palette colour.
        mask = ndimage.binary_opening(mask, structure=np.ones((2, 2)))
        labels, n = ndimage.label(mask)
        areas = np.bincount(labels.ravel(), minlength=n + 1)
        for part, box in enumerate(ndimage.find_objects(labels, n), start=1):
            if areas[part] < MIN_AREA:
                continue
            body = labels[box] == part
            height, width = body.shape
            y = (box[0].start + box[0].stop - 1) / 2
            x = (box[1].start + box[1].stop - 1) / 2
            found.append(Detection(color, _shape_of(body), x, y, max(height, width) / 2))
    return found, background


def judge(picture: np.ndarray, spec: dict) -> Verdict:
    """Compare a picture uint8[64, 64, 3] with a scene specification (`Scene.metadata`)."""
    found, background = detect(picture)
    wanted = [entry for entry in spec["objects"] for _ in range(entry.get("count", 1))]
    if not found:
        return Verdict(0.0, False)
    credit = np.array([[_credit(entry, thing) for thing in found] for entry in wanted])
    rows, columns = linear_sum_assignment(-credit)
    matched = credit[rows, columns]
    score = float(matched.sum()) / max(len(wanted), len(found))
    correct = len(found) == len(wanted) and bool((matched == 1).all())
    if spec.get("relation"):
        right = {int(r): found[int(c)] for r, c in zip(rows, columns, strict=True) if credit[r, c] == 1}
        split = spec["objects"][0].get("count", 1)  # rows below it belong to the first group
        holds = len(right) == len(wanted) and all(
            _related(spec["relation"], right[a], right[b]) for a in range(split) for b in range(split, len(wanted))
        )
        if not holds:
            score, correct = score * WRONG_RELATION, False
    if spec.get("background") and spec["background"] != background:
        score, correct = score * WRONG_BACKGROUND, False
    return Verdict(score, correct)


def _credit(entry: dict, thing: Detection) -> float:
    right = (entry["color"] == thing.color) + (entry["shape"] == thing.shape)
    credit = (0.0, HALF_RIGHT, 1.0)[right]
    size = entry.get("size")
    if (size == "small" and thing.radius > SMALL_BELOW) or (size == "large" and thing.radius < LARGE_ABOVE):
        credit *= WRONG_SIZE
    return credit


def _related(relation: str, a: Detection, b: Detection) -> bool:
    dx, dy = b.x - a.x, b.y - a.y
    return dx > abs(dy) if relation == "left of" else dy > abs(dx)


def _shape_of(body: np.ndarray) -> str:
    """The shape whose template overlaps most with the object's mask, both stretched to one square."""
    mask = Image.fromarray(body.astype(np.uint8) * 255).resize((TEMPLATE, TEMPLATE), Image.Resampling.BILINEAR)
    mask = np.asarray(mask, dtype=np.float32) / 255
    overlap = [np.minimum(mask, t).sum() / np.maximum(mask, t).sum() for t in _templates()]
    return SHAPES[int(np.argmax(overlap))]


@lru_cache(maxsize=1)
def _templates() -> tuple[np.ndarray, ...]:
    result = []
    for shape in SHAPES:
        big = Image.new("L", (256, 256), 0)
        ImageDraw.Draw(big).polygon(shape_outline(shape, 128, 128, 100), fill=255)
        big = big.crop(big.getbbox()).resize((TEMPLATE, TEMPLATE), Image.Resampling.BOX)
        result.append(np.asarray(big, dtype=np.float32) / 255)
    return tuple(result)
