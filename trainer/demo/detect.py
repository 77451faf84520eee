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
    background = len(COLORS) + int(np.bincount(border, minlength=len(_NAMES))[len(COLORS) :].argmax())
    # Soft edges blend into the picture's own background, never into the other two, which a blend may happen to resemble.
    tint = distance[:, :, : len(COLORS)].argmin(-1)
    foreground = distance[:, :, : len(COLORS)].min(-1) < distance[:, :, background]
    found = []
    for body, box in _parts(ndimage.binary_opening(foreground, structure=np.ones((2, 2)))):
        found += _objects(body, tint[box], box)
    return found, _NAMES[background]


def _parts(mask: np.ndarray) -> list[tuple[np.ndarray, tuple[slice, slice]]]:
    """The connected parts of a mask that are large enough: (mask inside its box, box)."""
    if mask.sum() < MIN_AREA:
        return []
    labels, n = ndimage.label(mask)
    areas = np.bincount(labels.ravel(), minlength=n + 1)
    boxes = ndimage.find_objects(labels, n)
    return [(labels[box] == k, box) for k, box in enumerate(boxes, start=1) if areas[k] >= MIN_AREA]


def _objects(body: np.ndarray, tint: np.ndarray, box: tuple[slice, slice]) -> list[Detection]:
    """One object, or several of different colours that touch. A rim in a blended colour is too thin to be one."""
    solid = {}
    for index in np.unique(tint[body]):
        core = ndimage.binary_opening(body & (tint == index), structure=np.ones((3, 3)))
        if core.sum() >= MIN_AREA:
            solid[int(index)] = core
    if not solid:  # thin, but an object if it has a colour at all
        counts = np.bincount(tint[body])
        return [_detection(int(counts.argmax()), body, box)] if counts.max() > body.sum() / 2 else []
    if len(solid) == 1:
        return [_detection(next(iter(solid)), body, box)]
    found = []
    for index, core in solid.items():
        for part, inner in _parts(core):
            shifted = tuple(slice(a.start + b.start, a.start + b.stop) for a, b in zip(box, inner, strict=True))
            found.append(_detection(index, part, shifted))
    return found


def _detection(index: int, body: np.ndarray, box: tuple[slice, slice]) -> Detection:
    height, width = body.shape
    y = (box[0].start + box[0].stop - 1) / 2
    x = (box[1].start + box[1].stop - 1) / 2
    return Detection(tuple(COLORS)[index], _shape_of(body), x, y, max(height, width) / 2)


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
