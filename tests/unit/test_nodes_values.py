"""What travels on links, and what all setting nodes have in common."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys

import pytest

from tests.comfy_api import PACKAGE, ROOT, pack

choices = pack("nodes.choices")
IDS = (
    "VGRPOPromptSet",
    "VGRPOPolicy",
    "VGRPOSettings",
    "VGRPORewardScene",
    "VGRPORewardJpegSize",
    "VGRPORewardBrightness",
    "VGRPORewardColorfulness",
    "VGRPORewardSaturation",
    "VGRPORewardHighFrequency",
    "VGRPORewardSharpness",
    "VGRPORewardHpsv2",
    "VGRPORewardPickscore",
    "VGRPORewardImagereward",
    "VGRPORewardClipscore",
    "VGRPORewardAesthetic",
    "VGRPORewardOcr",
    "VGRPORewardGeneval",
    "VGRPORewardJudge",
    "VGRPORewardHttp",
    "VGRPORewardNsfw",
    "VGRPOShapeReward",
)
PLAIN = {"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO"}
# What the oldest supported ComfyUI and its page know of an input.
KNOWN = {
    "tooltip", "default", "min", "max", "step", "round", "multiline", "placeholder", "dynamicPrompts", "options", "multiselect",
    "advanced", "control_after_generate",
}  # fmt: skip


def inputs_of(info):
    return [(name, *spec) for kind in ("required", "optional") for name, spec in info["input"].get(kind, {}).items()]


def test_values_cannot_be_changed():
    settings = choices.Settings("demo", {"iterations": 3})
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.preset = "sd3"


def test_values_can_be_compared_and_hashed():
    one = choices.RewardChoice({"scene": {"weight": 1.0}}, {})
    assert one == choices.RewardChoice({"scene": {"weight": 1.0}}, {}) != choices.RewardChoice()
    assert len({one, choices.RewardChoice({"scene": {"weight": 1.0}}, {})}) == 1
    assert choices.RunRef("some-run") == choices.RunRef("some-run", "latest")


def test_groups_are_equal_only_to_themselves():
    import torch

    group = choices.Group(torch.zeros(1, 2, 2, 3), (), (0,), (1,))
    assert group == group and group != dataclasses.replace(group)


@pytest.mark.parametrize("value", [0.00029999999999999997, 0.30000000000000004, 1e-8, 1.0, -0.1, 0.0])
def test_numbers_are_as_they_were_typed(value):
    assert choices.typed(value) == pytest.approx(value, rel=1e-12)
    assert len(repr(choices.typed(value))) <= 6


def test_all_nodes_are_there(comfy_nodes):
    assert set(comfy_nodes.names()) == set(IDS)


@pytest.mark.parametrize("node", IDS)
def test_what_a_page_needs_is_there(comfy_nodes, node):
    info = comfy_nodes.info(node)
    assert info["category"].split("/")[0] == "V-GRPO" and info["description"] and info["display_name"]
    for name, _, options in inputs_of(info):
        assert options.get("tooltip"), name
        assert set(options) <= KNOWN, name
    assert all(info["output_tooltips"])


@pytest.mark.parametrize("node", IDS)
def test_inputs_are_plain_widgets_whose_default_is_allowed(comfy_nodes, node):
    """So that they survive save, reload, copy and API export; a link is the only other thing an input may be."""
    for name, kind, options in inputs_of(comfy_nodes.info(node)):
        if kind == "VGRPO_REWARDS":
            continue
        assert kind in PLAIN, name
        default = options["default"]
        assert json.loads(json.dumps(default)) == default
        if kind in ("INT", "FLOAT"):
            assert options["min"] <= default <= options["max"] <= 2**53, name
            # A page snaps whole numbers to min + n x step.
            assert kind == "FLOAT" or (default - options["min"]) % options.get("step", 1) == 0, name
        if kind == "COMBO":
            assert default in options["options"], name
        # An input called seed would otherwise be changed by the page after each run, which would start a new training.
        assert kind != "INT" or not options.get("control_after_generate", name in ("seed", "noise_seed")), name
        # Braces are JSON here.
        assert kind != "STRING" or options["dynamicPrompts"] is False, name


@pytest.mark.parametrize("node", IDS)
def test_the_help_page_has_a_row_for_every_input_and_output(comfy_nodes, node):
    info = comfy_nodes.info(node)
    page = (ROOT / "web" / "docs" / f"{node}.md").read_text(encoding="utf-8")
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ")]
    rows = {word for cell in cells for word in re.findall(r"`(\w+)`", cell)}
    assert rows == {name for name, *_ in inputs_of(info)} | set(info["output_name"])
    for heading in ("## Inputs", "## Outputs", "## Example", "## Common mistakes"):
        assert heading in page


def test_pure_modules_load_neither_comfyui_nor_torch():
    code = (
        "import importlib, sys, types\n"
        f"package = types.ModuleType({PACKAGE!r}); package.__path__ = [{str(ROOT)!r}]; sys.modules[{PACKAGE!r}] = package\n"
        "for name in ('choices', 'prompt_text', 'bases', 'reward_options', 'knobs', 'assemble'):\n"
        f"    importlib.import_module('{PACKAGE}.nodes.' + name)\n"
        "heavy = {'torch', 'comfy_api', 'comfy', 'folder_paths', 'numpy', 'scipy', 'PIL', 'diffusers', 'transformers'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
