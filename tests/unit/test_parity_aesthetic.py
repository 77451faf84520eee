"""The aesthetic predictor against the authors' class as image-reward 1.5 carries it, on random weights.

OpenAI's own `clip` does not import on today's setuptools, so open_clip's ViT-L-14-quickgelu (the same network, for the same
weights) and the transform of its `load` stand in its place; true widths and heads, fewer layers.
"""

from __future__ import annotations

import pytest
import torch

from tests.authors import by_authors
from tests.pictures import SHAPES, as_batch, save_pictures
from trainer.errors import UserError
from trainer.rewards import create
from trainer.rewards.aesthetic_model import VIT_L_14, load_model
from trainer.rewards.clip_pixels import center_crop

LAYERS = 3
SHAPE = type(VIT_L_14)(**{**vars(VIT_L_14), "picture_layers": LAYERS, "text_layers": 1})
HEAD = "sac+logos+ava1-l14-linearMSE.pth"

AUTHORS = """
import types, importlib
from PIL import Image
from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Normalize, Resize, ToTensor
from open_clip.factory import get_model_config
from open_clip.model import CLIP
import open_clip

config = get_model_config("ViT-L-14-quickgelu")
config["vision_cfg"]["layers"], config["text_cfg"]["layers"] = layers, 1
torch.manual_seed(0)
network = CLIP(**{k: v for k, v in config.items() if k in ("embed_dim", "vision_cfg", "text_cfg", "quick_gelu")})
torch.save(network.state_dict(), clip_file)
transform = Compose([
    Resize(224, interpolation=InterpolationMode.BICUBIC), CenterCrop(224), lambda image: image.convert("RGB"), ToTensor(),
    Normalize((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
])
clip = types.ModuleType("clip")
clip.load = lambda *_, **__: (network.eval(), transform)
sys.modules["clip"] = clip

# The module alone: the package's __init__ imports trainers and datasets.
import importlib.util
place = importlib.util.find_spec("ImageReward").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("aesthetic_score", place + "/models/AestheticScore.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
scorer = module.AestheticScore(None)
for layer in scorer.mlp.layers:
    if isinstance(layer, torch.nn.Linear):
        torch.nn.init.normal_(layer.weight, std=0.3)
torch.save(scorer.mlp.state_dict(), head_file)
scorer.eval()
with torch.no_grad():
    answer["scores"] = {name: scorer.score("", path) for name, path in pictures.items()}
answer["pixels"] = {name: transform(Image.open(path)) for name, path in pictures.items()}
"""


@pytest.fixture(scope="module")
def authors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("aesthetic")
    (folder / "vgrpo").mkdir()
    # As RGB: transparent pictures are cut and scaled with their transparency there, which this program has taken out before.
    pictures = {name: path for name, path in save_pictures(folder).items() if name != "rgba"}
    clip = folder / "vgrpo" / "clip.pt"
    head = folder / "vgrpo" / HEAD
    found = by_authors(folder, AUTHORS, pictures=pictures, layers=LAYERS, clip_file=str(clip), head_file=str(head))
    return {**found, "paths": pictures, "clip": clip, "folder": folder}


@pytest.fixture
def reward(authors, monkeypatch):
    monkeypatch.setenv("VGRPO_MODELS", str(authors["folder"]))
    monkeypatch.setattr("trainer.rewards.aesthetic_model.load_model", lambda head, clip: load_model(head, clip, SHAPE))
    return create("aesthetic", {"clip_model": str(authors["clip"]), "batch_size": 2})


NAMES = [name for name in SHAPES if name != "rgba"]


@pytest.mark.parametrize("name", NAMES)
def test_pixels(authors, name):
    ours = center_crop(as_batch(authors["paths"][name]), 224, "nearest")[0]
    assert (ours - authors["pixels"][name]).abs().max() <= 1e-6


def test_scores(authors, reward):
    assert reward.missing() is None
    ours = [float(reward.score(as_batch(authors["paths"][name]), [""], [{}])) for name in NAMES]
    theirs = [authors["scores"][name] for name in NAMES]
    assert torch.tensor(theirs).std() > 1e-2, "the random model must tell pictures apart"
    scale = max(1.0, max(map(abs, theirs)))
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) <= 1e-6 * scale


def test_a_batch_and_its_prompts(authors, reward):
    pictures = torch.cat([as_batch(authors["paths"]["square"])] * 5)
    scores = reward.score(pictures, ["a", "b", "c", "d", "e"], [{}] * 5)
    assert scores.shape == (5,) and scores.std() < 1e-5, "the prompt does not count"
    assert abs(float(scores[0]) / authors["scores"]["square"] - 1) <= 2e-6


def test_what_is_missing_is_named(authors, reward, tmp_path, monkeypatch):
    monkeypatch.setenv("VGRPO_MODELS", str(tmp_path))
    assert f"aesthetic predictor: {HEAD} is missing" in reward.missing()
    text = create("aesthetic", {"model": str(authors["folder"] / "vgrpo" / HEAD)}).missing()
    assert "CLIP ViT-L/14" in text and "set 'clip_model'" in text and len(text.splitlines()) == 1


def test_another_clip_is_said_in_one_line(authors, monkeypatch, tmp_path):
    from tests.clip_models import open_clip_state

    monkeypatch.setenv("VGRPO_MODELS", str(authors["folder"]))
    torch.save(open_clip_state(), tmp_path / "small.pt")
    with pytest.raises(UserError) as caught:
        create("aesthetic", {"clip_model": str(tmp_path / "small.pt")}).load("cpu")
    assert "weights of another shape" in str(caught.value) and len(str(caught.value).splitlines()) == 1
