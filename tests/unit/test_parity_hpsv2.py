"""HPSv2 against the authors' own code (hpsv2x 1.2.0) on random weights: the true widths and heads, fewer layers in the quick
tests, all of them in the slow one."""

from __future__ import annotations

import os

import pytest
import torch

from tests.authors import by_authors, clip_vocabulary
from tests.pictures import SHAPES, as_batch, save_pictures
from trainer.rewards.clip_pixels import letterbox
from trainer.rewards.clip_text import clean_like_open_clip, load_tokenizer
from trainer.rewards.hpsv2 import HpsV2, HpsV2Options
from trainer.rewards.hpsv2_towers import load_towers
from trainer.rewards.towers import VIT_H_14, ClipShape

pytest.importorskip("ftfy")

SMALL = ClipShape(picture_layers=3, text_layers=2)
PROMPTS = [
    "a red bicycle leaning on a wall",
    "Une tête d'homme, “portrait”  &amp; studio light -- 85mm, f/1.8 don't",
    "一只猫坐在窗台上 🐈 (masterpiece:1.2)",
    "word " * 120,
    "",
]

# The scorer of the package as it is; only the base that it would fetch and overwrite is left out, and its size is given.
AUTHORS = """
import warnings; warnings.simplefilter("ignore")
from PIL import Image
from hpsv2 import img_score
from hpsv2.src.open_clip import factory
from hpsv2.src.open_clip.model import CLIP
from hpsv2.src.open_clip.tokenizer import tokenize

config = factory.get_model_config("ViT-H-14")
config["vision_cfg"]["layers"], config["text_cfg"]["layers"] = layers
torch.manual_seed(0)
model = CLIP(**config, output_dict=True)
if make:
    torch.save({"state_dict": {k: v.half() for k, v in model.state_dict().items()}}, weights)
factory.create_model = lambda *_, **__: model
read = {name: Image.open(path).convert("RGB") for name, path in pictures.items()}
scores = {}
for number, prompt in enumerate(prompts):
    found = img_score.score(list(read.values()), prompt, cp=weights)
    scores[number] = dict(zip(read, map(float, found)))
answer["scores"] = scores
answer["pixels"] = {name: img_score.model_dict["preprocess_val"](image) for name, image in read.items()}
answer["tokens"] = tokenize(prompts)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("hpsv2")
    clip_vocabulary(made)
    return made


@pytest.fixture(scope="module")
def authors(folder):
    pictures = save_pictures(folder)
    weights = str(folder / "HPS_v2.1_compressed.pt")
    layers = [SMALL.picture_layers, SMALL.text_layers]
    found = by_authors(folder, AUTHORS, pictures=pictures, prompts=PROMPTS, weights=weights, layers=layers, make=True)
    return {**found, "paths": pictures, "weights": weights}


def scorer(weights, monkeypatch, folder, shape=SMALL, **options):
    monkeypatch.setenv("VGRPO_MODELS", str(folder))
    monkeypatch.setattr("trainer.rewards.hpsv2_towers.load_towers", lambda file, path: load_towers(file, path, shape))
    return HpsV2(HpsV2Options(model=weights, **options))


@pytest.mark.parametrize("name", SHAPES)
def test_pixels(authors, name):
    ours = letterbox(as_batch(authors["paths"][name]), 224)[0]
    assert ours.shape == (3, 224, 224)
    assert (ours - authors["pixels"][name]).abs().max() <= 1e-6


def test_tokens(authors, folder, monkeypatch):
    monkeypatch.setenv("VGRPO_MODELS", str(folder))
    assert load_tokenizer(clean_like_open_clip)(PROMPTS).tolist() == authors["tokens"].tolist()


def test_scores(authors, folder, monkeypatch):
    reward = scorer(authors["weights"], monkeypatch, folder)
    assert reward.missing() is None
    theirs = torch.tensor([[authors["scores"][n][name] for name in SHAPES] for n in range(len(PROMPTS))], dtype=torch.float64)
    ours = torch.stack(
        [torch.cat([reward.score(as_batch(authors["paths"][name]), [prompt], [{}]) for name in SHAPES]) for prompt in PROMPTS]
    )
    assert theirs.std(1).min() > 1e-3 and theirs.std(0).min() > 1e-3, "the random model must tell pictures and prompts apart"
    assert (ours - theirs).abs().max() <= 1e-6


def test_scores_of_a_batch(authors, folder, monkeypatch):
    """Several prompts and sub-batches at once give what one picture at a time gives."""
    reward = scorer(authors["weights"], monkeypatch, folder, batch_size=3)
    pictures = as_batch(authors["paths"]["portrait"]).repeat(5, 1, 1, 1)
    pictures[1] = 255 - pictures[1]
    scores = reward.score(pictures, [PROMPTS[0], PROMPTS[0], PROMPTS[1], PROMPTS[2], PROMPTS[1]], [{}] * 5)
    expected = [authors["scores"][n]["portrait"] for n in (0, 1, 2, 1)]
    assert (scores[[0, 2, 3, 4]] - torch.tensor(expected, dtype=torch.float64)).abs().max() <= 1e-6
    assert abs(scores[1] - scores[0]) > 1e-4


PACKAGE = """
import shutil, importlib.util
from pathlib import Path
from trainer.rewards import hpsv2_package
from trainer.rewards.hpsv2 import HpsV2, HpsV2Options
from trainer.errors import UserError
from tests.pictures import as_batch

# hpsv2 1.2.0 as its wheel is: no vocabulary, and a turtle (tkinter) in factory.py.
site = Path(importlib.util.find_spec("hpsv2").submodule_search_locations[0])
copy = Path("broken") / "hpsv2"
shutil.copytree(site, copy)
inside = copy / "src" / "open_clip"
(inside / "bpe_simple_vocab_16e6.txt.gz").unlink()
factory = inside / "factory.py"
factory.write_text("from turtle import forward\\n" + factory.read_text(encoding="utf-8"), encoding="utf-8")
sys.path.insert(0, str(copy.parent.absolute()))
sys.modules["tkinter"] = None
importlib.invalidate_caches()
load = hpsv2_package.load_towers
hpsv2_package.load_towers = lambda file, path: load(file, path, tuple(layers))
reward = HpsV2(HpsV2Options(model=weights, backend="package"))
answer["missing"] = reward.missing()
answer["folder"] = str(hpsv2_package._folder())
answer["scores"] = {n: {name: float(reward.score(as_batch(path), [prompt], [{}])) for name, path in pictures.items()}
                    for n, prompt in enumerate(prompts)}
answer["left"] = ["turtle" in sys.modules, "clint" in sys.modules, "hpsv2" in sys.modules]
"""


def test_the_package_backend_repairs_the_package(authors, folder, monkeypatch):
    monkeypatch.setenv("VGRPO_MODELS", str(folder))
    found = by_authors(
        folder,
        PACKAGE,
        pictures=authors["paths"],
        prompts=PROMPTS[:3],
        weights=authors["weights"],
        layers=[SMALL.picture_layers, SMALL.text_layers],
    )
    assert found["missing"] is None and "broken" in found["folder"] and found["left"] == [False, False, False]
    for number in range(3):
        for name in SHAPES:
            assert abs(found["scores"][number][name] - authors["scores"][number][name]) <= 1e-6


@pytest.mark.slow
def test_scores_of_the_whole_architecture(folder, monkeypatch):
    """All 32 + 24 layers, 986 million weights; needs about 11 GB of memory."""
    if _free_bytes() < 12e9:
        pytest.skip("needs 12 GB of free memory")
    pictures = {name: path for name, path in save_pictures(folder).items() if name in ("landscape", "tiny")}
    weights = str(folder / "whole.pt")
    layers = [VIT_H_14.picture_layers, VIT_H_14.text_layers]
    theirs = by_authors(folder, AUTHORS, pictures=pictures, prompts=PROMPTS[:1], weights=weights, layers=layers, make=True)
    reward = scorer(weights, monkeypatch, folder, VIT_H_14)
    for name, path in pictures.items():
        ours = reward.score(as_batch(path), PROMPTS[:1], [{}])
        assert abs(float(ours) - theirs["scores"][0][name]) <= 1e-6
    os.remove(weights)


def _free_bytes() -> float:
    import psutil

    return psutil.virtual_memory().available
