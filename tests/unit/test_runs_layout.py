"""Run ids, run folders, and what importing the package costs."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from trainer.errors import UserError
from trainer.runs import (
    RunDir,
    RunNotFound,
    RunState,
    create_run,
    delete_run,
    find_run,
    list_runs,
    new_run_id,
    own_process,
    valid_run_id,
    write_state,
)

ROOT = Path(__file__).parents[2]

HOSTILE = [
    "",
    "..",
    ".",
    "../x",
    "a/b",
    "a\\b",
    "/etc",
    "C:",
    "a:b",
    "-a",
    "A",
    "a_b",
    "a b",
    "ä",
    "a\n",
    "a" * 65,
    "a\0",
    "٣",
    "~",
    None,
]


@pytest.mark.parametrize("run_id", HOSTILE)
def test_a_malformed_id_never_reaches_the_disk(tmp_path, run_id):
    root = tmp_path / "runs"
    (tmp_path / "x" / "control").mkdir(parents=True)  # where "../x" would lead
    assert not valid_run_id(run_id)
    for use in (find_run, create_run):
        with pytest.raises(UserError) as error:
            use(root, run_id)
        assert not isinstance(error.value, RunNotFound) and "allowed" in str(error.value) and "\n" not in str(error.value)
    assert not root.exists()


@pytest.mark.parametrize("run_id", ["a", "0", "demo-1", "a" * 64, "a--"])
def test_a_well_formed_id_passes(run_id):
    assert valid_run_id(run_id)


@pytest.mark.parametrize(
    "name, slug",
    [
        ("Demo", "demo"),
        ("Größe & Café!", "grosse-cafe"),
        ("日本語", "run"),
        ("", "run"),
        ("--x--", "x"),
        ("../..", "run"),
        ("n" * 200, "n" * 40),
    ],
)
def test_new_ids_are_readable_valid_and_fresh(name, slug):
    now = datetime(2026, 1, 2, 3, 4, 5)
    ids = {new_run_id(name, now) for _ in range(20)}
    assert len(ids) > 1
    assert all(
        valid_run_id(run_id) and run_id.startswith(f"{slug.replace('grosse', 'groe')}-20260102-030405-") for run_id in ids
    )


def test_create_find_list_in_a_folder_with_spaces_and_letters(tmp_path):
    root = tmp_path / "Ausgabe für Zoë 出力"
    assert list_runs(root) == []
    first = create_run(root, "first")
    assert all(folder.is_dir() for folder in (first.samples, first.checkpoints, first.control))
    second = create_run(str(root), "second")
    for age, run in enumerate([second, first]):
        run.config_file.write_text("name: x", encoding="utf-8")
        os.utime(run.config_file, (1e9 - age, 1e9 - age))
    (root / "Not a run").mkdir()
    (root / "plain-folder").mkdir()
    (root / "file").touch()
    assert [run.id for run in list_runs(root)] == ["second", "first"]
    assert find_run(root, "first") == first
    for missing in ("third", "plain-folder", "file"):
        with pytest.raises(RunNotFound, match=missing):
            find_run(root, missing)


def test_an_existing_run_is_never_taken_over(tmp_path):
    create_run(tmp_path, "demo").config_file.write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        create_run(tmp_path, "demo")
    assert RunDir(tmp_path / "demo").config_file.read_text() == "mine"


def test_a_root_that_is_a_file_gives_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="Cannot make the folder"):
        create_run(tmp_path / "file", "demo")
    assert list_runs(tmp_path / "file") == []


def test_paths_are_absolute_whatever_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = create_run("runs", "demo")
    monkeypatch.chdir("/")
    assert run.samples == tmp_path / "runs" / "demo" / "samples" and run.samples.is_dir()


def test_delete_takes_a_run_and_only_one_that_does_not_run(tmp_path):
    run, other = create_run(tmp_path, "demo"), create_run(tmp_path, "other")
    write_state(run, RunState(status="running", **own_process()))
    with pytest.raises(UserError, match=f"running.*{os.getpid()}.*deleted"):
        delete_run(run)
    assert run.state_file.exists()
    write_state(run, RunState(status="stopped", **own_process()))
    delete_run(run)
    assert os.listdir(tmp_path) == ["other"] and other.control.is_dir()
    with pytest.raises(UserError, match="no run"):
        delete_run(run)


@pytest.mark.skipif(os.name == "nt", reason="making a link needs a privilege there")
def test_delete_does_not_follow_a_link(tmp_path):
    target = create_run(tmp_path / "elsewhere", "demo")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "demo").symlink_to(target.path, target_is_directory=True)
    with pytest.raises(UserError, match="link"):
        delete_run(find_run(tmp_path / "runs", "demo"))
    assert target.control.is_dir()


def test_importing_the_package_is_light():
    code = (
        "import sys, trainer.runs, trainer.runs.checkpoints\n"
        "heavy = {'torch', 'numpy', 'safetensors', 'diffusers', 'transformers', 'peft', 'psutil'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_optimizer_state_needs_only_torch():
    code = (
        "import sys, trainer.runs.optimizer_state\n"
        "heavy = {'diffusers', 'transformers', 'peft'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
