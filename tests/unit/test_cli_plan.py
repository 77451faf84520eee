"""The command `plan`: its exit codes, what it prints, and what it refuses."""

from __future__ import annotations

import json

import pytest
import torch

from trainer import cli
from trainer.config.text import parse
from trainer.planning import plan as planning


@pytest.fixture
def call(capsys):
    """call(*arguments) -> (exit code, standard output, standard error)"""

    def run(*arguments):
        capsys.readouterr()
        code = cli.main(["plan", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_what_fits_ends_with_0_and_a_line_a_phase(call):
    code, out, _ = call("demo", "--memory", 4)
    assert code == 0 and out.rstrip().endswith("it fits")
    for phase in (planning.ENCODE, planning.ROLLOUT, planning.DECODE, planning.OLD, planning.UPDATE):
        assert any(line.startswith(phase) for line in out.splitlines())
    assert "network evaluations an iteration: 2304" in out and "unknown until measured" in out


def test_what_does_not_fit_ends_with_1_and_a_change_that_does(call, tmp_path):
    code, out, _ = call("demo", "--memory", 0.15)
    assert code == 1 and "it does NOT fit: decode needs" in out
    change = tmp_path / "change.yaml"
    change.write_text("preset: demo\n" + out.split("to paste:\n\n")[1])
    assert call(change, "--memory", 0.15)[0] == 0


def test_as_json(call):
    code, out, _ = call("demo", "--memory", 0.15, "--json")
    told = json.loads(out)
    assert code == 1 and told["fits"] is False and told["too_large"] == planning.DECODE
    assert told["change"] and told["memory"] == int(0.15 * 2**30) and told["evaluations"] == 2304
    assert sum(phase["evaluations"] for phase in told["phases"]) == 2304


def test_an_override_counts(call):
    code, out, _ = call(
        "demo", "--set", "objective.gradient_steps=1", "--set", "objective.clip_eps=null", "--set", "objective.kl_coef=0"
    )
    assert code == 0 and planning.OLD not in out


def test_a_measured_plan_tells_the_time(call):
    code, out, _ = call("demo", "--memory", 4, "--measure", "--json", "--device", "cpu")
    told = json.loads(out)
    assert code == 0 and told["seconds"] > 0
    assert all(phase["seconds"] > 0 for phase in told["phases"] if phase["flops"])


def test_a_device_that_cannot_compute_a_block_is_one_line(call, monkeypatch):
    from trainer.planning import speed

    def fail(*_):
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(speed, "_block_speed", fail)
    code, _, err = call("demo", "--measure", "--device", "cpu")
    assert code == 2 and err == "error: --measure: cpu could not compute one block: no memory left\n"


@pytest.mark.parametrize("memory", ["0", "-1", "nan", "inf"])
def test_memory_that_is_no_size_is_refused(call, memory):
    code, _, err = call("demo", f"--memory={memory}")
    assert code == 2 and err.startswith(f"error: --memory {float(memory):g}: allowed: GiB") and len(err.splitlines()) == 1


def test_bad_configurations_are_refused_as_by_train(call, tmp_path):
    assert call(tmp_path / "none.yaml")[2].startswith("error: configuration file not found")
    assert "hardware = " in call("sdxl", "--set", "hardware=2tb")[2]
    assert "device: cuda is not available" in call("demo", "--device", "cuda")[2] or torch.cuda.is_available()


def test_a_preset_without_prompts_and_rewards_can_be_planned():
    from trainer.commands.plan import _source
    from trainer.config import load_config, preset_names

    for name in preset_names():
        config = load_config(_source(name), check_files=False)
        assert len(config.prompts.train) >= config.rollout.prompts_per_iteration


def test_the_yaml_that_is_printed_is_yaml(call):
    out = call("demo", "--memory", 0.15)[1]
    assert isinstance(parse(out.split("to paste:\n\n")[1], "advice"), dict)
