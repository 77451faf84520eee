"""The comparisons: what their tables say of curves, and that everything compared is a configuration that may run."""

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

SCRIPTS = ("harness", "sample_efficiency", "ablations", "beyond", "forgetting", "overhead")
FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def scripts():
    """The comparisons, imported as the commands are; paths and environment are put back."""
    path, environment = list(sys.path), dict(os.environ)
    sys.path.insert(0, str(FOLDER))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in SCRIPTS})
    finally:
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(environment)
        for name in SCRIPTS:
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


SMALL = ("--set", "rollout.prompts_per_iteration=2", "--set", "rollout.group_size=4")


@pytest.mark.slow
def test_overhead_is_measured():
    done = run_script("overhead.py", "--iterations", 1, *SMALL)
    assert done.returncode == 0, done.stdout + done.stderr
    phases = [line.split(" | ")[0].strip("| ") for line in done.stdout.splitlines() if line.count(" s |") == 2]
    assert phases == ["rollout and reward", "update", "iteration"]


@pytest.mark.slow
def test_forgetting_is_measured_and_goes_on_where_it_was(tmp_path):
    asked = ("--output", tmp_path, "--budget", 1, "--seeds", 0, "--kl", 0, "--only", "colour", *SMALL, "--set")
    for _ in range(2):
        done = run_script("forgetting.py", *asked, "evaluation.prompts=4")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "**trained on colorfulness**" in (tmp_path / "forgetting.md").read_text(encoding="utf-8")
    assert len(list(tmp_path.glob("*.json"))) == 1
    rows = (tmp_path / "forgetting.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 3 and rows[0] == "lesson,kl,seed,evaluations,learnt,kept"  # before and after one iteration


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


def test_a_gain_is_that_of_the_same_seeds(scripts):
    gain, low, high = scripts.harness.gain_interval([0.5, 0.7, 0.9], [0.4, 0.6, 0.8])
    assert (gain, low, high) == pytest.approx((0.1, 0.1, 0.1))  # the seeds differ more than the two sides do
    gain, low, high = scripts.harness.gain_interval([0.5, 0.7, 0.9], [0.6, 0.6, 0.7])
    assert low < 0 < gain < high


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
    assert store.tuned(method, (4e-4, 8e-4), (1000,), budget)[0] == 8e-4
    best, areas = store.tuned(method, (4e-4, 8e-4), (1000,), budget, widen=5)  # goes on till the end is not best any more
    assert best == pytest.approx(3.2e-3) and sorted(areas) == pytest.approx([4e-4, 8e-4, 1.6e-3, 3.2e-3, 6.4e-3])
    best, areas = store.tuned(method, (1e-2, 2e-2), (1000,), budget, widen=1)
    assert best == pytest.approx(5e-3) and len(areas) == 3


def test_every_option_is_a_configuration_that_may_run_and_differs_from_its_base(scripts):
    budget, beyond = scripts.harness.Budget(1000, 2, 8), scripts.beyond
    assert len({one.method.name for one in beyond.OPTIONS} | set(beyond.BASES)) == len(beyond.OPTIONS) + len(beyond.BASES)
    for one in beyond.OPTIONS:
        base, mine = (scripts.harness.configuration(m, 2e-3, 7, budget) for m in (beyond.BASES[one.base], one.method))
        assert mine.digest() != base.digest()
        assert (mine.evaluation, mine.optimizer, mine.policy) == (base.evaluation, base.optimizer, base.policy)


def test_an_option_is_judged_by_its_interval(scripts):
    beyond = scripts.beyond
    one = beyond.option("vgrpo", "new", "something new", optimizer__warmup=4)
    assert one.method.changes["optimizer.warmup"] == 4 and one.method.changes["rollout.steps"] == 8

    def verdict(ours, theirs):
        curves = {"new": [curve(scripts, [0.4, x]) for x in ours], "vgrpo": [curve(scripts, [0.4, x]) for x in theirs]}
        return beyond.row(one, curves)

    assert "+0.100 (+0.100 to +0.100) | 3 of 3" in verdict([0.6, 0.7, 0.8], [0.5, 0.6, 0.7])
    assert verdict([0.6, 0.7, 0.8], [0.5, 0.6, 0.7]).endswith("| **gain** |")
    assert verdict([0.5, 0.6, 0.7], [0.6, 0.7, 0.8]).endswith("| loss |")
    assert verdict([0.5, 0.9, 0.7], [0.6, 0.7, 0.8]).endswith("| no gain |")


def test_an_option_may_come_from_the_command_line(scripts):
    one = scripts.beyond.tried(["warm", "vgrpo_demo", "optimizer.warmup=4"])
    assert one.base == "vgrpo_demo" and one.method.name == "warm" and one.method.more == ("optimizer.warmup=4",)
    for words in (["warm"], ["warm", "vgrpo_demo"], ["warm", "nothing", "optimizer.warmup=4"], ["warm", "vgrpo", "x"]):
        with pytest.raises(SystemExit, match="bases: vgrpo, vgrpo_demo"):
            scripts.beyond.tried(words)


def test_what_is_kept_is_compared_at_one_gain(scripts):
    forgetting = scripts.forgetting
    course = forgetting.Course
    steep = course(0.0, 0, ((0.0, 0.4, 0.6), (9.0, 0.6, 0.5), (18.0, 0.8, 0.4)))
    gentle = course(0.3, 0, ((0.0, 0.4, 0.6), (9.0, 0.5, 0.58), (18.0, 0.6, 0.56)))
    text = forgetting.table(forgetting.LESSONS[0], [steep, gentle])
    assert "kept where learnt is 0.600" in text
    assert "| 0 | 0.400 -> 0.800 | 0.600 -> 0.400 | -0.200 | 0.500 |" in text
    assert "| 0.3 | 0.400 -> 0.600 | 0.600 -> 0.560 | -0.040 | 0.560 |" in text
    rows = forgetting.mean_rows([steep])
    assert forgetting.kept_at(rows, 0.7) == pytest.approx(0.45) and math.isnan(forgetting.kept_at(rows, 0.9))


def test_a_lesson_trains_on_a_part_and_watches_the_rest(scripts):
    objects, colour = (scripts.forgetting.configuration(lesson, 0.3, 1e-3, 5) for lesson in scripts.forgetting.LESSONS)
    assert {scripts.forgetting.kinds(p) for p in objects.prompts.train} == {1}
    assert {scripts.forgetting.kinds(p) for p in objects.prompts.evaluate} == {1, 2}
    assert (
        list(objects.rewards) == ["scene"] and list(colour.rewards) == ["colorfulness"] and list(colour.monitors) == ["scene"]
    )
    assert objects.objective.kl_coef == colour.objective.kl_coef == 0.3 and colour.seed == 5


def test_overhead_counts_rewards_as_needed(scripts):
    whole = {"rollout": 1.0, "reward": 0.2, "update": 2.0}
    bare = {"sampling": 0.4, "decoding": 0.3, "reward": 0.3, "update": 1.0}
    text = scripts.overhead.table(whole, bare, {"optimiser": 0.04})
    assert "| rollout and reward | 1.200 s | 1.000 s | 1.200 |" in text
    assert "| update | 2.000 s | 1.000 s | 2.000 |" in text and "| iteration | 3.200 s | 2.000 s | 1.600 |" in text
    assert "| optimiser | 0.040 |" in text
    assert scripts.overhead.least([{"a": 2.0, "b": 1.0}, {"a": 1.0, "b": 3.0}]) == {"a": 1.0, "b": 1.0}
