"""The commands `rewards` and `score`: what is listed, whose options are used, that a run's pictures give its numbers again."""

from __future__ import annotations

import csv
import importlib.metadata
import json
import re
import sys
import types

import pytest
from PIL import Image

from tests.small_run import go, new_run, small_config
from tests.unit.test_picture_prompts import classic
from trainer import cli
from trainer.pictures import save_png
from trainer.rewards import Reward, registry


@pytest.fixture
def main(capsys):
    """main(*arguments): (exit code, standard output, standard error)."""

    def call(*arguments):
        capsys.readouterr()
        code = cli.main([str(a) for a in arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def installed(monkeypatch):
    """A package that offers one good reward and one that cannot be imported."""

    class Heavy(Reward):
        name = "heavy"
        description = "d"
        range = "0 to 1"
        packages = {"no_such_module": "no-such-package"}  # noqa: RUF012 - a ClassVar of the protocol

        def score(self, images, prompts, metadata):
            return images.double().mean((1, 2, 3))

    module = types.ModuleType("a_reward_package")
    module.Heavy = Heavy
    monkeypatch.setitem(sys.modules, module.__name__, module)
    points = [
        importlib.metadata.EntryPoint(name, f"a_reward_package:{thing}", registry.ENTRY_POINTS)
        for name, thing in (("heavy", "Heavy"), ("broken", "Gone"))
    ]
    monkeypatch.setattr(registry, "_third_party", lambda: {point.name: point for point in points})
    registry._load.cache_clear()
    yield
    registry._load.cache_clear()


def rows_of(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# --- rewards


def test_every_reward_is_listed_with_what_it_needs(main, installed, monkeypatch, tmp_path):
    monkeypatch.setenv("VGRPO_MODELS", str(tmp_path))
    code, out, _ = main("rewards")
    assert code == 0
    blocks = dict(re.findall(r"^(\w+)((?::.*)?\n(?:  .*\n?)+)", out, re.MULTILINE))
    assert list(blocks) == [*registry.BUILT_IN, "broken", "heavy"]
    assert "ready" in blocks["brightness"] and "ready" in blocks["scene"]
    assert "something is missing" in blocks["nsfw"] and "a penalty: its weight is negative" in blocks["nsfw"]
    assert "nsfw_image_detection is missing; put it" in blocks["nsfw"] and str(tmp_path) in blocks["nsfw"]
    assert "Apache-2.0" in blocks["nsfw"] and "needs prompts with metadata" in blocks["geneval"]
    assert "pip install no-such-package" in blocks["heavy"] and "cannot be loaded: AttributeError" in blocks["broken"]


def test_one_reward_with_its_options(main):
    code, out, _ = main("rewards", "judge", "--set", "judge.url=http://127.0.0.1:1/v1", "--set", "judge.model=m")
    assert code == 0 and out.startswith("judge: ready\n")
    assert re.search(
        r"^  timeout_s +seconds for one attempt as a whole \(a finite number > 0, <= 3600; default 120\.0\)$", out, re.M
    )


def test_a_file_that_is_there(main, monkeypatch, tmp_path):
    folder = tmp_path / "nsfw_image_detection"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"")
    monkeypatch.setenv("VGRPO_MODELS", str(tmp_path))
    code, out, _ = main("rewards", "nsfw")
    assert code == 0 and out.startswith("nsfw: ready\n") and f"found: {folder}" in out
    code, out, _ = main("rewards", "nsfw", "--set", "nsfw.model=some/model")
    assert code == 0 and "nsfw: ready" in out and "will be fetched from https://huggingface.co/some/model" in out


def test_a_file_that_is_not_the_published_one(main, monkeypatch, tmp_path):
    from trainer.rewards.nsfw import Nsfw
    from trainer.rewards.weights import Weights

    (tmp_path / "a.bin").write_bytes(b"other")
    monkeypatch.setenv("VGRPO_MODELS", str(tmp_path))
    wanted = Weights(title="T", names=("a.bin",), hub="o/n", licence="MIT", size=5, sha256="0" * 64)
    monkeypatch.setattr(Nsfw, "weights", lambda self: (wanted,))
    assert main("rewards", "nsfw")[0] == 0
    code, out, err = main("rewards", "nsfw", "--verify")
    assert code == 2 and "SHA-256 " + "0" * 64 in out and "1 file differs from what was published" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["beauty"], "unknown reward 'beauty'"),
        (["jpeg_size", "--set", "jpeg_size.qualty=3"], "unknown option 'qualty', did you mean 'quality'?"),
        (["jpeg_size", "--set", "quality=3"], "--set 'quality=3'; allowed: NAME.OPTION=VALUE with a NAME of jpeg_size"),
        (["jpeg_size", "--set", "scene.quality=3"], "with a NAME of jpeg_size"),
        (["jpeg_size", "--set", "jpeg_size.quality=[3"], "--set 'jpeg_size.quality=[3'"),
        (["jpeg_size", "--set", "jpeg_size.weight=3"], "weight tells how a score counts in a training; it changes no score"),
    ],
)
def test_rewards_refuses(main, arguments, said):
    code, out, err = main("rewards", *arguments)
    assert code == 2 and said in err and len(err.splitlines()) == 1 and out == ""


# --- score


@pytest.fixture(scope="module")
def finished(tiny_sd3, tmp_path_factory):
    """A run whose rewards have options, shapes and names of their own."""
    config = small_config(
        tiny_sd3,
        iterations=1,
        rewards={"small": {"kind": "jpeg_size", "quality": 30, "clip": [-0.5, None]}},
        monitors={"sharpness": {}, "large": {"kind": "jpeg_size", "prefer": "large"}},
    )
    run = new_run(tmp_path_factory.mktemp("scored"), config)
    go(run)
    return run


def test_a_runs_pictures_give_its_numbers_again(main, finished, tmp_path):
    """With the rewards of its own configuration: options and names are the run's, and clip changes no score."""
    folder = finished.samples / "000001"
    code, _, _ = main("score", folder, "--config", finished.path, "--csv", tmp_path / "t.csv")
    assert code == 0
    rows, index = rows_of(tmp_path / "t.csv"), json.loads((folder / "index.json").read_text())
    assert set(rows[0]) == {"picture", "prompt", "small", "sharpness", "large"}
    for name in ("small", "sharpness", "large"):
        assert [float(row[name]) for row in rows] == index["scores"][name]
    code, _, _ = main(
        "score", folder, "--config", finished.config_file, "--rewards", "small,brightness", "--csv", tmp_path / "u.csv"
    )
    assert code == 0 and [float(row["small"]) for row in rows_of(tmp_path / "u.csv")] == index["scores"]["small"]
    arguments = ("--config", finished.path, "--rewards", "small", "--set", "small.quality=31", "--csv", tmp_path / "v.csv")
    assert main("score", folder, *arguments)[0] == 0
    assert [float(row["small"]) for row in rows_of(tmp_path / "v.csv")] != index["scores"]["small"]


def test_pictures_of_all_sizes_and_kinds(main, tmp_path):
    """Neighbours of one size go together, each keeps its own score and place."""
    from trainer.rewards.brightness import Brightness

    sizes = []
    score = Brightness.score

    def noting(self, images, prompts, metadata):
        sizes.append(tuple(images.shape[:3]))
        return score(self, images, prompts, metadata)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Brightness, "score", noting)
        for n in range(20):
            Image.new("L", (8, 8), n).save(tmp_path / f"a{n:02d}.png")
        Image.new("RGBA", (9, 8), (40, 40, 40, 0)).save(tmp_path / "b.png")
        Image.new("P", (9, 8), 0).save(tmp_path / "c.png")
        code, out, _ = main("score", tmp_path, "--rewards", "brightness", "--csv", tmp_path / "t.csv")
    assert code == 0 and sizes == [(16, 8, 8), (4, 8, 8), (2, 8, 9)]
    rows = rows_of(tmp_path / "t.csv")
    assert [float(row["brightness"]) for row in rows[:20]] == pytest.approx([n / 255 for n in range(20)])
    assert float(rows[20]["brightness"]) == pytest.approx(40 / 255)
    assert "note: no prompt is known for 22 of 22 pictures; give --prompt, or a .txt beside each" in out


def test_prompts_that_comfyui_wrote(main, tmp_path):
    save_png(Image.new("RGB", (8, 8)), tmp_path / "a.png", {"prompt": json.dumps(classic()), "workflow": "{}"})
    code, out, _ = main("score", tmp_path / "a.png", "--rewards", "brightness", "--csv", tmp_path / "t.csv")
    assert code == 0 and rows_of(tmp_path / "t.csv")[0]["prompt"] == "a red cube" and "note" not in out


def test_each_picture_without_a_score_is_named_with_the_reason(main, tmp_path):
    for name in ("a", "b"):
        save_png(Image.new("RGB", (8, 8)), tmp_path / f"{name}.png", {"prompt": "a cat"})
    code, out, _ = main("score", tmp_path, "--rewards", "scene,brightness")
    assert code == 0
    for name in ("a", "b"):
        assert f"{tmp_path / f'{name}.png'}: scene: not scored: the prompt's metadata has no list 'objects'" in out
    assert "mean scene: nothing scored" in out and "mean brightness: 0.0000 over 2" in out


def test_what_a_reward_lacks_is_said_before_anything_is_read(main, installed, tmp_path):
    (tmp_path / "a.png").write_bytes(b"not a picture")
    code, out, err = main("score", tmp_path, "--rewards", "heavy")
    assert code == 2 and "reward heavy: needs no-such-package, which is not installed" in err and out == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no rewards; give --rewards NAME,NAME, or --config"),
        (["--config", "nowhere.yaml"], "configuration file not found"),
        (["--rewards", "scene", "--device", "abacus"], "'abacus' is not a device"),
        (["--rewards", "nsfw", "--set", "nsfw.clip=[0, 1]"], "clip tells how a score counts"),
    ],
)
def test_score_refuses(main, tmp_path, arguments, said):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    code, out, err = main("score", tmp_path, *arguments, "--csv", tmp_path / "t.csv")
    assert code == 2 and said in err and len(err.splitlines()) == 1 and out == ""
    assert not (tmp_path / "t.csv").exists()
