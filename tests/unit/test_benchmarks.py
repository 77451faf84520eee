"""The comparison of methods: what its tables say of curves, and that every method of it is a configuration that may run."""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def scripts():
    """harness, sample_efficiency and ablations, imported as the commands are; paths and environment are put back."""
    path, environment = list(sys.path), dict(os.environ)
    sys.path.insert(0, str(FOLDER))
    try:
        yield SimpleNamespace(**{n: importlib.import_module(n) for n in ("harness", "sample_efficiency", "ablations")})
    finally:
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(environment)
        for name in ("harness", "sample_efficiency", "ablations"):
            sys.modules.pop(name, None)


def run_script(name, *arguments):
    return subprocess.run([sys.executable, str(FOLDER / name), *map(str, arguments)], capture_output=True, text=True)


def test_large_models_need_cuda():
    if torch.cuda.is_available():
        pytest.skip("needs a machine without CUDA")
    done = run_script("gpu_goals.py")
    assert done.returncode == 2 and done.stderr.startswith("error: this needs a CUDA device") and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_measurement_of_large_models_runs_on_a_small_one(tiny_sd3):
    sizes = ("--set", "rollout.width=64", "--set", "rollout.height=64", "--set", "policy.dtype=float32")
    done = run_script("gpu_goals.py", "--tiny", tiny_sd3, "--only", "sd3:8gb", "--steps", 2, *sizes)
    assert done.returncode == 0, done.stdout + done.stderr
    phases = [line.split(" | ")[1] for line in done.stdout.splitlines() if "not measured" in line]
    assert phases == ["encode prompts", "rollout", "decode", "update"] and "failed" not in done.stdout


def curve(scripts, rewards, step=100.0):
    rows = tuple((step * n, n * 2.0, reward) for n, reward in enumerate(rewards))
    return scripts.harness.Curve("m", 1e-3, 0, rows, {})


def test_a_level_is_reached_between_two_points(scripts):
    found = curve(scripts, [0.4, 0.5, 0.45, 0.7])
    assert found.reach(0.45) == pytest.approx(50) and found.reach(0.45, column=1) == pytest.approx(1.0)
    assert found.reach(0.575) == pytest.approx(250)  # from the point before it, not from an earlier peak
    assert found.reach(0.3) == 0 and found.reach(0.71) == math.inf
    assert found.area() == pytest.approx((0.5 + 0.45 + 0.7) / 3)  # the untrained model does not count


def test_a_ratio_has_the_interval_of_its_seeds(scripts):
    ratio, low, high = scripts.harness.ratio_interval([90, 100, 110], [300, 310, 290])
    assert ratio == pytest.approx(1 / 3) and 0.29 < low < ratio < high < 0.38
    assert scripts.harness.ratio_interval([100.0] * 3, [200.0] * 3) == (0.5, 0.5, 0.5)


def test_a_run_that_missed_the_level_bounds_the_ratio(scripts):
    budget = scripts.harness.Budget(300, 3, 8)
    fast, slow, never = curve(scripts, [0.4, 0.6]), curve(scripts, [0.4, 0.5, 0.6]), curve(scripts, [0.4, 0.4, 0.4, 0.4])
    text = scripts.harness.reach_text
    assert text([fast, fast], [slow, slow], 0.6, budget) == "0.50 (0.50 to 0.50)"
    assert text([fast, fast], [slow, never], 0.6, budget).startswith("<= 0.40 (")
    assert text([fast, never], [slow, slow], 0.6, budget).startswith(">= 1.00 (")
    assert "missed by 1 of 2 and 2 of 2" in text([fast, never], [never, never], 0.6, budget)
    assert text([never, never], [slow, slow], 0.6, budget) == "not reached"
    assert text([fast, fast], [slow, slow], 0.4, budget) == "untrained"


def test_r_squared_is_that_of_a_line(scripts):
    r_squared = scripts.harness.r_squared
    assert r_squared([1, 2, 3, 4], [2, 4, 6, 8]) == pytest.approx(1)
    assert r_squared([1, 2, 3, 4], [1, -1, -1, 1]) == pytest.approx(0)
    assert math.isnan(r_squared([1, 1, 1], [1, 2, 3])) and math.isnan(r_squared([1, 2], [1, 2]))


def test_every_method_is_a_configuration_that_may_run(scripts):
    budget = scripts.harness.Budget(1000, 2, 8)
    methods = [*scripts.sample_efficiency.METHODS, *(m for figure in scripts.ablations.FIGURES.values() for m in figure)]
    made = {method.name: scripts.harness.configuration(method, 2e-3, 7, budget) for method in methods}
    for config in made.values():
        assert config.optimizer.lr == 2e-3 and config.seed == 7 and config.optimizer.schedule == "constant"
        assert list(config.rewards) == ["scene"] and not config.monitors and config.evaluation.prompts == 8
    assert {config.algorithm for config in made.values()} >= {"vgrpo", "mix_grpo", "diffusion_nft", "awm"}
    peers = [made[m.name] for m in scripts.sample_efficiency.METHODS if m.name != "vgrpo_demo"]
    shared = [(c.rollout, c.policy, c.evaluation, c.optimizer) for c in peers]
    assert all(one == shared[0] for one in shared)
    assert made["no_share"].surrogate.share == "none" and made["coarse"].rewards["scene"]["transform"] == {"threshold": 1.0}


def test_a_finished_run_is_kept_and_tuning_takes_the_best(scripts, tmp_path, monkeypatch):
    trained = []

    def train_to(config, method, budget, device):
        trained.append((config.optimizer.lr, config.seed))
        reward = 0.5 - abs(math.log10(config.optimizer.lr) + 2.5)
        return scripts.harness.Curve(method.name, config.optimizer.lr, config.seed, ((0.0, 0.0, 0.1), (9.0, 1.0, reward)), {})

    monkeypatch.setattr(scripts.harness, "train_to", train_to)
    method, budget = scripts.sample_efficiency.METHODS[0], scripts.harness.Budget(9, 1, 4)
    for _ in range(2):  # the second call as a new process
        store = scripts.harness.Store(tmp_path, torch.device("cpu"), lambda text: None)
        best, areas = store.tuned(method, (1e-3, 3e-3, 1e-2), (1000, 1001), budget)
        assert best == 3e-3 and areas[3e-3] == pytest.approx(0.5 - abs(math.log10(3e-3) + 2.5))
    assert len(trained) == len(set(trained)) == 6
    store.curve(method, 3e-3, 1000, scripts.harness.Budget(10, 1, 4))  # another budget is another run
    assert len(trained) == 7
