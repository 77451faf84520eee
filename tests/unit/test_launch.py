"""Starting a trainer: its command line on every system, its environment, and what is said of one that dies at once."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from trainer import runs
from trainer.errors import UserError
from trainer.runs import launch

FLAGS = SimpleNamespace(isolated=0, ignore_environment=0, no_user_site=0)


@pytest.fixture
def run(tmp_path):
    run = runs.create_run(tmp_path / "Läufe mit Leerzeichen", "r")
    runs.write_state(run, runs.RunState(iteration=2, iterations=5, name="Größe", lora="old.safetensors"))
    return run


def program(monkeypatch, code: str) -> None:
    """The trainer is replaced by a program that fails; everything else is real."""
    monkeypatch.setattr(launch, "command", lambda run, device: [sys.executable, "-c", code, str(run.path), device])


def test_the_command_line(run):
    python = "C:\\ComfyUI portable\\python.exe"
    made = launch.command(run, "cuda:1", python, FLAGS)
    assert made == [python, str(launch.CLI), "resume", str(run.path), "--device", "cuda:1", "--in-line"]
    assert launch.CLI.is_file()


@pytest.mark.parametrize(
    ("set_", "options"),
    [({"no_user_site": 1}, ["-s"]), ({"ignore_environment": 1}, ["-E"]), ({"isolated": 1, "no_user_site": 1}, ["-I"])],
)
def test_a_portable_pythons_isolation_is_the_childs_too(run, set_, options):
    assert launch.command(run, "cpu", "python", SimpleNamespace(**{**vars(FLAGS), **set_}))[1:-6] == options


def test_a_child_outlives_its_parent_on_every_system():
    assert launch.process_options("linux") == launch.process_options("darwin") == [{"start_new_session": True}]
    breakaway, plain = launch.process_options("win32")
    assert plain == {"creationflags": 0x200 | 0x8000000}  # CREATE_NEW_PROCESS_GROUP, CREATE_NO_WINDOW
    assert breakaway == {"creationflags": plain["creationflags"] | 0x1000000}  # CREATE_BREAKAWAY_FROM_JOB


def test_a_job_object_that_keeps_its_members_is_accepted(run, monkeypatch):
    """Windows refuses the breakaway with a PermissionError; the second way is taken."""
    tried = []

    def popen(arguments, **options):
        tried.append(options.get("creationflags"))
        if len(tried) == 1:
            raise PermissionError(13, "access denied")
        return SimpleNamespace(pid=1)

    monkeypatch.setattr(launch, "process_options", lambda: [{"creationflags": 3}, {"creationflags": 1}])
    monkeypatch.setattr(launch.subprocess, "Popen", popen)
    assert launch.launch(run, "cpu").pid == 1 and tried == [3, 1]


def test_the_child_has_its_own_session_no_sockets_and_writes_utf8_to_the_log(run, monkeypatch):
    code = (
        "import os, sys; fds = os.listdir('/proc/self/fd') if os.path.isdir('/proc/self/fd') else []\n"
        "own = getattr(os, 'getsid', lambda p: 0)(0) == os.getpid()\n"
        "print('ü', own, len(fds) <= 4, os.getcwd() == os.path.dirname(sys.argv[1]))"
    )
    program(monkeypatch, code)
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    leak = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(leak, True)
    try:
        child = launch.launch(run, "cpu")
        assert child.wait(60) == 0
    finally:
        os.close(leak)
    if os.name == "posix":
        assert run.log_file.read_text(encoding="utf-8") == "ü True True True\n"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "import sys; print('erste'); print('kein Speicher für ö', file=sys.stderr); sys.exit(3)",
            "exit code 3: kein Speicher für ö",
        ),
        ("raise SystemExit(1)", "exit code 1 without a word; see train.log"),
        ("pass", "exit code 0 without a word"),  # never `finished` without a LoRA
        ("import os, signal; print('before'); os.kill(os.getpid(), signal.SIGKILL)", "was killed by signal 9: "),
    ],
)
def test_a_child_that_dies_at_once_is_failed_with_its_last_words(run, monkeypatch, code, message):
    if "SIGKILL" in code and os.name == "nt":
        pytest.skip("no such signal")
    program(monkeypatch, code)
    child = launch.launch(run, "cuda:0")
    child.wait(60)
    state = runs.read_state(run)
    assert state.status == runs.FAILED and message in state.message and state.pid is None
    assert (state.iteration, state.iterations, state.name, state.lora) == (2, 5, "Größe", "old.safetensors")


def test_a_child_that_is_killed_at_work_is_lost(run, monkeypatch):
    """It had written its own state: nothing failed there, and resume is offered."""
    code = (
        f"import os, signal, sys; sys.path.insert(0, {str(launch.PACK)!r}); from trainer import runs\n"
        "run = runs.RunDir(sys.argv[1]); runs.write_state(run, runs.RunState('running', iteration=3, **runs.own_process()))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    if os.name == "nt":
        pytest.skip("no such signal")
    program(monkeypatch, code)
    launch.launch(run, "cpu").wait(60)
    assert runs.read_state(run).status == runs.LOST


def test_another_process_of_the_run_is_not_blamed(run):
    runs.write_state(run, runs.RunState("running", **runs.own_process()))
    launch.settle(run, 999_999_999, 1)
    assert runs.read_state(run).status == runs.RUNNING


def test_a_torn_state_is_mended(run, monkeypatch):
    run.state_file.write_text('{"status": "runn', encoding="utf-8")
    program(monkeypatch, "raise SystemExit('words')")
    launch.launch(run, "cpu").wait(60)
    assert runs.read_state(run).message.endswith("exit code 1: words")
    run.state_file.write_text('{"sta', encoding="utf-8")
    launch.settle(run, 1, 1)
    assert runs.read_state(run).status == runs.FAILED


def test_a_python_that_is_not_there(run, monkeypatch):
    monkeypatch.setattr(launch, "command", lambda run, device: [str(run.path / "no python"), "x"])
    with pytest.raises(UserError, match=r"the trainer could not be started: .*no python"):
        launch.launch(run, "cpu")
    assert runs.read_state(run).status == runs.FAILED


def test_what_the_process_before_was_asked_is_forgotten(run, monkeypatch):
    runs.request(run, "stop")
    program(monkeypatch, "pass")
    launch.launch(run, "cpu").wait(60)
    assert runs.pending(run) == []


def test_the_tail_of_a_log(tmp_path):
    log = tmp_path / "train.log"
    assert launch.log_tail(log, 5) == [] and launch.last_line(log) == ""
    log.write_bytes("erste\r\n\n10%\r20%\r30%\nö".encode() + b"\xff\n \n")
    assert launch.log_tail(log, 3) == ["20%", "30%", "ö\ufffd"] and launch.last_line(log) == "ö\ufffd"
    log.write_text("".join(f"line {i}\n" for i in range(100_000)), encoding="utf-8")
    lines = launch.log_tail(log, 2000)
    assert lines[-1] == "line 99999" and len(lines) == 2000
    assert all(line.startswith("line ") for line in launch.log_tail(log, 5000))
