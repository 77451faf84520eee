"""Where a reward's files are looked for, and what is said when they are not there."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from trainer.errors import UserError
from trainer.rewards import weights as finder
from trainer.rewards.weights import MODEL, Weights, find, locate, problem, search_folders, size_hint, status, verify

FILE = Weights(title="Scorer", names=("scorer.pt", "scorer.safetensors"), hub="someone/scorer", licence="MIT", size=1_234_567)
FOLDER = replace(FILE, names=("scorer",), markers=MODEL)


@pytest.fixture
def models(tmp_path, monkeypatch):
    """ComfyUI's models folder, and no network."""
    folder = tmp_path / "models ü" / "vgrpo"
    folder.mkdir(parents=True)
    other = tmp_path / "clip_vision"
    other.mkdir()
    monkeypatch.setenv(finder.FOLDERS, os.pathsep.join([str(other), str(folder)]))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(finder, "_fetch", lambda weights: pytest.fail("fetched without being asked"))
    return folder


def put(path: Path, data: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def one_line(text: str) -> str:
    assert text and len(text.splitlines()) == 1
    return text


@pytest.mark.parametrize("place", ["scorer.pt", "scorer.safetensors", "hps/scorer.pt", "../../clip_vision/scorer.pt"])
def test_a_file_in_the_models_folders(models, place):
    path = put(models / place)
    assert find(FILE).samefile(path) and locate(FILE).samefile(path) and problem(FILE) is None
    assert status(FILE).startswith("found: ")


def test_below_a_models_root(models, monkeypatch):
    monkeypatch.setenv(finder.FOLDERS, str(models.parent))
    path = put(models / "scorer.pt")
    assert find(FILE) == path
    path.unlink()
    path = put(models / "deep" / "scorer.pt")
    assert find(FILE) == path


def test_a_model_folder_needs_its_weights(models):
    put(models / "scorer" / "config.json")
    assert find(FOLDER) is None
    put(models / "scorer" / "model.safetensors")
    assert find(FOLDER) == models / "scorer"


def test_what_the_hubs_cache_holds_is_found_without_asking(models, tmp_path):
    snapshot = tmp_path / "hub" / "models--someone--scorer" / "snapshots" / "abc"
    put(snapshot / "scorer.pt")
    put(snapshot.parents[1] / "refs" / "main", b"abc")
    assert find(FILE) == snapshot / "scorer.pt"
    put(models / "scorer.pt")
    assert find(FILE) == models / "scorer.pt", "the user's own folders come first"


def test_what_the_user_names(models, tmp_path):
    path = put(tmp_path / "elsewhere" / "mine.bin")
    assert find(replace(FILE, given=str(path))) == path
    put(models / "mine.pt")
    assert find(replace(FILE, given="mine.pt")) == models / "mine.pt", "a bare name is looked for in the models folders"
    inside = put(tmp_path / "elsewhere" / "scorer.safetensors")
    assert find(replace(FILE, given=str(inside.parent))) == inside
    put(models / "scorer.pt")
    assert find(replace(FILE, given=str(tmp_path / "no.pt"))) is None, "a wrong path is never replaced by another file"
    single = replace(FOLDER, single=True, given=str(path))
    assert find(single) == path and find(replace(single, single=False)) is None


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (
            "",
            [
                "Scorer: scorer.pt is missing",
                "1.23 MB, MIT",
                "https://huggingface.co/someone/scorer",
                "set 'model' to its path",
            ],
        ),
        ("./no.pt", ["model = './no.pt': there is no such file or folder", "or to someone/scorer to have it fetched"]),
        ("no.pt", ["model = 'no.pt': not in "]),
        ("FOLDER", ["there is none of scorer.pt, scorer.safetensors in it"]),
    ],
)
def test_missing_is_one_line_that_says_what_to_do(models, given, parts):
    missing = replace(FILE, given=given.replace("FOLDER", str(models)))
    text = one_line(problem(missing))
    assert all(part in text for part in parts), text
    assert str(models) in text, "where to put it"
    assert text == f"Scorer: {status(missing)}"
    with pytest.raises(UserError) as caught:
        locate(missing)
    assert str(caught.value) == text


def test_only_a_hub_id_that_the_user_named_is_fetched(models, monkeypatch, tmp_path):
    asked = replace(FILE, given="someone/other")
    assert problem(asked) is None and "will be fetched from https://huggingface.co/someone/other" in status(asked)
    fetched = put(tmp_path / "fetched.pt")
    monkeypatch.setattr(finder, "_fetch", lambda weights: fetched if weights.given == "someone/other" else None)
    assert locate(asked) == fetched


def test_a_download_that_fails_is_one_line(models, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *a, **k: (_ for _ in ()).throw(OSError("no\nnetwork")))
    with pytest.raises(UserError) as caught:
        locate(replace(FILE, given="someone/other"))
    text = one_line(str(caught.value))
    assert "model = 'someone/other' can't be fetched (OSError: no network)" in text and "put the file scorer.pt" in text


def test_what_is_fetched_of_a_repository(models, monkeypatch, tmp_path):
    """Pickled weights only where there are no others: they would double the download."""
    monkeypatch.undo()
    asked = []

    def snapshot(hub, allow_patterns, ignore_patterns):
        asked.append(allow_patterns)
        put(tmp_path / "snapshot" / ("pytorch_model.bin" if "pytorch_model.bin" in allow_patterns else "config.json"))
        return str(tmp_path / "snapshot")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert locate(replace(FOLDER, given="someone/other")) == tmp_path / "snapshot"
    assert len(asked) == 2 and "*.safetensors" in asked[0] and "pytorch_model.bin" not in asked[0]
    asked.clear()
    put(tmp_path / "snapshot" / "model.safetensors")
    assert locate(replace(FOLDER, given="someone/other")) == tmp_path / "snapshot" and len(asked) == 1
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda hub, name: str(put(tmp_path / f"{hub.split('/')[1]}-{name}")))
    assert locate(replace(FILE, given="someone/other")).name == "other-scorer.pt"


def test_checksums(models):
    path = put(models / "scorer.pt", b"hello")
    assert verify(FILE) is None, "no checksum is known"
    good = replace(FILE, sha256=hashlib.sha256(b"hello").hexdigest())
    assert verify(good) is None
    path.write_bytes(b"hellO")
    assert "is not the published file" in one_line(verify(good))
    put(models / "scorer" / "model.safetensors", b"hello")
    whole = replace(FOLDER, sha256=good.sha256, hashed="model.safetensors")
    assert verify(whole) is None
    put(models / "scorer" / "model.safetensors", b"other")
    assert "model.safetensors is not the published file" in one_line(verify(whole))


def test_a_torn_download_is_recognised(models):
    torn = put(models / "scorer.pt", b"abc")
    assert "it has 3 bytes where the published file has 1234567" in size_hint(FILE, torn)
    assert size_hint(FILE, put(models / "own.pt")) == "", "a file of another name has no published size"


def test_folders_without_a_setting(monkeypatch):
    monkeypatch.delenv(finder.FOLDERS)
    assert search_folders()[0] == Path("models").absolute()
    assert search_folders()[-1].parts[-2:] == ("cache", "models"), "the test's own cache folder"


@pytest.fixture(autouse=True)
def _no_setting(monkeypatch):
    monkeypatch.setenv(finder.FOLDERS, "")
