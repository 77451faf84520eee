"""Remake the embedded models' prompt files, the same bytes every time.

    python trainer/demo/make_prompts.py

Train and evaluate share no attribute combination (`Scene.held_out`) and no word. A line of the scenes' files is
{"prompt": text, "metadata": specification}; the kinds (single, count, pair, relation) take turns, so that any prefix of a file
is balanced.
"""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from pathlib import Path

if __package__ in (None, ""):  # started as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    __package__ = "trainer.demo"

from . import DEMO, EMBEDDED_MODELS, LETTERS
from .letters import world as letters
from .world import Scene, caption, sample_scene

KINDS = ("single", "count", "pair", "relation")
SIZES = {"train": 240, "evaluate": 64}
SEED = 2604
BACKGROUND_SHARE = 0.4  # of each kind's prompts name their background, as the captions that the model learnt from
_POOL = 20_000  # sampled scenes to choose from; held-out ones are a fifth


def kind_of(scene: Scene) -> str:
    if scene.relation:
        return "relation"
    if len(scene.groups) == 2:
        return "pair"
    return "single" if scene.groups[0].count == 1 else "count"


def make_prompts(name: str, seed: int = SEED) -> list[dict]:
    """The lines of one file, "train" or "evaluate"."""
    rng = random.Random(f"{seed} {name}")
    pool: dict[str, dict[Scene, None]] = defaultdict(dict)  # kind -> scenes in the order of their drawing, none twice
    for _ in range(_POOL):
        scene = sample_scene(rng)
        if scene.held_out == (name == "evaluate"):
            pool[kind_of(scene)].setdefault(scene)
    chosen = {kind: _choose(list(pool[kind]), SIZES[name] // len(KINDS), rng) for kind in KINDS}
    lines, texts = [], set()
    for turn in zip(*(chosen[kind] for kind in KINDS), strict=True):
        for scene in rng.sample(turn, len(turn)):
            text = caption(scene, rng)
            while text in texts:  # scenes that list a pair in the other order are worded alike
                text = caption(scene, rng)
            texts.add(text)
            lines.append({"prompt": text, "metadata": scene.metadata()})
    return lines


def _choose(scenes: list[Scene], wanted: int, rng: random.Random) -> list[Scene]:
    named = round(BACKGROUND_SHARE * wanted)
    chosen = _spread([s for s in scenes if s.background], named, rng)
    chosen += _spread([s for s in scenes if not s.background], wanted - named, rng)
    rng.shuffle(chosen)
    return chosen


def _spread(scenes: list[Scene], wanted: int, rng: random.Random) -> list[Scene]:
    """`wanted` scenes over as many attribute combinations as there are."""
    by_combination: dict[str, list[Scene]] = defaultdict(list)
    for scene in scenes:
        by_combination[scene.combination()].append(scene)
    queues = list(by_combination.values())
    rng.shuffle(queues)
    taken: list[Scene] = []
    while len(taken) < wanted:
        queues = [queue for queue in queues if queue]
        taken += [queue.pop(0) for queue in queues]
    return taken[:wanted]


def main() -> None:
    for world, make in ((DEMO, make_prompts), (LETTERS, letters.prompts)):
        for part in SIZES:
            path, lines = EMBEDDED_MODELS[world].prompts(part), make(part)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8", newline="\n")
            print(f"{len(lines)} prompts in {path}")


if __name__ == "__main__":
    main()
