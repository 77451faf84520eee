"""Load Run and Apply Run LoRA: what they read from a real run, and what a real ComfyUI makes of it."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file

from tests import small_run
from tests.comfy_api import pack
from tests.comfy_process import in_comfyui
from trainer import runs
from trainer.config import load_config
from trainer.lora import LoraFactors, export_lora, layer_shapes
from trainer.lora.families import get_family
from trainer.lora.formats import comfyui_tensors
from trainer.runs.checkpoints import list_checkpoints, load_checkpoint
from trainer.runs.evaluations import saved_means

reading, run_lora = pack("nodes.run_reading"), pack("nodes.run_lora")
UserError = pack("trainer.errors").UserError


@pytest.fixture(scope="module")
def root(tiny_sd3, tmp_path_factory):
    """`small` (finished; evaluations 0, 2, 3; checkpoints 1, 2, 3; with an EMA) and, newer, `halted` (stopped at 1)."""
    root = tmp_path_factory.mktemp("ComfyUI läufe") / "output" / "vgrpo"
    data = small_run.small_config(tiny_sd3, optimizer={"lr": 0.5, "ema_decay": 0.5})
    small_run.go(small_run.new_run(root, data))
    halted = small_run.new_run(root, small_run.small_config(tiny_sd3), "halted")
    small_run.go(halted, small_run.stop_after(halted, 1))
    return root


@pytest.fixture
def run(root, tmp_path):
    """A copy of the finished run that a test may damage."""
    shutil.copytree(root / "small", tmp_path / "vgrpo" / "small")
    return reading.open_run(tmp_path / "vgrpo", "small")


def finished(root):
    return reading.open_run(root, "small")


def factors(run, iteration, name="ema"):
    info = next(info for info in list_checkpoints(run)[0] if info.iteration == iteration)
    return LoraFactors.from_tensors(load_checkpoint(info.path)[0][name])


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


# --- which run, which checkpoint


def test_runs_are_listed_newest_first_and_a_missing_one_names_them(root, tmp_path):
    assert reading.run_ids(root) == ["halted", "small"]
    with pytest.raises(UserError, match=re.escape("there is no run 'gone' in")) as error:
        reading.open_run(root, "gone")
    assert "halted, small" in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(UserError, match="V-GRPO Train LoRA makes one"):
        reading.open_run(tmp_path / "nothing", "gone")
    assert "there is none yet: V-GRPO Train LoRA makes one" in reading.nothing_chosen(tmp_path / "nothing")
    for text in ("../small", "a/b", "", "C:\\x"):
        with pytest.raises(UserError, match="is not a run id"):
            reading.open_run(root, text)


def test_a_checkpoint_by_word_or_number_and_its_pictures(root):
    run = finished(root)
    best = load_checkpoint(list_checkpoints(run)[0][-1].path)[1]["best"][0]
    assert best in (2, 3)
    assert reading.view(run, "latest") == reading.View(3, 3)
    assert reading.view(run, "best") == reading.View(best, best)
    assert reading.view(run, "1") == reading.View(1, 0)  # there were no pictures of iteration 1
    assert reading.view(run, "0") == reading.View(None, 0)  # pictures before training, nothing to apply
    with pytest.raises(UserError, match="has nothing of iteration 9; it has checkpoints of iteration 1, 2, 3 and pictures of"):
        reading.view(run, "9")
    with pytest.raises(UserError, match="allowed: latest, best"):
        reading.view(run, "newest")


def test_a_run_that_has_nothing_yet_can_be_looked_at(tiny_sd3, tmp_path):
    small_run.new_run(tmp_path, small_run.small_config(tiny_sd3), "young")
    run = reading.open_run(tmp_path, "young")
    for word in ("latest", "best"):
        assert reading.view(run, word) == reading.View(None, None)
    text = reading.metrics_text(run, reading.config_of(run), reading.view(run, "latest"))
    assert "no evaluation yet" in text and "starting, iteration 0 of 3" in text
    with pytest.raises(
        UserError, match=r"has no checkpoint yet, so there is no LoRA to apply .*first is saved after iteration 1"
    ):
        run_lora.lora_tensors(run, "latest")


def test_of_a_finished_run_whose_checkpoints_are_gone_latest_is_named(run):
    shutil.rmtree(run.checkpoints)
    assert run_lora.lora_tensors(run, "latest")[1] == "the finished LoRA"
    with pytest.raises(UserError, match="are gone or damaged; choose latest, which is its finished LoRA"):
        run_lora.lora_tensors(run, "best")


def test_a_damaged_checkpoint_is_passed_over(run):
    next((run.checkpoints / "000003").glob("ema*")).unlink()
    assert reading.view(run, "latest").checkpoint == 2
    (run.checkpoints / "000002" / "position.json").write_text("{")
    assert reading.best_checkpoint(run) in (1, 2)
    run.state_file.write_text("{")
    text = reading.metrics_text(run, reading.config_of(run), reading.view(run, "latest"))
    assert "unknown (state.json cannot be read)" in text


# --- numbers and freshness


def test_the_table_has_the_means_before_and_after(root):
    run = finished(root)
    config, shown = reading.config_of(run), reading.view(run, "latest")
    text = reading.metrics_text(run, config, shown, ("a note",))
    before, after = (saved_means(run, i) for i in (0, 3))
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    for name in ("total", "brightness", "colorfulness"):
        left, right = before[f"eval/{name}/mean"], after[f"eval/{name}/mean"]
        assert [float(x) for x in lines[name].split()[-3:]] == pytest.approx([left, right, right - left], abs=6e-5), name
    assert "(weight 1)" in lines["brightness"] and "(monitor)" in lines["colorfulness"]
    assert "finished, iteration 3 of 3 on cpu" in lines["state"] and "a note" in lines["note"]
    assert "2 prompts x 2 seeds" in lines["pictures"]
    assert "training, iteration 3" in lines["reward/brightness/mean"]


def test_a_failed_run_shows_its_error(run):
    state = runs.read_state(run)
    state.status, state.message = runs.FAILED, "CUDA out of memory"
    runs.write_state(run, state)
    with runs.EventWriter(run.events_file) as events:
        events.write("error", iteration=3, message="CUDA out of memory", kind="OutOfMemoryError")
    text = reading.metrics_text(run, reading.config_of(run), reading.view(run, "latest"))
    assert "error       CUDA out of memory" in text and "failed, iteration 3 of 3" in text


def test_the_fingerprint_changes_as_a_run_grows_and_then_rests(tiny_sd3, tmp_path):
    trained = small_run.new_run(tmp_path, small_run.small_config(tiny_sd3), "growing")
    run = reading.open_run(tmp_path, "growing")
    seen = [reading.fingerprint(run)]
    watcher = small_run.Watcher(on_iteration=lambda done: seen.append(reading.fingerprint(run)))
    small_run.go(trained, watcher)
    seen.append(reading.fingerprint(run))
    assert len(set(seen)) == len(seen) == 5  # new, after each of 3 iterations, finished
    assert reading.fingerprint(run) == seen[-1]


# --- the LoRA


def test_a_finished_run_gives_its_file_to_the_bit(root):
    run = finished(root)
    tensors, which = run_lora.lora_tensors(run, "latest")
    assert same(tensors, load_file(run.lora_dir / "small.safetensors")) and which == "the finished LoRA"


@pytest.mark.parametrize("word", ["1", "2", "3", "best"])
def test_a_checkpoint_gives_what_export_would_write(root, tiny_sd3, tmp_path, word):
    from diffusers import SD3Transformer2DModel

    run = finished(root)
    number = reading.best_checkpoint(run) if word == "best" else int(word)
    network = layer_shapes(SD3Transformer2DModel.from_pretrained(tiny_sd3, subfolder="transformer"))
    path = export_lora(factors(run, number), tmp_path / "exported.safetensors", network=network)
    tensors, which = run_lora.lora_tensors(run, word)
    assert same(tensors, load_file(path)) and which == f"iteration {number}"
    raw = comfyui_tensors(factors(run, number, "lora"), get_family("sd3"))
    assert same(tensors, raw) == (number == 1 and same(factors(run, 1).tensors(), factors(run, 1, "lora").tensors()))


def test_an_unfinished_run_gives_its_newest_checkpoint(root):
    run = reading.open_run(root, "halted")
    assert run_lora.finished_lora(run) is None
    tensors, which = run_lora.lora_tensors(run, "latest")
    assert which == "iteration 1" and same(tensors, run_lora.lora_tensors(run, "1")[0])
    with pytest.raises(UserError, match="no checkpoint of iteration 7; there are: latest, best, 1"):
        run_lora.lora_tensors(run, "7")


def test_a_checkpoint_pruned_in_between_is_chosen_anew(root, monkeypatch):
    """The trainer saves a newer one and deletes the one that was just chosen."""
    run = reading.open_run(root, "halted")
    real, calls = run_lora.factors_of, []

    def pruned_once(run, word, raw=False):
        calls.append(word)
        if len(calls) == 1:
            raise run_lora.DamagedCheckpoint("the checkpoint has no manifest.json")
        return real(run, word, raw)

    monkeypatch.setattr(run_lora, "factors_of", pruned_once)
    assert run_lora.lora_tensors(run, "best")[1] == "iteration 1" and len(calls) == 2


def test_finished_without_a_lora_is_an_error_and_a_moved_folder_is_not(run, tmp_path):
    state = runs.read_state(run)
    state.lora = str(tmp_path / "the old place" / "small.safetensors")
    runs.write_state(run, state)
    assert run_lora.finished_lora(run) == run.lora_dir / "small.safetensors"
    (run.lora_dir / "small.safetensors").unlink()
    with pytest.raises(UserError, match="says that it is finished, but its LoRA is not in"):
        run_lora.lora_tensors(run, "latest")
    assert run_lora.lora_tensors(run, "best")[0]  # its checkpoints still serve


def test_misfits_are_counted_by_name_and_shape():
    a, b = torch.zeros(2, 8), torch.zeros(6, 2)
    tensors = {f"transformer.{name}.lora_{part}.weight": x for name in ("q", "k", "o") for part, x in (("A", a), ("B", b))}
    fused, plain = torch.zeros(18, 8), torch.zeros(6, 8)
    keys = {
        "transformer.q": ("qkv", (0, 0, 6)),
        "transformer.k": ("qkv", (0, 6, 6)),
        "transformer.o": ("o", None, lambda x: x),
    }
    assert run_lora.misfits(tensors, keys, {"qkv": fused, "o": plain}.get) == ([], 3)
    assert run_lora.misfits(tensors, keys, {"qkv": fused}.get) == (["o"], 3)
    assert run_lora.misfits(tensors, keys, {"qkv": torch.zeros(18, 9), "o": torch.zeros(7, 8)}.get) == (["q", "k", "o"], 3)
    assert run_lora.misfits(tensors, {}, {}.get) == (["q", "k", "o"], 3)
    packed = torch.zeros(72, 1, dtype=torch.uint8)  # a quantised weight does not have its module's shape
    assert run_lora.misfits(tensors, keys, {"qkv": fused, "o": packed}.get) == ([], 3)


def test_misfits_of_a_unet_have_flat_names_and_kernels():
    up = torch.zeros(6, 2)
    tensors = {"lora_unet_mid_conv.lora_down.weight": torch.zeros(2, 72), "lora_unet_mid_conv.lora_up.weight": up}
    keys = {"lora_unet_mid_conv": "conv"}
    assert run_lora.misfits(tensors, keys, {"conv": torch.zeros(6, 8, 3, 3)}.get) == ([], 1)
    assert run_lora.misfits(tensors, keys, {"conv": torch.zeros(6, 4, 3, 3)}.get) == (["mid_conv"], 1)


# --- in a real ComfyUI

_NODES = """
import torch
import comfy.sd
from safetensors.torch import load_file
from pack.nodes.runs import NODES
from pack.trainer.errors import UserError

nodes = {node.GET_SCHEMA().node_id: node for node in NODES}

def run(name, **inputs):
    with torch.inference_mode():
        return getattr(nodes[name].PREPARE_CLASS_CLONE({}), nodes[name].FUNCTION)(**inputs)

def refusal(name, **inputs):
    try:
        run(name, **inputs)
    except UserError as error:
        return str(error)

def weights(model):
    model.patch_model()
    found = {key: value.clone() for key, value in model.model.state_dict().items()}
    model.unpatch_model()
    return found

def base(path):
    return comfy.sd.load_diffusion_model_state_dict(load_file(path), model_options={"dtype": torch.float32})
"""


def test_load_run_on_real_comfyui(root):
    code = """
from PIL import Image
info = nodes["VGRPOLoadRun"].GET_NODE_INFO_V1()
answer["listed"] = info["input"]["required"]["run"][1]["options"]
answer["tooltips"] = all(spec[1].get("tooltip") for node in nodes.values()
                         for kind in ("required", "optional")
                         for spec in node.GET_NODE_INFO_V1()["input"].get(kind, {}).values())
latest = run("VGRPOLoadRun", run="small", checkpoint="latest", iteration=0)
zero = run("VGRPOLoadRun", run="small", checkpoint="iteration", iteration=0)
answer["refs"] = [[out[0].id, out[0].checkpoint] for out in (latest, zero)]
answer["grids"] = [list(out[2].shape) for out in (latest, zero)]
answer["differ"] = not torch.equal(latest[2], zero[2])
answer["curve"] = list(latest[1].shape)
answer["metrics"] = latest[3]
answer["ui"] = latest.ui
answer["missing"] = refusal("VGRPOLoadRun", run="gone")
answer["none"] = refusal("VGRPOLoadRun", run="(no run yet)")
node = nodes["VGRPOLoadRun"]
answer["valid"] = node.validate_inputs(run="gone")
prints = [node.fingerprint_inputs(run=name, checkpoint="latest", iteration=0) for name in ("small", "small", "halted", "gone")]
answer["prints"] = prints + [node.fingerprint_inputs(run=None)]
"""
    answer = in_comfyui(root.parents[1], _NODES + code)
    assert answer["listed"] == ["halted", "small"] and answer["tooltips"]
    assert answer["refs"] == [["small", "latest"], ["small", "0"]]
    assert answer["grids"] == [[4, 64, 64, 3]] * 2 and answer["differ"] and answer["curve"][0] == 1
    assert "finished, iteration 3 of 3" in answer["metrics"]
    assert answer["ui"]["images"][0]["subfolder"] == "vgrpo/small/samples/000003"
    assert "there is no run 'gone'" in answer["missing"] and "halted, small" in answer["missing"]
    assert answer["none"].startswith("no run is chosen; in ") and "there are: halted, small" in answer["none"]
    assert answer["valid"] is True
    assert answer["prints"][0] == answer["prints"][1] and len(set(answer["prints"])) == 4


def test_apply_run_lora_on_real_comfyui(root, tiny_sd3, tmp_path):
    """The weights that the stock loader makes of the exported file; strength 0 is the model itself; never silently nothing."""
    from diffusers import SD3Transformer2DModel

    from tests.tiny import make_sd3_folder

    other = make_sd3_folder(tmp_path / "deeper", depth=2)
    network = layer_shapes(SD3Transformer2DModel.from_pretrained(tiny_sd3, subfolder="transformer"))
    second = export_lora(factors(finished(root), 2), tmp_path / "second.safetensors", network=network)
    code = """
from pack.nodes.values import RunRef
model = base(tiny)
before = weights(model)
answer["same object"] = run("VGRPOApplyRunLoRA", model=model, run=RunRef("small"), strength=0.0)[0] is model
for word, file in (("latest", final), ("2", second)):
    for strength in (1.0, -0.5):
        mine = weights(run("VGRPOApplyRunLoRA", model=model, run=RunRef("small", word), strength=strength)[0])
        stock = weights(comfy.sd.load_lora_for_models(model, None, load_file(file), strength, 0.0)[0])
        changed = sum(not torch.equal(before[key], mine[key]) for key in mine)
        answer[f"{word} {strength}"] = [changed, all(torch.equal(stock[key], mine[key]) for key in mine)]
answer["untouched"] = all(torch.equal(before[key], value) for key, value in weights(model).items())
answer["misfit"] = refusal("VGRPOApplyRunLoRA", model=base(other), run=RunRef("small"), strength=1.0)
unet = {"block_out_channels": (320,), "layers_per_block": 1, "cross_attention_dim": 768, "attention_head_dim": 8}
answer["no checkpoint"] = refusal("VGRPOApplyRunLoRA", model=model, run=RunRef("small", "0"), strength=1.0)
answer["no run"] = refusal("VGRPOApplyRunLoRA", model=model, run=RunRef("gone"), strength=1.0)
"""
    file = "transformer/diffusion_pytorch_model.safetensors"
    answer = in_comfyui(
        root.parents[1],
        _NODES + code,
        tiny=str(tiny_sd3 / file),
        other=str(other / file),
        final=str(root / "small" / "lora" / "small.safetensors"),
        second=str(second),
    )
    assert answer["same object"] and answer["untouched"]
    for case in ("latest 1.0", "latest -0.5", "2 1.0", "2 -0.5"):
        changed, equal = answer[case]
        assert changed > 0 and equal, case
    assert re.match(r"none of the \d+ modules that the run 'small' trained fit this model", answer["misfit"])
    assert str(tiny_sd3) in answer["misfit"] and "\n" not in answer["misfit"]
    assert "has no checkpoint of iteration 0" in answer["no checkpoint"] and "there is no run 'gone'" in answer["no run"]


def test_publishing_puts_the_file_into_loras_once(root, tmp_path):
    """Idempotent, whole, listed at once under its name; a changed or missing copy is replaced; an unfinished run is refused."""
    base = tmp_path / "ComfyUI"
    shutil.copytree(root, base / "output" / "vgrpo")
    code = """
import os, pathlib
import folder_paths
from pack.nodes.publish import publish
from pack.nodes.run_reading import open_run
from pack.nodes import host
found = open_run(host.runs_root(), "small")
source = found.lora_dir / "small.safetensors"
first_list = folder_paths.get_filename_list("loras")
name = publish(found)
file = pathlib.Path(folder_paths.get_full_path("loras", name))
stamp = file.stat().st_mtime_ns
answer["name"], answer["listed"] = name, name in folder_paths.get_filename_list("loras")
answer["empty before"] = first_list == []
answer["equal"] = file.read_bytes() == source.read_bytes()
answer["again"] = publish(found) == name and file.stat().st_mtime_ns == stamp
file.write_bytes(b"torn")
answer["mended"] = publish(found) == name and file.read_bytes() == source.read_bytes()
file.unlink()
answer["back"] = publish(found) == name and file.read_bytes() == source.read_bytes()
answer["only"] = sorted(os.listdir(file.parent))
try:
    publish(open_run(host.runs_root(), "halted"))
except UserError as error:
    answer["refused"] = str(error)
"""
    answer = in_comfyui(base, _NODES + code)
    assert answer["name"].replace("\\", "/") == "vgrpo/small.safetensors"
    assert all(answer[key] for key in ("listed", "empty before", "equal", "again", "mended", "back"))
    assert answer["only"] == ["small.safetensors"]
    assert "has no finished LoRA to publish: it is stopped, iteration 1 of 3" in answer["refused"]


def test_reading_imports_nothing_heavy(root):
    """In ComfyUI's process: neither the modules nor looking at a run load what only a trainer needs."""
    code = """
import sys
run("VGRPOLoadRun", run="small", checkpoint="best", iteration=0)
answer["heavy"] = [name for name in ("diffusers", "peft") if name in sys.modules]
answer["before drawing"] = early
"""
    early = "import sys\nimport pack.nodes.runs\nearly = [n for n in ('diffusers', 'peft', 'matplotlib') if n in sys.modules]\n"
    assert in_comfyui(root.parents[1], early + _NODES + code) == {"heavy": [], "before drawing": []}


def test_the_help_pages_name_every_input():
    pages = small_run.ROOT / "web" / "docs"
    for node, inputs in {
        "VGRPOLoadRun": ("run", "checkpoint", "iteration"),
        "VGRPOApplyRunLoRA": ("model", "run", "strength"),
        "VGRPOTrainLoRA": ("policy", "prompts", "rewards", "settings", "name", "mode", "take", "device", "on_cancel"),
    }.items():
        text = (pages / f"{node}.md").read_text(encoding="utf-8")
        assert all(f"| `{name}` |" in text for name in inputs), node
        assert "## Example" in text and "## Common mistakes" in text


def test_the_state_of_the_configuration_does_not_depend_on_a_base_that_is_gone(run):
    text = run.config_file.read_text(encoding="utf-8")
    data = load_config(run.config_file).to_dict()
    run.config_file.write_text(text.replace(data["policy"]["model"], "/nowhere/to/be found"), encoding="utf-8")
    assert reading.config_of(run).policy.model == "/nowhere/to/be found"
    assert json.dumps(reading.means(run, 3)) == json.dumps(saved_means(run, 3))
