"""Writes workflows/*.json and their thumbnails: `python docs/make_workflows.py [--graphs-only]`, from the repository's root.

The node definitions come from a real ComfyUI server (the tests' one), and a thumbnail shows what its workflow made when it was
run there: about five minutes on two CPU cores. Workflows 4 and 5 need models that the user fetches: theirs show
the graph.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from workflow_graph import BLUE, BROWN, FOLDER, GREEN, Graph
from workflow_models import flux_rewards, sdxl_preference
from workflow_thumbnails import draw_graph, pictures, thumbnail

from tests.comfyui.graph import find, to_prompt
from tests.comfyui.server import ComfyServer, serving

NO_RUN = "(no run yet)"


def rewards(graph: Graph, x: int, y: int, monitors: tuple[str, ...]) -> int:
    """The scene reward, and others that are only watched; returns the last of the chain."""
    last = graph.add("VGRPORewardScene", (x, y), (300, 130), color=GREEN)
    for name in monitors:
        y += 190
        last = graph.add(f"VGRPOReward{name}", (x, y), (300, 150), rewards=(last, "rewards"), monitor_only=True)
    return last


SAMPLING = {"steps": 4, "width": 64, "height": 64, "batch_size": 16}


def train_the_demo(info: dict[str, Any]) -> dict[str, Any]:
    graph = Graph(info)
    graph.note(
        "## Train the demo\n\n"
        "The embedded model learns to draw what its prompts ask for: a few minutes on a CPU, no download.\n\n"
        "**Queue it once.** *V-GRPO Train LoRA* starts the training in a process of its own and, in mode *wait*, shows its "
        "progress until the LoRA is there. Then the same held-out prompts are drawn with the same noise without and with the "
        "LoRA, and both are scored.\n\n"
        "- *Cancel* leaves the training running (a setting changes that); queueing again attaches to it.\n"
        "- Mode *background* returns at once; then run the right half later.\n"
        "- Raise *take* to train the same thing once more.\n"
        "- The finished LoRA also appears in *Load LoRA* as `vgrpo/...`.\n"
        "- For a model of your own choose it in *Policy*, write prompts into *Prompt Set*, and set the preset that fits.",
        (-380, 60),
        (340, 460),
    )
    prompts = graph.add("VGRPOPromptSet", (20, 60), (320, 320), color=BLUE, source="demo")
    policy = graph.add("VGRPOPolicy", (20, 430), (320, 240), color=BLUE)
    reward = rewards(graph, 370, 60, ("JpegSize", "Saturation", "HighFrequency"))
    settings = graph.add("VGRPOSettings", (20, 730), (320, 560), color=BLUE, preset="demo")
    train = graph.add(
        "VGRPOTrainLoRA",
        (720, 60),
        (340, 420),
        color=BROWN,
        policy=(policy, "policy"),
        prompts=(prompts, "prompts"),
        rewards=(reward, "rewards"),
        settings=(settings, "settings"),
        name="demo-lora",
        mode="wait",
    )
    graph.add("PreviewImage", (720, 540), (340, 280), "Reward curve", images=(train, "curve"))
    graph.add("PreviewImage", (720, 870), (340, 320), "Held-out pictures of the training", images=(train, "grid"))
    model = graph.add("VGRPOLoadDemoModel", (1130, 60), (260, 80), color=BLUE)
    lora = graph.add("VGRPOApplyRunLoRA", (1130, 200), (260, 90), color=BROWN, model=(model, "MODEL"), run=(train, "run"))
    for row, (word, source) in enumerate((("without", (model, "MODEL")), ("with", (lora, "model")))):
        y = 60 + 620 * row
        group = graph.add(
            "VGRPOSamplePromptGroup",
            (1440, y),
            (320, 480),
            f"Sample {word} the LoRA",
            model=source,
            clip=(model, "CLIP"),
            vae=(model, "VAE"),
            prompts=(prompts, "prompts"),
            split="held-out",
            group_size=4,
            **SAMPLING,
        )
        score = graph.add(
            "VGRPOScoreGroup",
            (1800, y),
            (420, 500),
            f"Score {word} the LoRA",
            rewards=(reward, "rewards"),
            group=(group, "group"),
        )
        graph.add("PreviewAny", (2260, y), (420, 300), f"Verdict {word} the LoRA", source=(score, "verdict"))
    graph.group("What to train, on what, by which reward", (0, 0, 690, 1310))
    graph.group("The training", (705, 0, 375, 1210), "#8A8")
    graph.group("The same prompts and noise, without and with the LoRA", (1110, 0, 1590, 1250), "#a1309b")
    return graph.save("1 Train the demo")


def explore_a_reward(info: dict[str, Any]) -> dict[str, Any]:
    graph = Graph(info)
    graph.note(
        "## Explore a reward\n\n"
        "Would this reward teach anything here? Find out before an hour is spent.\n\n"
        "*Sample Prompt Group* draws several pictures for each of a few prompts, as an iteration of the training would. "
        "*Score Group* shows every score, the best and the worst of each group, and the **spread within the groups**: GRPO "
        "learns from nothing else. A reward that gives all pictures of a prompt the same score teaches nothing.\n\n"
        "Swap the reward, chain several, or replace *Load Demo Model* by your own checkpoint loader (then set width, height, "
        "steps and cfg as you are used to).",
        (-380, 60),
        (340, 400),
    )
    model = graph.add("VGRPOLoadDemoModel", (20, 60), (320, 80), color=BLUE)
    prompts = graph.add("VGRPOPromptSet", (20, 210), (320, 320), color=BLUE, source="demo")
    reward = rewards(graph, 20, 600, ("Colorfulness", "JpegSize"))
    group = graph.add(
        "VGRPOSamplePromptGroup",
        (400, 60),
        (320, 480),
        color=BROWN,
        model=(model, "MODEL"),
        clip=(model, "CLIP"),
        vae=(model, "VAE"),
        prompts=(prompts, "prompts"),
        **SAMPLING,
    )
    score = graph.add(
        "VGRPOScoreGroup", (780, 60), (460, 620), color=BROWN, rewards=(reward, "rewards"), group=(group, "group")
    )
    graph.add("PreviewAny", (1290, 60), (440, 280), "Verdict", source=(score, "verdict"))
    graph.add("PreviewAny", (1290, 390), (440, 420), "Every score", source=(score, "scores"))
    graph.add("PreviewImage", (1780, 60), (320, 340), "Best of each group", images=(score, "best"))
    graph.add("PreviewImage", (1780, 450), (320, 340), "Worst of each group", images=(score, "worst"))
    return graph.save("2 Explore a reward")


def use_a_run(info: dict[str, Any]) -> dict[str, Any]:
    graph = Graph(info)
    graph.note(
        "## Use a run's LoRA in a generation graph\n\n"
        "Choose a run in *Load Run* (press **R** if it is newer than this page). *latest* follows a training that still runs: "
        "queue again and the newest checkpoint is used. *best* is the one with the highest reward on held-out prompts.\n\n"
        "All else is an ordinary graph. Replace *Load Demo Model* by the loader of the model that the run was trained on. "
        "A finished run's LoRA can also be loaded with the stock *Load LoRA*.",
        (-380, 60),
        (340, 340),
    )
    run = graph.add("VGRPOLoadRun", (20, 60), (320, 170), color=BROWN, run=NO_RUN, checkpoint="best")
    graph.add("PreviewImage", (20, 290), (320, 280), "Reward curve", images=(run, "curve"))
    graph.add("PreviewAny", (20, 630), (320, 240), "Numbers", source=(run, "metrics"))
    model = graph.add("VGRPOLoadDemoModel", (400, 60), (280, 80), color=BLUE)
    lora = graph.add("VGRPOApplyRunLoRA", (400, 200), (280, 90), color=BROWN, model=(model, "MODEL"), run=(run, "run"))
    text = "a picture of two yellow squares with a purple cross"
    positive = graph.add("CLIPTextEncode", (400, 350), (280, 120), "Prompt", clip=(model, "CLIP"), text=text)
    negative = graph.add(
        "CLIPTextEncode", (400, 520), (280, 100), "Negative (not used at cfg 1)", clip=(model, "CLIP"), text=""
    )
    latent = graph.add("EmptySD3LatentImage", (400, 670), (280, 110), width=64, height=64, batch_size=4)
    sampled = graph.add(
        "KSampler",
        (740, 60),
        (300, 270),
        model=(lora, "model"),
        positive=(positive, "CONDITIONING"),
        negative=(negative, "CONDITIONING"),
        latent_image=(latent, "LATENT"),
        seed=1,
        steps=4,
        cfg=1.0,
        sampler_name="euler",
        scheduler="simple",
    )
    decoded = graph.add("VAEDecode", (1090, 60), (220, 60), samples=(sampled, "LATENT"), vae=(model, "VAE"))
    graph.add("SaveImage", (1090, 180), (380, 420), images=(decoded, "IMAGE"), filename_prefix="vgrpo/with-lora")
    return graph.save("3 Use the LoRA of a run")


def make_thumbnails(server: ComfyServer, workflows: dict[str, dict[str, Any]]) -> None:
    with server.client() as client:
        # Below annotated pictures there is text that a thumbnail makes unreadable: plain pictures are asked for beside them.
        def run(name: str, **changes: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
            prompt = to_prompt(workflows[name], client.nodes(), ("VGRPOLoadRun.run",))
            for kind, inputs in changes.items():
                for node in prompt.values():
                    if node["class_type"] == kind:
                        node["inputs"].update(inputs)
            for key in [key for key, node in prompt.items() if node["class_type"] == "VGRPOSamplePromptGroup"]:
                prompt[f"p{key}"] = {"class_type": "PreviewImage", "inputs": {"images": [key, 0]}}
            return prompt, client.run(prompt, timeout=1800).ok().outputs

        prompt, done = run("1 Train the demo")
        rows = [(word, f"p{find(prompt, 'VGRPOSamplePromptGroup', number)}") for number, word in enumerate(("before", "after"))]
        thumbnail("1 Train the demo", [(word, pictures(client, done, node, 16)[::4]) for word, node in rows])
        made = client.get("/vgrpo/runs")
        name = (made["runs"] if isinstance(made, dict) else made)[0]["id"]
        prompt, done = run("2 Explore a reward")
        best, worst = (find(prompt, "PreviewImage", number) for number in (0, 1))
        thumbnail(
            "2 Explore a reward", [("best", pictures(client, done, best, 4)), ("worst", pictures(client, done, worst, 4))]
        )
        rows = []
        for word, strength in (("without", 0.0), ("with\nthe LoRA", 1.0)):
            prompt, done = run("3 Use the LoRA of a run", VGRPOLoadRun={"run": name}, VGRPOApplyRunLoRA={"strength": strength})
            rows.append((word, pictures(client, done, find(prompt, "SaveImage"), 4)))
        thumbnail("3 Use the LoRA of a run", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs-only", action="store_true", help="leave the thumbnails as they are")
    arguments = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as base, serving(Path(base)) as server:
        with server.client() as client:
            info = client.nodes()
        made = {
            "1 Train the demo": train_the_demo(info),
            "2 Explore a reward": explore_a_reward(info),
            "3 Use the LoRA of a run": use_a_run(info),
        }
        sdxl, flux = sdxl_preference(info), flux_rewards(info)
        draw_graph("4 SDXL, human preference", sdxl, "SDXL, human preference", ("trained on HPSv2.1, watched by PickScore",))
        words = ("trained on HPSv2.1, PickScore and ImageReward,", "watched by CLIPScore")
        draw_graph("5 FLUX, several rewards", flux, "FLUX.1 dev, several rewards", words)
        if not arguments.graphs_only:
            make_thumbnails(server, made)


if __name__ == "__main__":
    main()
