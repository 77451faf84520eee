"""Pictures, grids and the curve on disk, and what a terminal shows."""

from __future__ import annotations

import errno
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

from trainer.evaluation import Evaluation
from trainer.pictures import GAP, LABEL, MARGIN, TILE, grid, save_outputs, save_png, to_pil
from trainer.progress import TerminalProgress
from trainer.prompts import Prompt
from trainer.report import save_before_after, save_curve
from trainer.runs import create_run
from trainer.runs.evaluations import saved_means
from trainer.samples import load_evaluation, save_evaluation


def noise(count, height=64, width=64, seed=0):
    return torch.randint(0, 256, (count, height, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def pixels(path):
    with Image.open(path) as picture:
        return torch.from_numpy(np.array(picture.convert("RGB")))


PROMPTS = (Prompt("a red square"), Prompt("zwei blaue Kreise, 两个蓝色的圆\nin a line"))


@pytest.fixture
def evaluation():
    return Evaluation(
        prompts=PROMPTS,
        seeds_per_prompt=2,
        seeds=(2**63 - 1, 2, 3, 4),
        images=tuple(noise(4)),
        scores={"scene": torch.tensor([0.25, float("nan"), 1.0, 0.1 + 0.2], dtype=torch.float64), "size": torch.arange(4.0)},
        means={"eval/scene/mean": 0.5, "eval/size/mean": float("nan")},
        troubles=(),
    )


@pytest.fixture
def run(tmp_path):
    return create_run(tmp_path / "läufe", "demo")


# --- single pictures


def test_pictures_hold_their_prompt_seed_and_scores(tmp_path, evaluation):
    e = evaluation
    names = save_outputs(tmp_path / "neu", e.images, [p.text for p in e.prompts], e.seeds, 2, e.scores)
    assert names == ["p000-s0.png", "p000-s1.png", "p001-s0.png", "p001-s1.png"]
    for i, name in enumerate(names):
        assert torch.equal(pixels(tmp_path / "neu" / name), e.images[i])
        text = Image.open(tmp_path / "neu" / name).text
        assert text["prompt"] == PROMPTS[i // 2].text and int(text["seed"]) == e.seeds[i]

        def strict(word):
            raise AssertionError(f"{word} is not JSON")

        scores = json.loads(text["scores"], parse_constant=strict)
        assert scores == {"scene": [0.25, None, 1.0, 0.3][i], "size": float(i)}


def test_a_picture_is_complete_or_absent(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    save_png(to_pil(noise(1)[0]), path)
    before = path.read_bytes()

    def full(image, target, **kwargs):
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(OSError, match="No space"):
        save_png(to_pil(noise(1, seed=1)[0]), path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


# --- an evaluation


def test_an_evaluation_is_read_back_as_it_was(run, evaluation):
    fields = save_evaluation(run, 7, evaluation)
    assert fields == {"grid": "samples/000007/grid.png", "index": "samples/000007/index.json", "pictures": 4}
    assert all((run.path / fields[key]).is_file() for key in ("grid", "index"))
    back = load_evaluation(run, 7, PROMPTS)
    assert all(map(torch.equal, back.images, evaluation.images)) and back.seeds == evaluation.seeds
    assert back.seeds_per_prompt == 2 and back.prompts == PROMPTS
    for name, values in evaluation.scores.items():
        assert torch.equal(back.scores[name].nan_to_num(-1), values.double().nan_to_num(-1))
    assert back.means["eval/scene/mean"] == 0.5 and back.means["eval/size/mean"] != back.means["eval/size/mean"]
    assert saved_means(run, 7) == {"eval/scene/mean": 0.5}


def test_what_is_not_there_whole_is_not_read(run, evaluation):
    assert load_evaluation(run, 7, PROMPTS) is None and saved_means(run, 7) == {}
    save_evaluation(run, 7, evaluation)
    folder = run.evaluation(7)
    assert load_evaluation(run, 7, PROMPTS[:1]) is None  # made with other prompts
    picture, index = folder / "p001-s1.png", folder / "index.json"
    whole = picture.read_bytes()
    for damaged in (b"", whole[:200], whole[: len(whole) // 2], whole[:60] + b"\0" * 30 + whole[90:]):
        picture.write_bytes(damaged)
        assert load_evaluation(run, 7, PROMPTS) is None
    picture.unlink()
    assert load_evaluation(run, 7, PROMPTS) is None
    picture.write_bytes(whole)
    assert load_evaluation(run, 7, PROMPTS) is not None
    for text in ("", "{", "[]", "{}", '{"prompts": 3, "means": [1]}'):
        index.write_text(text)
        assert load_evaluation(run, 7, PROMPTS) is None and saved_means(run, 7) == {}


def test_a_picture_that_is_broken_in_the_middle_is_not_read(run):
    """Pillow calls that a SyntaxError."""
    large = Evaluation(PROMPTS[:1], 1, (1,), tuple(noise(1, 256, 256)), {"size": torch.ones(1)}, {}, ())
    save_evaluation(run, 7, large)
    assert load_evaluation(run, 7, PROMPTS[:1]) is not None
    path = run.evaluation(7) / "p000-s0.png"
    whole = path.read_bytes()
    second = whole.rindex(b"IDAT")
    assert second > 1000
    path.write_bytes(whole[:second] + bytes(4) + whole[second + 4 :])
    assert load_evaluation(run, 7, PROMPTS[:1]) is None


def test_an_index_from_elsewhere_cannot_point_out_of_its_folder(run, evaluation, tmp_path):
    save_evaluation(run, 7, evaluation)
    path = run.evaluation(7) / "index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    save_png(to_pil(noise(1, seed=9)[0]), tmp_path / "secret.png")
    index["files"] = ["../../../secret.png"] * 4
    path.write_text(json.dumps(index))
    assert all(map(torch.equal, load_evaluation(run, 7, PROMPTS).images, evaluation.images))


# --- grids


def test_a_grid_shows_every_picture_in_its_place(tmp_path):
    images = noise(6)
    rows = [[to_pil(images[r * 3 + c]) for c in range(3)] for r in range(2)]
    sheet = grid(rows, ["one", "a very long prompt " * 20], [["0.1"] * 3] * 2, ["x", "y", "z"])
    assert sheet.width == 2 * MARGIN + 3 * (TILE + GAP)
    found = torch.from_numpy(np.array(sheet))
    row_height = 2 * LABEL + TILE + GAP
    for r in range(2):
        for c in range(3):
            x, y = MARGIN + c * (TILE + GAP), MARGIN + LABEL + GAP + r * row_height + LABEL
            tile = found[y : y + TILE, x : x + TILE]
            assert torch.equal(tile[::2, ::2], images[r * 3 + c])  # 64 pixels drawn twice as large
    captions = found[MARGIN + LABEL + GAP : MARGIN + 2 * LABEL + GAP]
    assert (captions != 255).any()
    assert (found[:, -MARGIN:] == 255).all()  # the long prompt is cut, not written over the edge


def test_large_and_wide_pictures_are_shrunk():
    sheet = grid([[to_pil(noise(1, 300, 600)[0])]], ["wide"])
    assert sheet.size == (2 * MARGIN + TILE + GAP, 2 * MARGIN + LABEL + TILE // 2 + GAP)


def test_before_and_after_stand_side_by_side(tmp_path):
    before, after = noise(6, seed=1), noise(6, seed=2)
    scores = torch.tensor([0.1, float("nan"), 0.3, 0.4, 0.5, 0.6])
    path = tmp_path / "grid.png"
    save_before_after(path, ["one", "two"], before, after, 3, scores, scores, rows=8)
    sheet = pixels(path)
    y = MARGIN + LABEL + GAP + LABEL
    tiles = [sheet[y : y + TILE : 2, MARGIN + c * (TILE + GAP) :][:, :TILE:2] for c in range(4)]
    for tile, image in zip(tiles, (before[0], before[1], after[0], after[1]), strict=True):
        assert torch.equal(tile, image)
    assert [p.name for p in tmp_path.iterdir()] == ["grid.png"]


@pytest.mark.filterwarnings("error::UserWarning")
def test_the_curve_is_drawn_for_what_was_measured(tmp_path):
    series = {"reward/a/mean": [(1, 0.1), (2, 0.2)], "eval/a/mean": [(0, 0.1), (2, 0.3)], "eval/b/mean": [(0, 0.5)]}
    save_curve(tmp_path / "two.png", series, ["a", "b", "never measured"], r"Lauf 日本 ü for $1, {2 or \$")
    save_curve(tmp_path / "one.png", series, ["a"], "x")
    two, one = (pixels(tmp_path / f"{name}.png") for name in ("two", "one"))
    assert two.shape[1] == one.shape[1] and two.shape[0] == 2 * one.shape[0]
    save_curve(tmp_path / "none.png", {}, ["a"], "x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one.png", "two.png"]


# --- the terminal


def test_progress_shows_iteration_reward_and_time_left():
    stream = io.StringIO()
    progress = TerminalProgress(stream)
    progress.message("before the first iteration")
    for done in (3, 4):  # a resumed run begins at 3
        progress.iteration(done, 10, {"reward/total/mean": 0.123456})
    progress.message("in between")
    progress.iteration(5, 10, {"reward/total/mean": float("nan")})
    progress.close()
    progress.close()
    text = stream.getvalue()
    assert "before the first iteration\n" in text and "in between\n" in text
    assert "4/10" in text and "5/10" in text and "left" in text and "reward 0.123" in text and "reward nan" in text


def test_the_first_iteration_counts_in_the_time_left(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    stream = io.StringIO()
    progress = TerminalProgress(stream)
    progress.begin(4, 10)
    assert "4/10" in stream.getvalue()
    now[0] += 60.0
    progress.iteration(5, 10, {"reward/total/mean": 0.1})
    assert "05:00 left" in stream.getvalue()
    progress.close()


@pytest.mark.parametrize("error", [OSError(errno.EIO, "the terminal is gone"), ValueError("I/O operation on closed file")])
def test_a_terminal_that_is_gone_does_not_matter(error):
    class Gone(io.StringIO):
        def write(self, text):
            raise error

        def flush(self):
            raise error

    progress = TerminalProgress(Gone())
    progress.message("a")
    progress.iteration(1, 2, {"reward/total/mean": 0.1})
    progress.message("b")
    progress.iteration(2, 2, {"reward/total/mean": 0.1})
    progress.close()
