"""The pack in a real ComfyUI: its nodes, their help, its routes, and what it costs a start."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.comfyui.graph import definitions
from tests.comfyui.server import PACK_NAME
from trainer.rewards.registry import BUILT_IN

NODES = {
    "VGRPOPromptSet",
    "VGRPOPolicy",
    "VGRPOSettings",
    "VGRPOTrainLoRA",
    "VGRPOLoadRun",
    "VGRPOApplyRunLoRA",
    "VGRPOSamplePromptGroup",
    "VGRPOScoreGroup",
    "VGRPOLoadDemoModel",
    "VGRPOShapeReward",
    *("VGRPOReward" + name.title().replace("_", "") for name in BUILT_IN),
}
START_S = 0.3
WIDGETS = {"COMBO", "INT", "FLOAT", "STRING", "BOOLEAN"}
INPUTS = Path(__file__).with_name("inputs.json")  # node -> its widgets, in their order


@pytest.fixture(scope="module")
def nodes(comfy):
    with comfy.client() as client:
        return {name: info for name, info in client.nodes().items() if name in NODES or PACK_NAME in info["python_module"]}


def widgets(info):
    """The inputs of a node that have a value of their own, in the order that a graph saves them in."""
    order = [(kind, name) for kind in ("required", "optional") for name in info["input_order"].get(kind, [])]
    types = {name: info["input"][kind][name][0] for kind, name in order}
    return [name for _, name in order if isinstance(types[name], list) or types[name] in WIDGETS]


def test_saved_values_stay_where_they_are(nodes):
    """A graph keeps a node's values by position: a new input comes behind all others, or old graphs are garbled."""
    frozen = json.loads(INPUTS.read_text(encoding="utf-8"))
    assert set(frozen) == set(nodes)
    for name, inputs in frozen.items():
        found = widgets(nodes[name])
        assert found[: len(inputs)] == inputs, f"{name}: put new inputs behind {inputs[-1]}"
        assert found == inputs, f"{name}: enter the new inputs {found[len(inputs) :]} in {INPUTS.name}"


def import_seconds(log: str) -> float:
    """What ComfyUI says of the pack under "Import times for custom nodes"; a failed import is an error."""
    found = re.search(r"([\d.]+) seconds( \(IMPORT FAILED\))?: .*" + re.escape(PACK_NAME), log)
    assert found and not found[2], log[-3000:]
    return float(found[1])


def test_all_nodes_are_there_and_no_other(nodes, comfy):
    assert set(nodes) == NODES, comfy.log()[-3000:]


def test_every_node_has_the_category_a_name_and_a_description(nodes):
    for name, info in nodes.items():
        assert info["category"].split("/")[0] == "V-GRPO", name
        assert info["description"], name
        assert info["display_name"] not in ("", name), name


def test_every_input_and_output_has_a_tooltip(nodes):
    bare = [
        f"{name}.{put}" for name, info in nodes.items() for put, _, options in definitions(info) if not options.get("tooltip")
    ]
    for name, info in nodes.items():
        tips = info.get("output_tooltips") or [None] * len(info["output"])
        bare += [f"{name} -> {put}" for put, tip in zip(info["output_name"], tips, strict=True) if not tip]
    assert not bare


def test_every_node_has_a_help_page_that_names_its_inputs(nodes, client):
    faults = []
    for name, info in nodes.items():
        # The address that the page asks for.
        status, page = client.call("GET", f"/extensions/{quote(PACK_NAME)}/docs/{name}.md")
        if status != 200:
            faults.append(f"{name}: {status}")
            continue
        words = page.decode() if isinstance(page, bytes) else str(page)
        faults += [f"{name}: {put} is not mentioned" for put, _, _ in definitions(info) if put not in words]
    assert not faults


def test_the_pack_causes_no_heavy_import_at_the_start(client):
    assert client.get("/vgrpo-test/imports")["caused"] == {}


def test_the_start_gains_less_than_a_third_of_a_second(comfy, client):
    """By ComfyUI's own clock, or, where the machine is busy with something else, by the time that the processor worked."""
    worked = client.get("/vgrpo-test/imports")["cpu_s"]
    assert worked > 0
    assert min(import_seconds(comfy.log()), worked) < START_S


def test_nothing_is_logged_against_the_pack_while_it_loads(comfy):
    start = comfy.log().partition("To see the GUI go to")[0]
    lines = [line for line in start.splitlines() if "V-GRPO" in line or "vgrpo" in line]
    assert not [line for line in lines if re.search(r"error|warn|fail|left out", line, re.I)]


@pytest.mark.parametrize("prefix", ["", "/api"])
def test_the_routes_answer(client, prefix):
    assert client.call("GET", f"{prefix}/vgrpo/runs")[0] == 200
    for path in ("", "/events", "/log", "/config"):
        status, answer = client.call("GET", f"{prefix}/vgrpo/runs/no-such-run{path}")
        assert status == 404 and "no-such-run" in answer["error"] and "\n" not in answer["error"]
    for action in ("control", "delete", "resume"):
        status, answer = client.call("POST", f"{prefix}/vgrpo/runs/no-such-run/{action}", {"action": "stop"})
        assert status == 404 and "\n" not in answer["error"]


@pytest.mark.parametrize("run_id", ["..", "%2e%2e", "..%2f..%2fuser", "UPPER", "a" * 65, "-a", "c:", "%00", "a%5cb"])
def test_no_path_of_a_client_reaches_the_disk(client, comfy, run_id):
    for path in ("", "/log", "/config"):
        assert client.call("GET", f"/vgrpo/runs/{run_id}{path}")[0] in (400, 403, 404)
    assert client.call("POST", f"/vgrpo/runs/{run_id}/delete", {})[0] in (400, 403, 404, 405)
    assert comfy.output.is_dir()


def test_a_form_of_another_page_changes_nothing(client):
    """What any page may send without asking the browser: a form's content types."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        status, _ = client.call("POST", "/vgrpo/runs/some-run/control", b'{"action": "stop"}', {"Content-Type": kind})
        assert status in (400, 403, 415), kind


def test_another_origin_is_refused(client):
    headers = {"Origin": "https://elsewhere.example", "Host": f"127.0.0.1:{client.server.port}"}
    assert client.call("POST", "/vgrpo/runs/some-run/control", {"action": "stop"}, headers)[0] == 403
