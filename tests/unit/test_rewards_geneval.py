"""GenEval: its rules on detections, then the real classes of its two networks, small and random."""

from __future__ import annotations

import json
import random

import pytest
import torch

from trainer.errors import UserError
from trainer.rewards import create
from trainer.rewards.geneval_rules import (
    COLORS,
    Found,
    Verdict,
    classes_of,
    judge,
    kept,
    problem_of,
    relations,
    threshold_of,
)
from trainer.rewards.scoring import score_rewards


def box(left, top, width=10, height=10):
    return (left, top, left + width, top + height)


def found(*boxes, confidence=0.95):
    return [Found(b, confidence - n / 1000, n) for n, b in enumerate(boxes)]


def verdict(there, include, exclude=(), colors=None, tag=None):
    metadata = {"include": include, "exclude": list(exclude), **({"tag": tag} if tag else {})}
    assert problem_of(metadata) is None
    return judge(there, metadata, lambda name, objects: [colors[name][o.what] for o in objects])


CAT, DOG = {"class": "cat", "count": 1}, {"class": "dog", "count": 1}


@pytest.mark.parametrize(
    ("there", "include", "exclude", "expected"),
    [
        ({"cat": found(box(0, 0))}, [CAT], [], Verdict(True, 1.0)),
        ({}, [CAT], [], Verdict(False, 0.0)),
        ({"cat": found(box(0, 0), box(20, 0))}, [CAT], [], Verdict(True, 1.0)),  # more than one is fine without `exclude`
        ({"cat": found(box(0, 0))}, [CAT, DOG], [], Verdict(False, 0.5)),
        ({"cat": found(box(0, 0)), "dog": found(box(30, 0))}, [CAT, DOG], [], Verdict(True, 1.0)),
        ({"cat": found(box(0, 0))}, [CAT], [{"class": "dog", "count": 1}], Verdict(True, 1.0)),
        ({"cat": found(box(0, 0)), "dog": found(box(9, 9))}, [CAT], [{"class": "dog", "count": 1}], Verdict(False, 0.5)),
    ],
)
def test_objects(there, include, exclude, expected):
    assert verdict(there, include, exclude) == expected


@pytest.mark.parametrize(
    ("number", "correct", "score"),
    [(0, False, 0), (1, False, 1 / 3), (2, False, 2 / 3), (3, True, 1), (4, False, 2 / 3), (7, False, 0)],
)
def test_counting(number, correct, score):
    """GenEval asks for three with `exclude` four; the partial score is 1 - |n - 3| / 3."""
    there = {"cat": found(*(box(20 * n, 0) for n in range(number)))}
    made = verdict(there, [{"class": "cat", "count": 3}], [{"class": "cat", "count": 4}])
    assert made.correct is correct and made.score == pytest.approx(score)


def test_colours_of_the_surest_objects_count():
    include = [{"class": "cat", "count": 1, "color": "red"}]
    there = {"cat": found(box(0, 0), box(20, 0))}
    assert verdict(there, include, colors={"cat": ["red", "blue"]}) == Verdict(True, 1.0)
    assert verdict(there, include, colors={"cat": ["blue", "red"]}) == Verdict(False, 0.5)


def test_each_colour_belongs_to_its_own_object():
    include = [{"class": "cat", "count": 1, "color": "red"}, {"class": "dog", "count": 1, "color": "blue"}]
    there = {"cat": found(box(0, 0)), "dog": found(box(20, 0))}
    assert verdict(there, include, colors={"cat": ["red"], "dog": ["blue"]}).correct
    swapped = verdict(there, include, colors={"cat": ["blue"], "dog": ["red"]})
    assert swapped == Verdict(False, 0.5)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (box(0, 0), box(50, 0), {"left of"}),
        (box(50, 0), box(0, 0), {"right of"}),
        (box(0, 0), box(0, 50), {"above"}),
        (box(0, 50), box(0, 0), {"below"}),
        (box(0, 0), box(50, 50), {"left of", "above"}),
        (box(0, 0), box(50, 20), {"left of"}),  # 20 of 54: not clearly above
        (box(0, 0), box(0, 0), set()),
        (box(0, 0), box(2, 0), set()),  # within a tenth of both widths
        (box(0, 0), box(2.1, 0), set()),  # clear of it by a hair: under half of the distance
        (box(0, 0), box(5, 0), {"left of"}),
    ],
)
def test_relations(a, b, expected):
    assert relations(a, b) == expected


def test_relations_against_an_independent_computation():
    """The rule as its authors' description has it, with arrays."""
    import numpy as np

    numbers = random.Random(1)
    for _ in range(500):
        a, b = ([numbers.uniform(0, 100) for _ in range(4)] for _ in range(2))
        a, b = ([min(c[0], c[2]), min(c[1], c[3]), max(c[0], c[2]), max(c[1], c[3])] for c in (a, b))
        corners = np.array([a, b]).reshape(2, 2, 2)
        centres, sizes = corners.mean(1), corners[:, 1] - corners[:, 0]
        offset = centres[0] - centres[1]
        clear = np.clip(np.abs(offset) - 0.1 * sizes.sum(0), 0, None) * np.sign(offset)
        x, y = clear / np.linalg.norm(offset)
        holds = {"left of": x < -0.5, "right of": x > 0.5, "above": y < -0.5, "below": y > 0.5}
        expected = {relation for relation, true in holds.items() if true}
        assert relations(a, b) == expected


def test_positions():
    include = [CAT, {**DOG, "position": ["right of", 0]}]
    there = {"cat": found(box(0, 0)), "dog": found(box(50, 0))}
    assert verdict(there, include) == Verdict(True, 1.0)
    assert verdict({"cat": found(box(80, 0)), "dog": found(box(50, 0))}, include) == Verdict(False, pytest.approx(2 / 3))
    assert verdict({"dog": found(box(50, 0))}, include) == Verdict(False, pytest.approx(1 / 3))  # no target


def test_which_detections_count():
    many = [Found(box(0, 0), n / 100, n) for n in range(100)]
    assert [f.what for f in kept(many, 0.9)] == [99, 98, 97, 96, 95, 94, 93, 92, 91]
    assert len(kept(many, 0.3)) == 16
    assert threshold_of({"tag": "counting"}) == 0.9 and threshold_of({"tag": "colors"}) == 0.3
    assert threshold_of({"exclude": [1]}) == 0.9 and threshold_of({}) == 0.3
    assert classes_of({"include": [CAT, DOG, CAT], "exclude": [{"class": "cow", "count": 1}]}) == ["cat", "dog", "cow"]


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({}, "has no list 'include'"),
        ({"include": []}, "has no list 'include'"),
        ({"include": ["cat"]}, "an entry of 'include' names no 'class'"),
        ({"include": [{"class": "cat", "count": 0}]}, "count = 0 of 'cat' in 'include'; allowed: 1 to 16"),
        ({"include": [{"class": "cat", "count": True}]}, "count = True"),
        ({"include": [{**CAT, "color": "teal"}]}, "color = 'teal' in 'include'; allowed: red, orange"),
        ({"include": [{**CAT, "position": ["left of", 0]}]}, "position = ['left of', 0] in 'include'"),  # of itself
        ({"include": [CAT, {**DOG, "position": ["near", 0]}]}, "position = ['near', 0]"),
        ({"include": [CAT], "exclude": "dog"}, "'exclude' of the metadata is no list"),
        ({"include": [CAT], "exclude": [{"count": 1}]}, "an entry of 'exclude' names no 'class'"),
    ],
)
def test_metadata_that_cannot_be_judged(metadata, said):
    assert said in problem_of(metadata) and said in create("geneval").problem("", metadata)


# --- the networks


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    from tests.tiny_rewards import make_clip_folder, make_mask2former_folder

    root = tmp_path_factory.mktemp("geneval")
    return make_mask2former_folder(root / "detector"), make_clip_folder(root / "clip")


@pytest.fixture(scope="module")
def reward(folders):
    made = create("geneval", {"model": str(folders[0]), "clip_model": str(folders[1])})
    assert made.missing() is None
    made.load("cpu")
    return made


def noise(*size):
    return torch.randint(0, 256, (*size, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def test_the_real_classes_detect_and_judge(reward):
    models = reward.module()
    assert models.labels["mouse"] == models.labels["computer mouse"]
    images = noise(2, 48, 64)
    seen = models.find(images[0], ["cat", "computer mouse"], 0.0)
    assert set(seen.by_class) <= {"cat", "computer mouse"} and seen.masks.shape[1:] == (48, 64)
    for objects in seen.by_class.values():
        for one in objects:
            left, top, right, bottom = one.box
            inside = seen.masks[one.what].nonzero()
            assert inside.amin(0).tolist() == [top, left] and (inside.amax(0) + 1).tolist() == [bottom, right]
            assert 0 < one.confidence <= 1
            assert models.colors(images[0], [one], seen.masks, "cat")[0] in COLORS
    metadata = {"include": [{"class": "cat", "count": 1, "color": "red"}]}
    table = score_rewards({"geneval": reward}, images, ["", ""], [metadata, {}], details=True)
    assert 0 <= table.scores["geneval"][0] <= 1 and table.scores["geneval"].isnan().tolist() == [False, True]
    assert table.details["geneval/accuracy"][0] in (0, 1)


def test_instances_are_what_mmdet_makes_of_the_same_logits(reward, monkeypatch):
    """Independent of the reward's code: all queries times all classes, each scored by its class and its mask."""
    models = reward.module()
    picture = noise(48, 64)
    inputs = models._processor(images=[picture.numpy()], return_tensors="pt", input_data_format="channels_last")
    with torch.no_grad():
        out = models.detector(pixel_values=inputs["pixel_values"], pixel_mask=inputs["pixel_mask"])
    probabilities = out.class_queries_logits[0].softmax(-1)[:, :-1]
    height, width = inputs["pixel_values"].shape[-2:]
    logits = torch.nn.functional.interpolate(out.masks_queries_logits, (height, width), mode="bilinear", align_corners=False)
    rows, columns = (int(inputs["pixel_mask"][0].any(d).sum()) for d in (1, 0))
    logits = torch.nn.functional.interpolate(logits[..., :rows, :columns], (48, 64), mode="bilinear", align_corners=False)[0]
    expected = []
    for query, mask in enumerate(logits):
        if (mask > 0).any():
            quality = mask.sigmoid()[mask > 0].mean()
            expected.append(float(probabilities[query, models.labels["cat"]] * quality))
    seen = models.find(picture, ["cat"], 0.0)
    assert sorted(f.confidence for f in seen.by_class["cat"]) == pytest.approx(sorted(expected), abs=1e-4)


def test_a_detector_with_boxes_only(tmp_path, folders):
    from tests.tiny_rewards import make_yolos_folder

    reward = create("geneval", {"model": str(make_yolos_folder(tmp_path / "yolos")), "clip_model": str(folders[1])})
    reward.load("cpu")
    seen = reward.module().find(noise(48, 64), ["cat", "dog"], 0.0)
    assert seen.masks is None and seen.by_class
    for objects in seen.by_class.values():
        assert reward.module().colors(noise(48, 64), objects[:1], None, "cat")[0] in COLORS


def test_a_class_that_the_detector_does_not_know(reward):
    metadata = {"include": [{"class": "unicorn", "count": 1}]}
    assert reward.problem("", metadata) == "the detector knows no 'unicorn'"
    table = score_rewards({"geneval": reward}, noise(1, 48, 64), [""], [metadata])
    assert table.failures == [("geneval", "1 of 1 outputs not scored: the detector knows no 'unicorn'")]


def test_scoring_by_geneval_s_own_answer(folders):
    reward = create("geneval", {"model": str(folders[0]), "clip_model": str(folders[1]), "score_by": "correct"})
    reward._verdict = lambda image, spec: Verdict(False, 0.5)
    reward.load("cpu")
    assert reward.score(noise(1, 8, 8), [""], [{"include": [CAT]}]).tolist() == [0]


def test_missing_and_wrong_folders(tmp_path, folders):
    text = create("geneval", {"model": str(folders[0])}).missing()
    assert "clip-vit-large-patch14" in text and "'clip_model'" in text
    text = create("geneval", {"model": str(tmp_path / "none"), "clip_model": str(folders[1])}).missing()
    assert "there is no such file or folder" in text and "none" in text
    wrong = create("geneval", {"model": str(folders[1]), "clip_model": str(folders[1])})
    with pytest.raises(UserError) as caught:
        wrong.load("cpu")
    assert str(folders[1]) in str(caught.value) and len(str(caught.value).splitlines()) == 1
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "config.json").write_text(json.dumps({"model_type": "mask2former"}))
    (tmp_path / "torn" / "model.safetensors").write_bytes(b"\0" * 40)
    with pytest.raises(UserError, match="can't be loaded as AutoModelForUniversalSegmentation"):
        create("geneval", {"model": str(tmp_path / "torn"), "clip_model": str(folders[1])}).load("cpu")
