"""Bad input: one line that names the key, the value and what is allowed; exit code 2; nothing written, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from tests.small_run import go, new_run, small_config, stop_after
from tests.small_run import write_config as write
from trainer import cli, runs


@pytest.fixture
def refused(tmp_path, capfd):
    """refused(arguments, *words): the command ends with code 2 and one line that holds the words; returns the line."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # as cli.py does through the environment, before the first import

    def check(arguments, *words):
        before = sorted(p for p in tmp_path.rglob("*"))
        capfd.readouterr()
        try:
            code = cli.main([str(a) for a in arguments])
        except SystemExit as exit:  # argparse's way
            code = exit.code
        out, err = capfd.readouterr()
        assert code == 2, (out, err)
        assert err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n"), err
        assert "Traceback" not in out + err
        for word in words:
            assert word in err, (word, err)
        assert sorted(p for p in tmp_path.rglob("*")) == before, "something was written"
        return err

    return check


@pytest.fixture
def config(tiny_sd3, tmp_path):
    """config(**changes): a configuration file."""
    return lambda **changes: write(tmp_path / "config.yaml", small_config(tiny_sd3, **changes))


@pytest.fixture
def train(config, refused, tmp_path):
    def check(changes, *words, options=()):
        return refused(["train", config(**changes), "--output", tmp_path / "out", *options], *words)

    return check


@pytest.fixture(scope="module")
def stopped_run(tiny_sd3, tmp_path_factory):
    """A run with checkpoints 1 and 2 and no LoRA yet."""
    run = new_run(tmp_path_factory.mktemp("stopped"), small_config(tiny_sd3))
    go(run, stop_after(run, 2))
    return run


# --- the configuration


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"optimiser": {"lr": 1}}, ["config.yaml", "unknown key 'optimiser'", "did you mean 'optimizer'"]),
        ({"rollout": {"group_sise": 4}}, ["unknown key 'rollout.group_sise'", "rollout.group_size"]),
        ({"rollout": {"group_size": "four"}}, ["rollout.group_size", "four", "allowed"]),
        ({"rollout": {"group_size": 1}}, ["rollout.group_size = 1", "allowed", "2"]),
        ({"optimizer": {"lr": float("nan")}}, ["optimizer.lr", "nan", "allowed"]),
        ({"optimizer": {"lr": float("inf")}}, ["optimizer.lr", "inf", "allowed"]),
        ({"objective": {"clip_eps": 0.01}}, ["objective.clip_eps = 0.01", "gradient_steps = 1", "set clip_eps to null"]),
        ({"objective": {"kl_coef": 0.3}}, ["objective.kl_coef = 0.3", "gradient_steps = 1"]),
        ({"policy": {"model": "./no such folder"}}, ["policy.model", "no such folder", "folder not found", "allowed"]),
        ({"policy": {"family": "flux"}}, ["policy.family", "flux", "sd3"]),
        ({"policy": {"lora": {"init": "nothing.safetensors"}}}, ["policy.lora.init", "not found", "allowed"]),
        ({"policy": {"lora": {"targets": ["attn.to_z"]}}}, ["policy.lora.targets", "attn.to_z", "attn.to_q"]),
        ({"rewards": {"brigtness": {}}}, ["rewards.brigtness", "unknown reward", "did you mean 'brightness'"]),
        ({"rewards": {}}, ["rewards is empty", "brightness"]),
        ({"rewards": {"brightness": {"weight": 0}}}, ["rewards.brightness.weight", "monitors"]),
        ({"rewards": {"scene": {}}}, ["rewards.scene", "none of prompts.train", "objects", ".jsonl"]),
        ({"rollout": {"width": 512, "height": 512}}, ["rollout.width x rollout.height", "512 x 512", "256 x 256"]),
        ({"rollout": {"prompts_per_iteration": 4}}, ["rollout.prompts_per_iteration = 4", "only 3", "allowed: 1 to 3"]),
        ({"prompts": {"train": []}}, ["prompts.train", "empty"]),
    ],
    ids=lambda value: str(value)[:50] if isinstance(value, dict) else "",
)
def test_a_bad_configuration(train, changes, words):
    train(changes, *words)


def test_numbers_as_people_write_them(tmp_path, refused, tiny_sd3):
    """`lr: .nan` is refused; `1e-4`, which YAML reads as text, is a number here."""
    path = write(tmp_path / "config.yaml", small_config(tiny_sd3))
    path.write_text(path.read_text(encoding="utf-8").replace("lr: 0.5", "lr: .nan"), encoding="utf-8")
    refused(["train", path, "--output", tmp_path / "out"], "optimizer.lr = nan", "allowed")
    refused(["train", path, "--output", tmp_path / "out", "--set", "optimizer.lr=1e-4", "--device", "abacus"], "abacus")


def test_an_override_is_named(train):
    train({}, "override 'rollout.group_size=1'", "allowed", options=["--set", "rollout.group_size=1"])
    train({}, "override 'lr=1'", "did you mean 'optimizer.lr'", options=["--set", "lr=1"])
    train({}, "override 'lr'", "key=value", options=["--set", "lr"])


def test_prompt_files(train, tmp_path):
    empty = tmp_path / "empty prömpts.txt"
    empty.write_text("\n# nothing but a comment\n\n", encoding="utf-8")
    train({"prompts": {"train": str(empty)}}, "prompts.train", "empty prömpts.txt", "holds no prompt")
    train({"prompts": {"evaluate": "none.jsonl"}}, "prompts.evaluate", "none.jsonl", "not found")
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "a"}\n{"prompt": }\n', encoding="utf-8")
    train({"prompts": {"train": str(broken)}}, "prompts.train", "broken.jsonl, line 2", "not JSON")


def test_configuration_files(refused, tmp_path):
    out = ["--output", tmp_path / "out"]
    refused(["train", tmp_path / "missing.yaml", *out], "not found", "missing.yaml")
    (tmp_path / "folder.yaml").mkdir()
    refused(["train", tmp_path / "folder.yaml", *out], "folder.yaml is a folder")
    path = tmp_path / "config.yaml"
    for text, words in {
        "policy: {model: demo\nrewards: ]": ("config.yaml", "line 2"),
        "": ("config.yaml", "empty"),
        "- a\n- b\n": ("config.yaml", "mapping"),
        "preset: demp\n": ("config.yaml", "demp", "did you mean 'demo'"),
        "!!python/object/apply:os.system [exit]\n": ("config.yaml",),
    }.items():
        path.write_text(text, encoding="utf-8")
        refused(["train", path, *out], *words)
    path.write_bytes(b"name: \xff\xfe\n")
    refused(["train", path, *out], "config.yaml, line 1", "UTF-8")


# --- the base and the LoRA to continue from


def test_a_model_of_another_family(train, tmp_path):
    model = tmp_path / "a flux"
    model.mkdir()
    train({"policy": {"model": str(model)}}, "policy.model", "a flux", "model_index.json")
    (model / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    train({"policy": {"model": str(model)}}, "policy.family", "FluxPipeline", "StableDiffusion3Pipeline")
    (model / "model_index.json").write_text("{")
    train({"policy": {"model": str(model)}}, "policy.model", "a flux")
    (model / "model_index.json").write_text('{"_class_name": "StableDiffusion3Pipeline", "transformer": ["diffusers", "X"]}')
    train({"policy": {"model": str(model)}}, "policy.model", "a flux")


def test_a_lora_that_cannot_be_continued(train, tmp_path):
    path = tmp_path / "start.safetensors"

    def lora(*words):
        train({"policy": {"lora": {"init": str(path), "rank": 2}}}, "policy.lora.init", "start.safetensors", *words)

    q = "transformer.transformer_blocks.0.attn.to_q"
    tensors = {f"{q}.lora_A.weight": torch.ones(2, 64), f"{q}.lora_B.weight": torch.ones(64, 2)}
    save_file(tensors, path)
    path.write_bytes(path.read_bytes()[:-50])
    lora("damaged")
    path.write_bytes(b"")
    lora("damaged")
    save_file({f"{q}.lora_A.weight": torch.ones(2, 128), f"{q}.lora_B.weight": torch.ones(128, 2)}, path)
    lora("another size")
    down = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"
    save_file({f"{down}.lora_down.weight": torch.ones(2, 320), f"{down}.lora_up.weight": torch.ones(320, 2)}, path)
    lora("down_blocks")
    save_file({"conv.weight": torch.ones(2, 2)}, path)
    lora("conv.weight")
    text = tmp_path / "start.txt"
    text.write_text("hello")
    train({"policy": {"lora": {"init": str(text)}}}, "policy.lora.init", "start.txt", ".safetensors")


def test_a_lora_that_changes_more_than_is_trained(train, tmp_path):
    path = tmp_path / "start.safetensors"
    name = "transformer.transformer_blocks.0.ff.net.2"
    save_file({f"{name}.lora_A.weight": torch.ones(2, 256), f"{name}.lora_B.weight": torch.ones(64, 2)}, path)
    train({"policy": {"lora": {"init": str(path)}}}, "policy.lora.init", "ff.net.2", "targets")


# --- the command line


@pytest.mark.parametrize("device", ["abacus", "cuda:x", "cuda:", "cpu:1", "", "cpu:²"])
def test_an_unknown_device(train, device):
    train({}, "device", device, options=["--device", device])


@pytest.mark.skipif(torch.cuda.is_available(), reason="has one")
def test_a_device_that_is_not_here(train):
    train({}, "device", "cuda is not available", "found here: ", "cpu", options=["--device", "cuda"])


@pytest.mark.parametrize("run_id", ["../escape", "a/b", "UPPER", "-x", "", "ä", "x" * 65, "a\nb"])
def test_a_run_id_that_could_leave_the_folder(train, run_id, monkeypatch):
    from trainer import setup

    monkeypatch.setattr(setup, "build_bench", lambda *a: pytest.fail("a model was loaded first"))
    train({}, "is not a run id", "a-z, 0-9", options=[f"--run-id={run_id}"])


def test_a_run_id_that_is_taken(config, refused, stopped_run):
    refused(["train", config(), "--output", stopped_run.path.parent, "--run-id", "small"], "exists already", "resume")


@pytest.mark.parametrize("command", ["resume", "sample", "export"])
def test_a_folder_that_is_no_run(refused, tmp_path, command):
    rest = ["--output", tmp_path / "a.safetensors"] if command == "export" else []
    refused([command, tmp_path, *rest], str(tmp_path), "not a run", "config.yaml")
    refused([command, tmp_path / "nowhere", *rest], "nowhere", "no run folder")
    refused([command, "nowhere-20260101", *rest], "nowhere-20260101", "no run")


def test_resuming_a_run_that_another_process_works_on(refused, tmp_path, stopped_run):
    before = runs.read_state(stopped_run)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        start = runs.process_start_time(other.pid)
        runs.write_state(stopped_run, runs.RunState(status=runs.RUNNING, pid=other.pid, process_start=start, iteration=2))
        state = stopped_run.state_file.read_bytes()
        refused(["resume", stopped_run.path], "small", "is running", str(other.pid), "stop it")
        assert stopped_run.state_file.read_bytes() == state
        other.communicate(b"\n")
    runs.write_state(stopped_run, before)


def test_export_and_sample_of_what_is_not_there(refused, tmp_path, stopped_run):
    lora = ["--output", tmp_path / "a.safetensors"]
    refused(["export", stopped_run.path, *lora, "--checkpoint", "7"], "no checkpoint '7'", "latest, best, 1, 2")
    refused(["export", stopped_run.path, *lora, "--checkpoint", "base"], "'base'", "latest, best, 1, 2")
    refused(["export", stopped_run.path, *lora, "--format", "zip"], "--format 'zip'", "comfyui, diffusers, kohya")
    refused(["export", stopped_run.path, "--output", tmp_path / "a.txt"], "a.txt", ".safetensors")
    pictures = ["--output", tmp_path / "pictures"]
    refused(["sample", stopped_run.path, *pictures, "--images", 0], "--images is 0", "at least 1")
    refused(["sample", stopped_run.path, *pictures, "--steps", 0], "--steps is 0", "at least 1")
    refused(["sample", stopped_run.path, *pictures, "--guidance", "nan"], "--guidance is nan", "1 (off) or more")
    refused(["sample", stopped_run.path, *pictures, "--prompt", " "], "--prompt is blank")
    refused(["sample", stopped_run.path, *pictures, "--checkpoint", "²"], "no checkpoint '²'")


def test_a_run_without_a_checkpoint(refused, tmp_path, tiny_sd3, capfd):
    run = new_run(tmp_path / "runs", small_config(tiny_sd3))
    refused(["export", run.path, "--output", tmp_path / "a.safetensors"], "no complete checkpoint")


def test_scoring_what_is_no_picture(refused, tmp_path):
    text = tmp_path / "text.png"
    text.write_text("not a picture")
    refused(["score", text, "--rewards", "brightness"], "text.png", "can't be read as a picture")
    refused(["score", tmp_path / "none.png", "--rewards", "brightness"], "no picture or folder", "none.png")
    (tmp_path / "empty").mkdir()
    refused(["score", tmp_path / "empty", "--rewards", "brightness"], "no pictures in", ".png")
    refused(["score", text, "--rewards", "beauty"], "unknown reward 'beauty'", "brightness")
    refused(["score", text, "--rewards", " ,"], "--rewards", "names no reward", "brightness")
    refused(["score", text, "--rewards", "scene", "--prompts", tmp_path / "none.jsonl"], "--prompts", "none.jsonl", "not found")


def test_scoring_a_torn_picture(refused, tmp_path):
    from PIL import Image

    path = tmp_path / "torn.png"
    Image.merge("RGB", [Image.effect_noise((256, 256), 50) for _ in range(3)]).save(path)
    whole = path.read_bytes()
    second = whole.rindex(b"IDAT")
    assert second > 1000  # Pillow calls a broken chunk in the middle a SyntaxError
    for data in (whole[: len(whole) // 2], whole[:60], whole[:second] + b"\0" * 4 + whole[second + 4 :]):
        path.write_bytes(data)
        refused(["score", path, "--rewards", "brightness"], "torn.png", "can't be read as a picture")


def test_an_output_that_cannot_be_written(refused, tmp_path, stopped_run, config):
    blocked = tmp_path / "a file"
    blocked.write_text("")
    for command in (["train", config()], ["demo"]):
        refused([*command, "--output", blocked], "--output", "a file", "give a folder")
        refused([*command, "--output", blocked / "runs"], "a file", "Choose a folder that can be written")
    refused(["sample", stopped_run.path, "--images", 1, "--output", blocked], "a file")
    refused(["export", stopped_run.path, "--output", blocked / "a.safetensors"], "a file", "cannot write")
    picture = next((stopped_run.samples / "000000").glob("p*.png"))
    refused(["score", picture, "--rewards", "brightness", "--csv", blocked / "a.csv"], "a file")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["trian"], ["trian", "train", "resume"]),
        ([], ["COMMAND", "--help"]),
        (["train"], ["config", "train --help"]),
        (["train", "a.yaml", "--colour", "red"], ["--colour"]),
        (["demo", "--iterations", "many"], ["--iterations", "many"]),
        (["export", "run"], ["--output"]),
        (["score", "a.png"], ["--rewards"]),
    ],
)
def test_a_wrong_command_line(refused, arguments, words):
    refused(arguments, *words)


def test_demo_options(refused, tmp_path, monkeypatch):
    from trainer.config import fields

    monkeypatch.setattr(fields, "model_source", lambda value, check: value)
    refused(["demo", "--iterations", "0", "--output", tmp_path / "out"], "iterations=0", "allowed")
    refused(["demo", "--seed", "-1", "--output", tmp_path / "out"], "seed=-1", "allowed")


def test_a_missing_package_is_named_with_the_command_that_installs_it(refused, config, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "trainer.setup", None)
    monkeypatch.delitem(sys.modules, "trainer.setup")

    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name == "trainer.setup":
                raise ModuleNotFoundError("No module named 'peft'", name="peft")

    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    refused(["train", config(), "--output", tmp_path / "out"], "package peft is missing", "-m pip install -r requirements.txt")


# --- trouble that comes later


def test_a_run_that_fails_says_so_in_one_line(config, tmp_path, capfd, monkeypatch):
    from trainer.rewards.brightness import Brightness

    def broken(self, images, prompts, metadata):
        raise RuntimeError("the server\nis down")

    monkeypatch.setattr(Brightness, "score", broken)
    root = tmp_path / "out"
    assert cli.main(["train", str(config(monitors={})), "--output", str(root), "--run-id", "small"]) == 2
    err = capfd.readouterr().err
    last = err.strip().splitlines()[-1]
    assert last.startswith("error: reward 'brightness' failed 3 times in a row") and "the server is down" in last
    assert "Traceback" not in err
    run = runs.RunDir(root / "small")
    assert runs.read_state(run).status == runs.FAILED
    assert "Traceback" in run.log_file.read_text(encoding="utf-8") or "UserError" in run.log_file.read_text(encoding="utf-8")


def test_an_unforeseen_error_points_to_the_log(config, tmp_path, capfd, monkeypatch):
    from trainer import training

    def broken(*args):
        raise ZeroDivisionError("a\nbug")

    monkeypatch.setattr(training, "run_iteration", broken)
    root = tmp_path / "out"
    assert cli.main(["train", str(config()), "--output", str(root), "--run-id", "small"]) == 2
    err = capfd.readouterr().err
    assert "Traceback" not in err
    assert "error: the run failed: ZeroDivisionError: a bug; see " in err.splitlines()[-1]
    log = (root / "small" / "train.log").read_text(encoding="utf-8")
    assert "ZeroDivisionError" in log and "Traceback" in log


@pytest.mark.skipif(os.name == "nt", reason="/dev/full")
@pytest.mark.parametrize("trouble", ["full disk", "folder"])
def test_a_log_that_cannot_be_written_ends_no_run_and_prints_nothing(config, tmp_path, capfd, trouble):
    root = tmp_path / "out"
    assert cli.main(["train", str(config()), "--output", str(root), "--run-id", "small", "--set", "iterations=1"]) == 0
    run = runs.RunDir(root / "small")
    run.summary_file.unlink()
    run.log_file.unlink()
    run.log_file.symlink_to("/dev/full") if trouble == "full disk" else run.log_file.mkdir()
    capfd.readouterr()
    assert cli.main(["resume", str(run.path)]) == 0
    err = capfd.readouterr().err
    assert "Logging error" not in err and "Traceback" not in err and runs.read_state(run).status == runs.FINISHED
    assert json.loads(run.summary_file.read_text())["iterations"] == 1


def test_a_hub_that_cannot_be_reached_is_one_line_at_once(refused, tmp_path, monkeypatch):
    """The hub's own library tries for half a minute, with a line for each try."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    arguments = ["demo", "--output", tmp_path / "runs", "--set", "policy.model=nobody/nothing"]
    refused(
        arguments, "policy.model", "'nobody/nothing'", "http://127.0.0.1:1", "refused", "hub id that is cached or reachable"
    )
