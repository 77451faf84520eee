"""The command line: help, every command's result, paths of all kinds, and the ways to start it."""

from __future__ import annotations

import ast
import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

from tests.small_run import EVERYTHING, ROOT, events, go, lora_bytes, new_run, saved, small_config, stop_after
from tests.small_run import write_config as write
from trainer import cli, runs
from trainer.commands import resume
from trainer.config import load_config
from trainer.errors import UserError
from trainer.runs import RunDir
from trainer.runs.device_queue import Place, tickets

COMMANDS = ("demo", "train", "plan", "resume", "curriculum", "sample", "score", "rewards", "export", "runs", "serve")


@pytest.fixture(autouse=True)
def no_curve(monkeypatch):
    from trainer import ending

    monkeypatch.setattr(ending, "save_curve", lambda *args: None)


@pytest.fixture(scope="module")
def finished(tiny_sd3, tmp_path_factory):
    """A finished run with a moving average; checkpoints 1 to 3."""
    run = new_run(tmp_path_factory.mktemp("finished") / "runs", small_config(tiny_sd3, **EVERYTHING))
    go(run)
    return run


@pytest.fixture
def main(capsys):
    """main(*arguments): the standard output of a command that ends with code 0."""

    def call(*arguments):
        capsys.readouterr()
        assert cli.main([str(a) for a in arguments]) == 0, capsys.readouterr()
        return capsys.readouterr().out

    return call


# --- help


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_that_the_command_takes(command, capsys):
    with pytest.raises(SystemExit) as exit:
        cli.main([command, "--help"])
    assert exit.value.code == 0
    out = capsys.readouterr().out
    examples = re.findall(r"^  python trainer/cli\.py (.*?)(?:  .*)?$", out.split("example:")[1], re.MULTILINE)
    assert examples
    import shlex

    for example in examples:
        words = shlex.split(example)
        assert words[0] == command
        cli.build_parser().parse_args(words)


def test_the_general_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as exit:
        cli.main(["--help"])
    out = capsys.readouterr().out
    assert exit.value.code == 0 and all(re.search(rf"^  {c}\b", out, re.MULTILINE) for c in COMMANDS)


# --- ways to start it


def python(*arguments, cwd=ROOT, **environment):
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True
    )


def test_the_file_the_module_and_an_installed_package_are_the_same_program(tmp_path):
    """Installed, the repository's root is the package `vgrpo`; nothing may depend on another name."""
    elsewhere = tmp_path / "ein Ordner ü"
    elsewhere.mkdir()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "vgrpo").symlink_to(ROOT, target_is_directory=True)
    code = "import sys; sys.argv[0] = 'vgrpo'; from vgrpo.trainer.cli import main; sys.exit(main())"
    for arguments in (["--help"], ["runs", str(tmp_path)], ["train", str(tmp_path / "missing.yaml")], ["export", "--help"]):
        ways = [
            python(ROOT / "trainer" / "cli.py", *arguments, cwd=elsewhere),
            python("-m", "trainer.cli", *arguments, cwd=ROOT),
            python("-c", code, *arguments, cwd=elsewhere, PYTHONPATH=str(tmp_path / "site")),
        ]
        told = {(way.returncode, *(re.sub(r"/\S*/", "", text) for text in (way.stdout, way.stderr))) for way in ways}
        assert len(told) == 1, ways
        assert told.pop()[0] == (2 if "train" in arguments else 0)


@pytest.mark.slow
def test_every_module_works_under_the_installed_name(tmp_path):
    (tmp_path / "vgrpo").symlink_to(ROOT, target_is_directory=True)
    names = [
        ".".join(("vgrpo", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        for path in sorted((ROOT / "trainer").rglob("*.py"))
    ]
    code = f"import importlib, sys\nfor name in {names}: importlib.import_module(name)\nprint('trainer' in sys.modules)"
    done = python("-c", code, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.stdout == "False\n", done.stderr


def imports(path):
    """(level, module) of every import statement, also of those inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or ""


@pytest.mark.parametrize("path", sorted((ROOT / "trainer").rglob("*.py")), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_the_trainer_imports_relatively_and_never_comfyui(path):
    """Two names are taken elsewhere: ComfyUI's own module `nodes` and a PyPI package `trainer`."""
    forbidden = ("trainer", "vgrpo", "comfy", "comfy_extras", "comfy_api", "server", "folder_paths", "nodes", "execution")
    found = [module for level, module in imports(path) if level == 0 and module.split(".")[0] in forbidden]
    assert not found
    depth = len(path.relative_to(ROOT / "trainer").parts)
    assert all(level <= depth for level, _ in imports(path)), "a relative import leaves the package"


@pytest.mark.parametrize("module", ["config", "runs", "objective", "rewards", "cli"])
def test_light_imports(module):
    code = f"import trainer.{module}, sys; print(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    loaded = python("-c", code).stdout.split()
    assert "trainer" in loaded and not {"diffusers", "transformers", "peft", "accelerate", "matplotlib"} & set(loaded)
    if module in ("config", "runs", "cli"):
        assert "torch" not in loaded


def test_a_console_that_cannot_show_a_path(tmp_path):
    """Windows consoles and pipes speak a code page."""
    root = tmp_path / "läufe 日本"
    done = python(ROOT / "trainer" / "cli.py", "runs", root, cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "no runs in" in done.stdout and "Traceback" not in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_a_reader_that_goes_away(finished):
    process = subprocess.Popen(
        [sys.executable, "-u", str(ROOT / "trainer" / "cli.py"), "runs", str(finished.path.parent)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.wait() == 141


# --- train, resume and runs


def test_paths_with_spaces_and_letters_of_all_kinds(main, tiny_sd3, tmp_path, monkeypatch):
    """Model, prompts and configuration beside each other, given relatively; the run elsewhere, from a third folder."""
    home = tmp_path / "Kön fig ü"
    shutil.copytree(tiny_sd3, home / "mödel 模型")
    (home / "prömpts 文.txt").write_text("ein rotes Quadrat\n一个蓝色的圆\n", encoding="utf-8")
    data = small_config(Path("./mödel 模型"), iterations=1, rewards={"brightness": {}}, name="Lauf 日本 ü")
    data["prompts"] = {"train": "prömpts 文.txt", "evaluate": "prömpts 文.txt"}
    data["rollout"]["prompts_per_iteration"] = 2
    write(home / "配置.yaml", data)
    elsewhere = tmp_path / "wo anders"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    out = main("train", "../Kön fig ü/配置.yaml", "--output", "läufe 日本")
    (run,) = runs.list_runs(elsewhere / "läufe 日本")
    assert runs.read_state(run).status == runs.FINISHED and str(run.path) in out
    pictures = list((run.samples / "000001").glob("p*.png"))
    assert Image.open(sorted(pictures)[-1]).text["prompt"] == "一个蓝色的圆"
    # Everything about it is reached by its path, by a path from here, and (in ./runs) by its id.
    monkeypatch.chdir(tmp_path)
    (elsewhere / "läufe 日本").rename(tmp_path / "runs")
    for word in (run.id, f"runs/{run.id}", str(tmp_path / "runs" / run.id)):
        assert "finished already" in main("resume", word)
    main("sample", run.id, "--images", 1, "--output", "bîlder 絵")
    assert len(list((tmp_path / "bîlder 絵").iterdir())) == 3
    main("export", run.id, "--output", "löra 型/mein LoRA.safetensors")
    assert (tmp_path / "löra 型" / "mein LoRA.safetensors").is_file()
    table = main("score", "bîlder 絵", "--rewards", "brightness", "--csv", "tabelle ü.csv")
    assert "p001-s0.png" in table
    with open("tabelle ü.csv", encoding="utf-8", newline="") as file:
        assert [row["prompt"] for row in csv.DictReader(file)] == ["ein rotes Quadrat", "一个蓝色的圆"]


def test_train_prints_where_the_lora_is_and_before_and_after(main, tiny_sd3, tmp_path):
    out = main("train", write(tmp_path / "c.yaml", small_config(tiny_sd3)), "--output", tmp_path / "o", "--run-id", "small")
    run = RunDir(tmp_path / "o" / "small")
    summary = json.loads(run.summary_file.read_text())
    assert str(run.lora_dir / "small.safetensors") in out
    assert f"held-out brightness: {summary['eval_reward_before']:.3f} -> {summary['eval_reward_after']:.3f}" in out
    assert str(run.path / "before-after.png") in out and summary["lora_path"] == str(run.lora_dir / "small.safetensors")


def test_a_busy_device_is_told_and_not_waited_for(main, tiny_sd3, tmp_path):
    config = write(tmp_path / "c.yaml", small_config(tiny_sd3, iterations=1))
    with Place(RunDir(tmp_path / "the-first"), "cpu") as other:
        assert other.holds()
        note = f"note: the run the-first (process {os.getpid()}) is on cpu already; this one trains beside it"
        out = main("train", config, "--output", tmp_path / "o", "--run-id", "small", "--device", "cpu")
        assert out.count("note: ") == 1 and out.startswith(note) and "LoRA " in out
        assert [ticket.run_id for ticket in tickets(other.folder)] == ["the-first"]  # it left no place in line behind


@pytest.mark.parametrize("command", ["train", "resume"])
def test_a_run_in_a_terminal_holds_its_device(command, tiny_sd3, tmp_path, monkeypatch):
    from trainer.commands import train

    messages = []

    def work(run, device, bench=None):
        with Place(RunDir(tmp_path / "another"), "cpu") as place:
            messages.append("" if place.holds() else place.message())
        return 0

    monkeypatch.setattr(train, "work", work)
    config = write(tmp_path / "c.yaml", small_config(tiny_sd3))
    run = runs.create_run(tmp_path / "o", "small")
    shutil.copy(config, run.config_file)
    target = {"train": [config, "--output", tmp_path / "o2", "--run-id", "small"], "resume": [run.path]}[command]
    assert cli.main([command, *map(str, target), "--device", "cpu"]) == 0
    assert messages == ["waiting for small on cpu"]
    with Place(RunDir(tmp_path / "another"), "cpu") as place:
        assert place.holds()


def test_a_cache_that_cannot_be_written_does_not_stop_a_run_in_a_terminal(main, tiny_sd3, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("VGRPO_CACHE", str(tmp_path / "file"))
    config = write(tmp_path / "c.yaml", small_config(tiny_sd3, iterations=1))
    out = main("train", config, "--output", tmp_path / "o", "--device", "cpu")
    assert out.startswith("note: Cannot take a place in line for cpu") and "LoRA " in out


def test_overrides_and_seed(main, tiny_sd3, tmp_path):
    config = write(tmp_path / "c.yaml", small_config(tiny_sd3, iterations=1))
    for seed in (5, 6):
        main("train", config, "--output", tmp_path / f"{seed}", "--run-id", "small", "--set", f"seed={seed}", "--set", "name=ü")
    first, second = (RunDir(tmp_path / f"{seed}" / "small") for seed in (5, 6))
    assert runs.read_state(first).name == "ü"
    assert lora_bytes(first) != lora_bytes(second)
    assert json.loads(second.summary_file.read_text())["seed"] == 6


def test_the_demo_command_is_the_demo_preset(monkeypatch, tmp_path):
    from trainer.commands import train

    started = []
    monkeypatch.setattr(train, "start", lambda config, root, device: started.append((config, root, device)) or 0)
    assert cli.main(["demo", "--output", str(tmp_path), "--seed", "3", "--iterations", "7", "--set", "rollout.steps=5"]) == 0
    ((config, root, device),) = started
    assert (config.name, config.seed, config.iterations, config.rollout.steps) == ("demo", 3, 7, 5)
    assert config.policy.model == "demo" and "scene" in config.rewards and (root, device) == (tmp_path, "auto")


def test_a_preset_by_name(monkeypatch, tmp_path):
    from trainer.commands import train

    started = []
    monkeypatch.setattr(train, "start", lambda config, *rest: started.append(config) or 0)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "demo", "--set", "iterations=2"]) == 0
    assert (started[0].name, started[0].iterations) == ("demo", 2)


def test_resume_continues_and_then_says_that_all_is_done(main, tiny_sd3, tmp_path, finished):
    run = new_run(tmp_path, small_config(tiny_sd3, **EVERYTHING))
    go(run, stop_after(run, 1))
    out = main("resume", run.path)
    assert str(run.lora_dir / "small.safetensors") in out and lora_bytes(run) == lora_bytes(finished)
    seen = len(events(run))
    out = main("resume", run.path)
    assert "finished already" in out and str(run.path) in out and len(events(run)) == seen


def test_a_finished_run_goes_on_to_more_iterations_as_if_it_had_always_been_to(main, tiny_sd3, tmp_path):
    changes = {**EVERYTHING, "optimizer": {**EVERYTHING["optimizer"], "warmup": 2}}
    whole, run = (new_run(tmp_path / str(n), small_config(tiny_sd3, **changes, iterations=n)) for n in (3, 2))
    go(whole)
    go(run)
    for count in (1, 0, -3):
        with pytest.raises(UserError, match=f"--iterations {count}: the run small has done 2; allowed: 2 or more"):
            resume.set_iterations(run, count)
    assert "finished already" in main("resume", run.path, "--iterations", 2)
    out = main("resume", run.path, "--iterations", 3)
    assert str(run.lora_dir / "small.safetensors") in out and lora_bytes(run) == lora_bytes(whole)
    state = runs.read_state(run)
    assert (state.status, state.iteration, state.iterations) == (runs.FINISHED, 3, 3)
    assert [event["iteration"] for event in events(run, "iteration")] == [1, 2, 3]


def test_other_iterations_are_kept_until_the_run_goes_on_and_need_a_checkpoint(tiny_sd3, tmp_path):
    run = new_run(tmp_path, small_config(tiny_sd3, iterations=1))
    go(run)
    resume.set_iterations(run, 2)
    state = runs.read_state(run)
    assert (state.status, state.iteration, state.iterations) == (runs.STOPPED, 1, 2) and "1 more" in state.message
    resume.set_iterations(run, 1)  # taken back
    go(run)
    assert runs.read_state(run).status == runs.FINISHED and len(events(run, "iteration")) == 1
    shutil.rmtree(run.path / "checkpoints")
    with pytest.raises(UserError, match="no complete checkpoint left"):
        resume.set_iterations(run, 3)
    assert load_config(run.config_file).iterations == 1


def test_resume_ends_what_was_killed_in_its_last_moment(main, tiny_sd3, tmp_path):
    """The summary was written, `finished` was not."""
    run = new_run(tmp_path, small_config(tiny_sd3, iterations=1))
    go(run)
    lora = lora_bytes(run)
    runs.write_state(run, runs.RunState(status=runs.RUNNING, pid=2**22 + 1, process_start=1.0, iteration=1, iterations=1))
    assert runs.read_state(run).status == runs.LOST
    main("resume", run.path)
    assert runs.read_state(run).status == runs.FINISHED and lora_bytes(run) == lora
    assert len(events(run, "iteration")) == 1


def test_runs_lists_what_is_there(main, finished, tiny_sd3, tmp_path):
    root = tmp_path / "runs"
    shutil.copytree(finished.path, root / "small")
    stopped = new_run(root, small_config(tiny_sd3), "another")
    go(stopped, stop_after(stopped, 1))
    broken = new_run(root, small_config(tiny_sd3), "broken")
    broken.state_file.write_text("{")
    (root / "no run").mkdir()
    lines = main("runs", root).splitlines()
    assert {line.split()[0] for line in lines[1:]} == {"another", "broken", "small"}
    (one,) = [line for line in lines if line.startswith("small ")]
    summary = json.loads(finished.summary_file.read_text())
    before, after = summary["before"]["eval/total/mean"], summary["after"]["eval/total/mean"]
    assert "finished" in one and "3/3" in one and f"{before:.3f} -> {after:.3f}" in one
    (other,) = [line for line in lines if line.startswith("another ")]
    assert "stopped" in other and "1/3" in other and "resume" in other
    assert "unreadable" in next(line for line in lines if line.startswith("broken "))
    assert "no runs in" in main("runs", tmp_path / "none")
    (tmp_path / "file").write_text("")
    assert cli.main(["runs", str(tmp_path / "file")]) == 2


# --- sample, score and export


def pixels(path):
    with Image.open(path) as picture:
        return np.array(picture.convert("RGB"))


def test_sample_writes_pictures_that_know_their_prompt_and_seed(main, finished, tmp_path):
    out = main(
        *("sample", finished.path, "--prompt", "a red square", "--prompt", "dos círculos", "--images", 2),
        *("--seed", 9, "--steps", 3, "--output", tmp_path / "a"),
    )
    names = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert names == ["grid.png", "p000-s0.png", "p000-s1.png", "p001-s0.png", "p001-s1.png"]
    assert "4 pictures" in out and str(tmp_path / "a") in out
    texts = [Image.open(tmp_path / "a" / name).text for name in names[1:]]
    assert [t["prompt"] for t in texts] == ["a red square"] * 2 + ["dos círculos"] * 2
    assert len({t["seed"] for t in texts}) == 4
    assert len({pixels(tmp_path / "a" / name).tobytes() for name in names[1:]}) == 4
    arguments = ("sample", finished.path, "--prompt", "a red square", "--images", 2)
    main(*arguments, "--seed", 9, "--steps", 3, "--output", tmp_path / "again")
    main(*arguments, "--seed", 8, "--steps", 3, "--output", tmp_path / "other")
    main(*arguments, "--seed", 9, "--steps", 3, "--output", tmp_path / "base", "--checkpoint", "base")
    main(*arguments, "--seed", 9, "--steps", 3, "--output", tmp_path / "first", "--checkpoint", "1")
    first = pixels(tmp_path / "a" / "p000-s0.png")
    assert np.array_equal(first, pixels(tmp_path / "again" / "p000-s0.png"))
    for other in ("other", "base", "first"):
        assert not np.array_equal(first, pixels(tmp_path / other / "p000-s0.png")), other


def test_sample_takes_the_held_out_prompts_by_default(main, finished, tmp_path):
    main("sample", finished.path, "--images", 1, "--output", tmp_path / "a", "--guidance", 2)
    texts = [Image.open(tmp_path / "a" / f"p00{i}-s0.png").text["prompt"] for i in (0, 1)]
    assert texts == ["a red star", "two blue circles"]


def test_score_gives_the_numbers_that_were_logged(main, finished, tmp_path):
    """Each saved picture holds its scores; scoring the files gives them again, and their mean is the curve's point."""
    folder = finished.samples / "000003"
    out = main("score", folder, "--rewards", "brightness,colorfulness", "--csv", tmp_path / "t.csv")
    with open(tmp_path / "t.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [Path(row["picture"]).name for row in rows] == [f"p00{p}-s{s}.png" for p in (0, 1) for s in (0, 1)]
    index = json.loads((folder / "index.json").read_text())
    for name in ("brightness", "colorfulness"):
        assert [float(row[name]) for row in rows] == index["scores"][name]
        mean = sum(index["scores"][name]) / 4
        assert mean == pytest.approx(dict(runs.metric_series(events(finished))[f"eval/{name}/mean"])[3], abs=1e-12)
        assert f"mean {name}: {mean:.4f} over 4" in out
        for row in rows:
            text = Image.open(row["picture"]).text
            assert json.loads(text["scores"])[name] == pytest.approx(float(row[name]), abs=1e-6)
            assert text["prompt"] == row["prompt"] and int(text["seed"]) in index["seeds"]


def test_score_finds_prompts_and_their_metadata(main, tmp_path):
    """From the PNG, from a .txt beside the picture, from --prompt; the metadata by the prompt."""
    from trainer.pictures import save_png
    from trainer.prompts import load_prompts

    prompt = load_prompts("demo", "prompts.evaluate")[0]
    picture = Image.new("RGB", (64, 64), "white")
    save_png(picture, tmp_path / "inside.png", {"prompt": prompt.text})
    picture.save(tmp_path / "beside.jpg")
    (tmp_path / "beside.txt").write_text(prompt.text + "\n", encoding="utf-8-sig")
    picture.convert("L").resize((100, 30)).save(tmp_path / "grey.png")
    out = main("score", tmp_path, "--rewards", "scene", "--prompts", "demo", "--csv", tmp_path / "t.csv")
    rows = {Path(row["picture"]).name: row for row in csv.DictReader((tmp_path / "t.csv").open(encoding="utf-8"))}
    assert rows["inside.png"]["prompt"] == rows["beside.jpg"]["prompt"] == prompt.text
    assert float(rows["inside.png"]["scene"]) == float(rows["beside.jpg"]["scene"]) < 1
    assert rows["grey.png"]["scene"] == "nan" and "grey.png" in out and "no list 'objects'" in out
    out = main("score", tmp_path / "grey.png", "--rewards", "scene", "--prompts", "demo", "--prompt", prompt.text)
    assert "mean scene: 0." in out


@pytest.mark.parametrize("format", ["comfyui", "diffusers", "kohya"])
def test_export_in_every_format(main, finished, tmp_path, format):
    path = tmp_path / f"{format}.safetensors"
    out = main("export", finished.path, "--format", format, "--output", path)
    assert str(path) in out and "iteration 3" in out
    with safe_open(path, "pt") as file:
        keys, metadata = list(file.keys()), file.metadata()
    assert all(key.startswith("lora_unet_" if format == "kohya" else "transformer.") for key in keys)
    summary = json.loads(finished.summary_file.read_text())
    assert metadata["iteration"] == "3" and metadata["run"] == "small" and metadata["rank"] == "2"
    assert metadata["config_hash"] == summary["config_hash"]
    assert float(metadata["reward_after"]) == pytest.approx(summary["after"]["eval/total/mean"], rel=1e-5)
    if format == "comfyui":
        assert path.read_bytes() == lora_bytes(finished)


def test_export_of_a_chosen_checkpoint(main, finished, tmp_path):
    best = json.loads(finished.summary_file.read_text())["best_iteration"]
    for word, iteration in (("latest", 3), ("best", best), ("1", 1), ("2", 2)):
        for raw in (False, True):
            path = tmp_path / f"{word} {raw}.safetensors"
            out = main("export", finished.path, "--checkpoint", word, "--output", path, *(["--raw"] if raw else []))
            assert f"iteration {iteration} " in out
            expected = saved(finished)[iteration][0]["lora" if raw else "ema"]
            key = next(k for k in expected if k.endswith(".lora_A"))
            assert torch.equal(load_file(path)[f"transformer.{key}.weight"], expected[key])
    assert best in (2, 3)


def test_best_is_the_checkpoint_with_the_highest_held_out_reward(main, tiny_sd3, tmp_path, monkeypatch):
    """It outlives the newest ones, whatever `keep` says."""
    from trainer.rewards.brightness import Brightness

    run = new_run(tmp_path, small_config(tiny_sd3, iterations=4, evaluation={"every": 1}, checkpoint={"keep": 1}))
    score = Brightness.score

    def peak(self, images, prompts, metadata):
        values = score(self, images, prompts, metadata)
        return values + 10 if len(images) == 4 and runs.read_state(run).iteration == 2 else values

    monkeypatch.setattr(Brightness, "score", peak)
    go(run)
    assert sorted(saved(run)) == [2, 4]
    assert "iteration 2 " in main("export", run.path, "--checkpoint", "best", "--output", tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert float(file.metadata()["reward_after"]) > 10


def test_a_run_works_on_when_the_lora_it_began_with_is_gone(main, finished, tiny_sd3, tmp_path):
    start = tmp_path / "start.safetensors"
    main("export", finished.path, "--output", start)
    policy = {"model": str(tiny_sd3), "dtype": "float32", "lora": {"rank": 2, "init": str(start)}}
    run = new_run(tmp_path, small_config(tiny_sd3, iterations=1, policy=policy))
    go(run)
    start.unlink()
    main("export", run.path, "--output", tmp_path / "a.safetensors")
    main("sample", run.path, "--images", 1, "--output", tmp_path / "pictures")
