"""The demo's world, its detector and its prompt files."""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter

import numpy as np
import pytest

from trainer.demo import PROMPT_FILES
from trainer.demo.detect import HALF_RIGHT, WRONG_BACKGROUND, WRONG_RELATION, WRONG_SIZE, detect, judge
from trainer.demo.make_prompts import KINDS, SIZES, kind_of, make_prompts
from trainer.demo.world import BACKGROUNDS, COLORS, RELATIONS, SHAPES, Group, Scene, caption, corrupt, draw, sample_scene

SCENES = 500


@pytest.fixture(scope="module")
def drawn():
    rng = random.Random(11)
    scenes = [sample_scene(rng) for _ in range(SCENES)]
    return [(scene, np.asarray(draw(scene, rng))) for scene in scenes]


def picture_of(*groups, background="white", relation=None, seed=0):
    return np.asarray(draw(Scene(groups, relation, background), random.Random(seed)))


def spec(*groups, **more):
    return Scene(groups, **more).metadata()


RED_CIRCLE, BLUE_SQUARE = Group("red", "circle"), Group("blue", "square")


def test_drawn_ground_truth_is_correct(drawn):
    verdicts = [judge(picture, scene.metadata()) for scene, picture in drawn]
    assert np.mean([verdict.correct for verdict in verdicts]) >= 0.99
    assert np.mean([verdict.score for verdict in verdicts]) >= 0.99


def test_mismatched_captions_score_near_chance(drawn):
    verdicts = []
    for index, (_, picture) in enumerate(drawn):
        verdicts += [judge(picture, drawn[(index + shift) % SCENES][0].metadata()) for shift in (1, 7)]
    assert np.mean([verdict.correct for verdict in verdicts]) < 0.02
    assert np.mean([verdict.score for verdict in verdicts]) < 0.2


def test_each_corruption_lowers_the_score(drawn):
    rng = random.Random(3)
    seen = set()
    for scene, picture in drawn:
        wrong = corrupt(scene, rng)
        seen.add(changed(scene, wrong))
        verdict = judge(picture, wrong.metadata())
        assert not verdict.correct and verdict.score < judge(picture, scene.metadata()).score, (scene, wrong)
    assert seen == {"omit", "relation", "order", "color", "shape", "count"}


def changed(scene, wrong):
    if len(scene.groups) != len(wrong.groups):
        return "omit"
    if scene.relation != wrong.relation:
        return "relation"
    if scene.groups == wrong.groups[::-1] and len(scene.groups) == 2:
        return "order"
    pairs = list(zip(scene.groups, wrong.groups, strict=True))
    return next(name for name in ("color", "shape", "count") if any(getattr(a, name) != getattr(b, name) for a, b in pairs))


@pytest.mark.parametrize("seed", range(3))
def test_hand_computed_scores(seed):
    small, large = Group("red", "circle", 1, "small"), Group("red", "circle", 1, "large")
    one = picture_of(RED_CIRCLE, seed=seed)
    two = picture_of(RED_CIRCLE, BLUE_SQUARE, relation="left of", seed=seed)
    cases = [
        (one, spec(RED_CIRCLE), 1.0, True),
        (one, spec(Group("red", "square")), HALF_RIGHT, False),  # right colour, wrong shape
        (one, spec(Group("green", "circle")), HALF_RIGHT, False),  # right shape, wrong colour
        (one, spec(Group("green", "cross")), 0.0, False),
        (one, spec(Group("red", "circle", 2)), 1 / 2, False),  # one of two wanted
        (two, spec(RED_CIRCLE), 1 / 2, False),  # one object too many
        (two, spec(RED_CIRCLE, Group("blue", "cross")), (1 + HALF_RIGHT) / 2, False),
        (two, spec(RED_CIRCLE, BLUE_SQUARE), 1.0, True),
        (two, spec(BLUE_SQUARE, RED_CIRCLE), 1.0, True),  # without a relation the order is free
        (two, spec(RED_CIRCLE, BLUE_SQUARE, relation="left of"), 1.0, True),
        (two, spec(RED_CIRCLE, BLUE_SQUARE, relation="above"), WRONG_RELATION, False),
        (two, spec(BLUE_SQUARE, RED_CIRCLE, relation="left of"), WRONG_RELATION, False),
        (one, spec(RED_CIRCLE, background="white"), 1.0, True),
        (one, spec(RED_CIRCLE, background="black"), WRONG_BACKGROUND, False),
        (picture_of(small, seed=seed), spec(small), 1.0, True),
        (picture_of(small, seed=seed), spec(large), WRONG_SIZE, False),
        (picture_of(large, seed=seed), spec(small), WRONG_SIZE, False),
        (picture_of(large, seed=seed), spec(RED_CIRCLE), 1.0, True),  # no size asked for
        (one, spec(small), WRONG_SIZE, False),  # neither small nor large
    ]
    for picture, wanted, score, correct in cases:
        verdict = judge(picture, wanted)
        assert verdict.score == pytest.approx(score), wanted
        assert verdict.correct is correct, wanted


def test_wrong_count_costs_more_the_further_off():
    pictures = {n: picture_of(Group("green", "triangle", n)) for n in (1, 2, 3)}
    scores = {n: judge(pictures[n], spec(Group("green", "triangle", 3))).score for n in pictures}
    assert scores == pytest.approx({1: 1 / 3, 2: 2 / 3, 3: 1.0})
    assert judge(pictures[3], spec(Group("green", "triangle", 1))).score == pytest.approx(1 / 3)


def test_relation_concerns_every_object_of_a_group():
    picture = np.full((64, 64, 3), 250, np.uint8)
    picture[6:18, 6:18] = picture[46:58, 6:18] = COLORS["red"]  # two red squares on the left
    picture[26:38, 46:58] = COLORS["blue"]
    reds, blue = Group("red", "square", 2), Group("blue", "square")
    far_left = judge(picture, spec(reds, blue, relation="left of"))
    assert far_left.correct and far_left.score == 1
    assert judge(picture, spec(blue, reds, relation="left of")).score == WRONG_RELATION
    picture[46:58, 6:18], picture[26:38, 60:] = 250, 250
    picture[46:58, 46:58] = COLORS["red"]  # now one of them is below the blue one
    assert not judge(picture, spec(reds, blue, relation="left of")).correct


@pytest.mark.parametrize(
    "picture",
    [
        np.zeros((64, 64, 3), np.uint8),
        np.full((64, 64, 3), 128, np.uint8),
        np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8),
        np.random.default_rng(1).choice(np.array(list(COLORS.values()), np.uint8), (64, 64)),
    ],
    ids=["black", "gray", "noise", "palette noise"],
)
def test_pictures_without_objects(picture):
    wanted = spec(RED_CIRCLE, BLUE_SQUARE, relation="above", background="white")
    took = []
    for _ in range(5):  # the first call builds the templates, another process may interrupt one
        start = time.perf_counter()
        verdict = judge(picture, wanted)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.05
    assert verdict.score == 0 and not verdict.correct


def test_detection_reports_where_and_how_large():
    picture = np.full((64, 64, 3), 12, np.uint8)
    picture[10:30, 36:56] = COLORS["purple"]
    (thing,), background = detect(picture)
    assert (thing.color, thing.shape, background) == ("purple", "square", "black")
    assert (thing.x, thing.y, thing.radius) == (45.5, 19.5, 10)


# ---- captions and prompt files

_OBJECT = re.compile(
    rf"(?P<count>a|an|one|two|2|three|3) (?:(?P<size>small|tiny|large|big) )?(?P<color>{'|'.join(COLORS)}) (?P<shape>\w+)"
)
_COUNT = {"a": 1, "an": 1, "one": 1, "two": 2, "2": 2, "three": 3, "3": 3}
_SIZE = {"small": "small", "tiny": "small", "large": "large", "big": "large", None: None}
_JOINTS = {
    " to the left of ": ("left of", False), " left of ": ("left of", False), " to the right of ": ("left of", True),
    " above ": ("above", False), " over ": ("above", False), " below ": ("above", True), " under ": ("above", True),
    " and ": (None, False), " with ": (None, False), " next to ": (None, False),
}  # fmt: skip


def parse(text: str) -> Scene:
    """The scene that a caption describes, read by rules of its own."""
    text = re.sub(r"^(a picture of|an image of|a drawing of) ", "", text)
    background = None
    if match := re.search(rf"(?: on a|,| on) ({'|'.join(BACKGROUNDS)})(?: background)?$", text):
        background, text = match[1], text[: match.start()]
    joint = next((joint for joint in _JOINTS if joint in text), None)
    parts = text.split(joint) if joint else [text]
    relation, swapped = _JOINTS[joint] if joint else (None, False)
    groups = []
    for part in parts:
        match = _OBJECT.fullmatch(part)
        assert match, f"not understood: {part!r}"
        count = _COUNT[match["count"]]
        shape = match["shape"]
        if count > 1:
            shape = "cross" if shape == "crosses" else shape.removesuffix("s")
        assert shape in SHAPES, part
        groups.append(Group(match["color"], shape, count, _SIZE[match["size"]]))
    return Scene(tuple(reversed(groups) if swapped else groups), relation, background)


def canonical(metadata: dict) -> str:
    """The specification as text in which the order of unrelated objects does not count."""
    data = dict(metadata)
    if "relation" not in data:
        data["objects"] = sorted(data["objects"], key=json.dumps)
    return json.dumps(data, sort_keys=True)


def scene_of(metadata: dict) -> Scene:
    groups = tuple(Group(o["color"], o["shape"], o["count"], o.get("size")) for o in metadata["objects"])
    return Scene(groups, metadata.get("relation"), metadata.get("background"))


def lines_of(name: str) -> list[dict]:
    return [json.loads(line) for line in PROMPT_FILES[name].read_text(encoding="utf-8").splitlines()]


def test_captions_say_what_the_metadata_say():
    rng = random.Random(5)
    for _ in range(600):
        scene = sample_scene(rng)
        assert canonical(parse(caption(scene, rng)).metadata()) == canonical(scene.metadata())


@pytest.mark.parametrize("name", SIZES)
def test_prompt_files(name):
    lines = lines_of(name)
    assert lines == make_prompts(name), "run python trainer/demo/make_prompts.py"
    assert len(lines) == SIZES[name]
    assert len({line["prompt"] for line in lines}) == len(lines)
    assert len({canonical(line["metadata"]) for line in lines}) == len(lines)
    for line in lines:
        assert canonical(parse(line["prompt"]).metadata()) == canonical(line["metadata"])
        assert scene_of(line["metadata"]).metadata() == line["metadata"]
        assert scene_of(line["metadata"]).held_out is (name == "evaluate")
    kinds = [kind_of(scene_of(line["metadata"])) for line in lines]
    for end in range(1, len(kinds) + 1):
        counts = Counter(kinds[:end])
        assert max(counts.values()) - min(counts.get(kind, 0) for kind in KINDS) <= 1
    assert 0.35 <= np.mean(["background" in line["metadata"] for line in lines]) <= 0.45
    things = [thing for line in lines for thing in line["metadata"]["objects"]]
    assert {thing["color"] for thing in things} == set(COLORS) and {thing["shape"] for thing in things} == set(SHAPES)
    assert {line["metadata"].get("relation") for line in lines} == {None, *RELATIONS}


def test_train_and_evaluate_share_no_combination_and_no_text():
    combinations, texts = {}, {}
    for name in SIZES:
        combinations[name] = {scene_of(line["metadata"]).combination() for line in lines_of(name)}
        texts[name] = {line["prompt"] for line in lines_of(name)}
    assert not combinations["train"] & combinations["evaluate"]
    assert not texts["train"] & texts["evaluate"]
