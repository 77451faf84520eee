"""Rewards by name, their options, and rewards of other packages."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import types
from pathlib import Path
from typing import ClassVar

import pydantic
import pytest
import torch

from trainer.errors import UserError
from trainer.rewards import Reward, RewardOptions, create, known, names, registry

ROOT = Path(__file__).resolve().parents[2]
ARITHMETIC = {"jpeg_size", "brightness", "colorfulness", "saturation", "high_frequency", "sharpness"}
LEARNED = {"hpsv2", "pickscore", "imagereward", "clipscore", "aesthetic"}
BUILT_IN = {"scene", *LEARNED, "ocr", "geneval", "judge", "http", "nsfw", *ARITHMETIC}


def test_built_in_rewards():
    assert set(registry.BUILT_IN) == BUILT_IN <= set(known())
    for name in BUILT_IN:
        reward = create(name, {})
        assert isinstance(reward, Reward) and reward.name == name
        assert reward.description and reward.range
        assert reward.Options.model_config["frozen"] and reward.Options.model_config["extra"] == "forbid"
        assert reward.needs_metadata is (name in ("scene", "geneval")) and reward.penalty is (name == "nsfw")
        assert not set(registry.RESERVED) & set(reward.Options.model_fields)
        assert all(field.description for field in reward.Options.model_fields.values()), name


@pytest.mark.parametrize("name", sorted(ARITHMETIC | {"scene"}))
def test_rewards_that_need_nothing(name):
    reward = create(name)
    assert reward.missing() is None and not reward.weights()
    reward.load("cpu", torch.float32)
    (value,) = reward.score(torch.zeros(1, 64, 64, 3, dtype=torch.uint8), [""], [{}])
    assert value.isnan() if name == "scene" else value.isfinite()


def test_a_missing_package_is_named_with_the_command():
    class Needs(Third):
        packages: ClassVar = {"pytest": "pytest", "no_such_module": "no-such-package", "os.nothing.here": "other"}

    line = Needs().missing()
    assert line == f"needs no-such-package other, which are not installed; install with: {sys.executable} -m pip install " + (
        "no-such-package other"
    )


def test_an_entry_is_a_name_or_says_its_kind():
    assert registry.split("scene", {"weight": 2.0, "clip": [0, 1], "transform": "log"}) == ("scene", {})
    assert registry.split("small", {"kind": "jpeg_size", "quality": 3}) == ("jpeg_size", {"quality": 3})
    reward = registry.create_entry("small", {"kind": "jpeg_size", "weight": -1.0, "quality": 3})
    assert reward.name == "jpeg_size" and reward.options.quality == 3


def test_options_reach_the_reward():
    assert create("jpeg_size").options.quality == 95
    assert create("jpeg_size", {"quality": 50, "prefer": "large"}).options.model_dump() == {"quality": 50, "prefer": "large"}


@pytest.mark.parametrize(
    ("name", "options", "parts"),
    [
        ("brigthness", {}, ["'brigthness'", "did you mean 'brightness'?", "known: scene"]),
        ("qqq", {}, ["'qqq'; known: "]),
        ("jpeg_size", {"qualty": 3}, ["'jpeg_size'", "unknown option 'qualty', did you mean 'quality'?", "prefer, quality"]),
        ("jpeg_size", {"quality": 101}, ["option 'quality' is 101", "less than or equal to 100"]),
        ("jpeg_size", {"prefer": "tiny"}, ["option 'prefer' is 'tiny'", "'small' or 'large'"]),
        ("scene", {"x": 1}, ["unknown option 'x'; options: none"]),
    ],
)
def test_wrong_names_and_options_get_one_clear_line(name, options, parts):
    with pytest.raises(UserError) as caught:
        create(name, options)
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def installed(monkeypatch):
    """Pretend that packages with these entry points are installed: {name: object of a module}."""

    def install(**objects):
        module = types.ModuleType("a_reward_package")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        points = []
        for name, thing in objects.items():
            if thing is not None:
                setattr(module, name, thing)
            points.append(importlib.metadata.EntryPoint(name, f"{module.__name__}:{name}", registry.ENTRY_POINTS))
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points if group == registry.ENTRY_POINTS else [])
        _forget()

    yield install
    monkeypatch.undo()
    _forget()


def _forget():
    registry._third_party.cache_clear()
    registry._load.cache_clear()


class LevelOptions(RewardOptions):
    level: float = pydantic.Field(1.0, ge=0)


class Third(Reward):
    name = "third"
    description = "constant"
    range = "level"
    Options = LevelOptions

    def score(self, images, prompts, metadata):
        return torch.full((len(images),), self.options.level)


def test_a_third_party_reward(installed):
    installed(third=Third)
    assert names()[-1] == "third"
    assert known()["third"] is LevelOptions
    reward = create("third", {"level": 2})
    assert reward.score(torch.zeros(2, 8, 8, 3), [], []).tolist() == [2, 2]
    with pytest.raises(UserError, match="did you mean 'third'"):
        create("thrid")
    with pytest.raises(UserError, match="option 'level' is -1"):
        create("third", {"level": -1})


class Taken(Third):
    class Options(RewardOptions):
        clip: int = 1


class Nameless(Reward):
    def score(self, images, prompts, metadata):
        return torch.zeros(len(images))


def test_a_reward_derived_from_another_copy_of_the_package(installed):
    """Installed, the base class is vgrpo.trainer.rewards.Reward, a different object when the trainer starts from its folder."""
    members = {
        key: value for key, value in {**vars(Reward), **vars(Third)}.items() if not key.startswith(("_abc", "__weak", "__dict"))
    }
    foreign = type("Third", (), members)
    assert not issubclass(foreign, Reward)
    installed(third=foreign)
    assert create("third", {"level": 3}).options.level == 3


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (None, "cannot be loaded: AttributeError"),
        (dict, "is not a reward class, it lacks name"),
        (lambda: 1, "is not a reward class"),
        (Third(), "is not a reward class; derive it"),
        (Third, "calls itself 'third'"),
        (type("Broken", (Taken,), {"name": "broken"}), "has an option 'clip', which every reward has already"),
        (Nameless, "it lacks name, description, range;"),
    ],
)
def test_a_broken_third_party_reward_is_a_warning(installed, broken, message):
    installed(broken=broken, third=Third)
    with pytest.warns(RuntimeWarning, match=message):
        found = known()
    assert "broken" not in found and BUILT_IN | {"third"} == set(found)
    assert create("brightness").name == "brightness"
    with pytest.raises(UserError, match=message):
        create("broken")


def test_a_third_party_reward_never_replaces_a_built_in_one(installed):
    installed(scene=Third)
    assert names().count("scene") == 1
    assert type(create("scene")).__module__ == "trainer.rewards.scene"


def test_third_party_rewards_load_only_when_asked_for(installed):
    loads = []

    class Module(types.ModuleType):
        def __getattr__(self, name):
            if name == "third":
                loads.append(name)
                return Third
            raise AttributeError(name)

    installed(third=None)
    sys.modules["a_reward_package"].__class__ = Module
    assert "third" in names() and create("brightness") and loads == []
    create("third")
    create("third")
    assert loads == ["third"]


def test_importing_and_listing_is_light():
    script = (
        "import sys, trainer.rewards.registry as r; r.known(); r.create('scene')\n"
        "heavy = {'torch', 'diffusers', 'transformers', 'peft', 'scipy', 'numpy', 'PIL'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
