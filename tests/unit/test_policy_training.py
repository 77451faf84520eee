"""Whole runs of every family on small models: the reward rises, a stopped run goes on bit for bit, the LoRA exports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.small_run import CPU, assert_same_outcome, go, new_run, series, small_config, stopped_and_resumed
from tests.tiny_families import make_folder, vp_scheduler
from trainer.config import load_config
from trainer.families import FAMILIES
from trainer.lora import layer_shapes, read_lora
from trainer.policies import load_policy

pytestmark = pytest.mark.slow

# As the people of a family sample it; two passes or an input of the network.
GUIDANCE = {"flux": 3.5, "qwen_image": 2.0}


@dataclass(frozen=True)
class Case:
    """A family's small model and the settings at which it learns brightness: its scale differs from family to family."""

    family: str
    lr: float = 3e-2
    pairs: int = 2
    rise: float = 0.01
    guidance: float | None = None
    model: dict[str, Any] = field(default_factory=dict)
    v_prediction: bool = False


# Half as wide, so that it settles in seconds.
SETTLED = {"settled": True, "block_out_channels": (16, 32)}
CASES = {
    "sd3": Case("sd3", lr=0.2, rise=0.005),  # its small decoder paints in a narrow range
    "sd15": Case("sd15", lr=1e-2, model=SETTLED),
    "sdxl": Case("sdxl", lr=4e-3, pairs=4, model=SETTLED),
    "sdxl-vpred": Case("sdxl", guidance=3.0, v_prediction=True),
    "flux": Case("flux"),
    "chroma": Case("chroma"),
    "qwen_image": Case("qwen_image"),
    "z_image": Case("z_image"),
    "flux2_klein": Case("flux2_klein", lr=5e-2, pairs=4, model={"loud": 10.0}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder(family):
        if family not in made:
            made[family] = make_folder(family, tmp_path_factory.mktemp(family) / "model")
        return made[family]

    return folder


def _config(folder, family, rollout=None, guidance=None, **changes):
    guidance = guidance or GUIDANCE.get(family, 1.0)
    size = {"group_size": 8, "prompts_per_iteration": 2, "steps": 3, "width": 64, "height": 64, "batch_size": 16}
    return small_config(
        folder,
        policy={"family": family, "lora": {"rank": 4, "targets": "attention+mlp"}},
        rollout={**size, "guidance": guidance, **(rollout or {})},
        surrogate={"pairs": 2, "batch_size": 32},
        evaluation={"every": 0, "prompts": 2, "seeds": 4, "steps": 3, "guidance": guidance},
        monitors={},
        **changes,
    )


def test_every_family_has_a_case():
    assert {case.family for case in CASES.values()} == set(FAMILIES)


@pytest.mark.parametrize("name", CASES)
def test_brightness_rises_within_15_iterations(tmp_path, name):
    case = CASES[name]
    zero_terminal = {"prediction_type": "v_prediction", "rescale_betas_zero_snr": True}
    scheduler = {"scheduler": vp_scheduler(**zero_terminal)} if case.v_prediction else {}
    folder = make_folder(case.family, tmp_path / "model", **case.model, **scheduler)
    optimizer = {"lr": case.lr, "ema_decay": 0.0}
    data = _config(folder, case.family, guidance=case.guidance, iterations=15, optimizer=optimizer)
    data["surrogate"]["pairs"] = case.pairs
    run = new_run(tmp_path, data)
    summary = go(run)
    curve = [value for _, value in series(run)["reward/brightness/mean"]]
    assert len(curve) == 15
    before, after = summary["eval_reward_before"], summary["eval_reward_after"]
    assert after > before + case.rise, (before, after, curve)  # held-out prompts, the same seeds


@pytest.mark.parametrize("family", FAMILIES)
def test_stopping_and_resuming_changes_nothing(folders, tmp_path, family):
    data = _config(folders(family), family, iterations=3)
    whole = new_run(tmp_path / "a", data)
    go(whole)
    assert_same_outcome(stopped_and_resumed(tmp_path / "b", data, 2), whole)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_lora_of_a_run_is_a_lora_of_its_base(folders, tmp_path, family):
    data = _config(folders(family), family, iterations=1)
    run = new_run(tmp_path, data)
    go(run)
    path = run.lora_dir / f"{run.id}.safetensors"
    assert any(tensor.any() for tensor in load_file(path).values())
    policy = load_policy(load_config(data).policy, CPU, tmp_path / "cache")
    factors = read_lora(path, layer_shapes(policy.denoiser), family)
    assert factors.rank == 4 and len(factors) > 3


@pytest.mark.parametrize("family", ["sdxl", "qwen_image", "chroma"])
def test_the_guided_prediction_can_be_trained(folders, tmp_path, family):
    """Both passes have a gradient; evaluations are counted as they are spent."""
    data = _config(folders(family), family, {"guidance": 3.0, "negative_prompt": "dark"}, iterations=1)
    data["surrogate"]["guidance"] = "same"
    run = new_run(tmp_path, data)
    go(run)
    curves = series(run)
    assert curves["nfe/policy"][0][1] == 4 and curves["nfe/behaviour"][0][1] == 6 and curves["grad_norm"][0][1] > 0
