"""The arithmetic rewards on pictures whose score is known in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from trainer.rewards import create


def flat(*color, size=64):
    return torch.tensor(color, dtype=torch.uint8).expand(size, size, 3).contiguous()


def noise(size=64):
    return torch.randint(0, 256, (size, size, 3), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def halves(left, right, size=64):
    picture = flat(*left, size=size)
    picture[:, size // 2 :] = torch.tensor(right, dtype=torch.uint8)
    return picture


def gray(values):
    return (
        torch.from_numpy(np.array(values, dtype=np.float64))
        .round()
        .clamp(0, 255)
        .to(torch.uint8)[..., None]
        .expand(-1, -1, 3)
        .contiguous()
    )


def score(name, *pictures, **options):
    images = torch.stack(pictures)
    values = create(name, options).score(images, ["a"] * len(images), [{}] * len(images))
    assert values.shape == (len(images),) and values.is_floating_point()
    return values.tolist()


def test_brightness():
    assert score("brightness", flat(0, 0, 0), flat(51, 51, 51), flat(255, 255, 255)) == pytest.approx([0, 0.2, 1])
    assert score("brightness", flat(0, 255, 0), halves((255, 0, 0), (0, 0, 255))) == pytest.approx([0.587, (0.299 + 0.114) / 2])


def test_saturation():
    assert score("saturation", flat(255, 0, 0), flat(3, 0, 0), flat(90, 90, 90), flat(0, 0, 0)) == pytest.approx([1, 1, 0, 0])
    assert score("saturation", flat(200, 150, 100), halves((0, 0, 255), (255, 255, 255))) == pytest.approx([0.5, 0.5])


def test_colorfulness():
    # Flat: no spread, 0.3 times the length of the mean (rg, yb). Red beside cyan: rg = +-255, yb = +-127.5, both means 0.
    red, split = 0.3 * math.hypot(255, 127.5), math.hypot(255, 127.5)
    values = score("colorfulness", flat(120, 120, 120), flat(255, 0, 0), halves((255, 0, 0), (0, 255, 255)))
    assert values == pytest.approx([0, red, split])


def test_jpeg_size():
    smooth, rough = score("jpeg_size", flat(120, 120, 120), noise(), prefer="large")
    assert 0 < smooth < 0.3 < 1 < rough
    assert score("jpeg_size", flat(120, 120, 120), noise()) == [-smooth, -rough]
    (coarse,) = score("jpeg_size", noise(), prefer="large", quality=20)
    assert coarse < rough / 2


def test_jpeg_size_is_per_pixel():
    small, large = score("jpeg_size", noise(128), prefer="large"), score("jpeg_size", noise(256), prefer="large")
    assert small == pytest.approx(large, rel=0.1)


def cosine(k, size=64):
    """A cosine of the transform's own basis along x: k of `size` of the Nyquist frequency."""
    wave = np.cos(np.pi * k * (np.arange(size) + 0.5) / size)
    return gray(128 + 100 * np.broadcast_to(wave, (size, size)))


def test_high_frequency():
    checkerboard = gray(255 * (np.indices((64, 64)).sum(0) % 2))
    gradient = gray(np.broadcast_to(np.linspace(0, 255, 64), (64, 64)))
    low, high, board, slope, rough, nothing = score(
        "high_frequency", cosine(30), cosine(34), checkerboard, gradient, noise(), flat(7, 90, 200)
    )
    assert low < 0.001 and high > 0.999
    assert board > 0.98 and slope < 0.001
    assert rough == pytest.approx(1 - math.pi / 16, abs=0.03)  # the area outside a quarter disc of half the Nyquist radius
    assert nothing == 0


def test_sharpness():
    checkerboard = gray(255 * (np.indices((64, 64)).sum(0) % 2))
    gradient = gray(np.broadcast_to(4 * np.arange(64), (64, 64)))
    board, slope, nothing = score("sharpness", checkerboard, gradient, flat(7, 90, 200))
    assert board == pytest.approx((4 * 2 * 255 / 2) ** 2)  # the Laplacian is +-1020 everywhere, its mean 0
    assert slope == pytest.approx(0, abs=1e-20) and nothing == pytest.approx(0, abs=1e-20)


def test_sharpness_falls_with_blur():
    from PIL import Image, ImageFilter

    sharp = Image.fromarray(noise().numpy())
    blurred = [sharp.filter(ImageFilter.GaussianBlur(radius)) for radius in (0, 1, 2, 4)]
    values = score("sharpness", *(torch.from_numpy(np.array(picture)) for picture in blurred))
    assert values == sorted(values, reverse=True) and values[0] > 100 * values[-1]


def test_sharpness_needs_a_neighbourhood():
    assert score("sharpness", noise()[:2, :5].contiguous()) == [0]


def test_pictures_need_not_be_square():
    picture = noise(64)[:, :40].contiguous()
    for name in ("brightness", "saturation", "colorfulness", "jpeg_size", "high_frequency", "sharpness"):
        assert math.isfinite(score(name, picture)[0])
