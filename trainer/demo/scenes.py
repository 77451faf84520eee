"""The recipe of the embedded model that draws scenes."""

from __future__ import annotations

import random

from . import world
from .detect import judge
from .parts import CLIP_WIDTHS, DEPTH, build_tokenizer
from .recipe import Recipe
from .world import BACKGROUNDS, COLORS, IMAGE_SIZE, RELATIONS, SHAPES

_COLOR, _SHAPE, _COUNT = (None, *sorted(COLORS)), (None, *SHAPES), (None, 1, 2, 3)
_SIZE, _RELATION, _BACKGROUND = (None, "small", "large"), (None, *RELATIONS), (None, *sorted(BACKGROUNDS))
_GROUP_FACTS = (_COLOR, _SHAPE, _COUNT, _SIZE)
_HELD_OUT_SEED = 99


class Scenes(Recipe):
    name = "scenes"
    world = world
    width = height = IMAGE_SIZE
    layers = heads = DEPTH
    clip = ((CLIP_WIDTHS[0], 3), (CLIP_WIDTHS[1], 2))
    channels = 64
    fact_sizes = [len(values) for values in (*_GROUP_FACTS, *_GROUP_FACTS, _RELATION, _BACKGROUND)]  # noqa: RUF012
    defaults = {  # noqa: RUF012
        "items": 20000,
        "autoencoder_steps": 2500,
        "autoencoder_batch": 12,
        "text_steps": 800,
        "steps": 16000,
        "caption_noise": 0.33,
    }

    def tokenizer(self, seed):
        return build_tokenizer(seed)

    def sample(self, rng):
        return world.sample_scene(rng)

    def held_out(self):
        rng = random.Random(_HELD_OUT_SEED)
        return [scene for scene in (world.sample_scene(rng) for _ in range(1500)) if scene.held_out]

    def facts(self, item):
        """The order of the groups only counts where a relation gives it a meaning."""
        groups = list(item.groups) if item.relation else sorted(item.groups, key=lambda g: (g.color, g.shape))
        facts = []
        for group in [*groups, None][:2]:
            named = (group.color, group.shape, group.count, group.size) if group else (None,) * 4
            facts += [kinds.index(value) for kinds, value in zip(_GROUP_FACTS, named, strict=True)]
        return [*facts, _RELATION.index(item.relation), _BACKGROUND.index(item.background)]

    def judge(self, pictures, items):
        verdicts = [judge(picture, item.metadata()) for picture, item in zip(pictures, items, strict=True)]
        return [(verdict.score, verdict.correct) for verdict in verdicts]
