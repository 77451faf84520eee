"""The peers as whole runs: what lasts from one iteration to the next is saved, and the reward rises."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests import small_run
from tests.bench import bright, iterate, tiny_bench
from tests.small_run import Watcher, go, new_run, saved, small_config, stop_after
from trainer.algorithms import ALGORITHMS
from trainer.errors import UserError
from trainer.loop import sampling_of
from trainer.runs.checkpoints import list_checkpoints

PEERS = [name for name in ALGORITHMS if name != "vgrpo"]
TRAJECTORIES = [name for name in PEERS if ALGORITHMS[name].trajectory]
LAG = {"lag_rate": 0.2, "lag_most": 0.9}


def plan(name):
    """Two gradient steps, everything that the algorithm carries along, and a window that moves."""
    clip = {} if "objective.clip_eps" in ALGORITHMS[name].idle else {"clip_eps": 0.01}
    return {
        "algorithm": name,
        "objective": {"gradient_steps": 2, "kl_coef": 0.1, **clip},
        "optimizer": {"ema_decay": 0.5},
        "rollout": {"steps": 4},
        "surrogate": {"pairs": 4 if name in TRAJECTORIES else 2},
        **({"trajectory": {"window": 1, "window_every": 1}} if name == "mix_grpo" else {}),
        **({"forward": LAG} if ALGORITHMS[name].lags else {}),
    }


@pytest.fixture(autouse=True)
def no_curve(monkeypatch):
    from trainer import ending

    monkeypatch.setattr(ending, "save_curve", lambda *args: None)


@pytest.mark.parametrize("name", PEERS)
def test_a_resumed_run_is_the_unbroken_one_to_the_bit(tiny_sd3, tmp_path, name):
    whole = new_run(tmp_path / "whole", small_config(tiny_sd3, **plan(name)))
    go(whole)
    broken = new_run(tmp_path / "broken", small_config(tiny_sd3, **plan(name)))
    assert go(broken, stop_after(broken, 1))["stopped"]
    go(broken)
    small_run.assert_same_outcome(broken, whole)
    assert all(("lagged" in tensors) == ALGORITHMS[name].lags for tensors, _ in saved(whole).values())


def test_the_lagging_copy_is_another_than_the_policy(tiny_sd3, tmp_path):
    """Or the run above could not tell whether it was saved at all."""
    run = new_run(tmp_path, small_config(tiny_sd3, **plan("diffusion_nft")))
    go(run)
    tensors, _ = saved(run)[max(saved(run))]
    assert any(not tensors["lagged"][name].equal(tensors["lora"][name]) for name in tensors["lora"])


def test_a_checkpoint_of_another_algorithm_is_refused(tiny_sd3, tmp_path):
    run = new_run(tmp_path, small_config(tiny_sd3, **plan("diffusion_nft")))
    go(run, stop_after(run, 1))
    assert list_checkpoints(run)[0]
    text = run.config_file.read_text(encoding="utf-8")
    text = text.replace("algorithm: diffusion_nft", "algorithm: vgrpo").replace("kl_coef: 0.1", "kl_coef: 0.3")
    text = text.replace("lag_rate: 0.2", "lag_rate: 0.001").replace("lag_most: 0.9", "lag_most: null")
    run.config_file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"disagree about a lagging copy.*config\.yaml"):
        go(run, Watcher())


# Learning: the embedded model's pictures become brighter, or darker, in a few iterations; held-out seeds, the ODE's pictures.

LEARNS = {
    "vgrpo": {},
    "flow_grpo": {},
    "mix_grpo": {"trajectory": {"window": 2, "window_every": 2}},
    "dance_grpo": {"trajectory": {"noise": 0.7}},
    "diffusion_nft": {},
    "awm": {},
    "rvm": {},
}


def held_out(bench):
    rows = bench.train_conditioning.rows([0, 1, 2] * 4)
    with torch.no_grad():
        return float(bright(bench.policy.decode(bench.policy.sample(rows, range(12), sampling_of(bench.config)))).mean())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sign"), [*((name, 1.0) for name in LEARNS), ("flow_grpo", -1.0), ("diffusion_nft", -1.0)])
def test_the_reward_rises_within_six_iterations(name, sign):
    bench = tiny_bench(
        Path("demo"),
        algorithm=name,
        policy={"model": "demo", "lora": {"rank": 8, "targets": "attention+mlp"}},
        surrogate={"pairs": 4, "batch_size": 64},
        rollout={"group_size": 8, "prompts_per_iteration": 2, "batch_size": 32},
        optimizer={"lr": 1e-2, "ema_decay": 0.0},
        rewards={"brightness": {"weight": sign}},
        **LEARNS[name],
    )
    before = held_out(bench)
    for iteration in range(6):
        iterate(bench, iteration)
    assert sign * (held_out(bench) - before) > 0.04
