"""Real trainer processes that are killed, interrupted and taken up again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.small_run import EVERYTHING, ROOT, Watcher, assert_same_outcome, events, go, new_run, saved, series, small_config
from tests.small_run import write_config as write
from trainer import cli, runs
from trainer.runs import RunDir

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="Windows has neither signal")]
PLAN = {"iterations": 12, "checkpoint": {"every": 1, "keep": 3}, "evaluation": {"every": 3}, **EVERYTHING}
SHORT = {**PLAN, "iterations": 2, "optimizer": {**EVERYTHING["optimizer"], "warmup": 1}, "evaluation": {"every": 1}}

# Forks a child for each line "<run> <n>"; the child trains and kills itself at its n-th disk operation (0: never, but says how
# many there were). A process that has run a backward pass cannot be forked, so pytest's own can't.
FORKS = """
import os, shutil, signal, sys
from pathlib import Path
import diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3, matplotlib.figure, peft
from tests.small_run import go
from trainer import setup
from trainer.runs import RunDir
print("ready", flush=True)
for line in sys.stdin:
    path, _, last = line.rpartition(" ")
    child = os.fork()
    if not child:
        count = 0
        def deadly(operation):
            def wrapped(*args, **kwargs):
                global count
                count += 1
                if count == int(last):
                    os.kill(os.getpid(), signal.SIGKILL)
                return operation(*args, **kwargs)
            return wrapped
        for module, name in ((os, "fsync"), (os, "replace"), (os, "rename"), (shutil, "rmtree")):
            setattr(module, name, deadly(getattr(module, name)))
        go(RunDir(path))
        print(count, flush=True)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        print("killed" if os.WIFSIGNALED(status) else "failed", flush=True)
"""


@pytest.fixture(autouse=True)
def no_curve(monkeypatch):
    """matplotlib takes as long as the rest of such a run."""
    from trainer import ending

    monkeypatch.setattr(ending, "save_curve", lambda *args: None)


@pytest.fixture(scope="module")
def forks():
    """forks(run, n): trains until the n-th disk operation; returns "killed", or the number of operations of a whole run."""
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n", process.stderr.read()

    def fork(run, n):
        process.stdin.write(f"{run.path} {n}\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    yield fork
    process.communicate()


def test_a_kill_at_any_disk_operation(forks, tiny_sd3, tmp_path):
    """Every rename and every flush is a moment at which a kill could leave half of something."""

    def launched(name):
        """A run as a launcher leaves it for its child: claimed by nobody yet."""
        run = new_run(tmp_path / name, small_config(tiny_sd3, **SHORT))
        runs.write_state(run, runs.RunState(iterations=2))
        return run

    whole = launched("whole")
    total = int(forks(whole, 0))
    assert total > 60  # checkpoints 1 and 2, three evaluations with their pictures, the states between
    moments = random.Random(0).sample(range(2, total + 1), 10)
    for n in sorted(moments):
        run = launched(f"killed {n}")
        assert forks(run, n) == "killed"
        assert runs.read_state(run).status in (runs.LOST, runs.FINISHED)  # the very last operation writes `finished`
        newest = max(saved(run), default=0)  # reads every checkpoint to its last bit
        watcher = Watcher()
        go(run, watcher)
        assert watcher.done == list(range(newest + 1, 3)), f"operation {n}"
        assert_same_outcome(run, whole)
        assert not [p.name for p in run.path.rglob("*") if p.name.startswith(".") or p.suffix in (".part", ".partial")]


def start(*arguments) -> subprocess.Popen:
    command = [sys.executable, str(ROOT / "trainer" / "cli.py"), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")


def wait_for(process: subprocess.Popen, what, pause: float = 0.02) -> None:
    """Until `what()`; fails with the process's words if it ends before that."""
    deadline = time.monotonic() + 120
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(pause)


def iterations_done(run: RunDir) -> int:
    return len(events(run, "iteration"))


def test_sigkill_and_resume(tiny_sd3, tmp_path, capsys):
    """Killed amid training and amid saving, the end is that of a run nobody touched, and the curves show no trace."""
    data = small_config(tiny_sd3, **PLAN)
    whole = new_run(tmp_path / "whole", data)
    go(whole)
    root = tmp_path / "killed"
    run = RunDir(root / "small")
    moments = random.Random()
    arguments = ["train", write(tmp_path / "config.yaml", data), "--output", root, "--run-id", "small"]

    def saving() -> bool:
        """A checkpoint is being written at this moment."""
        return run.checkpoints.is_dir() and any(name.startswith(".") for name in os.listdir(run.checkpoints))

    for attempt in range(4):
        had = iterations_done(run)
        process = start(*arguments)
        wait_for(process, lambda: iterations_done(run) > had)  # noqa: B023
        if attempt % 2:
            wait_for(process, saving, pause=0.0005)
            time.sleep(moments.random() * 0.004)
        else:
            time.sleep(moments.random() * 0.15)
        process.kill()
        process.communicate()
        arguments = ["resume", run.path]
        assert runs.read_state(run).status == runs.LOST
        capsys.readouterr()
        assert cli.main(["runs", str(root)]) == 0
        assert " lost " in capsys.readouterr().out
        curve = [i for i, _ in series(run)["reward/total/mean"]]
        assert curve == list(range(1, len(curve) + 1))
        assert len(curve) - max(saved(run), default=0) <= 1  # a checkpoint every iteration: at most one is lost
    go(run)
    assert_same_outcome(run, whole)
    numbers = [e["seq"] for e in events(run)]
    assert numbers == sorted(set(numbers))
    assert not [p.name for p in run.checkpoints.iterdir() if p.name.startswith(".")]


# A short rollout, then an update that looks for no request: long even on a fast machine, since both signals must fall into it.
BUSY = {
    "iterations": 2,
    "rollout": {"group_size": 8},
    "surrogate": {"pairs": 48, "stratified": False, "batch_size": 1},
    "evaluation": {"every": 0},
    "checkpoint": {"every": 100},
}


@pytest.fixture
def busy(tiny_sd3, tmp_path):
    """A real process in the middle of its first update."""
    config = write(tmp_path / "config.yaml", small_config(tiny_sd3, **BUSY))
    run = RunDir(tmp_path / "runs ü" / "small")
    process = start("train", config, "--output", run.path.parent, "--run-id", "small")
    wait_for(process, lambda: events(run, "grid"))
    time.sleep(0.7)
    assert iterations_done(run) == 0
    yield run, process
    process.kill()


def test_ctrl_c_saves_and_says_how_to_go_on(busy):
    run, process = busy
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and "Traceback" not in err
    assert "stopped after iteration 1 of 2, saved" in out and f'resume "{run.path}"' in out
    assert runs.read_state(run).status == runs.STOPPED and list(saved(run)) == [1]


def test_a_second_ctrl_c_ends_at_once(busy):
    run, process = busy
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None  # it would finish the update first
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in err and "interrupted" in err
    assert f'resume "{run.path}"' in out
    assert iterations_done(run) == 0 and runs.read_state(run).status == runs.FAILED


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, a file whose disk is always full")
def test_a_disk_too_full_for_the_log_does_not_end_a_run_in_line(tiny_sd3, tmp_path):
    """ComfyUI's trainers print into their run's log: a full disk costs the lines."""
    run = new_run(tmp_path / "runs", small_config(tiny_sd3))
    runs.write_state(run, runs.RunState(iterations=3, name="small"))  # as one that ComfyUI has just made
    command = [sys.executable, str(ROOT / "trainer" / "cli.py"), "resume", str(run.path), "--device", "cpu", "--in-line"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "VGRPO_CACHE": str(tmp_path / "cache")}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert runs.read_state(run).status == runs.FINISHED and (run.lora_dir / f"{run.id}.safetensors").is_file()
