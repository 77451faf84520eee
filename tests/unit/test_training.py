"""A run from end to end: stopping and resuming, requests, full disks, and parts that fail."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests import small_run
from tests.small_run import CPU, EVERYTHING, Watcher, events, go, lora_bytes, new_run, saved, series, small_config, stop_after
from trainer import cli, requests, runs
from trainer.commands import resume
from trainer.ending import first_means
from trainer.errors import UserError
from trainer.policies.sd3 import SD3Policy
from trainer.rewards.brightness import Brightness
from trainer.rewards.colorfulness import Colorfulness
from trainer.runs import RunDir
from trainer.runs.checkpoints import list_checkpoints
from trainer.training import train

PLANS = {
    "plain": {"iterations": 4, "checkpoint": {"every": 10}},
    "everything": {"iterations": 4, **EVERYTHING},
    # A threshold among the brightnesses of these pictures makes some groups flat.
    "resting": {
        "iterations": 4,
        "prompts": {"train": ["a red square", "a blue circle", "a green star", "one", "two", "three"]},
        "rollout": {"refill": 1, "rest_flat": True},
        "rewards": {"brightness": {"transform": {"threshold": 0.1143}}},
    },
    "deferred": {"iterations": 4, "objective": {"deferred": 4}},
}
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(scope="module")
def unbroken(tiny_sd3, tmp_path_factory):
    """The uninterrupted runs."""
    out = {}
    for name, plan in PLANS.items():
        run = new_run(tmp_path_factory.mktemp(name), small_config(tiny_sd3, **plan))
        go(run)
        out[name] = run
    return out


@pytest.fixture(autouse=True)
def no_curve(monkeypatch):
    """matplotlib takes as long as the rest of such a run; the runs of `unbroken` have theirs."""
    from trainer import ending

    monkeypatch.setattr(ending, "save_curve", lambda *args: None)


@pytest.fixture
def small(tiny_sd3, tmp_path):
    """Makes a run that has not begun."""
    return lambda **changes: new_run(tmp_path, small_config(tiny_sd3, **changes))


@pytest.fixture
def quick_requests(monkeypatch):
    monkeypatch.setattr(requests, "LOOK_S", 0.0)
    monkeypatch.setattr(requests, "WAIT_S", 0.005)


def messages(run, *kinds):
    return [e["message"] for e in events(run, *(kinds or ("warning", "error")))]


# --- the run itself


def test_the_numbers_of_the_start_outlive_its_pictures(unbroken, tmp_path):
    """Somebody made room: the summary takes them from the events then."""
    run = RunDir(shutil.copytree(unbroken["everything"].path, tmp_path / "small"))
    shutil.rmtree(run.evaluation(0))
    means, before = first_means(run), series(run)
    assert means["eval/brightness/mean"] == before["eval/brightness/mean"][0][1]
    assert means["eval/total/mean"] == before["eval/total/mean"][0][1]


def test_the_run_directory_of_a_finished_run(unbroken):
    run = unbroken["everything"]
    state = runs.read_state(run)
    assert (state.status, state.iteration, state.iterations) == (runs.FINISHED, 4, 4)
    assert Path(state.lora).is_file() and state.lora == str(run.lora_dir / "small.safetensors")
    curves = series(run)
    assert [i for i, _ in curves["reward/brightness/mean"]] == [1, 2, 3, 4]
    assert [i for i, _ in curves["eval/total/mean"]] == [0, 2, 4]
    assert [i for i, _ in curves["lr"]] == [1, 2, 3, 4] and [v for _, v in curves["steps/taken"]] == [2.0] * 4
    numbers = [e["seq"] for e in events(run)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [i for i in saved(run)] == [1, 2, 3, 4]
    summary = json.loads(run.summary_file.read_text())
    assert summary["eval_reward_before"] == curves["eval/brightness/mean"][0][1]
    assert summary["eval_reward_after"] == curves["eval/brightness/mean"][-1][1] != summary["eval_reward_before"]
    assert {"iterations", "lora_path", "seed", "wall_s"} <= summary.keys() and summary["wall_s"] > 0
    for name in ("curve.png", "before-after.png", "samples/000000/grid.png", "samples/000004/p001-s1.png"):
        assert (run.path / name).stat().st_size > 100, name
    leftovers = [p for p in run.path.rglob("*") if p.name.startswith(".") or p.suffix == ".part"]
    assert leftovers == []


def test_what_is_exported_is_the_moving_average(unbroken):
    """The raw factors of the last iteration are another LoRA; without an average they are what is exported."""
    for name, source in (("everything", "ema"), ("plain", "lora")):
        tensors, _ = saved(unbroken[name])[4]
        exported = load_file(unbroken[name].lora_dir / "small.safetensors")
        key = next(k for k in tensors[source] if k.endswith(".lora_A"))
        assert torch.equal(exported[f"transformer.{key}.weight"], tensors[source][key])
    assert not torch.equal(*(saved(unbroken["everything"])[4][0][s][key] for s in ("ema", "lora")))


def test_a_checkpoint_is_as_small_as_a_lora(unbroken, tiny_sd3):
    """A 37 GB base was once written beside a 131 MB LoRA (Soup#352)."""
    for run in unbroken.values():
        lora = len(lora_bytes(run))
        base = sum(f.stat().st_size for f in tiny_sd3.rglob("*.safetensors"))
        for info in list_checkpoints(run)[0]:
            # raw, EMA and two moments, each with a header, beside 20 kB of random state
            assert lora < info.size < 5 * lora + 40_000 < base


# --- stop and resume


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("iteration", range(5))
def test_stop_and_resume_at_any_iteration_equals_never_stopping(small, unbroken, plan, iteration):
    run = small(**PLANS[plan])
    outcome = go(run, stop_after(run, iteration))
    assert outcome == {"stopped": True, "saved": True, "iteration": iteration, "iterations": 4}
    state = runs.read_state(run)
    assert (state.status, state.iteration) == (runs.STOPPED, iteration) and "resume" in state.message
    assert not run.lora_dir.exists() and not run.summary_file.exists()
    second = Watcher()
    go(run, second)
    assert second.done == list(range(iteration + 1, 5))
    small_run.assert_same_outcome(run, unbroken[plan])


def test_the_run_with_flat_groups_has_some_and_remembers_them(unbroken):
    drawn = [value for _, value in series(unbroken["resting"])["rollout/refilled"]]
    assert 0 < sum(drawn) < 8
    assert any(position["learner"].get("flat_prompts") for _, position in saved(unbroken["resting"]).values())


def test_a_stop_after_every_iteration(small, unbroken):
    run = small(**PLANS["everything"])
    for iteration in range(5):
        assert go(run, stop_after(run, iteration))["iteration"] == iteration
    go(run)
    small_run.assert_same_outcome(run, unbroken["everything"])


@pytest.mark.parametrize("step", range(1, 15))
def test_a_stop_at_any_solver_step_of_a_rollout_or_evaluation(small, unbroken, quick_requests, monkeypatch, step):
    """2 steps each: evaluation 0, rollouts 1 and 2, evaluation 2, rollouts 3 and 4, evaluation 4."""
    run = small(**PLANS["everything"])
    check, calls = requests.RequestDesk.check, []

    def counting(desk):
        calls.append(None)
        if len(calls) == step:
            runs.request(run, "stop")
        check(desk)

    with monkeypatch.context() as patch:
        patch.setattr(requests.RequestDesk, "check", counting)
        outcome = go(run)
    assert outcome["iteration"] == [0, 0, 1, 2, 2, 3, 4][(step - 1) // 2] and len(calls) == step
    go(run)
    small_run.assert_same_outcome(run, unbroken["everything"])


def test_a_stop_amid_a_due_evaluation_does_not_lose_it(small, quick_requests, monkeypatch):
    """The evaluation after iteration 2 is made by the process that goes on: no gap in the curve, no blind spot of `best`."""
    run = small()
    check = requests.RequestDesk.check

    def stop_in_evaluation(desk):
        if runs.read_state(run).iteration == 2 and not (run.samples / "000002").exists():
            runs.request(run, "stop")
        check(desk)

    with monkeypatch.context() as patch:
        patch.setattr(requests.RequestDesk, "check", stop_in_evaluation)
        assert go(run)["iteration"] == 2
    assert [i for i, _ in series(run)["eval/total/mean"]] == [0]
    go(run)
    assert [i for i, _ in series(run)["eval/total/mean"]] == [0, 2, 3]


def test_training_on_in_half_precision_keeps_the_masters_in_float32(small, tmp_path, tiny_sd3):
    """Resumed half-precision masters die (diffusers#6514)."""
    plan = {"policy": {"dtype": "bfloat16", "model": str(tiny_sd3), "lora": {"rank": 2}}, "iterations": 2, **EVERYTHING}
    plan["optimizer"] = {**EVERYTHING["optimizer"], "warmup": 1}
    run, other = small(**plan), new_run(tmp_path / "other", small_config(tiny_sd3, **plan))
    go(other)
    go(run, stop_after(run, 1))
    go(run)
    small_run.assert_same_outcome(run, other)
    for tensors, _ in saved(run).values():
        for file in ("lora", "ema", "optimizer"):
            assert all(t.dtype in (torch.float32, torch.float64) for t in tensors[file].values()), file
    moved = [torch.equal(saved(run)[1][0]["lora"][k], v) for k, v in saved(run)[2][0]["lora"].items() if "lora_B" in k]
    assert not all(moved)


def test_resume_passes_over_a_damaged_checkpoint_and_says_so(small, unbroken):
    run = small(**PLANS["everything"])
    go(run, stop_after(run, 3))
    torn = run.checkpoints / "000003" / "lora.safetensors"
    torn.write_bytes(torn.read_bytes()[:-100])
    second = Watcher()
    go(run, second)
    assert second.done == [3, 4]
    assert any("000003" in m and "resuming from iteration 2" in m for m in messages(run, "warning"))
    small_run.assert_same_outcome(run, unbroken["everything"])


def test_a_changed_configuration_is_told(small):
    run = small()
    go(run, stop_after(run, 1))
    text = run.config_file.read_text(encoding="utf-8")
    run.config_file.write_text(text.replace("lr: 0.5", "lr: 0.25"), encoding="utf-8")
    go(run)
    assert any("config.yaml was changed" in m for m in messages(run, "warning"))
    assert [v for _, v in series(run)["lr"]] == [0.5, 0.25, 0.25]


def test_a_restart_without_a_checkpoint_takes_back_the_points(small):
    """A process that was lost before its first checkpoint left points that the new process makes anew."""
    run = small(checkpoint={"every": 3}, evaluation={"every": 0})

    class Crash(BaseException):
        pass

    def crash(done):
        if done == 2:
            raise Crash

    with pytest.raises(Crash):
        go(run, Watcher(crash))
    assert [i for i, _ in series(run)["lr"]] == [1, 2]
    go(run, stop_after(run, 1))
    assert [i for i, _ in series(run)["lr"]] == [1]
    go(run)
    assert [i for i, _ in series(run)["lr"]] == [1, 2, 3]


def test_the_configuration_file_alone_reproduces_the_run(unbroken, tmp_path):
    source = unbroken["everything"]
    again = new_run(tmp_path, source.config_file, "another-name")
    go(again)
    mine, theirs = load_file(again.lora_dir / "another-name.safetensors"), load_file(source.lora_dir / "small.safetensors")
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)
    assert series(again) == series(source)
    assert again.config_file.read_bytes() == source.config_file.read_bytes()


# --- requests


def test_pause_sample_checkpoint_resume_and_stop(small, quick_requests, monkeypatch):
    run = small(iterations=400, evaluation={"every": 0}, checkpoint={"every": 1000}, optimizer={"lr": 1e-4})
    moves, failures = [], []
    to = SD3Policy.to
    monkeypatch.setattr(SD3Policy, "to", lambda policy, device: (moves.append(str(device)), to(policy, device))[1])

    def until(what):
        deadline = time.monotonic() + 30
        while not what():
            assert time.monotonic() < deadline, "nothing happened"
            time.sleep(0.005)

    def user():
        try:
            until(lambda: events(run, "iteration"))
            del moves[:]
            runs.request(run, "pause")
            until(lambda: runs.read_state(run).status == runs.PAUSED)
            until(lambda: events(run, "paused"))
            assert moves == ["cpu"]  # the accelerator is free
            done = runs.read_state(run).iteration
            heartbeat = runs.read_state(run).heartbeat
            runs.request(run, "checkpoint")
            until(lambda: done in saved(run))
            runs.request(run, "sample")
            until(lambda: [e for e in events(run, "grid") if e["iteration"] == done])
            until(lambda: len(moves) == 3)
            time.sleep(0.2)
            assert runs.read_state(run).iteration == done and runs.read_state(run).status == runs.PAUSED
            assert heartbeat is not None
            runs.request(run, "resume")
            until(lambda: runs.read_state(run).iteration > done)
            assert runs.read_state(run).status == runs.RUNNING and len(moves) == 4
            runs.request(run, "pause")
            until(lambda: runs.read_state(run).status == runs.PAUSED)
        except BaseException as error:
            failures.append(error)
        finally:
            runs.request(run, "stop")  # a paused run hears it too

    thread = threading.Thread(target=user)
    thread.start()
    outcome = go(run)
    thread.join()
    assert not failures, failures
    assert outcome["stopped"] and runs.read_state(run).status == runs.STOPPED
    assert [e["type"] for e in events(run, "paused", "resumed")] == ["paused", "resumed", "paused"]
    assert max(saved(run)) == outcome["iteration"] < 400


def test_sampling_while_paused_happens_on_the_run_s_device(small, quick_requests, monkeypatch):
    """A parked policy lies on the CPU; pictures made there would fail, or take minutes. Here the accelerator is "cpu:0"."""
    run, where = small(), []
    to, sample = SD3Policy.to, SD3Policy.sample
    monkeypatch.setattr(SD3Policy, "to", lambda policy, device: (where.append(f"to {device}"), to(policy, device))[1])
    monkeypatch.setattr(SD3Policy, "sample", lambda *args: (where.append("sample"), sample(*args))[1])

    def at_iteration(done):
        if done == 1:
            del where[:]
            runs.request(run, "pause")
            threading.Timer(0.1, lambda: runs.request(run, "sample")).start()

    def at_message(text):
        if "after iteration 1:" in text:
            runs.request(run, "resume")

    train(run, torch.device("cpu:0"), Watcher(at_iteration, at_message), cache=run.path.parent / "conditioning")
    assert where[:5] == ["to cpu", "to cpu:0", "sample", "to cpu", "to cpu:0"]
    assert runs.read_state(run).status == runs.FINISHED


def test_requests_of_an_earlier_process_are_not_obeyed(small):
    run = small()
    runs.request(run, "stop")
    assert "stopped" not in go(run)


def test_what_is_asked_while_a_run_in_line_comes_up_is_obeyed(small, monkeypatch):
    """Between the end of its waiting and the first look of its training, which may be minutes for a large model."""
    run = small(iterations=400)
    runs.request(run, "stop")  # meant for the process before: this one's launcher would have taken it away

    def choose_device(name):
        assert runs.pending(run) == []
        runs.request(run, "stop")
        return torch.device(name)

    monkeypatch.setattr(resume, "choose_device", choose_device)
    assert cli.main(["resume", str(run.path), "--device", "cpu", "--in-line"]) == 0
    state = runs.read_state(run)
    assert state.status == runs.STOPPED and state.iteration == 0 and runs.pending(run) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_stops(small, number):
    before = signal.getsignal(number)
    run = small()
    outcome = go(run, Watcher(lambda done: os.kill(os.getpid(), number) if done == 1 else None))
    assert outcome["stopped"] and outcome["iteration"] == 1 and list(saved(run)) == [1]
    assert signal.getsignal(number) is before


def test_the_second_signal_ends_at_once(small):
    run = small()

    def twice(done):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        go(run, Watcher(twice))
    state = runs.read_state(run)
    assert state.status == runs.FAILED and "interrupted" in state.message
    go(run)
    assert runs.read_state(run).status == runs.FINISHED


def test_training_in_a_thread(small):
    """Signals belong to the main thread; a host may train elsewhere."""
    run, outcome = small(iterations=1), []
    thread = threading.Thread(target=lambda: outcome.append(go(run)))
    thread.start()
    thread.join()
    assert outcome and runs.read_state(run).status == runs.FINISHED


def test_a_run_that_another_process_works_on_is_refused_and_left_alone(small):
    run = small()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        start = runs.process_start_time(other.pid)
        runs.write_state(run, runs.RunState(status=runs.RUNNING, pid=other.pid, process_start=start, iteration=1))
        before = run.state_file.read_bytes()
        with pytest.raises(UserError, match="is running"):
            train(run, CPU, Watcher())
        assert run.state_file.read_bytes() == before and not run.events_file.exists()
        other.communicate(b"\n")
    go(run)  # its process is gone
    assert runs.read_state(run).status == runs.FINISHED


# --- a full disk


def test_a_full_disk_while_saving_checkpoints(small, unbroken, monkeypatch):
    from trainer.runs import checkpoints

    run, write = small(**PLANS["everything"]), checkpoints.write_durable

    def full(path, data):
        if 2 <= runs.read_state(run).iteration <= 3:
            path.write_bytes(data[:10])
            raise FULL
        write(path, data)

    monkeypatch.setattr(checkpoints, "write_durable", full)
    watcher = Watcher()
    go(run, watcher)
    assert list(saved(run)) == [1, 4]  # loading them compares every hash
    assert not [p for p in run.checkpoints.iterdir() if p.name.startswith(".")]
    said = [e for e in events(run, "error") if "checkpoint not saved" in e["message"]]
    assert {e["iteration"] for e in said} == {2, 3} and all("No space left" in e["message"] for e in said)
    assert any("checkpoint not saved" in m for m in watcher.messages)
    small_run.assert_same_outcome(run, unbroken["everything"])


def test_a_stop_that_cannot_save_says_so(small, unbroken, monkeypatch):
    from trainer.runs import checkpoints

    run = small(**PLANS["everything"])
    with monkeypatch.context() as patch:

        def full(path, data):
            if runs.read_state(run).iteration == 3:
                raise FULL
            path.write_bytes(data)

        patch.setattr(checkpoints, "write_durable", full)
        outcome = go(run, stop_after(run, 3))
    assert outcome["stopped"] and not outcome["saved"]
    assert "not saved" in runs.read_state(run).message
    second = Watcher()
    go(run, second)
    assert second.done == [3, 4]
    small_run.assert_same_outcome(run, unbroken["everything"])


def test_a_full_disk_while_saving_pictures(small, unbroken, monkeypatch):
    from PIL import Image

    def full(image, path, **kwargs):
        path.write_bytes(b"\x89PNG")
        raise FULL

    run = small(**PLANS["plain"])
    monkeypatch.setattr(Image.Image, "save", full)
    go(run)
    assert runs.read_state(run).status == runs.FINISHED
    assert lora_bytes(run) == lora_bytes(unbroken["plain"]) and series(run) == series(unbroken["plain"])
    assert any("pictures of iteration 0 could not be saved" in m for m in messages(run, "warning"))
    assert not list(run.path.rglob("*.part")) and not list(run.samples.rglob("*.png"))


def test_a_full_disk_while_drawing_the_end(small, monkeypatch):
    from trainer import ending

    def full(*args, **kwargs):
        raise FULL

    run = small()
    monkeypatch.setattr(ending, "save_curve", full)
    go(run)
    assert runs.read_state(run).status == runs.FINISHED and run.summary_file.is_file()
    assert any("could not be drawn" in m and "No space left" in m for m in messages(run, "warning"))


def test_a_full_disk_while_writing_events_and_state(small, unbroken, monkeypatch):
    from trainer.runs import state

    run = small(**PLANS["plain"])
    full = {"now": False}

    class Disk:
        """The real file, with room for half a line when the disk is full."""

        def __init__(self, file):
            self.file = file

        def write(self, data):
            if not full["now"]:
                return self.file.write(data)
            self.file.write(data[: len(data) // 2])
            raise FULL

        def close(self):
            self.file.close()

    init, write_json = runs.EventWriter.__init__, state.write_json

    def opened(writer, path):
        init(writer, path)
        writer._file = Disk(writer._file)

    def written(path, value):
        if full["now"]:
            raise FULL
        write_json(path, value)

    monkeypatch.setattr(runs.EventWriter, "__init__", opened)
    monkeypatch.setattr(state, "write_json", written)
    go(run, Watcher(lambda done: full.update(now=done in (1, 2))))
    assert runs.read_state(run).status == runs.FINISHED
    assert lora_bytes(run) == lora_bytes(unbroken["plain"])
    numbers = [e["seq"] for e in events(run)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [e["iteration"] for e in events(run, "iteration")] == [1, 4]  # 2 and 3 were told while the disk was full


def test_a_full_disk_at_the_export(small, unbroken, monkeypatch):
    """No run is finished without its LoRA; what was trained is not lost."""
    from trainer.lora import files

    run = small(**PLANS["everything"])
    with monkeypatch.context() as patch:

        def full(*args, **kwargs):
            raise FULL

        patch.setattr(files, "open", full, raising=False)
        with pytest.raises(UserError, match=r"cannot write the LoRA file .*No space left on device") as error:
            go(run)
    assert "\n" not in str(error.value)
    state = runs.read_state(run)
    assert state.status == runs.FAILED and "No space left" in state.message and state.lora is None
    assert not events(run, "finished") and any("No space left" in m for m in messages(run, "error"))
    second = Watcher()
    go(run, second)
    assert second.done == []
    small_run.assert_same_outcome(run, unbroken["everything"])


def test_a_full_disk_before_the_run_leaves_nothing(tiny_sd3, tmp_path, monkeypatch):
    def full(*args):
        raise FULL

    monkeypatch.setattr(runs, "write_atomic", full)
    with pytest.raises(UserError, match="No space left"):
        new_run(tmp_path, small_config(tiny_sd3))
    assert list(tmp_path.iterdir()) == []


# --- parts that fail


@pytest.mark.parametrize(
    "failing, error",
    [
        ((0,), torch.OutOfMemoryError("CUDA out of memory")),
        ((2,), RuntimeError("boom")),
        ((4,), OSError("no such file")),
        ((0, 2, 4), ValueError("odd size")),
    ],
)
def test_an_evaluation_that_fails_is_an_event(small, unbroken, monkeypatch, failing, error):
    """A validation picture ran out of memory and killed the run (FluxTrainer#59)."""
    from trainer import training

    run, evaluate = small(**PLANS["plain"]), training.evaluate

    def sometimes(*args):
        if runs.read_state(run).iteration in failing:
            raise error
        return evaluate(*args)

    monkeypatch.setattr(training, "evaluate", sometimes)
    summary = go(run)
    assert runs.read_state(run).status == runs.FINISHED
    assert lora_bytes_without_scores(run) == lora_bytes_without_scores(unbroken["plain"])
    assert [i for i, _ in series(run)["reward/total/mean"]] == [1, 2, 3, 4]
    assert [e["iteration"] for e in events(run, "evaluation")] == [i for i in (0, 2, 4) if i not in failing]
    said = events(run, "error")
    assert [e["iteration"] for e in said] == list(failing)
    assert all("evaluation failed" in e["message"] and e["kind"] == type(error).__name__ for e in said)
    # A number that was not measured is not given out as one.
    assert (summary["eval_reward_before"] is None) == (0 in failing)
    assert (summary["eval_reward_after"] is None) == (4 in failing)


def lora_bytes_without_scores(run):
    return {k: v.numpy().tobytes() for k, v in load_file(run.lora_dir / "small.safetensors").items()}


def test_a_monitor_that_always_fails_never_ends_the_run(small, unbroken, monkeypatch):
    def broken(self, images, prompts, metadata):
        raise RuntimeError("no such\nmodel")

    run = small(**PLANS["plain"])
    monkeypatch.setattr(Colorfulness, "score", broken)
    watcher = Watcher()
    go(run, watcher)
    assert runs.read_state(run).status == runs.FINISHED
    # The export's metadata holds the rewards' total only, which a monitor has no part in.
    assert lora_bytes(run) == lora_bytes(unbroken["plain"])
    said = [m for m in messages(run, "warning") if "colorfulness" in m]
    assert said and all("no such model" in m for m in said)
    assert len(said) == len(set(said)) and len([m for m in watcher.messages if "colorfulness" in m]) == len(said)


def test_a_monitor_that_cannot_be_loaded_is_left_out(small, unbroken, monkeypatch):
    def broken(self, device="cpu", dtype=None):
        raise OSError("weights are missing")

    run = small(**PLANS["plain"])
    monkeypatch.setattr(Colorfulness, "load", broken)
    go(run)
    assert lora_bytes(run) == lora_bytes(unbroken["plain"])
    assert any("colorfulness" in m and "weights are missing" in m for m in messages(run, "warning"))
    assert "reward/colorfulness/mean" not in series(run)


def test_a_monitor_that_fails_on_the_way_back_from_a_pause(small, quick_requests, monkeypatch):
    run, loads = small(), []

    def broken(self, device="cpu", dtype=None):
        loads.append(device)
        if len(loads) > 1:
            raise RuntimeError("no room")

    monkeypatch.setattr(Colorfulness, "load", broken)

    def ask(done):
        if done == 1:
            runs.request(run, "pause")
            threading.Timer(0.1, lambda: runs.request(run, "resume")).start()

    go(run, Watcher(ask))
    assert len(loads) == 3 and runs.read_state(run).status == runs.FINISHED


def test_a_training_reward_that_always_fails_ends_the_run(small, monkeypatch):
    def broken(self, images, prompts, metadata):
        raise RuntimeError("server\nis down")

    run = small(iterations=50)
    monkeypatch.setattr(Brightness, "score", broken)
    with pytest.raises(UserError, match=r"reward 'brightness' failed 3 times in a row.*server is down") as error:
        go(run)
    assert "\n" not in str(error.value)
    state = runs.read_state(run)
    assert state.status == runs.FAILED and state.message == str(error.value) and state.lora is None
    assert not run.lora_dir.exists() and not run.summary_file.exists()
    assert events(run, "error")[-1]["message"] == str(error.value)


def test_a_few_outputs_without_a_score_are_a_warning(small, monkeypatch):
    score = Brightness.score

    def holes(self, images, prompts, metadata):
        values = score(self, images, prompts, metadata)
        values[1] = float("nan")
        return values

    run = small()
    monkeypatch.setattr(Brightness, "score", holes)
    go(run)
    assert runs.read_state(run).status == runs.FINISHED
    assert any("brightness" in m and "1 of 6 outputs not scored" in m for m in messages(run, "warning"))
    assert [v for _, v in series(run)["reward/nan_outputs"]] == [1.0] * 3
    index = json.loads((run.samples / "000003" / "index.json").read_text())
    assert index["scores"]["brightness"][1] is None and index["scores"]["brightness"][0] is not None


def test_an_evaluation_without_any_score_is_never_the_best(small, monkeypatch):
    score = Brightness.score

    def blind_at_first(self, images, prompts, metadata):
        values = score(self, images, prompts, metadata)
        held_out = len(images) == 4
        return values * float("nan") if held_out and runs.read_state(run).iteration == 2 else values

    run = small(iterations=4)
    monkeypatch.setattr(Brightness, "score", blind_at_first)
    assert go(run)["best_iteration"] == 4


def test_a_step_that_changes_nothing_ends_the_run(small, monkeypatch):
    """The optimiser was empty and the run "worked" (trl#6701)."""
    run = small()
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self, closure=None: None)
    with pytest.raises(UserError, match="did not change the LoRA"):
        go(run)
    assert runs.read_state(run).status == runs.FAILED and not run.lora_dir.exists()


def test_a_first_step_that_was_not_taken_is_looked_at_later(small, monkeypatch):
    """All rewards equal: no step in iteration 1; the step of iteration 2 is the first."""
    score = Brightness.score

    def flat_at_first(self, images, prompts, metadata):
        values = score(self, images, prompts, metadata)
        return values * 0 if runs.read_state(run).iteration == 0 else values

    run = small()
    monkeypatch.setattr(Brightness, "score", flat_at_first)
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self, closure=None: None)
    with pytest.raises(UserError, match="did not change the LoRA"):
        go(run)
    assert runs.read_state(run).iteration == 1


def test_a_crash_is_never_called_finished(small, monkeypatch):
    from trainer import training

    def crash(*args):
        raise ZeroDivisionError("some\nbug")

    run = small()
    monkeypatch.setattr(training, "run_iteration", crash)
    with pytest.raises(ZeroDivisionError):
        go(run)
    state = runs.read_state(run)
    assert state.status == runs.FAILED and state.message == "some bug" and state.lora is None
    assert events(run, "error")[-1]["kind"] == "ZeroDivisionError"


def test_a_reward_that_cannot_be_loaded_is_named(small, monkeypatch):
    def broken(self, device="cpu", dtype=None):
        raise ImportError("no module named clip")

    monkeypatch.setattr(Brightness, "load", broken)
    run = small()
    with pytest.raises(UserError, match=r"rewards\.brightness can't be loaded: .*no module named clip"):
        go(run)
    assert runs.read_state(run).status == runs.FAILED
