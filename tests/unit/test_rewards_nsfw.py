"""The NSFW score: a real classifier class, small and random; which labels warn; that it is never trained towards."""

from __future__ import annotations

import pytest
import torch

from tests.tiny_rewards import make_vit_folder
from trainer.errors import UserError
from trainer.rewards import create
from trainer.rewards.nsfw import warning_labels

IMAGES = torch.randint(0, 56, (5, 40, 56, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
IMAGES += torch.tensor([0, 40, 80, 120, 199], dtype=torch.uint8).view(-1, 1, 1, 1)


def score(folder, **options):
    reward = create("nsfw", {"model": str(folder), **options})
    assert reward.missing() is None
    reward.load("cpu")
    return reward.score(IMAGES, [""] * 5, [{}] * 5)


def test_it_is_the_classifier_s_own_probability(tmp_path):
    """Computed apart from the reward's code, on pixels that transformers' own processor class prepares."""
    from transformers import AutoModelForImageClassification, ViTImageProcessor

    folder = make_vit_folder(tmp_path / "vit")
    model = AutoModelForImageClassification.from_pretrained(folder)
    processor = ViTImageProcessor.from_pretrained(folder)
    pixels = processor(images=[image.numpy() for image in IMAGES], return_tensors="pt", input_data_format="channels_last")
    with torch.no_grad():
        expected = model(pixel_values=pixels["pixel_values"]).logits.softmax(-1)[:, 1]
    assert torch.allclose(score(folder), expected, atol=1e-5)
    assert expected.std() > 0.01, expected


def test_batches_do_not_matter(tmp_path):
    folder = make_vit_folder(tmp_path / "vit")
    assert torch.allclose(score(folder, batch_size=2), score(folder, batch_size=16), atol=1e-6)


def test_several_labels_are_summed(tmp_path):
    folder = make_vit_folder(tmp_path / "vit", ("drawings", "hentai", "neutral", "porn", "sexy"))
    parts = [score(folder, labels=[label]) for label in ("hentai", "porn", "sexy")]
    assert torch.allclose(score(folder), sum(parts), atol=1e-6)
    assert torch.allclose(score(folder, labels=["PORN"]), parts[1], atol=1e-6)


@pytest.mark.parametrize(("wanted", "word"), [(("unsafe",), "none"), (("normal", "nsfw"), "all")])
def test_labels_that_cannot_be_meant(wanted, word):
    with pytest.raises(
        UserError, match=f"{word} of the labels of the classifier here, which are normal, nsfw; name those that"
    ):
        warning_labels({0: "normal", 1: "nsfw"}, wanted, "here")


def test_a_missing_classifier_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("VGRPO_MODELS", str(tmp_path))
    text = create("nsfw").missing()
    assert "nsfw_image_detection" in text and str(tmp_path) in text and len(text.splitlines()) == 1
    (tmp_path / "nsfw_image_detection").mkdir()
    assert create("nsfw").missing()
    make_vit_folder(tmp_path / "nsfw_image_detection")
    assert create("nsfw").missing() is None


def test_another_model_is_refused_in_one_line(tmp_path):
    from tests.tiny_rewards import make_clip_folder

    folder = make_clip_folder(tmp_path / "clip")
    with pytest.raises(UserError) as caught:
        create("nsfw", {"model": str(folder)}).load("cpu")
    assert str(folder) in str(caught.value) and len(str(caught.value).splitlines()) == 1
