"""Trainings started from graphs, in a real ComfyUI with real trainer processes: watched, controlled, cancelled, killed."""

from __future__ import annotations

import os
import shutil
import signal
import time
import uuid
from contextlib import contextmanager

import pytest

from tests.comfyui.server import PATIENCE, STRANGE_PACK_NAME, wait_until
from tests.comfyui.test_server import ECHO
from tests.comfyui.training_graph import (
    PATIENCE_S,
    TRAIN,
    ask,
    becomes,
    executing,
    run_ids,
    run_of,
    said,
    state,
    training,
)
from trainer import runs
from trainer.demo import MODEL_DIR

pytestmark = pytest.mark.slow
ENDLESS = 100_000  # more iterations than any test waits for
CANCEL_S = 5.0 * max(1, PATIENCE)  # Cancel is seen within a quarter of a second; the rest is the machine's
only_posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")


@pytest.fixture
def name() -> str:
    """A seed of its own for each test, so that no run of another test is the same training."""
    return str(uuid.uuid4().int % 2**31)


@pytest.fixture(autouse=True)
def nothing_stays_behind(request):
    """A test that failed leaves the device to the next one, which would else wait in line."""
    yield
    if "comfy" in request.fixturenames:
        request.getfixturevalue("comfy").end_trainers()


def test_background_watched_by_two_pages_queued_twice_and_controlled(comfy, client, name):
    graph = training(client, iterations=ENDLESS, settings={"seed": int(name)}, name="Fjörd 训练")
    with comfy.client() as other:
        first = client.run(graph).ok()
        run = run_of(first)
        assert "started" in said(first)
        assert client.run(ECHO).ok().executed == ["1"], "the queue is free"
        becomes(client, run, "running", iteration=1)

        # The same graph again, from another page: the same run, not started again.
        again = other.run(graph).ok()
        assert run_of(again) == run and "attached" in said(again)

        # Another take is another run, which waits in line for the device.
        graph[TRAIN]["inputs"]["take"] = 1
        second = run_of(other.run(graph).ok())
        assert second != run and {run, second} <= set(run_ids(client))
        waiting = wait_until(lambda: (s := state(client, second))["pid"] and s, PATIENCE_S, "the second run's process is there")
        wait_until(lambda: "waiting" in state(client, second)["message"], PATIENCE_S, "the second run says that it waits")
        assert run in state(client, second)["message"] and waiting["status"] == "starting"

        # A paused run keeps its place.
        ask(client, run, "pause")
        paused = becomes(client, run, "paused")
        alive = wait_until(
            lambda: (s := state(client, run))["heartbeat"] > paused["heartbeat"] and s, PATIENCE_S, "a paused run shows life"
        )
        assert (alive["status"], alive["iteration"]) == ("paused", paused["iteration"])
        assert state(client, second)["status"] == "starting"
        ask(client, run, "resume")
        becomes(client, run, "running", iteration=paused["iteration"] + 1)

        # One that waits obeys a stop, and so does one that trains.
        ask(client, second, "stop")
        becomes(client, second, "stopped")
        ask(client, run, "stop")
        stopped = becomes(client, run, "stopped")
        assert stopped["checkpoints"] and stopped["iteration"] < ENDLESS
        assert "resume" in stopped["actions"] and stopped["pid"] is None
        status, answer = client.call("POST", f"/vgrpo/runs/{run}/control", {"action": "pause"})
        assert status == 409 and "stopped" in answer["error"]

        assert client.post(f"/vgrpo/runs/{second}/delete")["deleted"] and second not in run_ids(client)
        assert not (comfy.runs_root / second).exists()

        # Both pages were told, with numbers that only rise, in small messages.
        for page in (client, other):
            hears(page, run, "stopped")
            numbers = [event["seq"] for event in told(page, run)]
            assert numbers == sorted(numbers) and len(set(numbers)) > 2
        since = [event["seq"] for event in told(client, run)]
        assert {event["seq"] for event in told(other, run)} <= set(since)
        # What was sent is all there is: refetching by number leaves no gap.
        answer = client.get(f"/vgrpo/runs/{run}/events", after=0, limit=1000)
        assert [event["seq"] for event in answer["events"]] == list(range(1, len(answer["events"]) + 1))


def told(page, run):
    return [event for event in page.events("vgrpo.event") if event["run"] == run]


def hears(page, run, status):
    wait_until(lambda: status in [event["status"] for event in told(page, run)], PATIENCE_S, f"a page hears of {status}")


def test_cancel_detaches_pauses_or_stops_as_the_setting_says(client, name):
    graph = training(client, mode="wait", iterations=ENDLESS, settings={"seed": int(name)})
    before = set(run_ids(client))

    def cancelled(ready):
        prompt_id = client.queue(graph)
        executing(client, prompt_id)
        ready(prompt_id)
        begin = time.monotonic()
        client.interrupt()
        result = client.wait(prompt_id, PATIENCE_S)
        assert result.status == "interrupted"
        assert time.monotonic() - begin < CANCEL_S

    # As it comes, it loses nothing.
    cancelled(lambda _: becomes(client, found_run(client, before), "running", iteration=1))
    run = found_run(client, before)
    at = state(client, run)
    assert at["status"] == "running"
    becomes(client, run, "running", iteration=at["iteration"] + 2)
    try:
        client.settings({"VGRPO.Cancel": "pause"})
        cancelled(lambda prompt_id: watches(client, prompt_id))
        paused = becomes(client, run, "paused")

        # Whoever waits for a paused run wants it to go on.
        client.settings({"VGRPO.Cancel": "stop"})
        cancelled(lambda _: becomes(client, run, "running", iteration=paused["iteration"] + 1))
        stopped = becomes(client, run, "stopped")
        assert stopped["checkpoints"][-1]["iteration"] == stopped["iteration"]
    finally:
        client.settings({"VGRPO.Cancel": "detach"})
    assert set(run_ids(client)) - before == {run}


def found_run(client, before):
    """The run that appears beside those before."""
    return wait_until(lambda: next(iter(set(run_ids(client)) - before), None), PATIENCE_S, "a run is there")


def watches(client, prompt_id):
    """Waits until that prompt's Train LoRA node shows how far its run is."""
    mine = {"prompt_id": prompt_id, "node": TRAIN}
    client.message(lambda m: m["type"] == "progress" and mine.items() <= m["data"].items(), PATIENCE_S)


@only_posix
def test_a_killed_trainer_is_lost_and_can_be_resumed(client, name):
    graph = training(client, mode="wait", iterations=ENDLESS, settings={"seed": int(name)})
    before = set(run_ids(client))
    prompt_id = client.queue(graph)
    run = found_run(client, before)
    os.kill(becomes(client, run, "running", iteration=2)["pid"], signal.SIGKILL)
    result = client.wait(prompt_id, PATIENCE_S)
    assert result.status == "error" and result.error["node_type"] == "VGRPOTrainLoRA"
    assert "without a word" in result.message and "train.log" in result.message and "\n" not in result.message
    lost = state(client, run)
    assert lost["status"] == "lost" and "resume" in lost["actions"]
    saved = lost["checkpoints"][-1]["iteration"]

    client.post(f"/vgrpo/runs/{run}/resume", {"device": "cpu"})
    becomes(client, run, "running", iteration=saved + 1)
    resumed = client.get(f"/vgrpo/runs/{run}/events", types="resumed")["events"]
    assert [event["iteration"] for event in resumed] == [saved]
    ask(client, run, "stop")
    becomes(client, run, "stopped")


def test_a_failed_run_raises_in_the_node_and_gives_no_lora(comfy, client):
    """Weights that are cut off, as an aborted download leaves them."""
    broken = comfy.models / "diffusers" / "cut off"
    if not broken.exists():
        shutil.copytree(MODEL_DIR, broken)
        weights = next((broken / "transformer").glob("*.safetensors"))
        with open(weights, "r+b") as file:
            file.truncate(weights.stat().st_size // 2)
    before, loras = set(run_ids(client)), client.get("/models/loras")
    result = client.run(training(client, mode="wait", policy={"base": "cut off"}), timeout=PATIENCE_S)
    assert result.status == "error" and result.error["node_type"] == "VGRPOTrainLoRA" and "\n" not in result.message
    [run] = set(run_ids(client)) - before
    failed = state(client, run)
    assert failed["status"] == "failed" and failed["lora"] is None and "resume" in failed["actions"]
    assert "Unable to load weights" in failed["message"] and failed["message"].rstrip(".") in result.message
    assert failed["log"] in result.message
    last = client.get(f"/vgrpo/runs/{run}/log", tail=1)["lines"][0]
    assert "Unable to load weights" in last
    assert client.get("/models/loras") == loras


def test_an_evaluation_without_memory_is_an_event_and_the_training_goes_on(comfy, client, name):
    fault = """
def evaluate(*args):
    import torch

    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
"""
    graph = training(client, mode="wait", settings={"seed": int(name), "evaluate_every": 1})
    with added(comfy.pack / "trainer" / "evaluation.py", fault):
        result = client.run(graph, PATIENCE_S).ok()
    run = run_of(result)
    ended = state(client, run)
    assert (ended["status"], ended["iteration"]) == ("finished", 2)
    lora = wait_until(lambda: state(client, run)["lora_name"], PATIENCE_S, "the LoRA is published")
    assert lora in client.get("/models/loras") and lora in said(result)
    errors = client.get(f"/vgrpo/runs/{run}/events", types="error")["events"]
    assert [(event["iteration"], event["kind"]) for event in errors] == [(k, "OutOfMemoryError") for k in (0, 1, 2)]
    assert all(event["message"].startswith("evaluation failed, training goes on: ") for event in errors)


def test_a_missing_package_is_named_before_anything_starts(comfy, client, name):
    before = run_ids(client)
    with added(comfy.pack / "requirements.txt", "no-such-package>=1\n"):
        result = client.run(training(client, settings={"seed": int(name)}))
    assert result.status == "error" and "\n" not in result.message
    assert "no-such-package" in result.message and "-m pip install -r" in result.message
    assert run_ids(client) == before


@contextmanager
def added(file, text):
    """A file of the installed pack with a text at its end; afterwards it is as it was."""
    content, times = file.read_bytes(), file.stat()
    try:
        file.write_bytes(content + text.encode())
        yield
    finally:
        file.write_bytes(content)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@only_posix
def test_a_run_outlives_a_killed_comfyui_and_is_found_again(new_server, name):
    server = new_server(pack=STRANGE_PACK_NAME)
    with server.client() as client:
        graph = training(client, iterations=ENDLESS, settings={"seed": int(name), "checkpoint_every": 1000})
        run = run_of(client.run(graph).ok())
        pid = becomes(client, run, "running", iteration=1)["pid"]
        server.kill()
    folder = runs.find_run(server.runs_root, run)
    at = runs.read_state(folder).iteration
    wait_until(lambda: runs.read_state(folder).iteration >= at + 2, PATIENCE_S, "the run goes on without ComfyUI")

    server.start()
    with server.client() as client:
        found = state(client, run)
        assert found["status"] == "running" and found["pid"] == pid
        wait_until(lambda: told(client, run), PATIENCE_S, "the page hears of it again")
        again = client.run(graph).ok()
        assert run_of(again) == run and "attached" in said(again)
        status, answer = client.call("POST", f"/vgrpo/runs/{run}/delete", {})
        assert status == 409 and "running" in answer["error"]
        ask(client, run, "checkpoint")
        before = found["iteration"]
        wait_until(
            lambda: any(c["iteration"] >= before for c in state(client, run)["checkpoints"]),
            PATIENCE_S,
            "it is controlled again",
        )

    # Nor does a ComfyUI that is asked to end take it along.
    server.stop()
    at = runs.read_state(folder).iteration
    wait_until(lambda: runs.read_state(folder).iteration >= at + 2, PATIENCE_S, "the run goes on without ComfyUI")
    runs.request(folder, "stop")
    wait_until(lambda: runs.read_state(folder).status == runs.STOPPED, PATIENCE_S, "it obeys still")
