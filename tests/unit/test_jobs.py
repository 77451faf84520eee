"""Jobs: starting, finding again, controlling and watching runs. The processes are real trainers; most of them only wait."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.comfy_api import pack
from tests.small_run import ROOT, small_config
from trainer import runs
from trainer.config import load_config
from trainer.runs import RunDir
from trainer.runs.device_queue import Place

jobs = pack("nodes.jobs")
# The pack has its own copy of every module: its errors are not those of `trainer`.
PackError = pack("trainer.errors").UserError
launch = pack("trainer.runs.launch")


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("VGRPO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "Ausgabe von ComfyUI ü" / "vgrpo"


@pytest.fixture
def config(tiny_sd3):
    return load_config(small_config(tiny_sd3))


class Page:
    """An open page: what it was told."""

    def __init__(self) -> None:
        self.told: list[dict] = []

    def __call__(self, event, data):
        assert event == "vgrpo.event"
        assert len(json.dumps(data)) < 1000
        self.told.append(data)


@pytest.fixture
def make(root):
    """make(page): an instance, as a (re)started ComfyUI has one. Every process that it started is ended afterwards."""
    made = []

    def build(page=None, **kw):
        made.append(jobs.Jobs(lambda: root, lambda: "cpu", page or Page(), **kw))
        return made[-1]

    yield build
    for one in made:
        one.close()
        for child in one._children.values():
            child.process.kill()
            child.process.wait()


@pytest.fixture
def busy(root, monkeypatch):
    """The CPU is taken by another run: whatever is started only waits, without torch."""
    with Place(RunDir(root / "the-first"), "cpu") as place:
        assert place.holds()
        yield place


def until(what, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


def waits(run) -> bool:
    state = runs.read_state(run)
    return state.pid is not None and state.message == "waiting for the-first on cpu"


def test_a_run_in_line_is_seen_found_again_and_obeys(make, busy, config, root):
    first = make()
    run = RunDir(first.start(config, {"node": "7", "workflow": {"nodes": []}, "digest": "x"}, "auto", take=3).path)
    assert run.path.parent == root and load_config(run.config_file) == config
    origin = json.loads((run.path / "origin.json").read_text(encoding="utf-8"))
    assert origin == {"node": "7", "digest": config.digest(), "take": 3}
    assert json.loads((run.path / "workflow.json").read_text(encoding="utf-8")) == {"nodes": []}
    until(lambda: waits(run))
    state = runs.read_state(run)
    assert (state.status, state.device, state.iterations, state.name) == ("starting", "cpu", 3, "small")
    if (maps := Path(f"/proc/{state.pid}/maps")).exists():
        assert "libtorch" not in maps.read_text()

    # ComfyUI is gone: another instance, which never heard of the run, finds and controls it.
    page = Page()
    second = make(page)
    assert second.find_same(config.digest(), 3).path == run.path
    assert second.find_same(config.digest(), 4) is None and second.find_same("other", 3) is None
    with pytest.raises(PackError, match=r"is starting \(process \d+\), so it cannot be resumed"):
        second.resume(run)
    with pytest.raises(PackError, match="cannot be deleted"):
        second.delete(run)
    second.watch()
    told = until(lambda: page.told)
    assert told[0] == {
        "run": run.id,
        "seq": 0,
        "type": "state",
        "types": [],
        "status": "starting",
        "iteration": 0,
        "iterations": 3,
        "message": "waiting for the-first on cpu",
    }
    second.control(run, "pause")
    until(lambda: runs.read_state(run).status == "paused")
    assert busy.before() == [] and len(list(busy.folder.glob("*.json"))) == 1  # the others may pass
    second.control(run, "resume")
    until(lambda: waits(run))
    second.control(run, "stop")
    until(lambda: runs.read_state(run).status == "stopped")
    until(lambda: page.told[-1]["status"] == "stopped")
    assert page.told[-1]["message"] == "stopped while it waited in line; resume continues it"
    assert [t["message"] for t in page.told].count("paused while it waited in line") == 1
    with pytest.raises(PackError, match="is stopped, so nobody is there to stop it; resume it first"):
        second.control(run, "stop")

    # Resumed, killed without a word, found lost, deleted.
    until(lambda: first._children[run.id].poll() is not None)
    second.resume(run)
    until(lambda: waits(run))
    os.kill(runs.read_state(run).pid, signal.SIGKILL)
    until(lambda: page.told[-1]["status"] == "lost")
    assert "gone without a word while starting" in page.told[-1]["message"]
    second.delete(run)
    assert not run.path.exists() and page.told[-1] == {"run": run.id, "seq": 0, "type": "deleted"}


@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
def test_memory_is_asked_for_when_a_run_in_line_has_its_turn(make, config, root, device):
    """ComfyUI made pictures while it waited, and their model is still on the accelerator."""
    run = runs.create_run(root, "in-line")
    runs.write_atomic(run.config_file, config.to_yaml())
    asked = []
    one = make(free=lambda: asked.append(True))
    said = (
        ("starting", "waiting for the-first on " + device),
        ("paused", "paused while it waited in line"),
        ("starting", "waiting for the-first and 1 more on " + device),
        ("starting", "waiting for the-first on " + device),
        ("starting", "loading"),
        ("running", ""),
    )
    for status, message in said:
        state = runs.RunState(status=status, message=message, device=device, iterations=3, **runs.own_process())
        runs.write_state(run, state)
        one.tick()
        assert len(asked) == (message in ("loading", "") and device != "cpu")


def test_a_trainer_whose_folder_is_deleted_or_renamed_ends(make, busy, config, root):
    """Unseen, it would keep its device, or its place in the line, for ever."""
    one = make()
    for away in (shutil.rmtree, lambda path: path.rename(path.with_name("renamed"))):
        run = one.start(config, {})
        until(lambda run=run: waits(run))
        process = one._children[run.id].process
        away(run.path)
        assert until(lambda process=process: process.poll() is not None and process) and process.returncode == 2
        assert busy.before() == [] and len(list(busy.folder.glob("*.json"))) == 1


def test_a_device_that_is_not_there_is_said_before_anything_starts(make, config, root):
    one = make()
    with pytest.raises(PackError, match=r"cuda:63 is not there|cuda is not available") as error:
        one.start(config, {}, "cuda:63")
    assert "\n" not in str(error.value) and runs.list_runs(root) == []


def test_a_stop_right_after_the_start_is_obeyed(make, busy, config):
    one = make()
    run = one.start(config, {})
    one.control(run, "stop")  # before the process has come up
    until(lambda: runs.read_state(run).status == "stopped")


def test_a_child_that_exits_at_once_is_failed_on_the_page(make, config, monkeypatch):
    monkeypatch.setattr(launch, "command", lambda run, device: [sys.executable, "-c", "raise SystemExit('Fehler: ö')"])
    page = Page()
    one = make(page)
    run = one.start(config, {})
    one.watch()
    until(lambda: page.told and page.told[-1]["status"] == "failed")
    assert page.told[-1]["message"] == "the trainer ended with exit code 1: Fehler: ö"
    assert one.find_same(config.digest(), 0).path == run.path  # resume is what is offered


def test_a_package_that_is_missing_in_the_child_is_said(make, config, tmp_path, monkeypatch):
    """The preflight found all, and the import fails all the same."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch._C'\", name='torch._C')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    one = make()
    run = one.start(config, {})
    until(lambda: runs.read_state(run).status == "failed")
    assert runs.read_state(run).message == "No module named 'torch._C'"
    error = list(runs.read_events(run.events_file))[-1]
    assert error["type"] == "error" and error["kind"] == "ModuleNotFoundError"
    until(lambda: one._children[run.id].poll() is not None)
    assert "is missing; install it with" in run.log_file.read_text(encoding="utf-8")


def test_preflight_leaves_no_run_behind(make, config, root, monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(PackError, match="missing or too old here: diffusers; install them with"):
        make().start(config, {})
    assert not root.exists() or runs.list_runs(root) == []


def test_a_process_that_cannot_start_leaves_no_run_behind(make, config, root, monkeypatch):
    monkeypatch.setattr(launch, "command", lambda run, device: [str(root / "no python"), "x"])
    with pytest.raises(PackError, match="the trainer could not be started"):
        make().start(config, {})
    assert runs.list_runs(root) == []


def test_a_finished_run_cannot_be_resumed(make, root, config):
    run = old_run(root, "done", config, runs.FINISHED)
    with pytest.raises(PackError, match="is finished; start a new one"):
        make().resume(run)


def old_run(root, name, config, status, origin=True, **state):
    run = runs.create_run(root, name)
    runs.write_atomic(run.config_file, config.to_yaml())
    runs.write_state(run, runs.RunState(status, iterations=3, **state))
    if origin:
        runs.write_json(run.path / "origin.json", {"digest": config.digest(), "take": 0})
    return run


def test_a_lora_is_published_once(make, root, config):
    """Also that of a run which finished while ComfyUI was closed; never that of a run which was not started from here."""
    old_run(root, "elsewhere", config, runs.FINISHED, origin=False)
    run = old_run(root, "closed", config, runs.FINISHED)
    active = old_run(root, "active", config, runs.RUNNING, **runs.own_process())
    published = []

    def publish(found):
        published.append(found.id)
        return f"vgrpo/{found.id}.safetensors"

    one = make(publish=publish)
    one.tick()
    assert published == ["closed"] and jobs.published_name(run) == "vgrpo/closed.safetensors"
    runs.write_state(active, runs.RunState(runs.FINISHED, 3, iterations=3))
    one.tick()
    assert published == ["closed", "active"]
    make(publish=publish).tick()  # a user who has deleted it from `loras` wants it gone
    assert published == ["closed", "active"]


def test_messages_are_few_and_no_run_is_left_out(make, root, config):
    page = Page()
    names = [f"run-{i}" for i in range(10)]
    found = [old_run(root, name, config, runs.RUNNING, iteration=0, **runs.own_process()) for name in names]
    one = make(page)
    while one.tick():
        pass
    assert sorted(told["run"] for told in page.told) == sorted(names)
    page.told.clear()
    for run in found:
        with runs.EventWriter(run.events_file) as events:
            for number in range(1, 301):
                events.write("iteration", iteration=number, metrics={"reward/total/mean": 0.1})
            events.write("warning", iteration=300, message="x" * 5000)
    counts = [one.tick() for _ in range(4)]
    assert counts == [4, 4, 2, 0]  # each tick is half a second
    assert sorted(told["run"] for told in page.told) == sorted(names)
    assert all(t["seq"] == 301 and t["type"] == "warning" and t["types"] == ["iteration", "warning"] for t in page.told)


def test_a_torn_state_is_waited_for(make, root, config):
    page = Page()
    run = old_run(root, "torn", config, runs.RUNNING, **runs.own_process())
    one = make(page)
    one.tick()
    whole = run.state_file.read_bytes()
    run.state_file.write_bytes(whole[:40])
    assert one.tick() == 0 and jobs.state_or_lost(run).status == "lost"
    run.state_file.write_bytes(whole.replace(b'"iteration": 0', b'"iteration": 2'))
    assert one.tick() == 1 and page.told[-1]["iteration"] == 2 and page.told[-1]["status"] == "running"
    jobs_torn = jobs.TORN_S
    run.state_file.write_bytes(whole[:40])
    try:
        jobs.TORN_S = 0.0  # nobody mends it
        one.tick()
    finally:
        jobs.TORN_S = jobs_torn
    assert page.told[-1]["status"] == "lost" and "Resume the run to write it anew" in page.told[-1]["message"]


def test_a_folder_that_is_deleted_by_hand(make, root, config):
    import shutil

    page = Page()
    run = old_run(root, "gone", config, runs.RUNNING, **runs.own_process())
    one = make(page)
    one.tick()
    shutil.rmtree(run.path)
    one.tick()
    assert page.told[-1] == {"run": "gone", "seq": 0, "type": "deleted"} and one.tick() == 0


def test_unknown_actions_and_runs(make, root, config):
    run = old_run(root, "r", config, runs.RUNNING, **runs.own_process())
    with pytest.raises(PackError, match="Unknown action 'explode'; allowed: pause, resume, stop, checkpoint, sample"):
        make().control(run, "explode")
    with pytest.raises(PackError, match="cannot be resumed"):
        make().resume(run)


# Stands for ComfyUI: it starts two trainings, tells their ids, and does nothing more until it is killed.
COMFYUI = """
import sys, time
from pathlib import Path
from tests.comfy_api import pack
from trainer.config import load_config
root, first, second = map(Path, sys.argv[1:])
jobs = pack("nodes.jobs").Jobs(lambda: root, lambda: "cpu")
a = jobs.start(load_config(first), {})
while not a.state_file.is_file() or '"loading"' not in a.state_file.read_text(encoding="utf-8"):
    time.sleep(0.1)
b = jobs.start(load_config(second), {})
print(a.id, b.id, flush=True)
time.sleep(1000)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="kills a process group")
def test_trainings_go_on_when_comfyui_is_killed_and_are_found_again(make, root, tiny_sd3, tmp_path):
    """One device: the second waits, visibly. The process that started them and its group are killed. A new instance sees the
    first one's events, pauses it and lets it go on; after its end the second one starts, and is stopped."""
    files = []
    for seed in (1, 2):
        config = load_config(small_config(tiny_sd3, seed=seed, evaluation={"every": 0}))
        files.append(tmp_path / f"{seed}.yaml")
        files[-1].write_text(config.to_yaml(), encoding="utf-8")
    comfyui = subprocess.Popen(
        [sys.executable, "-c", COMFYUI, str(root), *map(str, files)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    first, second = (RunDir(root / run_id) for run_id in comfyui.stdout.readline().split())
    until(lambda: runs.read_state(second).message.startswith("waiting for"))
    assert runs.read_state(second).message == f"waiting for {first.id} on cpu"
    os.killpg(comfyui.pid, signal.SIGKILL)
    comfyui.communicate()
    assert runs.read_state(first).active and runs.read_state(second).active

    page, published = Page(), []
    again = make(page, publish=lambda run: published.append(run.id) or "vgrpo/x.safetensors")
    again.watch()
    until(lambda: runs.read_state(first).status == "running", 300)
    again.control(first, "pause")
    until(lambda: runs.read_state(first).status == "paused", 300)
    assert runs.read_state(second).status == "starting"  # a paused run keeps its place
    again.control(first, "resume")
    until(lambda: not runs.read_state(first).active, 300)
    state = runs.read_state(first)
    assert state.status == "finished" and Path(state.lora).is_file() and state.iteration == 3
    until(lambda: published == [first.id])
    until(lambda: runs.read_state(second).message == "loading" or runs.read_state(second).status == "running", 300)
    again.control(second, "stop")
    until(lambda: runs.read_state(second).status == "stopped", 300)
    mine = [told for told in page.told if told["run"] == first.id]
    assert {"paused", "running", "finished"} <= {told["status"] for told in mine}
    assert mine[-1]["seq"] == runs.EventReader(first.events_file).last_seq() and "finished" in mine[-1]["types"]
    assert [told["seq"] for told in mine] == sorted(told["seq"] for told in mine)
