"""From a group, or pictures and prompts, to a `Scored`: the work of Score Group. Imports nothing of ComfyUI."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..trainer.config.shape import shape_of
from ..trainer.device import choose_device
from ..trainer.errors import UserError
from ..trainer.prompts import Prompt
from ..trainer.rewards import Reward
from ..trainer.rewards.registry import create_entry, split
from ..trainer.rewards.scoring import ScoreTable, join, load_rewards, score_rewards
from ..trainer.rewards.shaping import Shape, shape_scores
from .annotate import not_numbers, to_uint8
from .choices import Group, RewardChoice
from .prompt_text import read_lines
from .score_report import Scored, advantages_of
from .watched import watched

NODE = "Score Group"
CHUNK = 8  # pictures a reward scores at once, which is how finely the progress is shown
_NAN_ADVICE = "a VAE in half precision overflows so (try it in float32), and a sampler with extreme settings"


@dataclass(frozen=True)
class Subject:
    """What is scored: uint8[B, H, W, 3] on the CPU, and for each picture its prompt, its group and perhaps its seed."""

    images: Tensor
    prompts: tuple[Prompt, ...]
    group_ids: tuple[int, ...]
    seeds: tuple[int, ...] | None
    broken: Tensor  # bool[B]: pictures with a value that is no number


@dataclass
class Judges:
    """Rewards made and loaded. `weights` names those that count; `messages` says what could not be loaded.

    `kept` holds those that the next execution finds again.
    """

    rewards: dict[str, Reward]
    weights: dict[str, float]
    kept: dict[str, Reward] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)  # of those that have one
    broken: dict[str, str] = field(default_factory=dict)
    messages: list[tuple[str, str]] = field(default_factory=list)


def subject_of(group: Group | None, images: Tensor | None, text: str) -> Subject:
    """A group's own pictures, or `images` in their place, or `images` with prompts from `text`. Raises UserError."""
    if group is None and images is None:
        raise UserError(f"{NODE}: nothing to score; connect group, or images together with prompts")
    if group is not None:
        if text.strip():
            raise UserError(f"{NODE}: the group has its prompts already; empty the prompts field, or disconnect group")
        pictures = group.images if images is None else images
        if len(pictures) != len(group.prompts):
            raise UserError(
                f"{NODE}: {len(pictures)} images for a group of {len(group.prompts)}; images take the place of the group's "
                "pictures one by one, so there must be as many"
            )
        return Subject(to_uint8(pictures), group.prompts, group.prompt_index, group.seeds, not_numbers(pictures))
    prompts = _spread_out(read_lines(text, f"{NODE}: prompts") or [Prompt("")], len(images))
    return Subject(to_uint8(images), prompts, _groups_of(prompts), None, not_numbers(images))


def _spread_out(prompts: Sequence[Prompt], pictures: int) -> tuple[Prompt, ...]:
    """A prompt for each picture: each line is for equally many pictures in a row."""
    each, left = divmod(pictures, len(prompts))
    if left or not each:
        raise UserError(
            f"{NODE}: {pictures} images and {len(prompts)} prompts; each line is for equally many images in a row, so give one "
            "line for all, one for each image, or a number of lines that divides the number of images"
        )
    return tuple(prompt for prompt in prompts for _ in range(each))


def _groups_of(prompts: Sequence[Prompt]) -> tuple[int, ...]:
    seen: dict[str, int] = {}
    keys = [json.dumps([prompt.text, prompt.metadata], sort_keys=True) for prompt in prompts]
    return tuple(seen.setdefault(key, len(seen)) for key in keys)


def appoint(choice: RewardChoice, device: str = "cpu", check: Callable[[], None] = lambda: None) -> Judges:
    """Make and load every reward of the choice, or take those that the choice has loaded already. `check` may raise meanwhile.

    UserError for a name or an option that does not exist.
    """
    weights = {name: float(settings.get("weight", 1.0)) for name, settings in choice.rewards.items()}
    settings = {**choice.monitors, **choice.rewards}
    names = [*choice.rewards, *(name for name in choice.monitors if name not in choice.rewards)]
    if not names:
        raise UserError(f"{NODE}: no reward is connected; add at least one Reward node")
    keys = {name: _identity(name, settings[name]) for name in names}
    rewards = {name: choice.loaded.get(keys[name]) or create_entry(name, settings[name]) for name in names}
    judges = Judges(rewards, weights, choice.loaded, {name: shape_of(settings[name]) for name in weights})
    if not weights:
        judges.weights = {names[0]: 1.0}
        judges.messages.append((names[0], "only monitors are connected; the advantages shown are this one's, as if it counted"))
    choice.loaded.clear()  # also of what a chain with other options has left there: its memory is needed now

    def interrupt() -> None:
        for reward in rewards.values():
            reward.interrupt()

    for name, message in watched(lambda: load_rewards(rewards, choose_device(device), None), check, interrupt):
        judges.broken[name] = f"can't be loaded: {message}"
    choice.loaded.update({keys[name]: reward for name, reward in rewards.items() if name not in judges.broken})
    return judges


def _leave(judges: Judges, reward: Reward) -> None:
    """A reward whose thread is left behind: it should end soon, and nobody may use it meanwhile."""
    reward.interrupt()
    for key in [key for key, kept in judges.kept.items() if kept is reward]:
        del judges.kept[key]


def _identity(name: str, settings: Mapping[str, Any]) -> str:
    """Equal for entries that the same reward object serves: those of equal kind and options, whatever they weigh."""
    return json.dumps(split(name, settings), sort_keys=True, default=str)


def score_all(subject: Subject, judges: Judges, between: Callable[[int], None] = lambda done: None) -> Scored:
    """Score every picture with every reward; `between(done)` is called as (reward, picture) pairs get done, at least four times
    a second, and may raise: then a reward that is at work is told to end, and is not kept.

    A reward that fails is NaN and a message. UserError only if no reward scored any picture.
    """
    texts = [prompt.text for prompt in subject.prompts]
    metadata = [prompt.metadata for prompt in subject.prompts]
    tables, messages, done = {}, list(judges.messages), 0
    for name, reward in judges.rewards.items():
        parts = []
        for start in range(0, len(texts), CHUNK):
            between(done)
            part = slice(start, start + CHUNK)
            if name in judges.broken:
                unknown = torch.full((len(texts[part]),), torch.nan, dtype=torch.float64)
                parts.append(ScoreTable({name: unknown}, reasons={name: judges.broken[name]}))
            else:
                parts.append(
                    watched(
                        partial(score_rewards, {name: reward}, subject.images[part], texts[part], metadata[part]),
                        partial(between, done),
                        partial(_leave, judges, reward),
                    )
                )
            done += len(texts[part])
        tables[name] = join(parts)
        if lacking := int(tables[name].scores[name].isnan().sum()):
            left_out = "; the advantages are made without it" if name in judges.weights and lacking == len(texts) else ""
            reason = tables[name].reasons.get(name, "NaN")
            messages.append((name, f"{lacking} of {len(texts)} pictures not scored: {reason}{left_out}"))
        messages += tables[name].notes
    if broken := int(subject.broken.sum()):
        messages.append(("pictures", f"{broken} of {len(texts)} hold values that are no numbers, so no score; {_NAN_ADVICE}"))
    scores = {name: table.scores[name].masked_fill(subject.broken, torch.nan) for name, table in tables.items()}
    compared = {name: shape_scores(values, judges.shapes.get(name, Shape())) for name, values in scores.items()}
    between(done)
    if not any(bool(values.isfinite().any()) for values in scores.values()):
        said = "; ".join(f"{name}: {text}" for name, text in messages if name in scores or name == "pictures")
        raise UserError(f"{NODE}: no reward could score any picture: {said}")
    return Scored(
        prompts=subject.prompts,
        group_ids=subject.group_ids,
        seeds=subject.seeds,
        scores=scores,
        compared=compared,
        weights=judges.weights,
        advantages=advantages_of(compared, judges.weights, subject.group_ids),
        messages=messages,
    )
