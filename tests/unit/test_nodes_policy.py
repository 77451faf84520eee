"""The Policy node."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.comfy_api import NodeError, pack

bases = pack("nodes.bases")
UserError = pack("trainer.errors").UserError
DEFAULT = {"rank": 16, "alpha": 0.0, "targets": "attention", "init": None, "dtype": "auto", "gradient_checkpointing": False}
NODE = {
    "base": "demo (embedded model)", "rank": 16, "alpha": 0.0, "targets": "attention+mlp", "start_from": "none",
    "dtype": "auto", "gradient_checkpointing": False,
}  # fmt: skip


def choose(base="demo", **changes):
    return bases.choose_policy(base, **{**DEFAULT, **changes}).config


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


def test_the_other_embedded_model(comfy_nodes):
    made = comfy_nodes.run("VGRPOPolicy", **{**NODE, "base": "letters (embedded model)"}).outputs[0]["config"]
    assert (made["family"], made["model"], made["dtype"]) == ("sd3", "demo-letters", "float32")


def test_what_saves_memory_is_left_to_the_preset_unless_chosen():
    assert choose(savings={"quantization": "preset", "offload": "preset"}) == choose()
    made = choose(savings={"quantization": "nf4", "offload": "none", "vae_tiling": "on", "attention": "xformers"}, compile=True)
    assert {key: made[key] for key in ("quantization", "offload", "vae_tiling", "attention", "compile")} == {
        "quantization": "nf4", "offload": "none", "vae_tiling": "on", "attention": "xformers", "compile": True
    }  # fmt: skip
    assert "offload = 'disk'; allowed: preset, none, model, blocks" in refusal(savings={"offload": "disk"})


def test_a_diffusers_folder(tiny_sd3, tmp_path):
    made = choose(tiny_sd3, alpha=8.0, dtype="float16", init=tmp_path / "a.safetensors")
    assert (made["family"], made["model"], made["dtype"]) == ("sd3", str(tiny_sd3), "float16")
    assert made["lora"] == {"rank": 16, "alpha": 8.0, "targets": "attention", "init": str(tmp_path / "a.safetensors")}
    assert choose(tiny_sd3)["dtype"] == "bfloat16"


def test_a_file(tmp_path):
    save_file({"double_blocks.0.img_attn.qkv.weight": torch.zeros(1)}, tmp_path / "flux1.safetensors")
    parts = {"vae": tmp_path / "ae.safetensors"}
    made = choose(tmp_path / "flux1.safetensors", parts=parts, tokenizers=tmp_path)
    assert (made["family"], made["model"]) == ("flux", str(tmp_path / "flux1.safetensors"))
    assert made["files"] == {"vae": str(tmp_path / "ae.safetensors")} and made["tokenizers"] == str(tmp_path)
    save_file({"something": torch.zeros(1)}, tmp_path / "other.safetensors")
    assert "holds no model of a known family" in refusal(tmp_path / "other.safetensors")


def test_parts_of_a_base_that_is_no_file_are_refused(tiny_sd3, tmp_path):
    assert "vae: only a base that is a file takes parts" in refusal(tiny_sd3, parts={"vae": tmp_path / "ae.safetensors"})


def test_predictions():
    assert "prediction" not in choose()
    made = choose(prediction="v_prediction, zero terminal SNR")
    assert made["prediction"] == "v_prediction" and made["zero_terminal_snr"] is True


def test_every_family_of_the_trainer_can_be_chosen(tmp_path):
    from tests.tiny_families import rename_pipeline
    from trainer.config import FAMILIES, preset_names
    from trainer.families import FAMILIES as REGISTRY

    assert tuple(REGISTRY) == FAMILIES
    for family in REGISTRY.values():
        (tmp_path / "model_index.json").write_text("{}", encoding="utf-8")
        rename_pipeline(tmp_path, family.pipeline)
        assert choose(tmp_path)["family"] == family.name
        assert family.name in preset_names()  # what a training takes without a Settings node


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rank": 0}, "rank = 0; allowed: 1 to 1024"),
        ({"alpha": -1.0}, "alpha = -1; allowed: 0 to 4096"),
        ({"targets": "all"}, "targets = 'all'; allowed: attention, attention+mlp"),
        ({"dtype": "int8"}, "dtype = 'int8'; allowed: auto, float32"),
        ({"prediction": "x"}, "prediction = 'x'; allowed: auto, epsilon, v_prediction"),
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
        (json.dumps({"_class_name": "KolorsPipeline"}), "is a KolorsPipeline; pipelines that can be trained"),
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
    assert inputs["base"][1]["options"][:3] == ["demo (embedded model)", "letters (embedded model)", "tiny sd3"]
    assert inputs["start_from"][1]["options"] == ["none", "mine.safetensors"]
    made = comfy_nodes.run("VGRPOPolicy", **{**NODE, "base": "tiny sd3", "start_from": "mine.safetensors"}).outputs[0]["config"]
    assert made["model"] == str(models / "diffusers" / "tiny sd3")
    assert made["lora"]["init"] == str(models / "loras" / "mine.safetensors")


def test_files_come_by_list_and_bring_comfyuis_tokenizers(comfy_nodes):
    models = comfy_nodes.base / "models"
    for name in (
        "checkpoints/xl.safetensors",
        "diffusion_models/flux1.safetensors",
        "vae/ae.safetensors",
        "text_encoders/t5.safetensors",
    ):
        (models / name).parent.mkdir(parents=True, exist_ok=True)
        (models / name).write_bytes(b"x")
    save_file({"double_blocks.0.img_attn.qkv.weight": torch.zeros(1)}, models / "diffusion_models" / "flux1.safetensors")
    inputs = comfy_nodes.info("VGRPOPolicy")["input"]
    assert {"checkpoints/xl.safetensors", "diffusion_models/flux1.safetensors"} <= set(inputs["required"]["base"][1]["options"])
    assert inputs["optional"]["vae"][1]["options"][:2] == ["from the base", "ae.safetensors"]
    chosen = {**NODE, "base": "diffusion_models/flux1.safetensors", "vae": "ae.safetensors", "text_encoder_2": "t5.safetensors"}
    made = comfy_nodes.run("VGRPOPolicy", **chosen).outputs[0]["config"]
    assert (made["family"], made["model"]) == ("flux", str(models / "diffusion_models" / "flux1.safetensors"))
    assert made["files"] == {
        "vae": str(models / "vae" / "ae.safetensors"), "text_encoder_2": str(models / "text_encoders" / "t5.safetensors")
    }  # fmt: skip
    assert (Path(made["tokenizers"]) / "sd1_tokenizer" / "vocab.json").is_file()
    with pytest.raises(NodeError, match="damaged or is not a safetensors file"):
        comfy_nodes.run("VGRPOPolicy", **{**NODE, "base": "checkpoints/xl.safetensors"})


def test_what_saves_memory_is_collapsed_and_a_saved_graph_has_it_not(comfy_nodes):
    optional = comfy_nodes.info("VGRPOPolicy")["input"]["optional"]
    collapsed = [name for name, (_, options) in optional.items() if options.get("advanced")]
    assert collapsed == ["quantization", "offload", "vae_tiling", "attention", "compile"]
    assert optional["quantization"][1]["options"] == ["preset", "none", "nf4", "int8", "fp8"]
    plain = comfy_nodes.run("VGRPOPolicy", **NODE).outputs[0]["config"]
    assert not set(plain) & set(collapsed)
    made = comfy_nodes.run("VGRPOPolicy", **NODE, offload="model", compile=True).outputs[0]["config"]
    assert made == {**plain, "offload": "model", "compile": True}


def test_the_defaults_train_the_embedded_model(comfy_nodes):
    inputs = comfy_nodes.info("VGRPOPolicy")["input"]["required"]
    assert comfy_nodes.info("VGRPOPolicy")["input"]["optional"]["prediction"][1]["default"] == "auto"
    assert {name: options["default"] for name, (_, options) in inputs.items()} == NODE
    made = comfy_nodes.run("VGRPOPolicy", **NODE).outputs[0]["config"]
    assert made["model"] == "demo" and made["dtype"] == "float32"


@pytest.mark.parametrize(
    "changes", [{"base": "/etc"}, {"base": "../x"}, {"start_from": "/etc/passwd"}, {"start_from": "../a.safetensors"}]
)
def test_no_typed_path_gets_through(comfy_nodes, changes):
    with pytest.raises(NodeError, match="choose one from the list"):
        comfy_nodes.run("VGRPOPolicy", **{**NODE, **changes})
