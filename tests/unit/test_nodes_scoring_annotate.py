"""Pictures with their scores below: pixels kept, text readable, one size for all."""

from __future__ import annotations

import pytest
import torch

from tests.comfy_api import pack

annotate = pack("nodes.annotate")


def noise(count, height, width):
    return torch.randint(0, 256, (count, height, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("height", "width", "factor"), [(64, 64, 3), (64, 128, 3), (192, 192, 1), (191, 300, 2), (1, 1, 192), (1024, 768, 1)]
)
def test_small_pictures_are_enlarged_by_a_whole_factor_and_not_changed(height, width, factor):
    images = noise(2, height, width)
    sheets = annotate.annotate(images, [["a", "b"]] * 2, [None, "best"])
    assert sheets.dtype == torch.float32 and sheets.shape[0] == 2 and sheets.shape[2] == width * factor
    assert min(height, width) * factor >= 192 and sheets.shape[1] > height * factor
    picture = (sheets[:, : height * factor] * 255).round().byte()
    assert torch.equal(picture, images.repeat_interleave(factor, 1).repeat_interleave(factor, 2))


def test_every_line_is_written_and_none_leaves_the_picture():
    long = "a very long prompt about many things " * 20
    sheets = annotate.annotate(noise(3, 64, 64), [["one", "two", long]] * 3, [None, "best", "worst"])
    strip = sheets[0, 192:]
    paper = strip[0, 0]
    ink = (strip - paper).abs().amax(-1) > 0.3
    thirds = ink[: len(ink) // 3 * 3].reshape(3, -1, 192).flatten(1)
    assert thirds.any(dim=1).all()
    assert not ink[:, -3:].any() and not ink[-2:].any()
    assert len({tuple(sheet[192, 0].tolist()) for sheet in sheets}) == 3  # plain, best, worst


@pytest.mark.parametrize("text", ["", "two red circles", "日本語 🎉 ﷽", "x" * 1000, "tab\tand more"])
def test_any_text_can_be_a_caption(text):
    assert annotate.annotate(noise(1, 64, 64), [[text]], [None]).isfinite().all()


def test_rounding_is_the_trainers():
    pixels = torch.cat(
        [torch.rand(1000, generator=torch.Generator().manual_seed(1)), torch.arange(256) / 255, torch.tensor([-1.0, 2.0])]
    )
    images = pixels[:, None, None, None].expand(-1, 1, 1, 3)
    expected = (pixels.clamp(0, 1) * 255).round().to(torch.uint8)
    assert torch.equal(annotate.to_uint8(images)[:, 0, 0, 0], expected)
    assert annotate.to_uint8(torch.full((1, 2, 2, 3), torch.nan)).unique().tolist() == [0]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_grey_and_transparent_pictures_become_rgb(channels):
    images = torch.full((2, 4, 5, channels), 0.5)
    assert annotate.to_uint8(images).shape == (2, 4, 5, 3)
