"""Runs one after another: each from the LoRA of the one before, skipped when done, gone on with when stopped."""

from __future__ import annotations

import re
import shutil

import pytest
import torch
import yaml

from tests.small_run import ROOT, events, go, new_run, saved, small_config
from tests.small_run import write_config as write
from trainer import cli, runs
from trainer.config import load_config, load_preset, preset_names
from trainer.curriculum import load_curriculum
from trainer.runs import RunDir


@pytest.fixture(autouse=True)
def no_curve(monkeypatch):
    from trainer import ending

    monkeypatch.setattr(ending, "save_curve", lambda *args: None)


@pytest.fixture
def common(tiny_sd3):
    return small_config(tiny_sd3, iterations=2)


def call(capsys, *arguments, code=0):
    capsys.readouterr()
    got = cli.main([str(a) for a in arguments])
    said = capsys.readouterr()
    assert got == code, said
    return said.out if code == 0 else said.err


def asks_to_stop(monkeypatch, run_id: str, root):
    """The run of that id is asked to stop when it begins its first iteration."""
    from trainer import progress

    plain = progress.TerminalProgress.begin

    def begin(self, done, total):
        run = RunDir(root / run_id)
        if run.config_file.is_file() and runs.read_state(run).status == runs.RUNNING and done == 0:
            runs.request(run, "stop")
        return plain(self, done, total)

    monkeypatch.setattr(progress.TerminalProgress, "begin", begin)


def test_each_stage_continues_from_the_one_before_and_a_stop_loses_nothing(common, tmp_path, capsys, monkeypatch):
    stages = [{"name": "Brighter ü"}, {"rewards": {"colorfulness": {}}, "monitors": {}}]
    file = write(tmp_path / "two stages.yaml", {"name": "Two", "common": common, "stages": stages})
    root = tmp_path / "rüns"
    with monkeypatch.context() as patch:
        asks_to_stop(patch, "two-2", root)
        said = call(capsys, "curriculum", file, "--output", root)
    first, second = RunDir(root / "two-1-brighter-u"), RunDir(root / "two-2")
    assert runs.read_state(first).status == runs.FINISHED and runs.read_state(second).status == runs.STOPPED
    assert "stage 2 of 2" in said and f'curriculum "{file}" --output "{root}"' in said
    before = first.lora_dir.stat().st_mtime_ns

    said = call(capsys, "curriculum", file, "--output", root)
    assert "finished already" in said and first.lora_dir.stat().st_mtime_ns == before
    assert runs.read_state(second).status == runs.FINISHED and len(events(second, "resumed")) == 1
    config = load_config(second.config_file)
    assert config.policy.lora.init == str(first.lora_dir / "two-1-brighter-u.safetensors")
    assert list(config.rewards) == ["colorfulness"] and config.name == "Two 2"

    # Stage 2 begins where stage 1 ended: its pictures of iteration 0 are those of the LoRA of stage 1.
    last = events(first, "evaluation")[-1]["metrics"]
    start = events(second, "evaluation")[0]["metrics"]
    assert start["eval/colorfulness/mean"] == pytest.approx(last["eval/colorfulness/mean"], abs=0.5)
    assert start["eval/colorfulness/mean"] != pytest.approx(events(first, "evaluation")[0]["metrics"]["eval/colorfulness/mean"])

    assert call(capsys, "curriculum", file, "--output", root).count("finished already") == 2

    stages[1]["optimizer"] = {"lr": 0.25}
    write(file, {"name": "Two", "common": common, "stages": stages})
    said = call(capsys, "curriculum", file, "--output", root, code=2)
    assert "another optimizer.lr than the curriculum says now" in said and said.count("\n") == 1


def test_a_run_after_another(common, tmp_path, capsys, tiny_sd3):
    root = tmp_path / "runs"
    first = new_run(root, common, "first")
    file = write(tmp_path / "next.yaml", common)
    said = call(capsys, "train", file, "--output", root, "--after", first.path, "--run-id", "second", code=2)
    assert "has no LoRA to continue from yet" in said and not (root / "second").exists()
    go(first)
    call(capsys, "train", file, "--output", root, "--after", first.path, "--run-id", "second")
    assert load_config((root / "second") / "config.yaml").policy.lora.init == str(first.lora_dir / "first.safetensors")
    # The same seed and data, but another start: the factors after an iteration differ from those of the first run.
    one, two = saved(first)[1][0]["lora"], saved(RunDir(root / "second"))[1][0]["lora"]
    assert one.keys() == two.keys() and any(not torch.equal(one[key], two[key]) for key in one)

    (first.lora_dir / "first.safetensors").unlink()
    said = call(capsys, "train", file, "--output", root, "--after", first.path, "--run-id", "third", code=2)
    assert "is gone" in said and said.count("\n") == 1
    said = call(capsys, "train", "demo", "--output", root, "--after", root / "second", "--run-id", "fourth", code=2)
    assert "policy.model = demo, but the run second was trained on" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stages": []}, "a mapping with a list 'stages'"),
        ({"stages": None}, "a mapping with a list 'stages'"),
        ({"steps": [1]}, "unknown key steps; allowed: name, common, stages"),
        ({"name": 3}, "name = 3; allowed: a text"),
        ({"common": [1]}, "common = [1]; allowed: a mapping"),
        ({"stages": [{}, "demo"]}, "stage 2 = demo; allowed: a mapping"),
        ({"stages": [{}, {"name": 7}]}, "stage 2: name = 7"),
        ({"stages": [{}, {"optimizer": {"lrr": 1}}]}, "stage 2: unknown key 'optimizer.lrr'"),
        ({"stages": [{}, {"policy": {"lora": {"init": "x.safetensors"}}}]}, "stage 2: policy.lora.init"),
        ({"stages": [{}, {"policy": {"model": "demo"}}]}, "stage 2: policy.model = demo, but stage 1 has"),
        ({"stages": [{}, {"prompts": {"train": "nowhere.txt"}}]}, "nowhere.txt"),
        ({"stages": [{}, {"policy": {"lora": {"rank": 1}}}]}, "stage 2: policy.lora.rank = 1, but stage 1 has 2"),
        (
            {"stages": [{"policy": {"lora": {"targets": "attention+mlp"}}}, {"policy": {"lora": {"targets": "attention"}}}]},
            "stage 2: policy.lora.targets = attention, but stage 1 has attention+mlp",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_stage_before_anything_starts(change, said, common, tmp_path, capsys):
    file = write(tmp_path / "c.yaml", {"common": common, "stages": [{}, {}], **change})
    error = call(capsys, "curriculum", file, "--output", tmp_path / "runs", code=2)
    assert said in error and str(file) in error and error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_stage_whose_predecessor_is_gone_is_not_taken_for_finished(common, tmp_path, capsys):
    file = write(tmp_path / "c.yaml", {"common": {**common, "iterations": 1}, "stages": [{}, {}]})
    call(capsys, "curriculum", file, "--output", tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / "c-1")
    error = call(capsys, "curriculum", file, "--output", tmp_path / "runs", code=2)
    assert "c-2 is there, but not the run that it continued from" in error and error.count("\n") == 1
    assert not (tmp_path / "runs" / "c-1").exists()


def test_the_folder_of_a_start_that_was_killed_is_named_with_what_to_do(common, tmp_path, capsys):
    file = write(tmp_path / "c.yaml", {"common": common, "stages": [{}]})
    (tmp_path / "runs" / "c-1" / "control").mkdir(parents=True)
    error = call(capsys, "curriculum", file, "--output", tmp_path / "runs", code=2)
    assert "c-1 exists already and holds no configuration of a run; remove it" in error and error.count("\n") == 1


def test_what_a_later_stage_lacks_is_said_before_the_first_trains(common, tmp_path, capsys):
    file = write(tmp_path / "c.yaml", {"common": common, "stages": [{}, {"rewards": {"pickscore": {}}}]})
    error = call(capsys, "curriculum", file, "--output", tmp_path / "runs", code=2)
    assert error.startswith("error: stage 2: ") and "pickscore" in error
    assert not list((tmp_path / "runs").glob("c-*"))


def test_paths_count_from_the_file_and_a_curriculum_is_called_like_it(common, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "train.txt").write_text("a red square\na blue circle\n", encoding="utf-8")
    file = write(tmp_path / "here" / "my plan.yaml", {"common": common, "stages": [{"prompts": {"train": "train.txt"}}]})
    monkeypatch.chdir(tmp_path)
    found = load_curriculum("here/my plan.yaml")
    assert found.name == "my plan" and found.stages[0].run_id == "my-plan-1" and file.is_file()
    assert [p.text for p in found.stages[0].config.prompts.train] == ["a red square", "a blue circle"]


def test_the_papers_five_stages():
    """arXiv 2604.23380: 580 iterations in all, 4 pairs for preference and 10 for the rest, which is 6.9 on average."""
    data = yaml.safe_load((ROOT / "docs" / "examples" / "sd3-curriculum.yaml").read_text(encoding="utf-8"))
    presets = [stage["preset"] for stage in data["stages"]]
    assert presets == [f"sd3-stage{n}" for n in range(1, 6)] and set(presets) < set(preset_names())
    stages = [load_preset(name) for name in presets]
    iterations = [stage["iterations"] for stage in stages]
    assert iterations == [150, 200, 150, 50, 30]
    pairs = [stage["surrogate"]["pairs"] for stage in stages]
    assert sum(i * p for i, p in zip(iterations, pairs, strict=True)) / 580 == pytest.approx(6.9, abs=0.01)
    assert [list(stage["rewards"]) for stage in stages] == [
        *(["hpsv2", "pickscore", "clipscore"], ["geneval"]) * 2,
        ["ocr"],
    ]
    assert stages[4]["objective"]["kl_coef"] == 0.3 and stages[0]["objective"]["soft_clip_eta"] == 3.0
    text = (ROOT / "docs" / "examples" / "sd3-curriculum.yaml").read_text(encoding="utf-8")
    assert re.search(r"150, 200, 150, 50 and 30", text)
