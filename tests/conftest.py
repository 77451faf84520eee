"""What all tests share. OpenMP's spinning makes tiny models many times slower on busy cores, so tests use one thread."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest


@pytest.fixture(scope="session")
def tiny_sd3(tmp_path_factory):
    """A folder with a tiny random SD3 pipeline."""
    from tests.tiny import make_sd3_folder

    return make_sd3_folder(tmp_path_factory.mktemp("model") / "tiny-sd3")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """No test reads or writes the user's cache of encoded prompts."""
    monkeypatch.setenv("VGRPO_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
