"""The recipe of the embedded model that writes words."""

from __future__ import annotations

from ..parts import train_tokenizer
from ..recipe import Recipe
from . import world

_TOKENS = 16  # the longest caption, one token a letter


class Letters(Recipe):
    name = "letters"
    world = world
    width, height = world.WIDTH, world.HEIGHT
    layers = heads = 2
    clip = ((64, 3), (64, 2))
    channels = 32
    fact_sizes = [len(world.LETTERS)] * world.LENGTH
    defaults = {  # noqa: RUF012
        "items": 20000,
        "autoencoder_steps": 4000,
        "autoencoder_batch": 16,
        "text_steps": 1000,
        "steps": 8000,
        "caption_noise": 0.7,
    }

    def tokenizer(self, seed):
        return train_tokenizer([], vocabulary=0, tokens=_TOKENS)

    def sample(self, rng):
        return world.sample_word(rng)

    def held_out(self):
        return [word for word in world.WORDS if world.held_out(word)]

    def facts(self, item):
        return [world.LETTERS.index(letter) for letter in item]

    def judge(self, pictures, items):
        import torch

        from ...rewards.registry import create

        reward = create("ocr", {"rule": "whole", "lines": "one"})
        given = (torch.from_numpy(pictures), [""] * len(items), [{"text": word} for word in items])
        pairs = zip(reward.score(*given).tolist(), reward.details(*given)["exact"].tolist(), strict=True)
        return [(score, exact == 1) for score, exact in pairs]
