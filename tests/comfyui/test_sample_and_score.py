"""Sample Prompt Group and Score Group on a real server: a whole graph, previews, Cancel, errors on the node."""

from __future__ import annotations

import json
import threading
import time

import pytest

from tests.comfyui.server import Refused
from tests.faulty_server import FaultyServer

SIZE = 64
GRAPH = {
    "model": {"class_type": "VGRPOLoadDemoModel", "inputs": {}},
    "prompts": {"class_type": "VGRPOPromptSet", "inputs": {"source": "demo"}},
    "reward": {"class_type": "VGRPORewardScene", "inputs": {"weight": 1.0, "monitor_only": False}},
    "both": {
        "class_type": "VGRPORewardBrightness",
        "inputs": {"rewards": ["reward", 0], "weight": 1.0, "monitor_only": True},
    },
    "sample": {
        "class_type": "VGRPOSamplePromptGroup",
        "inputs": {
            "model": ["model", 0],
            "clip": ["model", 1],
            "vae": ["model", 2],
            "prompts": ["prompts", 0],
            "split": "held-out",
            "prompt_count": 2,
            "group_size": 3,
            "seed": 3,
            "sampler": "euler",
            "scheduler": "simple",
            "steps": 4,
            "cfg": 1.0,
            "width": SIZE,
            "height": SIZE,
            "batch_size": 2,
        },
    },
    "score": {"class_type": "VGRPOScoreGroup", "inputs": {"rewards": ["both", 0], "group": ["sample", 1]}},
    "data": {"class_type": "VGRPOTestEcho", "inputs": {"text": ["score", 5]}},
    "table": {"class_type": "VGRPOTestEcho", "inputs": {"text": ["score", 3]}},
    "best": {"class_type": "PreviewImage", "inputs": {"images": ["score", 1]}},
}


def graph(client, **changes):
    """The graph with every widget at its default unless given here; `changes` are by node, `sample={"steps": 2}`."""
    made = {}
    for name, node in GRAPH.items():
        ours = node["class_type"].startswith("VGRPO") and node["class_type"] != "VGRPOTestEcho"
        inputs = {**(required(client, node["class_type"]) if ours else {}), **node["inputs"]}
        made[name] = {"class_type": node["class_type"], "inputs": {**inputs, **changes.get(name, {})}}
    return made


def required(client, node):
    """The defaults of a node's required inputs."""
    found = {}
    for key, (kind, *options) in client.node(node)["input"].get("required", {}).items():
        options = options[0] if options else {}
        if "default" in options or isinstance(kind, list):
            found[key] = options.get("default", kind[0] if isinstance(kind, list) else None)
    return found


@pytest.fixture(scope="module")
def explored(comfy):
    """(client's result, its WebSocket's previews) of the whole graph."""
    with comfy.client() as client:
        result = client.run(graph(client)).ok()
        pictures = [client.picture(image) for image in result.outputs["score"]["images"]]
        return result, client.previews, client.events("progress"), pictures


def test_a_group_is_sampled_and_scored(explored):
    result, *_ = explored
    data = json.loads(result.outputs["data"]["said"][0])
    assert [len(group["pictures"]) for group in data["groups"]] == [3, 3]
    assert set(data["rewards"]) == {"scene", "brightness"} and data["messages"] == []
    assert data["rewards"]["scene"]["weight"] == 1.0 and data["rewards"]["brightness"]["weight"] is None
    for group in data["groups"]:
        assert group["metadata"]["objects"]
        assert sum(picture["advantage"] for picture in group["pictures"]) == pytest.approx(0, abs=1e-9)
    table = result.outputs["table"]["said"][0]
    assert table.count("\n| ") >= 6 and "brightness*" in table
    verdict = result.outputs["score"]["text"][0]
    assert "\nscene: " in verdict and "\nbrightness (monitor, not trained on): " in verdict


def test_pictures_are_annotated_and_the_best_ones_picked(explored):
    result, _, _, pictures = explored
    assert len(pictures) == 6 and len({picture.shape for picture in pictures}) == 1
    height, width, _ = pictures[0].shape
    assert width == 192 and height > 192
    assert len(result.outputs["best"]["images"]) == 2


def test_every_step_has_progress_and_a_preview(explored):
    _, previews, progress, _ = explored
    sampled = [event["value"] for event in progress if event.get("node") == "sample"]
    assert max(sampled) == 4 * 4 + 6  # steps x batches, then pictures decoded
    assert sampled == sorted(sampled) and previews >= 4


def test_cancel_is_honoured_within_a_second_or_a_step(client):
    prompt = client.queue(graph(client, sample={"steps": 1000, "group_size": 64, "seed": 99}))
    stepped = lambda m: m["type"] == "progress" and m["data"].get("node") == "sample"  # noqa: E731
    client.message(stepped, 120)
    begin, seen = time.monotonic(), len(client.messages)
    client.message(stepped, 60, since=seen)
    step = time.monotonic() - begin  # a busy machine may need more than a second for one
    begin = time.monotonic()
    client.interrupt()
    result = client.wait(prompt, 60)
    assert result.status == "interrupted"
    assert time.monotonic() - begin < 1 + 3 * step


def test_cancel_is_honoured_while_a_reward_waits_for_its_server(client):
    """The server takes a minute; after Cancel the queue is free at once, and the next execution asks it anew."""
    asked, go = threading.Event(), threading.Event()

    def answer(body, number):
        asked.set()
        go.wait(60)
        return 200, {"scores": [0.5] * len(body["pictures"])}

    with FaultyServer(answer) as server:
        prompt = {
            "image": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 4, "color": 0x808080}},
            "reward": {
                "class_type": "VGRPORewardHttp",
                "inputs": {**required(client, "VGRPORewardHttp"), "url": server.url},
            },
            "score": {"class_type": "VGRPOScoreGroup", "inputs": {"rewards": ["reward", 0], "images": ["image", 0]}},
        }
        waiting = client.queue(prompt)
        assert asked.wait(60)
        begin = time.monotonic()
        client.interrupt()
        result = client.wait(waiting, 60)
        assert result.status == "interrupted"
        assert time.monotonic() - begin < 5  # a busy machine may need more than a second to tell
        go.set()
        assert client.run(prompt).ok()


@pytest.mark.parametrize(
    ("changes", "node", "said"),
    [
        ({"sample": {"width": 512}}, "sample", "512 x 64 is too large for this model; a side is at most 256 pixels"),
        ({"sample": {"first_prompt": 100000}}, "sample", "first_prompt is 100000, but there are"),
        ({"score": {"prompts": "a cat"}}, "score", "the group has its prompts already"),
    ],
)
def test_what_cannot_be_done_is_one_line_on_the_node(client, changes, node, said):
    result = client.run(graph(client, **changes))
    assert result.status == "error" and result.error["node_id"] == node
    assert said in result.message and "\n" not in result.message


@pytest.mark.parametrize("name", ["sampler", "scheduler", "split"])
def test_a_value_that_a_list_does_not_hold_is_refused(client, name):
    """ComfyUI 0.3.75 lets it through; newer ones refuse it when it is queued."""
    try:
        said = client.run(graph(client, sample={name: "nope"})).message
    except Refused as refused:
        said = json.dumps(refused.answer)
    assert "nope" in said and name in said


def test_pictures_with_nan_are_no_group(client):
    result = client.run(graph(client, sample={"cfg": float("nan"), "prompt_count": 1, "group_size": 2}))
    assert result.status == "error" and result.error["node_id"] == "sample"
    assert "2 of 2 pictures hold NaN" in result.message and "\n" not in result.message


def test_any_batch_of_pictures_can_be_scored_with_prompts(client):
    line = json.dumps({"prompt": "a grey field", "metadata": {"objects": [{"color": "red", "shape": "circle", "count": 1}]}})
    prompt = {
        "image": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 4, "color": 0x808080}},
        "reward": {"class_type": "VGRPORewardBrightness", "inputs": {"weight": 1.0, "monitor_only": False}},
        "score": {
            "class_type": "VGRPOScoreGroup",
            "inputs": {"rewards": ["reward", 0], "images": ["image", 0], "prompts": f"a cat\n{line}"},
        },
        "data": {"class_type": "VGRPOTestEcho", "inputs": {"text": ["score", 5]}},
    }
    data = json.loads(client.run(prompt).ok().outputs["data"]["said"][0])
    assert [group["prompt"] for group in data["groups"]] == ["a cat", "a grey field"]
    assert data["rewards"]["brightness"]["verdict"] == "teaches nothing here"
    assert data["rewards"]["brightness"]["mean"] == pytest.approx(128 / 255)


@pytest.mark.parametrize("node", ["VGRPOLoadDemoModel", "VGRPOSamplePromptGroup", "VGRPOScoreGroup"])
def test_every_input_has_a_tooltip_and_the_node_a_help_page(client, comfy, node):
    info = client.node(node)
    assert info["category"].startswith("V-GRPO") and info["description"]
    inputs = {**info["input"].get("required", {}), **info["input"].get("optional", {})}
    assert [name for name, spec in inputs.items() if not spec[1].get("tooltip")] == []
    assert all(info["output_tooltips"])
    page = (comfy.pack / "web" / "docs" / f"{node}.md").read_text(encoding="utf-8")
    assert [name for name in inputs if f"`{name}`" not in page] == []
