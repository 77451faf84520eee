"""Train LoRA: which run a graph means, waiting, Cancel; with the real trainer, and on a real ComfyUI's node API."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from tests import small_run
from tests.comfy_api import pack
from tests.comfy_process import in_comfyui
from trainer import runs
from trainer.config import load_config

flow, jobs_module, pictures = pack("nodes.training_flow"), pack("nodes.jobs"), pack("nodes.pictures")
UserError = pack("trainer.errors").UserError
ENDED_S = 240.0  # a trainer process starts in seconds, but tests share the machine


# ComfyUI's exception for Cancel, as in newer versions and as in 0.3.75; what matters is its name.
Interrupt = type("InterruptProcessingException", (BaseException,), {})
OldInterrupt = type("InterruptProcessingException", (Exception,), {})


class Bar:
    def __init__(self):
        self.calls = []

    def update_absolute(self, value, total=None, preview=None):
        self.calls.append((value, total, preview))


def never():
    pass


def pack_run(run):
    """The run as the pack under its own name knows it."""
    return pack("trainer.runs").RunDir(run.path)


def trained_in_a_thread(run):
    thread = threading.Thread(target=small_run.go, args=(run,), daemon=True)
    thread.start()
    return thread


# --- waiting for a run


def test_waiting_shows_iterations_and_the_newest_grid(tiny_sd3, tmp_path):
    run = small_run.new_run(tmp_path, small_run.small_config(tiny_sd3))
    bar, said = Bar(), []
    thread = trained_in_a_thread(run)
    state = flow.follow(pack_run(run), bar, never, pictures.grid_preview, said.append, sleep=lambda s: time.sleep(0.02))
    thread.join()
    assert state.status == runs.FINISHED and flow.ending_error(pack_run(run), state) is None
    values = [value for value, _, _ in bar.calls]
    assert values == sorted(values) and values[-1] == 3 and {total for _, total, _ in bar.calls} == {3}
    previews = [preview for _, _, preview in bar.calls if preview is not None]
    assert 1 <= len(previews) <= 3  # pictures of iterations 0, 2 and 3, each shown at most once
    assert previews[-1].size == pictures.grid_preview(run, 3).size
    assert said[-1] == "finished, iteration 3 of 3 on cpu" and len(said) == len(set(said))


@pytest.mark.parametrize("kind", [Interrupt, OldInterrupt])
def test_cancel_acts_on_the_run_and_goes_on_as_comfyuis_own_exception(tiny_sd3, tmp_path, kind):
    run = small_run.new_run(tmp_path, small_run.small_config(tiny_sd3, iterations=200))
    thread = trained_in_a_thread(run)

    def pressed():
        if runs.read_state(run).iteration >= 1:
            raise kind

    with pytest.raises(kind), flow.on_interrupt(lambda: runs.request(run, "stop")):
        flow.follow(pack_run(run), Bar(), pressed, pictures.grid_preview)
    thread.join(ENDED_S)
    state = runs.read_state(run)
    assert state.status == runs.STOPPED and 1 <= state.iteration < 200
    error = str(flow.ending_error(pack_run(run), state))
    assert f"was stopped at iteration {state.iteration} of 200" in error and "queue again to resume" in error


@pytest.mark.parametrize("kind", [Interrupt, OldInterrupt])
def test_cancel_seen_by_the_progress_bar_counts_too(tiny_sd3, tmp_path, kind):
    run, acted = small_run.new_run(tmp_path, small_run.small_config(tiny_sd3)), []

    class Cancelling(Bar):
        def update_absolute(self, value, total=None, preview=None):
            raise kind

    with pytest.raises(kind), flow.on_interrupt(lambda: acted.append(1)):
        flow.follow(pack_run(run), Cancelling(), never, pictures.grid_preview)
    assert acted == [1]


def test_only_cancel_acts_and_it_goes_through_even_if_the_trainer_cannot_be_reached():
    def fails():
        raise UserError("the disk is gone")

    with pytest.raises(Interrupt), flow.on_interrupt(fails):
        raise Interrupt
    acted = []
    for other in (KeyboardInterrupt, RuntimeError("a bug")):
        with pytest.raises((KeyboardInterrupt, RuntimeError)), flow.on_interrupt(lambda: acted.append(1)):
            raise other
    with flow.on_interrupt(lambda: acted.append(1)):
        pass
    assert acted == []


def test_what_cancel_does_is_the_nodes_choice_or_the_settings():
    choice = flow.on_cancel_action
    assert [choice(word, "stop") for word in ("detach", "pause", "stop and save")] == [None, "pause", "stop"]
    assert [choice("as in settings", value) for value in ("detach", "pause", "stop", "Stop and save")] == [
        None,
        "pause",
        "stop",
        "stop",
    ]
    for odd in (None, "", 3, "something else"):  # what loses nothing
        assert choice("as in settings", odd) is None


def test_a_run_that_is_deleted_while_somebody_waits_is_an_error(tmp_path):
    run = pack("trainer.runs").create_run(tmp_path, "gone")
    with pytest.raises(UserError, match="cannot be watched any more"):
        flow.follow(run, Bar(), never, pictures.grid_preview, sleep=lambda s: None)


def test_a_failed_run_says_the_trainers_last_error_and_its_log(tiny_sd3, tmp_path):
    run = small_run.new_run(
        tmp_path, small_run.small_config(tiny_sd3, policy={"lora": {"rank": 2, "targets": ["no_such_layer"]}})
    )
    with pytest.raises(Exception, match="no_such_layer"):
        small_run.go(run)
    state = flow.follow(pack_run(run), Bar(), never, pictures.grid_preview)
    error = str(flow.ending_error(pack_run(run), state))
    assert error.startswith("the training 'small' failed at iteration 0 of 3: ") and "no_such_layer" in error
    assert str(run.log_file) in error and "\n" not in error


def test_a_lost_run_says_the_last_line_of_its_log(tiny_sd3, tmp_path):
    run = small_run.new_run(tmp_path, small_run.small_config(tiny_sd3))
    state = runs.read_state(run)
    state.pid, state.process_start = 2**22 + 1, 1.0
    state.status = runs.RUNNING
    runs.write_state(run, state)
    run.log_file.write_text("first\nKilled by the system\n\n", encoding="utf-8")
    ended = flow.follow(pack_run(run), Bar(), never, pictures.grid_preview, sleep=lambda s: None)
    error = str(flow.ending_error(pack_run(run), ended))
    assert "ended without a word" in error and "the last line of its log is: Killed by the system" in error


def test_devices_are_checked_by_form_only():
    assert [flow.device_problem(d) for d in ("auto", "cpu", "mps", "cuda", "cuda:7", "xpu:1")] == [None] * 6
    for odd in ("gpu", "cuda:", "cuda:x", "", "cpu:1", "; rm -rf", "cuda:\u0663", None, ["cpu"]):
        assert "allowed: auto, cpu, mps" in flow.device_problem(odd)
    assert flow.DEVICES[0] == "auto" and all(flow.device_problem(d) is None for d in flow.DEVICES)


# --- one run a graph, with real processes


def test_memory_is_freed_before_a_process_starts(tiny_sd3, tmp_path):
    """Freed beside or after the launch, the trainer runs out of memory, and works on the second try."""
    config = pack("trainer.config").load_config(small_run.small_config(tiny_sd3))
    run, order = pack_run(small_run.new_run(tmp_path, small_run.small_config(tiny_sd3))), []

    class Jobs:
        found = None

        def find_same(self, digest, take):
            return self.found

        def start(self, *args):
            order.append("start")
            return run

        def resume(self, *args):
            order.append("resume")

    jobs = Jobs()
    for status, found in ((runs.STARTING, None), (runs.FAILED, run), (runs.STOPPED, run), (runs.FINISHED, run)):
        runs.write_state(run, runs.RunState(status))
        jobs.found = found
        flow.obtain(jobs, config, 0, "auto", {}, lambda: order.append("free"), True)
    assert order == ["free", "start", "free", "resume", "free", "resume"]


@pytest.mark.slow
def test_one_run_a_configuration_and_take(tiny_sd3, tmp_path):
    """Started once; attached to while active; resumed after a kill; given back when finished; another take is another run."""
    root, freed = tmp_path / "vgrpo läufe", []
    jobs = jobs_module.Jobs(lambda: root, lambda: "cpu")
    config = pack("trainer.config").load_config(small_run.small_config(tiny_sd3, iterations=12))
    other = pack("trainer.config").load_config(small_run.small_config(tiny_sd3, iterations=12, seed=6))

    def obtain(config=config, take=0, wait=False):
        return flow.obtain(jobs, config, take, "auto", {"node": "7", "workflow": {"nodes": []}}, lambda: freed.append(1), wait)

    empty = flow.take_fingerprint(root, 0)
    first = obtain()
    try:
        assert first.how == flow.STARTED and len(freed) == 1
        again = obtain()
        assert (again.how, again.run.id) == (flow.ATTACHED, first.run.id) and len(freed) == 1
        assert flow.take_fingerprint(root, 0) != empty
        deadline = time.monotonic() + ENDED_S
        while runs.read_state(first.run).iteration < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(runs.read_state(first.run).pid, signal.SIGKILL)
        while runs.read_state(first.run).active and time.monotonic() < deadline:
            jobs.tick()
            time.sleep(0.1)
        resumed = obtain()
        assert (resumed.how, resumed.run.id) == (flow.RESUMED, first.run.id) and len(freed) == 2
        jobs.control(resumed.run, "pause")
        while runs.read_state(first.run).status != runs.PAUSED and time.monotonic() < deadline:
            time.sleep(0.05)
        assert obtain(wait=False).how == flow.ATTACHED and len(freed) == 2  # in the background it stays paused
        time.sleep(0.5)
        assert runs.read_state(first.run).status == runs.PAUSED
        assert obtain(wait=True).how == flow.ATTACHED and len(freed) == 3  # whoever waits for it wants it to go on
        state = flow.follow(resumed.run, Bar(), never, pictures.grid_preview)
        assert state.status == runs.FINISHED, state.message
        rested = flow.take_fingerprint(root, 0)
        finished = obtain()
        assert (finished.how, finished.run.id) == (flow.WAS_FINISHED, first.run.id) and len(freed) == 3
        assert pack("nodes.run_lora").finished_lora(finished.run).is_file()
        assert flow.take_fingerprint(root, 0) == rested
        resumes = [event["iteration"] for event in small_run.events(first.run, "resumed")]
        assert resumes and resumes[0] >= 1  # it went on, and did not begin anew
        assert load_config(first.run.config_file).digest() == config.digest()
        newer = [obtain(take=1), obtain(config=other)]
        assert [o.how for o in newer] == [flow.STARTED] * 2 and len({first.run.id, *(o.run.id for o in newer)}) == 3
        assert obtain(take=1).run.id == newer[0].run.id
    finally:
        for child in list(jobs._children.values()):  # the last two have not even claimed their state yet
            child.process.kill()
            child.process.wait()
        jobs.close()


def test_a_deleted_run_is_not_answered_from_comfyuis_cache(tmp_path):
    root = tmp_path / "runs"
    (root / "another").mkdir(parents=True)
    os.utime(root, ns=(0, 0))  # a file system's clock may be coarse
    before = flow.take_fingerprint(root, 0)
    (root / "mine").mkdir()
    (root / "mine").rmdir()
    assert flow.take_fingerprint(root, 0) != before


_NODE = """
import threading, time
import torch
import comfy.model_management as management
from pack.nodes import host, jobs
from pack.nodes.training import NODES
from pack.nodes.values import PolicyChoice, PromptSet, RewardChoice, Settings
from pack.trainer import runs
from pack.trainer.errors import UserError
from pack.trainer.prompts import Prompt
from comfy_api.latest import io

node = NODES[0]
node.GET_SCHEMA()
sections = dict(data)
policy = PolicyChoice({"family": "sd3", **sections.pop("policy")})
texts = sections.pop("prompts")
prompts = PromptSet(tuple(map(Prompt, texts["train"])), tuple(map(Prompt, texts["evaluate"])))
rewards = RewardChoice(sections.pop("rewards"), sections.pop("monitors"))
sections.pop("name")
settings = Settings(None, sections)

def train(**inputs):
    hidden = {io.Hidden.unique_id: "5", io.Hidden.prompt: {"5": {}}, io.Hidden.extra_pnginfo: {"workflow": {"id": "w"}}}
    given = {"policy": policy, "prompts": prompts, "rewards": rewards, "settings": settings, "name": "läuft", "device": "cpu"}
    with torch.inference_mode():
        clone = node.PREPARE_CLASS_CLONE({**hidden, "hidden_inputs": hidden})  # 0.3.75 takes the values, newer ones name them
        return getattr(clone, node.FUNCTION)(**{**given, **inputs})

def state():
    return runs.read_state(runs.list_runs(host.runs_root())[0])
"""


@pytest.mark.slow
def test_the_node_in_a_real_comfyui(tiny_sd3, tmp_path):
    """Background, Cancel while waiting, waiting to the end, once more; the LoRA is in loras, and Load LoRA takes its name."""
    code = """
import json, os
import folder_paths
import nodes as comfyui_nodes
from comfy_execution.validation import validate_node_input

try:
    first = train(mode="background")
    run = runs.list_runs(host.runs_root())[0]
    answer["background"] = [first[0].id == run.id, first[0].checkpoint, first[1], first.ui["vgrpo_run"] == [run.id]]
    answer["origin"] = [json.loads((run.path / name).read_text()) for name in ("origin.json", "workflow.json")]
    pressed = []
    press = lambda: (pressed.append(time.monotonic()), management.interrupt_current_processing())
    threading.Timer(0.5, press).start()  # the trainer still loads
    try:
        train(mode="wait", on_cancel="stop and save")
        answer["cancel"] = "not raised"
    except BaseException as error:
        answer["cancel"] = [type(error).__name__, time.monotonic() - pressed[0]]
    last = train(mode="wait")  # at once: that it has stopped is awaited, then it is resumed
    answer["runs"] = len(runs.list_runs(host.runs_root()))
    answer["state"] = state().status
    answer["name"], answer["listed"] = last[1], last[1] in folder_paths.get_filename_list("loras")
    answer["same bytes"] = open(folder_paths.get_full_path("loras", last[1]), "rb").read() == (
        run.lora_dir / f"{run.id}.safetensors").read_bytes()
    answer["shapes"] = [list(last[2].shape), list(last[3].shape)]
    answer["ui"] = last.ui
    prints = [node.fingerprint_inputs(take=0), node.fingerprint_inputs(take=0), node.fingerprint_inputs(take=1)]
    answer["prints"] = [prints[0] == prints[1], prints[0] == prints[2]]
    begin = time.monotonic()
    answer["again"] = train(mode="wait")[1] == last[1]
    kind = node.RETURN_TYPES[1]
    loader = comfyui_nodes.LoraLoaderModelOnly.INPUT_TYPES()["required"]["lora_name"][0]
    answer["types"] = [validate_node_input(kind, loader), validate_node_input(kind, "STRING"), validate_node_input(kind, "INT")]
    answer["json"] = json.loads(json.dumps(node.GET_NODE_INFO_V1()))["output"]
    info = node.GET_NODE_INFO_V1()["input"]
    answer["tooltips"] = all(spec[1].get("tooltip") for kind in ("required", "optional") for spec in info[kind].values())
    answer["valid"] = [node.validate_inputs(device="cuda:9"), node.validate_inputs(device="gpu")]
    try:
        train(mode="wait", settings=Settings(None, {**sections, "policy": {}, "iterations": 0}))
    except UserError as error:
        answer["wrong"] = str(error)
finally:
    for child in list(jobs.default()._children.values()):
        child.process.kill()
"""
    answer = in_comfyui(tmp_path / "ComfyUI läuft", _NODE + code, data=small_run.small_config(tiny_sd3, iterations=6))
    assert answer["background"] == [True, "latest", "", True]
    origin, workflow = answer["origin"]
    assert (origin["node"], origin["workflow_id"], workflow) == ("5", "w", {"id": "w"})
    assert answer["cancel"][0] == "InterruptProcessingException" and answer["cancel"][1] < 1.0
    assert ": resumed; finished" in answer["ui"]["text"][0]
    assert answer["runs"] == 1 and answer["state"] == runs.FINISHED
    assert answer["listed"] and answer["same bytes"] and answer["again"]
    assert answer["shapes"][0][0] == 1 and answer["shapes"][1] == [4, 64, 64, 3]
    assert answer["ui"]["images"][0]["filename"] == "grid.png" and answer["name"] in answer["ui"]["text"][0]
    assert answer["prints"] == [True, False]
    assert answer["types"] == [True, True, False] and answer["json"][1] == "STRING,COMBO"
    assert answer["tooltips"] and answer["valid"][0] is True and "is no device" in answer["valid"][1]
    assert "iterations" in answer["wrong"] and "\n" not in answer["wrong"]
