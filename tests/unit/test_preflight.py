"""What is refused before a process is started, in one line that says what to do."""

from __future__ import annotations

import sys

import pytest

from tests.small_run import small_config
from trainer.config import load_config
from trainer.errors import UserError
from trainer.preflight import missing_packages, preflight


@pytest.fixture
def config(tmp_path):
    model = tmp_path / "mödel"
    model.mkdir()
    (model / "model_index.json").write_text("{}", encoding="utf-8")
    return load_config(small_config(model))


def test_all_is_there(config, tmp_path):
    preflight(config, tmp_path / "new" / "läufe")
    assert list((tmp_path / "new" / "läufe").iterdir()) == []
    preflight(load_config({"preset": "demo"}), tmp_path)


def test_a_missing_package_is_named_with_the_command(config, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)  # what the import system has for a package that can't be imported
    with pytest.raises(UserError) as error:
        preflight(config, tmp_path)
    text = str(error.value)
    assert "missing or too old here: peft;" in text and f'"{sys.executable}" -m pip install -r "' in text
    assert "\n" not in text and text.endswith('requirements.txt"')


def test_names_versions_and_comments():
    there = {"PIL", "yaml", "diffusers", "peft"}
    versions = {"diffusers": "0.38.0.dev0", "peft": "0.17.1"}
    found = missing_packages(
        ["Pillow", "PyYAML", "# words", "", "diffusers>=0.39", "peft>=0.17", "not-there>=1  # why"],
        find=lambda name: name if name in there else None,
        version=versions.__getitem__,
        executable="C:\\py thon\\python.exe",
    )
    assert "diffusers 0.39 or newer (found 0.38.0.dev0), not-there;" in found and '"C:\\py thon\\python.exe" -m pip' in found


def test_a_model_that_is_gone(config, tmp_path):
    (tmp_path / "mödel" / "model_index.json").unlink()
    with pytest.raises(UserError, match=r"policy\.model: .*mödel is not a diffusers model folder"):
        preflight(config, tmp_path / "runs")


def test_too_little_room(config, tmp_path):
    with pytest.raises(UserError, match=r"only 1\.0 GiB are free on the disk of .*; a run needs 2 GiB"):
        preflight(config, tmp_path / "runs", free_bytes=lambda path: 2**30)


def test_a_folder_that_cannot_be_written(config, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write to the runs folder .*file.runs"):
        preflight(config, tmp_path / "file" / "runs")


def test_what_a_reward_lacks(tmp_path, monkeypatch):
    """Said before a process is started, and in the trainer before the base is loaded; a monitor may lack what it likes."""
    from trainer import setup

    monkeypatch.setenv("VGRPO_MODELS", str(tmp_path))
    data = {"preset": "demo", "rewards": {"scene": {}, "risk": {"kind": "nsfw"}}}
    said = r"rewards\.risk: NSFW classifier: nsfw_image_detection is missing; put it"
    with pytest.raises(UserError, match=said):
        preflight(load_config(data), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    monkeypatch.setattr(setup, "load_policy", lambda *_: pytest.fail("the base was loaded first"))
    with pytest.raises(UserError, match=said):
        setup.build_bench(load_config(data), "cpu")
    preflight(load_config({"preset": "demo", "monitors": {"nsfw": {}}}), tmp_path / "runs")
