"""Curve, pictures and previews of a real run as IMAGE tensors."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from tests import small_run
from tests.comfy_api import pack
from trainer.config import load_config

pictures = pack("nodes.pictures")


@pytest.fixture(scope="module")
def finished(tiny_sd3, tmp_path_factory):
    """A finished run: pictures of iterations 0, 2 and 3, of 2 prompts x 2 seeds."""
    run = small_run.new_run(tmp_path_factory.mktemp("läufe") / "vgrpo", small_run.small_config(tiny_sd3))
    small_run.go(run)
    return run


@pytest.fixture
def run(finished, tmp_path):
    """A copy that a test may damage."""
    copy = type(finished)(tmp_path / "vgrpo" / finished.id)
    shutil.copytree(finished.path, copy.path)
    return copy


def config_of(run):
    return load_config(run.config_file, check_files=False)


def is_image(tensor):
    fits = tensor.ndim == 4 and tensor.shape[-1] == 3 and tensor.dtype == torch.float32
    return fits and 0 <= float(tensor.min()) and float(tensor.max()) <= 1


def test_the_pictures_are_the_saved_ones_by_prompt_then_seed(finished):
    images, note = pictures.evaluation_pictures(finished, config_of(finished), 2)
    assert is_image(images) and images.shape == (4, 64, 64, 3) and note is None
    for i, name in enumerate(("p000-s0", "p000-s1", "p001-s0", "p001-s1")):
        saved = np.asarray(Image.open(finished.samples / "000002" / f"{name}.png"))
        assert np.array_equal((images[i] * 255).round().to(torch.uint8).numpy(), saved), name
    assert not torch.equal(images, pictures.evaluation_pictures(finished, config_of(finished), 0)[0])


def test_pictures_of_several_sizes_stand_in_the_middle_of_black_ones(run):
    """An IMAGE is one batch of one size."""
    Image.new("RGB", (96, 32), (255, 255, 255)).save(run.samples / "000002" / "p001-s1.png")
    images, note = pictures.evaluation_pictures(run, config_of(run), 2)
    assert is_image(images) and images.shape == (4, 64, 96, 3) and note is None
    assert (images[3, 16:48] == 1).all() and images[3].sum() == 3 * 96 * 32
    first = np.asarray(Image.open(run.samples / "000002" / "p000-s0.png"))
    assert np.array_equal((images[0, :, 16:80] * 255).round().to(torch.uint8).numpy(), first)
    assert not images[0, :, :16].any() and not images[0, :, 80:].any()


def test_what_does_not_fit_in_memory_is_left_out_and_said(finished, monkeypatch):
    monkeypatch.setattr(pictures, "MAX_BYTES", 3 * 64 * 64 * 3 * 4)
    images, note = pictures.evaluation_pictures(finished, config_of(finished), 2)
    assert len(images) == 2  # whole prompts only
    assert note == "only the first 2 of 4 pictures fit in an IMAGE batch"


def test_the_curve_is_drawn(finished):
    curve = pictures.curve(finished, config_of(finished))
    assert is_image(curve) and len(curve) == 1 and min(curve.shape[1:3]) > 200
    drawn = (curve - 1).abs().amax(-1) > 0.2
    assert 0.005 < float(drawn.float().mean()) < 0.5
    assert list(finished.path.parent.glob("*.part")) == []


def test_before_the_first_evaluation_a_placeholder_says_so(tiny_sd3, tmp_path):
    run = small_run.new_run(tmp_path, small_run.small_config(tiny_sd3))
    config = config_of(run)
    grid, note = pictures.evaluation_pictures(run, config, None)
    assert is_image(grid) and len(grid) == 1 and note is None
    assert torch.equal(grid, pictures.placeholder("no evaluation yet"))
    assert is_image(pictures.curve(run, config))
    assert pictures.grid_preview(run, None) is None and pictures.ui_images(run, None, "vgrpo") == {}


def test_a_placeholder_shows_its_text_and_takes_any():
    some, other = pictures.placeholder("no evaluation yet"), pictures.placeholder("still nothing")
    assert not torch.equal(some, other) and bool((some < 0.6).any())
    for text in ("", "x" * 3000, "两个蓝色的圆 \N{RIGHTWARDS ARROW}\nzweite Zeile", "$x_{"):
        assert is_image(pictures.placeholder(text))


def test_damaged_pictures_never_raise(run):
    config = config_of(run)
    (run.samples / "000003" / "p000-s0.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    grid, note = pictures.evaluation_pictures(run, config, 3)
    assert is_image(grid) and note == "the pictures of iteration 3 cannot be read"
    (run.samples / "000003" / "grid.png").write_bytes(b"\x89PNG")
    assert pictures.grid_preview(run, 3) is None
    run.events_file.write_bytes(b'{"seq": 1, "type": "iteration", "iteration": 1, "metr')
    assert torch.equal(pictures.curve(run, config), pictures.placeholder("no curve yet"))


def test_a_curve_that_cannot_be_drawn_is_a_placeholder_that_says_why(finished, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert torch.equal(
        pictures.curve(finished, config_of(finished)), pictures.placeholder("no curve: the package matplotlib is missing")
    )


def test_the_preview_is_the_trainers_own_grid(finished):
    preview = pictures.grid_preview(finished, 3)
    assert preview.mode == "RGB"
    assert np.array_equal(np.asarray(preview), np.asarray(Image.open(finished.samples / "000003" / "grid.png")))
    [shown] = pictures.ui_images(finished, 3, "vgrpo")["images"]
    assert shown == {"filename": "grid.png", "subfolder": f"vgrpo/{finished.id}/samples/000003", "type": "output"}
    assert (finished.path.parents[1] / shown["subfolder"] / shown["filename"]).is_file()
