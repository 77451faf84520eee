"""The Policy node."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.comfy_api import NodeError, pack

bases = pack("nodes.bases")
UserError = pack("trainer.errors").UserError
DEFAULT = {"rank": 16, "alpha": 0.0, "targets": "attention", "init": None, "dtype": "auto", "gradient_checkpointing": False}
NODE = {
    "base": "demo (embedded model)", "rank": 16, "alpha": 0.0, "targets": "attention+mlp", "start_from": "none",
    "dtype": "auto", "gradient_checkpointing": False,
}  # fmt: skip


def choose(folder=None, **changes):
    return bases.choose_policy(folder, **{**DEFAULT, **changes}).config


def refusal(*arguments, **changes):
    with pytest.raises(UserError) as caught:
        choose(*arguments, **changes)
    text = str(caught.value)
    assert len(text.splitlines()) == 1 and text.startswith("Policy: ")
    return text


def test_the_embedded_model():
    assert choose() == {
        "family": "sd3",
        "model": "demo",
        "lora": {"rank": 16, "alpha": None, "targets": "attention", "init": None},
        "dtype": "float32",
        "gradient_checkpointing": False,
    }


def test_a_diffusers_folder(tiny_sd3, tmp_path):
    made = choose(tiny_sd3, alpha=8.0, dtype="float16", init=tmp_path / "a.safetensors")
    assert (made["family"], made["model"], made["dtype"]) == ("sd3", str(tiny_sd3), "float16")
    assert made["lora"] == {"rank": 16, "alpha": 8.0, "targets": "attention", "init": str(tmp_path / "a.safetensors")}
    assert choose(tiny_sd3)["dtype"] == "bfloat16"


def test_every_family_of_the_trainer_can_be_chosen():
    from trainer.config import FAMILIES
    from trainer.policies import sd3

    assert set(bases.PIPELINES.values()) == set(FAMILIES)
    assert bases.PIPELINES[sd3.PIPELINE] == "sd3"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rank": 0}, "rank = 0; allowed: 1 to 1024"),
        ({"alpha": -1.0}, "alpha = -1; allowed: 0 to 4096"),
        ({"targets": "all"}, "targets = 'all'; allowed: attention, attention+mlp"),
        ({"dtype": "int8"}, "dtype = 'int8'; allowed: auto, float32"),
    ],
)
def test_refusals(changes, said):
    assert said in refusal(**changes)


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (None, "no model_index.json"),
        ("{", "cannot read"),
        ("[]", "is a file that is no pipeline"),
        (json.dumps({"_class_name": "FluxPipeline"}), "is a FluxPipeline; pipelines that can be trained"),
    ],
)
def test_other_folders_are_refused(tmp_path, index, said):
    if index is not None:
        (tmp_path / "model_index.json").write_text(index, encoding="utf-8")
    assert said in refusal(tmp_path)


# In ComfyUI


def test_bases_and_loras_come_by_list(comfy_nodes, tiny_sd3):
    models = comfy_nodes.base / "models"
    shutil.copytree(tiny_sd3, models / "diffusers" / "tiny sd3", dirs_exist_ok=True)
    (models / "loras" / "mine.safetensors").write_bytes(b"x")
    (models / "loras" / "old.pt").write_bytes(b"x")
    inputs = comfy_nodes.info("VGRPOPolicy")["input"]["required"]
    assert inputs["base"][1]["options"] == ["demo (embedded model)", "tiny sd3"]
    assert inputs["start_from"][1]["options"] == ["none", "mine.safetensors"]
    made = comfy_nodes.run("VGRPOPolicy", **{**NODE, "base": "tiny sd3", "start_from": "mine.safetensors"}).outputs[0]["config"]
    assert made["model"] == str(models / "diffusers" / "tiny sd3")
    assert made["lora"]["init"] == str(models / "loras" / "mine.safetensors")


def test_the_defaults_train_the_embedded_model(comfy_nodes):
    inputs = comfy_nodes.info("VGRPOPolicy")["input"]["required"]
    assert {name: options["default"] for name, (_, options) in inputs.items()} == NODE
    made = comfy_nodes.run("VGRPOPolicy", **NODE).outputs[0]["config"]
    assert made["model"] == "demo" and made["dtype"] == "float32"


@pytest.mark.parametrize(
    "changes", [{"base": "/etc"}, {"base": "../x"}, {"start_from": "/etc/passwd"}, {"start_from": "../a.safetensors"}]
)
def test_no_typed_path_gets_through(comfy_nodes, changes):
    with pytest.raises(NodeError, match="choose one from the list"):
        comfy_nodes.run("VGRPOPolicy", **{**NODE, **changes})
