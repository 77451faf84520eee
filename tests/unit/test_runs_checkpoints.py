"""A checkpoint is complete or absent, whenever the process is killed and whatever the disk does."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from trainer.errors import UserError
from trainer.runs import checkpoints as module
from trainer.runs import create_run, write_atomic
from trainer.runs.checkpoints import (
    clean_aside,
    latest_complete,
    list_checkpoints,
    load_checkpoint,
    load_latest,
    prune,
    save_checkpoint,
)

ROOT = Path(__file__).parents[2]
DEAD_PID = 2**22 + 5  # above any pid that Linux gives out


@pytest.fixture
def run(tmp_path):
    return create_run(tmp_path / "Läufe mit Leerzeichen 出力", "demo")


def content(stamp: float) -> dict:
    group = {"a": torch.full((64, 64), stamp), "b": torch.full((7,), stamp, dtype=torch.bfloat16)}
    return {
        "lora": group,
        "ema": {"a": group["a"] + 0},
        "optimizer": {"step": torch.tensor(stamp)},
        "rng": {"cpu": torch.zeros(9).byte()},
    }


def save(run, iteration, stamp=None):
    stamp = float(iteration) if stamp is None else stamp
    return save_checkpoint(run, iteration, content(stamp), {"iteration": iteration, "stamp": stamp, "best": 0.1 + 0.2})


def stamp_of(path):
    """The one stamp that every part of a checkpoint bears."""
    tensors, position = load_checkpoint(path)
    stamps = {position["stamp"], *tensors["lora"]["a"].flatten().tolist(), *tensors["ema"]["a"].flatten().tolist()}
    stamps.add(tensors["optimizer"]["step"].item())
    assert len(stamps) == 1
    return stamps.pop()


def iterations(run):
    complete, _ = list_checkpoints(run)
    return [info.iteration for info in complete]


def names(run):
    return sorted(path.name for path in run.checkpoints.iterdir())


def test_round_trip(run):
    path = save(run, 12)
    assert path == run.checkpoints / "000012"
    assert sorted(p.name for p in path.iterdir()) == [
        "ema.safetensors", "lora.safetensors", "manifest.json", "optimizer.safetensors", "position.json", "rng.safetensors",
    ]  # fmt: skip
    tensors, position = load_checkpoint(path)
    assert position == {"iteration": 12, "stamp": 12.0, "best": 0.1 + 0.2}
    for name, group in content(12.0).items():
        assert tensors[name].keys() == group.keys()
        for key, tensor in group.items():
            assert tensors[name][key].dtype == tensor.dtype and torch.equal(tensors[name][key], tensor)
    info, skipped = latest_complete(run)
    assert (info.iteration, info.path, skipped) == (12, path, [])
    assert info.size == sum(p.stat().st_size for p in path.iterdir() if p.name != "manifest.json")
    assert abs(info.created - time.time()) < 60 and names(run) == ["000012"]


def test_tensors_of_every_kind_are_kept(run):
    base = torch.arange(24.0)
    odd = {
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(0, 3),
        "bool": torch.tensor([True, False]),
        "int64": torch.tensor([2**62 + 1]),
        "float64": torch.tensor([0.1], dtype=torch.float64),
        "half": torch.tensor([0.1]).half(),
        "view": base[4:8],
        "all": base,
        "again": base,
        "transposed": base.view(4, 6).t(),
        "grad": torch.nn.Parameter(torch.ones(2)),
        "nan": torch.tensor([float("nan"), -0.0]),
    }
    tensors, _ = load_checkpoint(save_checkpoint(run, 0, {"odd": odd, "none": {}}, {}))
    assert tensors["none"] == {} and tensors["odd"].keys() == odd.keys()
    for name, tensor in odd.items():
        found = tensors["odd"][name]
        assert found.dtype == tensor.dtype and torch.equal(found.nan_to_num(7), tensor.nan_to_num(7)), name
    tensors["odd"]["all"].add_(1)  # what was loaded can be trained on
    assert (run.checkpoints / "000000" / "odd.safetensors").stat().st_size < 4000  # a view does not drag its base along


def test_listing_is_by_number_and_a_run_without_checkpoints_is_empty(run):
    assert list_checkpoints(run) == ([], []) and latest_complete(run) == (None, [])
    with pytest.raises(UserError, match="no complete checkpoint"):
        load_latest(run)
    for iteration in (1_000_000, 2, 999_999, 0):
        save(run, iteration)
    assert iterations(run) == [0, 2, 999_999, 1_000_000]
    run.checkpoints.rename(run.path / "elsewhere")
    assert list_checkpoints(run) == ([], []) and clean_aside(run) == []
    save(run, 3)
    assert iterations(run) == [3]


def test_saving_again_replaces(run):
    save(run, 5, stamp=1.0)
    path = save(run, 5, stamp=2.0)
    assert stamp_of(path) == 2.0 and names(run) == ["000005"]


@pytest.mark.parametrize("name", ["", "a/b", "..", "A", "lora.x", "position.json"])
def test_only_plain_names_become_files(run, name):
    with pytest.raises(ValueError, match="cannot name"):
        save_checkpoint(run, 1, {name: {}}, {})
    with pytest.raises(ValueError, match="negative"):
        save_checkpoint(run, -1, {}, {})
    assert names(run) == []


# --- damage


def damage(path, kind):
    target = path / "optimizer.safetensors"
    if kind == "truncated":
        target.write_bytes(target.read_bytes()[:-3])
    elif kind == "missing":
        target.unlink()
    elif kind == "no manifest":
        (path / "manifest.json").unlink()
    elif kind == "torn manifest":
        (path / "manifest.json").write_bytes((path / "manifest.json").read_bytes()[:-20])
    elif kind == "empty manifest":
        (path / "manifest.json").write_bytes(b"")
    elif kind == "renamed":
        path.rename(path.with_name("000099"))
    else:
        manifest = json.loads((path / "manifest.json").read_text())
        entry = manifest["files"]["optimizer.safetensors"]
        if kind == "newer format":
            manifest["format"] = 2
        elif kind == "no hash":
            del entry["sha256"]
        elif kind == "traversal":
            manifest["files"]["../000001/optimizer.safetensors"] = entry
        elif kind == "no files":
            manifest["files"] = {}
        (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "kind, reason",
    [
        ("truncated", r"optimizer.safetensors has \d+ bytes of \d+"),
        ("missing", "optimizer.safetensors is missing"),
        ("no manifest", "never finished"),
        ("torn manifest", "unreadable"),
        ("empty manifest", "unreadable"),
        ("renamed", "iteration 2"),
        ("newer format", "format 2"),
        ("no hash", "unreadable"),
        ("traversal", "malformed"),
        ("no files", "malformed"),
    ],
)
def test_a_damaged_newest_checkpoint_is_passed_over_with_a_reason(run, kind, reason):
    save(run, 1)
    path = save(run, 2)
    damage(path, kind)
    info, skipped = latest_complete(run)
    assert info.iteration == 1
    [(where, why)] = skipped
    assert where == (path.with_name("000099") if kind == "renamed" else path) and "\n" not in why
    assert re.search(reason, why)
    info, tensors, position, skipped_again = load_latest(run)
    assert info.iteration == 1 and position["stamp"] == 1.0 and "lora" in tensors and skipped_again == skipped
    if kind != "renamed":
        with pytest.raises(UserError):
            load_checkpoint(path)
    assert clean_aside(run) == [] and len(names(run)) == 2  # what is damaged is left for people to look at


def test_a_flipped_bit_is_found_on_loading_and_an_older_checkpoint_taken(run):
    save(run, 1)
    path = save(run, 2)
    data = bytearray((path / "lora.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "lora.safetensors").write_bytes(data)
    with pytest.raises(UserError, match=r"lora\.safetensors") as error:
        load_checkpoint(path)
    assert "\n" not in str(error.value)
    info, _, position, skipped = load_latest(run)
    assert info.iteration == 1 and position["stamp"] == 1.0 and [where for where, _ in skipped] == [path]


# --- failures while saving


class Fails:
    """Stands for a function that fails on its n-th call as a full disk does."""

    def __init__(self, real, nth):
        self.real, self.left = real, nth

    def __call__(self, *args, **options):
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.real(*args, **options)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("target", ["os.fsync", "os.replace", "safetensors.torch.save_file", "os.mkdir"])
def test_a_full_disk_at_any_step_leaves_the_earlier_checkpoints_and_nothing_else(run, monkeypatch, target, again):
    save(run, 1)
    if again:
        save(run, 2, stamp=20.0)
    before = names(run)
    failures = 0
    for nth in range(1, 30):
        with monkeypatch.context() as patch:
            owner, _, attribute = target.rpartition(".")
            fails = Fails(getattr(sys.modules[owner], attribute), nth)
            patch.setattr(target, fails)
            try:
                save(run, 2, stamp=21.0)
            except OSError as error:
                assert error.errno == errno.ENOSPC
                failures += 1
            if fails.left > 0:
                break  # saved without reaching the n-th call
        if "000002" in names(run) and stamp_of(run.checkpoints / "000002") == 21.0:
            assert names(run) == ["000001", "000002"]  # the failure was harmless, or came when all was in place
            shutil.rmtree(run.checkpoints / "000002")
            if again:
                save(run, 2, stamp=20.0)
        assert names(run) == before and iterations(run) == ([1, 2] if again else [1])
        assert [stamp_of(run.checkpoints / name) for name in before] == ([1.0, 20.0] if again else [1.0])
    assert failures >= 1
    assert save(run, 2, stamp=22.0) and stamp_of(run.checkpoints / "000002") == 22.0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a limit on file size is a POSIX notion")
def test_a_real_write_error_inside_safetensors_is_an_oserror(run):
    code = (
        "import resource, signal, sys, torch\n"
        "from trainer.runs import RunDir\nfrom trainer.runs.checkpoints import save_checkpoint\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000))\n"
        "try: save_checkpoint(RunDir(sys.argv[1]), 3, {'lora': {'a': torch.zeros(90000)}}, {})\n"
        "except OSError as error: print(error.errno)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run.path)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) == errno.EFBIG and names(run) == []


def test_any_other_failure_cleans_up_too(run, monkeypatch):
    save(run, 1)
    monkeypatch.setattr("safetensors.torch.save_file", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        save(run, 2)
    with pytest.raises(TypeError):
        save_checkpoint(run, 3, {}, {"x": object()})
    assert names(run) == ["000001"]


# --- kills

SAVER = """
import os, sys, torch
from trainer.runs import RunDir
from trainer.runs import checkpoints
sys.path.insert(0, sys.argv[2])
from test_runs_checkpoints import save

run = RunDir(sys.argv[1])


def die_at(nth):
    # ends the process, with no chance to clean up, before the nth step that changes the disk
    left = [nth]

    def wrap(real):
        def step(*args, **options):
            left[0] -= 1
            if left[0] == 0:
                os._exit(9)
            return real(*args, **options)
        return step

    steps = [(os, "fsync"), (os, "replace"), (os, "mkdir"), (checkpoints.shutil, "rmtree"), (checkpoints, "write_durable")]
    for owner, name in steps:
        setattr(owner, name, wrap(getattr(owner, name)))


print("up", flush=True)
for line in sys.stdin:
    mode, first = line.split()
    child = os.fork()
    if child == 0:
        stamp = float(first)
        if mode == "for-ever":
            while True:
                for iteration in (1, 2, 3):
                    save(run, iteration, stamp)
                    stamp += 1
        die_at(int(mode))
        save(run, 3, stamp)
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture
def saver(run):
    """A process that has torch loaded and forks children that save, so that each kill costs no start."""
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    command = [sys.executable, "-c", SAVER, str(run.path), str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as process:
        assert process.stdout.readline() == "up\n"
        yield process
        process.stdin.close()


def ask(saver, mode, stamp):
    saver.stdin.write(f"{mode} {stamp}\n")
    saver.stdin.flush()
    return int(saver.stdout.readline())


def test_sigkill_at_random_moments_never_leaves_a_torn_checkpoint(run, saver):
    for iteration in (1, 2, 3):
        save(run, iteration, stamp=float(iteration))
    newest = [1.0, 2.0, 3.0]
    interrupted = 0
    for round_ in range(10):
        child = ask(saver, "for-ever", 100 * (round_ + 1))
        time.sleep(random.uniform(0.03, 0.15))
        os.kill(child, 9)
        assert saver.stdout.readline() == "-9\n"
        complete, _ = list_checkpoints(run)
        assert [info.iteration for info in complete] == [1, 2, 3]
        stamps = [stamp_of(info.path) for info in complete]  # loads and verifies each
        assert all(stamp >= old for stamp, old in zip(stamps, newest, strict=True))
        newest = stamps
        interrupted += len(names(run)) > 3
        if round_ % 2:  # the trainer takes up the run; otherwise the next one finds the leavings of two
            clean_aside(run)
            assert names(run) == ["000001", "000002", "000003"]
            assert [stamp_of(run.checkpoints / name) for name in names(run)] == stamps
    assert max(newest) >= 100.0 and interrupted > 0  # it did save, and was cut short in the middle


def test_death_before_each_single_step_of_a_replacement(run, saver):
    save(run, 2)
    save(run, 3, stamp=0.0)
    outcomes = []
    for nth in range(1, 60):
        ask(saver, nth, nth)
        ended = saver.stdout.readline()
        assert ended in ("9\n", "0\n")
        info, _ = latest_complete(run)
        assert info.iteration == 3
        outcomes.append(stamp_of(info.path))
        assert outcomes[-1] in (0.0, nth)
        if ended == "0\n":
            break
        clean_aside(run)
        assert names(run) == ["000002", "000003"] and stamp_of(run.checkpoints / "000003") == outcomes[-1]
        save(run, 3, stamp=0.0)
    assert ended == "0\n" and outcomes.count(0.0) >= 10 and outcomes[-1] == nth


# --- asides


def test_unfinished_work_is_reported_and_removed_only_when_its_process_is_dead(run):
    path = save(run, 1)
    torn = run.checkpoints / f".writing-000002-{DEAD_PID}"
    busy = run.checkpoints / f".writing-000003-{os.getppid()}"
    state = run.path / f".writing-state.json-{DEAD_PID}-12345678"
    live_state = run.path / f".writing-state.json-{os.getppid()}-12345678"
    for folder in (torn, busy):
        folder.mkdir()
        (folder / "lora.safetensors").write_bytes(b"half")
    state.touch()
    live_state.touch()
    complete, skipped = list_checkpoints(run)
    assert [info.path for info in complete] == [path] and [where for where, _ in skipped] == [torn]
    assert sorted(clean_aside(run)) == sorted([torn, state])
    assert names(run) == [busy.name, "000001"] and live_state.exists()


def test_between_the_two_renames_the_old_checkpoint_counts_and_is_put_back(run):
    path = save(run, 4, stamp=40.0)
    aside = run.checkpoints / f".replaced-000004-{DEAD_PID}"
    path.rename(aside)
    info, skipped = latest_complete(run)
    assert (info.iteration, info.path, skipped) == (4, aside, []) and stamp_of(aside) == 40.0
    assert clean_aside(run) == [] and names(run) == ["000004"] and stamp_of(path) == 40.0
    torn = run.checkpoints / f".replaced-000004-{DEAD_PID}"
    save_checkpoint(run, 5, {}, {}).rename(torn)  # says 5 inside: not a checkpoint of iteration 4
    assert clean_aside(run) == [torn] and stamp_of(path) == 40.0


# --- pruning


def test_prune_keeps_the_newest_and_the_protected(run):
    for iteration in (10, 20, 30, 40, 50):
        save(run, iteration)
    (run.checkpoints / "000060").mkdir()  # damaged: neither counted as the newest nor deleted
    assert prune(run, keep=2, protect={20}) == [10, 30]
    assert names(run) == ["000020", "000040", "000050", "000060"]
    assert prune(run, keep=9) == [] and prune(run, keep=1) == [20, 40]
    with pytest.raises(ValueError):
        prune(run, keep=0)
    assert stamp_of(run.checkpoints / "000050") == 50.0


def test_a_prune_that_is_cut_short_leaves_no_torn_checkpoint(run, monkeypatch):
    for iteration in (1, 2):
        save(run, iteration)
    monkeypatch.setattr(module.shutil, "rmtree", lambda *args, **options: None)
    prune(run, keep=1)
    monkeypatch.undo()
    assert list_checkpoints(run)[1] == [] and iterations(run) == [2]
    assert len(clean_aside(run)) == 1 and names(run) == ["000002"]


def test_write_atomic_takes_text_and_bytes(tmp_path):
    path = tmp_path / "sömething.txt"
    write_atomic(path, "ä\n")
    assert path.read_bytes() == "ä\n".encode()
    write_atomic(path, b"\x00\r\n")
    assert path.read_bytes() == b"\x00\r\n" and os.listdir(tmp_path) == [path.name]
