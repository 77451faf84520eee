"""The line for a device: real processes, in order, past those that die, and names for devices."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.small_run import ROOT
from trainer.errors import UserError
from trainer.runs import RunDir
from trainer.runs.device_queue import Place, default_root, device_key, tickets

# Takes a place for the run named in its arguments, says when it holds the device, and keeps it until its input ends.
WAITER = """
import sys, time
from trainer.runs import RunDir
from trainer.runs.device_queue import Place
with Place(RunDir(sys.argv[1]), "cuda:0", float(sys.argv[2])) as place:
    print("in line", flush=True)
    while not place.holds():
        time.sleep(0.02)
    print("holds", flush=True)
    sys.stdin.readline()
print("torch" in sys.modules, flush=True)
"""


@pytest.fixture
def line(tmp_path, monkeypatch):
    """line(name, taken): a process that waits for cuda:0 as the run `name`."""
    monkeypatch.setenv("VGRPO_CACHE", str(tmp_path / "cache ü"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    started = []

    def take(name: str, taken: float) -> subprocess.Popen:
        arguments = [sys.executable, "-c", WAITER, str(tmp_path / name), str(taken)]
        process = subprocess.Popen(arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "in line\n"
        started.append(process)
        return process

    yield take
    for process in started:
        process.kill()
        process.communicate()


def test_one_at_a_time_in_the_order_of_asking(line, tmp_path):
    now = time.time()
    first = line("first", now - 30)
    assert first.stdout.readline() == "holds\n"
    third, second = line("third", now - 10), line("second", now - 20)  # the second asked earlier, but its process came later
    with Place(RunDir(tmp_path / "mine"), "cuda:0") as mine:
        assert not mine.holds()
        assert mine.message() == "waiting for first and 2 more on cuda:0"
        assert first.communicate("\n")[0] == "False\n"  # no torch was imported
        assert second.stdout.readline() == "holds\n"
        assert not mine.holds() and mine.message() == "waiting for second and 1 more on cuda:0"
        third.kill()  # left without a word, its ticket stays behind
        third.wait()
        second.kill()
        second.wait()
        assert mine.message() == "waiting for another trainer on cuda:0" and mine.holds()
        assert [ticket.run_id for ticket in tickets(mine.folder)] == ["mine"]
    assert tickets(mine.folder) == []


def test_the_lock_decides_where_tickets_are_lost(line, tmp_path):
    holder = line("holder", time.time() - 5)
    assert holder.stdout.readline() == "holds\n"
    with Place(RunDir(tmp_path / "mine"), "cuda:0") as mine:
        for ticket in tickets(mine.folder):
            if ticket.run_id == "holder":
                ticket.path.unlink()
        assert not mine.before() and not mine.holds()
        holder.kill()
        holder.wait()
        assert mine.holds()


def test_a_damaged_ticket_is_another_run(tmp_path):
    with Place(RunDir(tmp_path / "mine"), "cpu", root=tmp_path) as mine:
        (mine.folder / f"{1:020d}-{os.getppid()}.json").write_text("{", encoding="utf-8")
        (mine.folder / "notes.txt").touch()
        assert mine.message() == "waiting for another run on cpu" and not mine.holds()


def test_a_run_is_in_line_once(line, tmp_path):
    other = line("same", time.time())
    with pytest.raises(UserError, match=rf"The run 'same' is in line or at work already, in process {other.pid}"):
        Place(RunDir(tmp_path / "same"), "cuda:0")


def test_devices_do_not_wait_for_each_other(tmp_path):
    run = RunDir(tmp_path / "r")
    with Place(run, "cuda:0", root=tmp_path) as first, Place(run, "cuda:1", root=tmp_path) as second:
        assert first.holds() and second.holds()


def test_a_folder_that_cannot_be_written_is_said_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"Cannot take a place in line for cpu in .*file.cpu: .*VGRPO_CACHE"):
        Place(RunDir(tmp_path / "r"), "cpu", root=tmp_path / "file")


@pytest.mark.parametrize(
    ("device", "environ", "key"),
    [
        ("cpu", {}, "cpu"),
        ("mps", {}, "mps"),
        ("cuda", {}, "cuda-0"),
        ("cuda:0", {}, "cuda-0"),
        ("cuda:1", {"CUDA_VISIBLE_DEVICES": ""}, "cuda-1"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "3, GPU-5f"}, "cuda-3"),
        ("cuda:1", {"CUDA_VISIBLE_DEVICES": "3, GPU-5f"}, "cuda-GPU-5f"),
        ("cuda:1", {"HIP_VISIBLE_DEVICES": "4,5"}, "cuda-5"),
        ("xpu:1", {"ZE_AFFINITY_MASK": "0.1,1"}, "xpu-1"),
        ("cuda:0", {"CUDA_VISIBLE_DEVICES": "../x"}, "cuda-..-x"),
    ],
)
def test_the_device_behind_a_name(device, environ, key):
    assert device_key(device, environ) == key


def test_the_folder_is_the_users_and_the_machines(monkeypatch, tmp_path):
    monkeypatch.setenv("VGRPO_CACHE", str(tmp_path))
    assert default_root().parent == tmp_path / "devices"
    monkeypatch.setattr("socket.gethostname", lambda: "ho/st")
    assert default_root().name == "ho-st"
