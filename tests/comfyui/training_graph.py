"""Graphs that train, in API format and as small as they can be, and what tests wait for."""

from __future__ import annotations

from typing import Any

from tests.comfyui.graph import Prompt, choices, definitions, is_widget
from tests.comfyui.server import PATIENCE, Client, wait_until

TRAIN = "train"  # the id of the Train LoRA node in these graphs
PATIENCE_S = 600.0 * PATIENCE  # a trainer starts in seconds, but tests share the machine
SMALL = {"group_size": 4, "prompts_per_iteration": 2, "steps": 2, "evaluate_prompts": 2}
SMALL_EVALUATION = "evaluation: {seeds: 1, steps: 2}"


def node(client: Client, kind: str, **inputs: Any) -> dict[str, Any]:
    """A node with the defaults of its widgets and the given inputs."""
    values = {}
    for name, kind_of, options in definitions(client.node(kind)):
        if is_widget(kind_of, options):
            first = (choices(kind_of, options) or [None])[0]
            values[name] = options.get("default", first)
    return {"class_type": kind, "inputs": {**values, **inputs}}


def training(
    client: Client,
    *,
    mode: str = "background",
    iterations: int = 2,
    reward: str = "Brightness",
    prompts: dict[str, Any] | None = None,
    policy: dict[str, Any] | None = None,
    more: str = SMALL_EVALUATION,
    settings: dict[str, Any] | None = None,
    **train: Any,
) -> Prompt:
    """Prompt Set, Policy, one Reward, Settings, Train LoRA. Other names go to Train LoRA."""
    knobs = {**SMALL, "evaluate_every": 1000, "checkpoint_every": 1, "iterations": iterations, **(settings or {})}
    links = {name: [name, 0] for name in ("policy", "prompts", "rewards", "settings")}
    return {
        "policy": node(client, "VGRPOPolicy", rank=4, **(policy or {})),
        "prompts": node(client, "VGRPOPromptSet", **(prompts or {"source": "demo"})),
        "rewards": node(client, f"VGRPOReward{reward}"),
        "settings": node(client, "VGRPOSettings", preset="demo", more=more, **knobs),
        TRAIN: node(client, "VGRPOTrainLoRA", **links, mode=mode, device="cpu", **train),
    }


def run_of(result: Any, node_id: str = TRAIN) -> str:
    """The run that a Train LoRA node showed."""
    return result.outputs[node_id]["vgrpo_run"][0]


def said(result: Any, node_id: str = TRAIN) -> str:
    return result.outputs[node_id]["text"][0]


def run_ids(client: Client) -> list[str]:
    return [run["id"] for run in client.get("/vgrpo/runs")["runs"]]


def state(client: Client, run: str) -> dict[str, Any]:
    return client.get(f"/vgrpo/runs/{run}")


def becomes(client: Client, run: str, *statuses: str, iteration: int = 0) -> dict[str, Any]:
    """Waits for one of the statuses, at that iteration or later, and returns the run's description."""

    def look() -> dict[str, Any] | None:
        found = state(client, run)
        if found["status"] in ("failed", "lost") and found["status"] not in statuses:
            lines = client.get(f"/vgrpo/runs/{run}/log", tail=20)["lines"]
            raise AssertionError(f"the run is {found['status']}: {found['message']}\n" + "\n".join(lines))
        return found if found["status"] in statuses and found["iteration"] >= iteration else None

    return wait_until(look, PATIENCE_S, f"{run} is {' or '.join(statuses)} at iteration {iteration}")


def ask(client: Client, run: str, action: str) -> None:
    client.post(f"/vgrpo/runs/{run}/control", {"action": action})


def executing(client: Client, prompt_id: str, node_id: str = TRAIN) -> None:
    """Waits until the node of that prompt has begun."""
    client.message(
        lambda m: m["type"] == "executing" and m["data"].get("prompt_id") == prompt_id and m["data"].get("node") == node_id,
        PATIENCE_S,
    )
