"""The one module that touches ComfyUI, on a real ComfyUI's code."""

from __future__ import annotations

import os

import pytest

from tests.comfy_api import pack
from tests.comfy_process import in_comfyui

host = pack("nodes.host")

# Everything that needs ComfyUI in one process, as its start takes seconds.
CODE = """
import os, sys, json, threading, time, types
from pathlib import Path
import folder_paths
import comfy.model_management as management
import torch
from pack.nodes import host

base = Path(base)
def refused(call):
    try:
        call()
    except ValueError as error:
        return str(error)

answer["inside"] = host.inside()
answer["root"] = str(host.runs_root()) == str(base / "output" / "vgrpo")
answer["version"] = host.comfyui_version()
answer["device"] = host.device()
answer["no server"] = [host.send("e", {}), host.add_routes(lambda table: None)]

# Names come from ComfyUI's lists, and nothing else gets through.
loras = base / "models" / "loras"
(loras / "mine.safetensors").write_bytes(b"x")
(base / "secret.safetensors").write_bytes(b"x")
answer["listed"] = host.loras()
answer["file"] = str(host.lora_file("mine.safetensors")) == str(loras / "mine.safetensors")
strangers = ("other", "../../secret.safetensors", str(base / "secret.safetensors"), "")
answer["refused"] = [refused(lambda: host.lora_file(name)) for name in strangers]
answer["unknown folder"] = host.models("no such folder")

# Where the weights of rewards may lie: told by the environment, a setting of the user's first.
for environ in ({}, {"VGRPO_MODELS": str(base / "mine")}):
    host.offer_model_folders(environ)
    host.offer_model_folders(environ)
    answer.setdefault("model folders", []).append(environ["VGRPO_MODELS"].split(os.pathsep))
answer["own folder"] = folder_paths.get_folder_paths("vgrpo")
answer["vocabulary"] = any(os.path.isfile(f + "/sd1_tokenizer/merges.txt") for f in answer["model folders"][0])

# Diffusers folders by name, also nested, without their parts.
for name in ("sd3 ü", "org/model"):
    folder = base / "models" / "diffusers" / name
    (folder / "unet").mkdir(parents=True)
    (folder / "model_index.json").write_text("{}")
answer["diffusers"] = host.model_folders()
answer["diffusers file"] = host.diffusers_folder("org/model") == base / "models" / "diffusers" / "org" / "model"
answer["diffusers refused"] = refused(lambda: host.diffusers_folder("../loras"))

# Publishing: listed at once, whole at any moment, never under the name of an unfinished file.
source = base / "result.safetensors"
source.write_bytes(b"a" * 5_000_000)
answer["published"] = host.publish_lora(source, "Größe: 1/2")
answer["listed then"] = host.loras()
torn, stop = [], False
def look():
    while not stop:
        for name in host.loras():
            size = os.path.getsize(folder_paths.get_full_path("loras", name))
            if name.startswith("vgrpo") and size != 5_000_000:
                torn.append((name, size))
reader = threading.Thread(target=look)
reader.start()
for _ in range(10):
    host.publish_lora(source, "again")
stop = True
reader.join()
answer["torn"] = torn
answer["left"] = sorted(p.name for p in (loras / "vgrpo").iterdir())
# The first folder cannot be written: the next one is taken; with none the reason is told.
blocked = base / "blocked"
blocked.write_bytes(b"")
paths = folder_paths.folder_names_and_paths["loras"][0]
paths.insert(0, str(blocked))
answer["second folder"] = host.publish_lora(source, "elsewhere")
paths[:] = [str(blocked)]
try:
    host.publish_lora(source, "nowhere")
except Exception as error:
    answer["nowhere"] = [type(error).__name__, str(error)]
try:
    host.publish_lora(base / "gone.safetensors", "x")
except Exception as error:
    answer["gone"] = str(error)
paths[:] = [str(loras)]

# Settings of the default user.
answer["no settings"] = host.setting("VGRPO.Cancel", "detach")
user = base / "user" / "default"
user.mkdir(parents=True)
(user / "comfy.settings.json").write_text(json.dumps({"VGRPO.Cancel": "pause"}))
answer["setting"] = [host.setting("VGRPO.Cancel", "detach"), host.setting("other"), host.setting("other", 3)]
(user / "comfy.settings.json").write_text("{torn")
answer["torn settings"] = host.setting("VGRPO.Cancel", "detach")

# Cancel, and the memory that is freed and waited for.
management.interrupt_current_processing(True)
try:
    host.raise_if_cancelled()
except BaseException as error:
    answer["cancelled"] = type(error).__name__
host.raise_if_cancelled()
import comfy.model_patcher
model = torch.nn.Linear(8, 8)
patcher = comfy.model_patcher.ModelPatcher(model, management.get_torch_device(), torch.device("cpu"))
management.load_models_gpu([patcher])
answer["loaded"] = len(management.current_loaded_models)
start = time.monotonic()
host.free_models(5)
answer["unloaded"] = [len(management.current_loaded_models), time.monotonic() - start < 10]
answer["asked without a server"] = host.ask_to_free_models()
# From another thread: ComfyUI's own queue is asked, and a worker that unloads when it is idle, as ComfyUI's does.
import execution
server = types.SimpleNamespace(queue_updated=lambda: None)
queue = server.prompt_queue = execution.PromptQueue(server)
module = types.ModuleType("server")
module.PromptServer = type("PromptServer", (), {"instance": server})
sys.modules["server"] = module
flags = {}
def work():
    while len(flags) < 2 and time.monotonic() - start < 60:
        queue.get(timeout=1)
        flags.update(queue.get_flags())
worker = threading.Thread(target=work)
worker.start()
host.ask_to_free_models(5)
worker.join(60)
answer["flags"] = flags
del sys.modules["server"]

# Progress through ComfyUI's own bar.
import comfy.utils
from PIL import Image
seen = []
def hook(value, total, preview, node_id=None):
    seen.append((value, total, preview and [preview[0], preview[1].mode, preview[2]], node_id))
comfy.utils.set_progress_bar_global_hook(hook)
bar = host.progress(5, "7")
bar.update_absolute(2)
bar.update_absolute(3, 6, Image.new("RGBA", (4, 4)))
answer["progress"] = seen
"""


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    base = tmp_path_factory.mktemp("ComfyUI mit Ü")
    return in_comfyui(base, CODE, base=str(base))


def test_where_things_are(answer):
    assert answer["inside"] and answer["root"] and answer["device"] == "cpu"
    assert answer["version"][0].isdigit()
    assert answer["no server"] == [None, False]


def test_weights_of_rewards_are_looked_for_in_comfyuis_folders(answer):
    plain, with_own = answer["model folders"]
    assert plain[0].endswith(os.path.join("models", "vgrpo"))
    assert answer["own folder"] == plain[:1] and answer["vocabulary"]
    assert any(name.endswith("clip_vision") for name in plain) and any(name.endswith("text_encoders") for name in plain)
    assert with_own[0].endswith("mine") and with_own[1:] == plain and len(set(plain)) == len(plain)


def test_only_listed_names_become_paths(answer):
    assert answer["listed"] == ["mine.safetensors"] and answer["file"] and answer["unknown folder"] == []
    assert len(answer["refused"]) == 4 and all("choose one from the list" in text for text in answer["refused"])
    assert answer["diffusers"] == ["org/model", "sd3 ü"] and answer["diffusers file"]
    assert "model_index.json" in answer["diffusers refused"]


def test_a_lora_is_published_whole_and_listed_at_once(answer):
    name = os.path.join("vgrpo", "Größe- 1-2.safetensors")
    assert answer["published"] == name and name in answer["listed then"]
    assert answer["torn"] == []
    assert answer["left"] == ["Größe- 1-2.safetensors", "again.safetensors"]
    assert answer["second folder"] == os.path.join("vgrpo", "elsewhere.safetensors")
    kind, text = answer["nowhere"]
    assert kind == "UserError" and "copy it there by hand" in text and "blocked" in text
    assert "is not there any more" in answer["gone"]


def test_settings(answer):
    assert answer["no settings"] == "detach" and answer["setting"] == ["pause", None, 3]
    assert answer["torn settings"] == "detach"


def test_cancel_and_memory(answer):
    assert answer["cancelled"] == "InterruptProcessingException"
    assert answer["loaded"] == 1 and answer["unloaded"] == [0, True]
    assert answer["flags"] == {"unload_models": True, "free_memory": True}


def test_progress(answer):
    assert answer["progress"] == [[2, 5, None, "7"], [3, 6, ["JPEG", "RGB", host.PREVIEW_SIZE], "7"]]


def readings(*values):
    """Free bytes, in units of 100 MB, one at each look; the last one stays."""
    left = [value * 100_000_000 for value in values]
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def test_freed_memory_is_waited_for():
    """Unloading returns before the memory is back; a launch in between runs out of memory, and works on the second try."""
    assert host.wait_until_settled(readings(1, 1, 3, 6, 6, 9, 9, 9), 10, look_s=0.001) == 900_000_000
    assert host.wait_until_settled(readings(5), 10, look_s=0.001) == 500_000_000
    assert host.wait_until_settled(readings(*range(1000)), 0.05, look_s=0.001) < 100_000_000_000  # it does not wait for ever


def test_cancel_ends_the_waiting():
    def cancelled():
        raise KeyError("cancel")

    with pytest.raises(KeyError):
        host.wait_until_settled(readings(*range(100)), 10, cancelled, look_s=0.001)


def test_outside_comfyui_nobody_is_told_and_nothing_breaks(monkeypatch):
    import sys
    import types

    assert host.send("vgrpo.event", {}) is None and host.add_routes(print) is False
    assert host.comfyui_version() == "unknown" and host.setting("x", 1) == 1
    stranger = types.ModuleType("server")  # any program may have a module of this name
    monkeypatch.setitem(sys.modules, "server", stranger)
    assert host.send("vgrpo.event", {}) is None and host.add_routes(print) is False


def test_a_closing_server_does_not_raise(monkeypatch):
    import sys
    import types

    class Closed:
        def send_sync(self, event, data):
            raise RuntimeError("Event loop is closed")

    server = types.ModuleType("server")
    server.PromptServer = type("PromptServer", (), {"instance": Closed()})
    monkeypatch.setitem(sys.modules, "server", server)
    assert host.send("vgrpo.event", {"run": "a"}) is None
