"""Requests to the trainer arrive once, in order, and settle sensibly."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trainer.errors import UserError
from trainer.runs import ACTIONS, create_run, pending, request, take_requests

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path):
    return create_run(tmp_path / "ein Ordner ü", "demo")


@pytest.mark.parametrize(
    "asked, settled",
    [
        ([], []),
        (["checkpoint", "sample", "pause"], ["checkpoint", "sample", "pause"]),
        (["pause", "checkpoint", "pause"], ["pause", "checkpoint"]),
        (["pause", "resume"], ["resume"]),  # of a paused run the resume must survive; a running one ignores it
        (["resume", "sample", "pause"], ["sample", "pause"]),
        (["pause", "resume", "pause"], ["pause"]),
        (["pause", "stop", "resume"], ["stop"]),
        (["checkpoint", "stop", "stop", "sample"], ["checkpoint", "stop", "sample"]),
    ],
)
def test_requests_settle_and_are_consumed(run, asked, settled):
    for action in asked:
        request(run, action)
    assert pending(run) == settled and pending(run) == settled
    assert take_requests(run) == settled
    assert take_requests(run) == [] and pending(run) == [] and list(run.control.iterdir()) == []


def test_order_holds_within_one_tick_of_the_clock(run, monkeypatch):
    monkeypatch.setattr("time.time_ns", lambda: 10**18)
    for action in ("sample", "checkpoint", "stop"):
        request(run, action)
    assert take_requests(run) == ["sample", "checkpoint", "stop"]


@pytest.mark.parametrize("action", ["halt", "", "Pause", "../stop", "stop\n", None])
def test_an_unknown_action_names_those_allowed(run, action):
    with pytest.raises(UserError) as error:
        request(run, action)
    assert all(word in str(error.value) for word in ACTIONS) and "\n" not in str(error.value)
    assert list(run.control.iterdir()) == []


def test_other_files_are_left_alone(run):
    (run.control / "stop").touch()
    (run.control / ".DS_Store").touch()
    request(run, "sample")
    assert take_requests(run) == ["sample"]
    assert len(list(run.control.iterdir())) == 2


def test_a_missing_folder(run):
    run.control.rmdir()
    assert pending(run) == [] and take_requests(run) == []
    request(run, "stop")
    assert take_requests(run) == ["stop"]
    shutil.rmtree(run.path)
    with pytest.raises(UserError, match="still there"):
        request(run, "stop")


def test_each_request_is_given_out_once(run):
    for _ in range(60):
        request(run, "sample")
    taken = []

    def take():
        for _ in range(30):
            taken.extend(take_requests(run))

    takers = [threading.Thread(target=take) for _ in range(3)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    assert 1 <= len(taken) <= 60 and take_requests(run) == []
    assert list(run.control.iterdir()) == []


def test_another_process_asks(run):
    code = "import sys; from trainer.runs import RunDir, request; request(RunDir(sys.argv[1]), 'stop')"
    subprocess.run([sys.executable, "-c", code, str(run.path)], cwd=ROOT, check=True)
    assert take_requests(run) == ["stop"]
