"""Two rewards at once on the embedded model, one over a thousand times larger in scale: both rise."""

from __future__ import annotations

import importlib.metadata
import sys
import types

import pytest

from tests.small_run import go, new_run, series
from trainer.rewards import registry
from trainer.rewards.colorfulness import Colorfulness


@pytest.fixture
def vivid(monkeypatch):
    """Colourfulness in another unit, as an installed package would offer it."""

    class Vivid(Colorfulness):
        name = "vivid"

        def score(self, images, prompts, metadata):
            return 40 * super().score(images, prompts, metadata)

    module = types.ModuleType("a_reward_package")
    module.Vivid = Vivid
    monkeypatch.setitem(sys.modules, module.__name__, module)
    point = importlib.metadata.EntryPoint("vivid", "a_reward_package:Vivid", registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "_third_party", lambda: {"vivid": point})
    registry._load.cache_clear()
    yield
    registry._load.cache_clear()


@pytest.mark.slow
def test_both_of_two_rewards_rise_whatever_their_scale(vivid, tmp_path):
    run = new_run(
        tmp_path,
        {
            "preset": "demo",
            "iterations": 10,
            "rollout": {"group_size": 8, "prompts_per_iteration": 4, "steps": 4},
            "objective": {"gradient_steps": 4},
            "optimizer": {"lr": 2e-3},
            "rewards": {"brightness": {}, "vivid": {}},
            "monitors": {},
            "evaluation": {"every": 0, "prompts": 24, "seeds": 1, "steps": 4},
        },
    )
    go(run)
    curves = series(run)
    small, large = (curves[f"reward/{name}/std"][0][1] for name in ("brightness", "vivid"))
    assert large > 1000 * small
    for name in ("brightness", "vivid"):
        (_, before), (_, after) = curves[f"eval/{name}/mean"]
        assert after > 1.05 * before, (name, before, after)
