"""state.json is never half written, and a run whose process is gone is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import types

import pytest

from trainer.errors import UserError
from trainer.runs import RunState, create_run, own_process, process_start_time, read_state, require_idle, write_state
from trainer.runs import processes as processes_module
from trainer.runs.claim import claim
from trainer.runs.state import state_or_lost


@pytest.fixture
def run(tmp_path):
    return create_run(tmp_path / "mit Leerzeichen 日本", "demo")


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def test_round_trip_and_stamps(run):
    before = time.time()
    state = RunState(
        status="running", iteration=3, iterations=9, message="höher", lora="a b.safetensors", name="Ä", **own_process()
    )
    write_state(run, state)
    assert read_state(run) == state
    assert before <= state.updated <= time.time() and state.heartbeat == state.updated
    json.loads(run.state_file.read_text(encoding="utf-8"))


def test_a_launcher_that_writes_is_no_sign_of_life_of_the_trainer(run, child):
    state = RunState(status="starting", pid=child.pid, process_start=process_start_time(child.pid))
    write_state(run, state)
    assert state.updated is not None and read_state(run).heartbeat is None


@pytest.mark.parametrize("status", ["lost", "done", ""])
def test_only_a_status_that_a_process_can_be_in_is_written(run, status):
    with pytest.raises(ValueError, match="cannot be written"):
        write_state(run, RunState(status=status))
    assert not run.state_file.exists()


def test_a_reader_sees_whole_states_while_a_writer_writes(run):
    write_state(run, RunState(status="running", iteration=0, message="", **own_process()))
    failures, reads, done = [], [0], threading.Event()

    def read():
        while not done.is_set():
            try:
                state = read_state(run)
                assert len(state.message) == 50 * (state.iteration % 97)
                reads[0] += 1
            except Exception as error:
                failures.append(error)
                return

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for iteration in range(300):
        write_state(run, RunState(status="running", iteration=iteration, message="x" * 50 * (iteration % 97), **own_process()))
    done.set()
    for reader in readers:
        reader.join()
    assert not failures and reads[0] > 10
    assert sorted(os.listdir(run.path)) == ["checkpoints", "control", "samples", "state.json"]


def test_a_write_that_fails_leaves_the_old_state_and_nothing_else(run, monkeypatch):
    write_state(run, RunState(status="running", iteration=1, **own_process()))

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_state(run, RunState(status="running", iteration=2, **own_process()))
    assert read_state(run).iteration == 1
    assert sorted(os.listdir(run.path)) == ["checkpoints", "control", "samples", "state.json"]


@pytest.mark.parametrize("status", ["starting", "running", "paused", "stopping"])
def test_a_killed_process_makes_its_run_lost(run, child, status):
    write_state(
        run, RunState(status=status, pid=child.pid, process_start=process_start_time(child.pid), iteration=7, message="step")
    )
    assert read_state(run).status == status and read_state(run).active
    child.kill()
    deadline = time.monotonic() + 10
    while read_state(run).status != "lost" and time.monotonic() < deadline:
        time.sleep(0.01)  # not waited for: to its parent the dead child is still a zombie with a pid
    lost = read_state(run)
    assert lost.status == "lost" and not lost.active
    assert (
        f"{child.pid}" in lost.message and status in lost.message and "iteration 7" in lost.message and "step" in lost.message
    )
    child.wait()
    assert read_state(run).status == "lost"
    assert json.loads(run.state_file.read_text(encoding="utf-8"))["status"] == status  # reading never writes


@pytest.mark.parametrize("status", ["finished", "stopped", "failed"])
def test_an_ended_run_stays_what_it_was(run, status):
    write_state(run, RunState(status=status, pid=2**22 + 5, process_start=1.0, message="bye"))
    assert (read_state(run).status, read_state(run).message) == (status, "bye")


def test_a_reused_pid_is_not_the_process(run, child):
    start = process_start_time(child.pid)
    write_state(run, RunState(status="running", pid=child.pid, process_start=start - 60))
    assert read_state(run).status == "lost"
    write_state(run, RunState(status="running", pid=child.pid, process_start=start))
    assert read_state(run).status == "running"


def test_a_start_without_a_pid_is_lost_after_a_while(run):
    write_state(run, RunState(status="starting"))
    assert read_state(run).status == "starting"
    stale = json.loads(run.state_file.read_text()) | {"updated": time.time() - 3600}
    run.state_file.write_text(json.dumps(stale))
    assert read_state(run).status == "lost"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"status": "flying"}',
        '{"status": "running", "pid": "12"}',
        '{"status": "running", "iteration": null}',
        "\x00" * 50,
    ],
)
def test_a_damaged_state_gives_one_line(run, text):
    run.state_file.write_text(text)
    with pytest.raises(UserError) as error:
        read_state(run)
    assert str(run.state_file) in str(error.value) and "\n" not in str(error.value)


def test_a_missing_state_gives_one_line_and_a_later_version_is_read(run):
    with pytest.raises(UserError, match="never started"):
        read_state(run)
    run.state_file.write_text('{"status": "finished", "iteration": 4, "colour": "red"}')
    assert read_state(run).iteration == 4


def test_a_run_whose_folder_is_being_made_is_not_called_lost(tmp_path):
    made = create_run(tmp_path, "just-now")
    assert state_or_lost(made).status == "starting"
    hour_ago = time.time() - 3600
    os.utime(made.path, (hour_ago, hour_ago))
    assert state_or_lost(made).status == "lost"


def test_a_run_that_runs_is_not_idle(run, child):
    require_idle(run, "resumed")
    write_state(run, RunState(status="paused", pid=child.pid, process_start=process_start_time(child.pid)))
    for unless_mine in (False, True):
        with pytest.raises(UserError, match=f"demo.*paused.*{child.pid}.*resumed"):
            require_idle(run, "resumed", unless_mine=unless_mine)
    for mine in (RunState(status="starting"), RunState(status="starting", **own_process())):
        write_state(run, mine)
        require_idle(run, "resumed", unless_mine=True)
        with pytest.raises(UserError):
            require_idle(run, "resumed")
    child.kill()
    child.wait()
    write_state(run, RunState(status="paused", pid=child.pid, process_start=1.0))
    require_idle(run, "resumed")


# --- the platforms' branches


def test_start_time_tells_processes_apart(child):
    mine, theirs = process_start_time(os.getpid()), process_start_time(child.pid)
    assert mine is not None and theirs is not None and mine <= theirs
    assert process_start_time(child.pid) == theirs
    assert [process_start_time(pid) for pid in (None, 0, -1, 2**22 + 5)] == [None] * 4


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="the clock tick is a POSIX notion")
@pytest.mark.parametrize(
    "stat, expected",
    [
        ("41 (python) S " + " ".join(["0"] * 18) + " 12300 1 2", 12300),
        ("41 (a) Z 9 (b)) R " + " ".join(["0"] * 18) + " 500 1", 500),  # a command named "a) Z 9 (b)"
        ("41 (python) Z " + " ".join(["0"] * 18) + " 12300 1 2", None),
        ("41 (python) X " + " ".join(["0"] * 18) + " 12300 1 2", None),
        ("", None),
    ],
)
def test_linux_branch(tmp_path, stat, expected):
    (tmp_path / "41").mkdir()
    (tmp_path / "41" / "stat").write_text(stat)
    expected = None if expected is None else expected / os.sysconf("SC_CLK_TCK")
    assert processes_module.linux_start_time(41, proc=tmp_path) == expected
    assert processes_module.linux_start_time(42, proc=tmp_path) is None


def test_macos_branch_prefers_psutil_then_ps(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    fake = types.SimpleNamespace(
        Error=LookupError,
        STATUS_ZOMBIE="zombie",
        Process=lambda pid: types.SimpleNamespace(status=lambda: "running" if pid == 5 else "zombie", create_time=lambda: 1.25),
    )
    monkeypatch.setitem(sys.modules, "psutil", fake)
    assert [process_start_time(5), process_start_time(6)] == [1.25, None]
    monkeypatch.setitem(sys.modules, "psutil", None)  # not installed
    calls = []

    def ps(command, **options):
        calls.append((command, options))
        text = {5: "S+   Thu Jan  1 00:02:03 1970\n", 6: "Z    Thu Jan  1 00:02:03 1970\n", 7: "", 8: "S  gibberish"}[
            int(command[-1])
        ]
        return types.SimpleNamespace(returncode=0 if text else 1, stdout=text)

    monkeypatch.setattr(subprocess, "run", ps)
    assert [process_start_time(pid) for pid in (5, 6, 7, 8)] == [123.0, None, None, None]
    for command, options in calls:
        assert isinstance(command, list) and not options.get("shell")
        assert options["env"]["TZ"] == "UTC" and options["env"]["LC_ALL"] == "C" and options["timeout"]


@pytest.mark.skipif(os.name == "nt", reason="no ps there")
def test_ps_branch_on_the_real_ps(child):
    try:
        subprocess.run(["ps", "-o", "stat=", "-o", "lstart=", "-p", str(child.pid)], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine's ps is missing or has no lstart")
    assert abs(processes_module.ps_start_time(child.pid) - time.time()) < 60
    child.kill()
    time.sleep(0.1)
    assert processes_module.ps_start_time(child.pid) is None  # a zombie
    child.wait()
    assert processes_module.ps_start_time(child.pid) is None


class FakeKernel32:
    """Windows' answers for pid 5, which runs; pid 6, which has ended but is held open; and nothing else."""

    def __init__(self):
        self.open_handles = set()

    def OpenProcess(self, access, inherit, pid):
        assert access == 0x1000 and not inherit
        if pid not in (5, 6):
            return None
        self.open_handles.add(pid)
        return pid

    def GetExitCodeProcess(self, handle, code):
        code._obj.value = 259 if handle == 5 else 1
        return 1

    def GetProcessTimes(self, handle, created, ended, in_kernel, in_user):
        ticks = int((11644473600 + 1000.5) * 10**7)
        created._obj.dwHighDateTime, created._obj.dwLowDateTime = ticks >> 32, ticks & 0xFFFFFFFF
        return 1

    def CloseHandle(self, handle):
        self.open_handles.remove(handle)
        return 1


def test_windows_branch(monkeypatch):
    kernel32 = FakeKernel32()
    monkeypatch.setattr(sys, "platform", "win32")
    real = processes_module.windows_start_time
    monkeypatch.setattr(processes_module, "windows_start_time", lambda pid: real(pid, kernel32))
    assert process_start_time(5) == pytest.approx(1000.5, abs=1e-3)
    assert process_start_time(6) is None and process_start_time(7) is None
    assert not kernel32.open_handles


_CLAIMS = """
import sys, time
from trainer.runs import RunDir
from trainer.runs.claim import claim
with claim(RunDir(sys.argv[1]), "trained here too"):
    print("claimed", flush=True)
    sys.stdin.read()
"""


def test_of_two_that_claim_a_run_at_once_one_is_refused(tmp_path):
    """The state alone can't tell: neither has written it yet."""
    run = create_run(tmp_path, "a-run")
    with subprocess.Popen(
        [sys.executable, "-c", _CLAIMS, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "claimed\n"
        with pytest.raises(UserError, match=r"a-run.*another process"), claim(run, "trained here too"):
            pass
        other.kill()  # whatever happens to it, the run is free then
        other.wait()
    with claim(run, "trained here too"):
        pass
