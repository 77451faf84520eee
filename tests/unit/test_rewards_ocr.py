"""Text in pictures: what is wanted, how it is compared, and that a real recogniser reads real letters."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from trainer.demo.letters.world import WORDS, draw
from trainer.errors import UserError
from trainer.rewards import create
from trainer.rewards.ocr import edit_distance, similarity, targets
from trainer.rewards.scoring import score_rewards


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ('a sign that says "Hello World"', ["Hello World"]),
        ('"A" beside "B"', ["A", "B"]),
        ("a sign that says “Hello”", ["Hello"]),
        ("ein Schild mit „Grüße“", ["Grüße"]),
        ("une affiche « Été »", [" Été "]),
        ("招牌上写着「你好」", ["你好"]),
        ("a sign that says 'OPEN'", ["OPEN"]),
        ("a sign that says ‘OPEN’ at night", ["OPEN"]),
        ("it's the dog's sign that says 'OPEN'", ["OPEN"]),
        ('the word "don\'t"', ["don't"]),
    ],
)
def test_quoted_texts(prompt, texts):
    assert targets(prompt, {}) == texts


@pytest.mark.parametrize("prompt", ["", "a cat", "it's a dog's life", 'a 5" screen', "rock 'n roll and it's fine"])
def test_prompts_without_a_text(prompt):
    assert targets(prompt, {}) == "the prompt has no text in quotation marks, and the metadata no 'text'"


def test_metadata_wins():
    assert targets('a sign "A"', {"text": "B"}) == ["B"] and targets("a sign", {"text": ["B", "C"]}) == ["B", "C"]
    for wrong in (3, [], [1], {"a": "b"}):
        assert "the metadata's 'text' is" in targets("a sign", {"text": wrong})


@pytest.mark.parametrize(
    ("target", "text", "distance", "anywhere"),
    [
        ("", "", 0, 0),
        ("abc", "abc", 0, 0),
        ("abc", "", 3, 3),
        ("", "abc", 3, 0),
        ("kitten", "sitting", 3, 2),
        ("abc", "xxabcxx", 4, 0),
        ("abc", "xxabxx", 4, 1),
        ("open", "the shop is 0pen today", 18, 1),
    ],
)
def test_edit_distance(target, text, distance, anywhere):
    assert edit_distance(target, text) == distance and edit_distance(target, text, anywhere=True) == anywhere


def test_edit_distance_against_the_definition():
    """The recursion that defines it, on random words."""
    import random
    from functools import cache

    @cache
    def define(a, b):
        if not a or not b:
            return len(a) + len(b)
        return min(define(a[1:], b) + 1, define(a, b[1:]) + 1, define(a[1:], b[1:]) + (a[0] != b[0]))

    words = random.Random(0)
    for _ in range(200):
        a, b = ("".join(words.choices("abc", k=words.randint(0, 7))) for _ in range(2))
        assert edit_distance(a, b) == define(a, b)
        parts = {b[i:j] for i in range(len(b) + 1) for j in range(i, len(b) + 1)}
        assert edit_distance(a, b, anywhere=True) == min(define(a, part) for part in parts)


@pytest.mark.parametrize(
    ("rule", "text", "score"),
    [
        ("flow_grpo", "hello", 1),
        ("flow_grpo", "hello,goodbye", 1),  # it occurs: further text is free ...
        ("flow_grpo", "hallo", 0.8),
        ("flow_grpo", "hallo,goodbye", 0),  # ... but only then
        ("flow_grpo", "", 0),
        ("whole", "hello", 1),
        ("whole", "hellohello", 0.5),
        ("whole", "hallo", 0.8),
        ("whole", "", 0),
        ("anywhere", "hello,goodbye", 1),
        ("anywhere", "hallo,goodbye", 0.8),
        ("anywhere", "xyz", 0),
    ],
)
def test_rules(rule, text, score):
    assert similarity("hello", text, rule) == pytest.approx(score)


class Reading:
    """A reward whose pictures say what they are told."""

    def __new__(cls, *texts, **options):
        reward = create("ocr", options)
        said = dict(enumerate(texts))
        reward.read = lambda images: [said[int(image[0, 0, 0])] for image in images]
        return reward


def scores_of(reward, *prompts, metadata=None):
    images = torch.arange(len(prompts), dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 4, 4, 3)
    return score_rewards({"ocr": reward}, images, list(prompts), metadata or [{}] * len(prompts), details=True)


def test_letters_are_compared_as_flow_grpo_does():
    table = scores_of(Reading("HELLO world", "ﬁne １２", "nothing"), '"hello  World"', '"fine 12"', '"qqq"')
    assert table.scores["ocr"].tolist() == [1, 1, 0] and table.details["ocr/exact"].tolist() == [1, 1, 0]


def test_case_and_spaces_can_count():
    prompt = '"Hello World"'
    assert scores_of(Reading("hello world", ignore_case=False), prompt).scores["ocr"][0] == pytest.approx(1 - 2 / 10)
    assert scores_of(Reading("HelloWorld", ignore_spaces=False), prompt).scores["ocr"][0] == pytest.approx(1 - 1 / 11)


def test_several_texts():
    prompt = '"one" over "two"'
    assert scores_of(Reading("one two"), prompt).scores["ocr"].tolist() == [1]
    assert scores_of(Reading("one"), prompt).scores["ocr"][0] == pytest.approx((1 + 0) / 2)
    assert scores_of(Reading("one two", rule="whole"), prompt).scores["ocr"].tolist() == [1]
    assert scores_of(Reading("two one", rule="whole"), prompt).scores["ocr"][0] < 1


def test_whole_means_exactly_the_text():
    """With `whole` the figure `exact` counts nothing that has more than the text; with the other rules more is free."""
    assert scores_of(Reading("one two", rule="whole"), '"one"').details["ocr/exact"].tolist() == [0]
    assert scores_of(Reading("one two"), '"one"').details["ocr/exact"].tolist() == [1]


def test_prompts_without_a_text_have_no_score():
    table = scores_of(Reading("a", "b", "c"), '"a"', "a cat", '" "')
    assert table.scores["ocr"].isnan().tolist() == [False, True, True]
    assert table.warnings == [
        ("ocr", "2 of 3 outputs not scored: the prompt has no text in quotation marks, and the metadata no 'text'")
    ]
    assert create("ocr").problem('" "', {}) == "the text to write is blank"


def test_a_recogniser_that_is_not_there(tmp_path):
    reward = create("ocr", {"recognizer": str(tmp_path / "a.onnx")})
    assert f"there is no file {tmp_path / 'a.onnx'}" in reward.missing()


# --- the real recogniser

# matplotlib's own, as Pillow's has no umlauts.
FONT = str(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"))


@pytest.fixture(scope="module")
def reader():
    pytest.importorskip("rapidocr", reason="needs rapidocr: pip install rapidocr onnxruntime")
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install rapidocr onnxruntime")
    reward = create("ocr")
    assert reward.missing() is None
    reward.load("cpu")
    return reward


def drawn(text, size, ink=(20, 20, 20), paper=(235, 235, 225)):
    """uint8[size, size, 3] with the text across it, dark on light."""
    picture = Image.new("RGB", (size, size), paper)
    pen = ImageDraw.Draw(picture)
    points = size // 2
    while True:
        font = ImageFont.truetype(FONT, points)
        left, top, right, bottom = pen.textbbox((0, 0), text, font=font)
        if right - left <= 0.9 * size or points <= 6:
            break
        points -= 1
    pen.text(((size - right + left) / 2 - left, (size - bottom + top) / 2 - top), text, fill=ink, font=font)
    return torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(size, size, 3)


@pytest.mark.slow
@pytest.mark.parametrize("size", [32, 64, 128, 256, 512])
@pytest.mark.parametrize(("text", "other"), [("OPEN", "SHUT"), ("Grüße", "Straße")], ids=["english", "german"])
def test_real_letters_are_read(reader, size, text, other):
    if size == 32:
        text, other = text[:3], other[:3]
    image = drawn(text, size)[None]
    assert reader.score(image, [f'a sign that says "{text}"'], [{}]).tolist() == [1], reader.read(image)
    assert reader.score(image, [f'a sign that says "{other}"'], [{}])[0] < 0.7


@pytest.mark.slow
def test_better_writing_scores_higher(reader):
    prompt = 'a sign that says "WELCOME HOME"'
    texts = ["WELCOME HOME", "WELCOME HONE", "WELCAME HONE", "MOON"]
    scores = [float(reader.score(drawn(text, 256)[None], [prompt], [{}])[0]) for text in texts]
    assert scores == sorted(scores, reverse=True) and scores[0] == 1 and scores[-1] < 0.5


@pytest.fixture(scope="module")
def line_reader(reader):
    return create("ocr", {"lines": "one", "rule": "whole"})


@pytest.mark.slow
def test_an_empty_picture_scores_nothing_and_is_scored(reader, line_reader):
    blank = torch.full((2, 64, 96, 3), 128, dtype=torch.uint8)
    for one in (reader, line_reader):
        assert one.score(blank, ['"A"', '"A"'], [{}, {}]).tolist() == [0, 0]


def label(word):
    """uint8[32, 64, 3] of the letters world: one line of text that fills the picture."""
    return torch.from_numpy(np.array(draw(word, random.Random(word))))


@pytest.mark.slow
def test_pictures_of_one_line_are_read_without_a_search(line_reader):
    """Together and in any order, and each as it would be read alone; pictures of another shape beside them change nothing."""
    images = torch.stack([label(word) for word in WORDS])
    prompts = [f'the word "{word}"' for word in WORDS]
    assert line_reader.score(images, prompts, [{}] * len(WORDS)).min() == 1
    assert line_reader.score(images, prompts[1:] + prompts[:1], [{}] * len(WORDS)).mean() < 0.7
    fresh = create("ocr", {"lines": "one"})
    assert fresh.read([label("BAD"), drawn("OPEN", 64)[16:48, :], label("CAT").repeat(1, 2, 1)]) == ["BAD", "OPEN", "CAT CAT"]


@pytest.mark.slow
def test_a_picture_is_read_once(line_reader):
    word, calls = label("DEN"), []
    engine = line_reader._engine or line_reader.load() or line_reader._engine
    read = engine.recognize_txt
    engine.recognize_txt = lambda arrays: calls.append(len(arrays)) or read(arrays)
    try:
        assert line_reader.read([word, word, label("EGG")]) == ["DEN", "DEN", "EGG"]
        assert line_reader.read([label("EGG")]) == ["EGG"]
    finally:
        del engine.recognize_txt
    assert sum(calls) <= 2


@pytest.mark.slow
def test_colours_come_in_the_right_order(reader):
    """Blue letters on red would be read with both swapped as well, so the engine's own input is looked at."""
    seen = []
    engine = reader._engine
    reader._engine = lambda array: seen.append(array) or engine(array)
    try:
        reader.read([drawn("BLUE", 96, ink=(0, 0, 255), paper=(255, 0, 0))])
    finally:
        reader._engine = engine
    assert seen[0][0, 0].tolist() == [0, 0, 255]  # blue, green, red


@pytest.mark.slow
def test_nothing_is_fetched(reader, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    reward = create("ocr")
    reward.load("cpu")
    assert reward.score(drawn("OPEN", 128)[None], ['"OPEN"'], [{}]).tolist() == [1]


@pytest.mark.slow
def test_a_package_without_its_models_says_so(reader, monkeypatch, tmp_path):
    import rapidocr

    monkeypatch.setattr(rapidocr, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(UserError, match=r"rapidocr has no \*det\*\.onnx in .*; install it anew"):
        create("ocr").load("cpu")
