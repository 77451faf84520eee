"""The embedded model's world: small captioned scenes, drawn procedurally.

A scene holds one to three flat objects of four shapes and six colours on a plain background. It can be drawn
(`draw`), described in varied English (`caption`) and written down as a specification (`Scene.metadata`) that the
`scene` reward compares pictures with. Everything is a pure function of the `random.Random` that is passed in.
"""

from __future__ import annotations

import math
import random
import zlib
from dataclasses import dataclass, replace

from PIL import Image, ImageDraw

IMAGE_SIZE = 64
SHAPES = ("circle", "square", "triangle", "cross")
COLORS = {
    "red": (215, 35, 40),
    "orange": (250, 140, 20),
    "yellow": (245, 225, 50),
    "green": (40, 165, 70),
    "blue": (40, 85, 220),
    "purple": (150, 50, 185),
}
BACKGROUNDS = {"white": (250, 250, 250), "gray": (140, 140, 140), "black": (12, 12, 12)}
RELATIONS = ("left of", "above")
# Radii in pixels; a size that the caption does not name lies between the two named ones.
SIZE_RADII = {"small": (7.5, 8.5), None: (10.0, 11.0), "large": (13.5, 14.5)}
_SUPERSAMPLE = 4
# Where one, two or three objects lie, in pixels: compositions as plain as a catalogue's, which are learnt in minutes on a
# CPU, and objects that never touch. Places are 16 pixels apart, which is one token, and an object covers four of them.
_LOW, _MID, _HIGH = 16, 32, 48
LAYOUTS = {
    1: (((_MID, _MID),),),
    2: (((_LOW, _MID), (_HIGH, _MID)), ((_MID, _LOW), (_MID, _HIGH))),
    3: (((_LOW, _LOW), (_HIGH, _LOW), (_MID, _HIGH)), ((_MID, _LOW), (_LOW, _HIGH), (_HIGH, _HIGH))),
}
_JITTER = 1.0  # pixels
HELD_OUT_SHARE = 5  # one attribute combination in five is held out


@dataclass(frozen=True)
class Group:
    """`count` equal objects that a caption names together ("two blue squares")."""

    color: str
    shape: str
    count: int = 1
    size: str | None = None


@dataclass(frozen=True)
class Scene:
    """What a caption asks for; positions are chosen when the scene is drawn."""

    groups: tuple[Group, ...]
    relation: str | None = None  # groups[0] <relation> groups[1]
    background: str | None = None  # None: the caption leaves it open

    def metadata(self) -> dict:
        """The specification as plain JSON, as prompt files carry it."""
        objects = []
        for group in self.groups:
            entry = {"color": group.color, "shape": group.shape, "count": group.count}
            if group.size:
                entry["size"] = group.size
            objects.append(entry)
        data: dict = {"objects": objects}
        if self.relation:
            data["relation"] = self.relation
        if self.background:
            data["background"] = self.background
        return data

    def combination(self) -> str:
        """The attribute combination that decides between train and held-out (order, size, background do not count)."""
        parts = sorted(f"{g.count} {g.color} {g.shape}" for g in self.groups)
        return " + ".join(parts)

    @property
    def held_out(self) -> bool:
        return zlib.crc32(self.combination().encode()) % HELD_OUT_SHARE == 0


def sample_scene(rng: random.Random) -> Scene:
    """One random scene; kinds: a single object, several equal ones, a pair, a pair in a relation."""
    kind = rng.choices(("single", "count", "pair", "relation"), weights=(2, 3, 3, 4))[0]
    color, other_color = rng.sample(sorted(COLORS), 2)
    shape, other_shape = rng.choice(SHAPES), rng.choice(SHAPES)
    background = rng.choice(sorted(BACKGROUNDS)) if rng.random() < 0.4 else None
    if kind == "single":
        size = rng.choice((None, "small", "large"))
        return Scene((Group(color, shape, 1, size),), background=background)
    if kind == "count":
        return Scene((Group(color, shape, rng.choice((2, 3))),), background=background)
    if rng.random() < 0.25:  # the same colour twice, told apart by shape
        other_color = color
        other_shape = rng.choice([s for s in SHAPES if s != shape])
    first, second = Group(color, shape), Group(other_color, other_shape)
    if kind == "pair":
        if rng.random() < 0.3:
            first = replace(first, count=2)
        return Scene((first, second), background=background)
    return Scene((first, second), relation=rng.choice(RELATIONS), background=background)


def caption(scene: Scene, rng: random.Random) -> str:
    """One of many wordings of the scene."""
    phrases = [_phrase(group, rng) for group in scene.groups]
    if len(phrases) == 1:
        text = phrases[0]
    elif scene.relation == "left of":
        if rng.random() < 0.3:
            text = f"{phrases[1]} to the right of {phrases[0]}"
        else:
            text = f"{phrases[0]} {rng.choice(('left of', 'to the left of'))} {phrases[1]}"
    elif scene.relation == "above":
        if rng.random() < 0.3:
            text = f"{phrases[1]} {rng.choice(('below', 'under'))} {phrases[0]}"
        else:
            text = f"{phrases[0]} {rng.choice(('above', 'over'))} {phrases[1]}"
    else:
        rng.shuffle(phrases)
        text = f"{phrases[0]} {rng.choice(('and', 'and', 'with', 'next to'))} {phrases[1]}"
    if scene.background:
        text += rng.choice((" on a {} background", ", {} background", " on {}")).format(scene.background)
    return rng.choice(("", "", "", "a picture of ", "an image of ", "a drawing of ")) + text


def _phrase(group: Group, rng: random.Random) -> str:
    if group.count == 1:
        noun = f"{group.color} {group.shape}"
        if group.size:
            word = {"small": ("small", "tiny"), "large": ("large", "big")}[group.size]
            noun = f"{rng.choice(word)} {noun}"
        article = "an" if noun[0] in "aeiou" else "a"
        return f"{rng.choice((article, article, 'one'))} {noun}"
    number = {2: ("two", "2"), 3: ("three", "3")}[group.count]
    plural = "crosses" if group.shape == "cross" else group.shape + "s"
    return f"{rng.choice(number)} {group.color} {plural}"


def corrupt(scene: Scene, rng: random.Random) -> Scene:
    """The scene with one attribute misdescribed, as alt texts on the web often do."""
    index = rng.randrange(len(scene.groups))
    group = scene.groups[index]
    choices = ["color", "shape", "count"]
    if scene.relation:
        choices += ["relation", "relation"]
    if len(scene.groups) == 2:
        choices.append("omit")
    what = rng.choice(choices)
    if what == "omit":
        return replace(scene, groups=(scene.groups[1 - index],), relation=None)
    if what == "relation":
        if rng.random() < 0.5:
            return replace(scene, groups=(scene.groups[1], scene.groups[0]))
        return replace(scene, relation=rng.choice([r for r in RELATIONS if r != scene.relation]))
    if what == "color":
        wrong = replace(group, color=rng.choice([c for c in sorted(COLORS) if c != group.color]))
    elif what == "shape":
        wrong = replace(group, shape=rng.choice([s for s in SHAPES if s != group.shape]))
    else:
        wrong = replace(group, count=rng.choice([n for n in (1, 2, 3) if n != group.count]), size=None)
    groups = list(scene.groups)
    groups[index] = wrong
    return replace(scene, groups=tuple(groups))


def draw(scene: Scene, rng: random.Random) -> Image.Image:
    """The scene as a 64 x 64 RGB picture, antialiased; positions and open attributes are drawn from `rng`."""
    background = BACKGROUNDS[scene.background or rng.choice(sorted(BACKGROUNDS))]
    scale = _SUPERSAMPLE
    picture = Image.new("RGB", (IMAGE_SIZE * scale, IMAGE_SIZE * scale), background)
    pen = ImageDraw.Draw(picture)
    for group, x, y, radius in _place(scene, rng):
        tint = tuple(max(0, min(255, c + rng.randint(-10, 10))) for c in COLORS[group.color])
        _draw_shape(pen, group.shape, x * scale, y * scale, radius * scale, tint)
    return picture.resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BOX)


def _place(scene: Scene, rng: random.Random) -> list[tuple[Group, float, float, float]]:
    """(group, x, y, radius) of each object: a layout, and an order in it, that satisfies the relation, by rejection."""
    wanted = [group for group in scene.groups for _ in range(group.count)]
    while True:
        points = list(rng.choice(LAYOUTS[len(wanted)]))
        rng.shuffle(points)
        placed = []
        for group, point in zip(wanted, points, strict=True):
            x, y = (at + rng.uniform(-_JITTER, _JITTER) for at in point)
            placed.append((group, x, y, rng.uniform(*SIZE_RADII[group.size])))
        if _relation_holds(scene, placed):
            return placed


def _relation_holds(scene: Scene, placed: list[tuple[Group, float, float, float]]) -> bool:
    if scene.relation is None:
        return True
    (_, ax, ay, _), (_, bx, by, _) = placed
    dx, dy = bx - ax, by - ay
    # Drawn clearly, so that nobody argues about a diagonal.
    return dx > 1.3 * abs(dy) if scene.relation == "left of" else dy > 1.3 * abs(dx)


def shape_outline(shape: str, x: float, y: float, r: float) -> list[tuple[float, float]]:
    """The polygon of a shape whose bounding box is about 2 r wide, centred on (x, y)."""
    if shape == "circle":
        return [(x + r * math.cos(a * math.pi / 36), y + r * math.sin(a * math.pi / 36)) for a in range(72)]
    if shape == "square":
        h = 0.92 * r
        return [(x - h, y - h), (x + h, y - h), (x + h, y + h), (x - h, y + h)]
    if shape == "triangle":
        return [(x, y - r), (x + r, y + 0.85 * r), (x - r, y + 0.85 * r)]
    if shape == "cross":
        a = 0.36 * r
        return [
            (x - a, y - r), (x + a, y - r), (x + a, y - a), (x + r, y - a), (x + r, y + a), (x + a, y + a),
            (x + a, y + r), (x - a, y + r), (x - a, y + a), (x - r, y + a), (x - r, y - a), (x - a, y - a),
        ]  # fmt: skip
    raise ValueError(f"unknown shape {shape!r}; known: {', '.join(SHAPES)}")


def _draw_shape(pen: ImageDraw.ImageDraw, shape: str, x: float, y: float, r: float, tint: tuple) -> None:
    pen.polygon(shape_outline(shape, x, y, r), fill=tint)
