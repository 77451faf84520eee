"""Which settings act under which algorithm: one that can't is refused in one line before anything runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trainer.algorithms import ALGORITHMS, load_algorithm
from trainer.config import RunConfig, load_config
from trainer.errors import UserError

PEERS = [name for name in ALGORITHMS if name != "vgrpo"]


def load(*overrides: str) -> RunConfig:
    data = {
        "policy": {"model": "demo"},
        "prompts": {"train": ["a"] * 48, "evaluate": ["b"]},
        "rewards": {"jpeg_size": {}},
    }
    return load_config(data, overrides)


def refusal(*overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load(*overrides)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_takes_the_defaults_and_comes_back_from_its_file(name):
    config = load(f"algorithm={name}")
    assert config.algorithm == name and config.warnings() == []
    assert load_config(config.to_yaml()) == config


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_has_its_class_and_its_paper(name):
    assert load_algorithm(name).name == name and ALGORITHMS[name].paper.startswith("arXiv ")


def test_the_traits_speak_of_keys_that_exist():
    keys = {row.key: row for row in RunConfig.key_table()}
    for traits in ALGORITHMS.values():
        assert set(traits.idle) <= set(keys) and set(traits.own) <= set(keys)
        assert not set(traits.idle) & set(traits.own) - {"trajectory.share"}
    peers_only = {key for key in keys if key.startswith(("trajectory.", "forward."))}
    assert peers_only <= set(ALGORITHMS["vgrpo"].idle)
    for key in peers_only:
        assert any(key not in ALGORITHMS[name].idle for name in PEERS), key


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("algorithm=grpo",), "algorithm = grpo; allowed: one of vgrpo, flow_grpo, mix_grpo, dance_grpo, diffusion_nft, awm, "
         "rvm"),
        (("forward.strength=0.1",), "forward.strength = 0.1 can never act with algorithm = vgrpo; leave it at 1.0, or choose "
         "another algorithm (diffusion_nft)"),
        (("algorithm=diffusion_nft", "objective.gradient_steps=2", "objective.clip_eps=0.01"),
         "objective.clip_eps = 0.01 can never act with algorithm = diffusion_nft; leave it at null"),
        (("algorithm=flow_grpo", "surrogate.pairs=8"), "surrogate.pairs = 8 can never act with algorithm = flow_grpo"),
        (("algorithm=awm", "surrogate.weighting=v"), "surrogate.weighting = v can never act with algorithm = awm"),
        (("algorithm=dance_grpo", "trajectory.window=2"), "trajectory.window = 2 can never act with algorithm = dance_grpo; "
         "leave it at 4, or choose another algorithm (mix_grpo)"),
        (("algorithm=flow_grpo", "rollout.sampler=heun"), "rollout.sampler = heun: flow_grpo takes its steps by itself; "
         "allowed: euler"),
        (("algorithm=mix_grpo", "rollout.sampler=unipc"), "allowed: euler, dpmsolver++"),
        (("algorithm=mix_grpo", "rollout.steps=4"), "rollout.steps = 4: mix_grpo needs at least 5"),
        (("algorithm=flow_grpo", "rollout.steps=1"), "rollout.steps = 1: flow_grpo needs at least 2"),
        (("algorithm=flow_grpo", "rollout.guidance=4.5"), "surrogate.guidance = none: flow_grpo scores the very steps"),
        (("algorithm=mix_grpo", "policy.family=sdxl"), "algorithm = mix_grpo: MixGRPO (arXiv 2507.21802) is for rectified "
         "flows, and family sdxl is none; allowed: vgrpo, dance_grpo, diffusion_nft, awm, rvm"),
        (("algorithm=dance_grpo", "objective.clip_eps=1e-4"), "can never act with objective.gradient_steps = 1"),
    ],
)  # fmt: skip
def test_what_can_never_act_is_refused(overrides, said):
    assert said in refusal(*overrides)


@pytest.mark.parametrize("name", PEERS)
def test_the_kl_to_the_base_acts_in_a_single_step(name):
    assert load(f"algorithm={name}", "objective.kl_coef=0.04").objective.kl_coef == 0.04
    assert "can never act" in refusal("objective.kl_coef=0.04")


def test_a_base_that_the_paper_covers_is_taken():
    for name in ("dance_grpo", "diffusion_nft", "awm", "rvm"):
        load(f"algorithm={name}", "policy.family=sd15")


def test_choosing_an_algorithm_loads_no_network_library():
    code = (
        "import sys; from trainer.config import load_config\n"
        "load_config({'preset': 'demo', 'algorithm': 'dance_grpo'})\n"
        "assert not {'diffusers', 'transformers', 'peft', 'trainer.loop'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
