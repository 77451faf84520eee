"""Trained in ComfyUI, loaded by the stock loader, sampled by the stock sampler, scored by the pack: the gain is still there."""

from __future__ import annotations

import json

import pytest

from tests.comfyui.training_graph import PATIENCE_S, TRAIN, becomes, node, run_of, training
from trainer.demo import PROMPT_FILES

pytestmark = pytest.mark.slow
# So many pictures that a gain measured on other noise than the trainer's is the same within a few percent.
PROMPTS, SEEDS, STEPS, SEED = 16, 4, 4, 7
# Brightness rises by far more than its noise in a few iterations. Without a moving average the LoRA is the newest factors.
LEARNING = {"lr": 0.003, "ema_decay": 0.0, "group_size": 8, "prompts_per_iteration": 4, "steps": STEPS, "seed": SEED}
LEARNING |= {"evaluate_prompts": PROMPTS, "checkpoint_every": 1000}
ITERATIONS = 8
SAMPLING = {"steps": STEPS, "cfg": 1.0, "scheduler": "simple"}


@pytest.fixture(scope="module")
def circle(comfy):
    """(client, LoRA's name in Load LoRA, the trainer's own held-out brightness before and after)."""
    with comfy.client() as client:
        more = f"evaluation: {{seeds: {SEEDS}, steps: {STEPS}}}"
        loras = client.get("/models/loras")
        run = run_of(client.run(training(client, iterations=ITERATIONS, settings=LEARNING, more=more, name="circle")).ok())
        becomes(client, run, "finished")
        evaluations = client.get(f"/vgrpo/runs/{run}/events", types="evaluation")["events"]
        means = [event["metrics"]["eval/brightness/mean"] for event in evaluations]
        # Nobody queued anything since: the background run's LoRA came by itself.
        client.message(lambda m: m["type"] == "vgrpo.event" and m["data"]["status"] == "finished", PATIENCE_S)
        [lora] = set(client.get("/models/loras")) - set(loras)
        yield client, lora, means[0], means[-1]


def loaders(client, lora, strength):
    """The embedded model, and a stock loader with the LoRA on it; `model` is the id of the node that gives the MODEL."""
    graph = {"demo": node(client, "VGRPOLoadDemoModel")}
    if lora:
        graph["lora"] = node(client, "LoraLoaderModelOnly", model=["demo", 0], lora_name=lora, strength_model=strength)
    return graph, "lora" if lora else "demo"


def stock_pictures(client, lora=None, strength=1.0, prompts=PROMPTS):
    """Held-out prompts through CLIPTextEncode, KSampler and VAEDecode. `pictures` gives one IMAGE batch, by prompt."""
    graph, model = loaders(client, lora, strength)
    texts = [json.loads(line)["prompt"] for line in PROMPT_FILES["evaluate"].read_text(encoding="utf-8").splitlines()[:prompts]]
    graph["latent"] = node(client, "EmptySD3LatentImage", width=64, height=64, batch_size=SEEDS)
    graph["nothing"] = node(client, "CLIPTextEncode", clip=["demo", 1], text="")
    for number, text in enumerate(texts):
        graph[f"text{number}"] = node(client, "CLIPTextEncode", clip=["demo", 1], text=text)
        graph[f"sample{number}"] = node(
            client,
            "KSampler",
            model=[model, 0],
            positive=[f"text{number}", 0],
            negative=["nothing", 0],
            latent_image=["latent", 0],
            seed=100 + number,
            sampler_name="euler",
            denoise=1.0,
            **SAMPLING,
        )
        graph[f"hash{number}"] = node(client, "VGRPOTestEcho", text="", value=[f"sample{number}", 0])
        graph[f"decode{number}"] = node(client, "VAEDecode", samples=[f"sample{number}", 0], vae=["demo", 2])
    last = "decode0"
    for number in range(1, prompts):
        graph[f"pictures{number}"] = node(client, "ImageBatch", image1=[last, 0], image2=[f"decode{number}", 0])
        last = f"pictures{number}"
    return graph, last, texts


def brightness(client, graph, **score):
    """Runs a graph with Score Group at its end: the mean over all pictures."""
    graph["rewards"] = node(client, "VGRPORewardBrightness")
    graph["score"] = node(client, "VGRPOScoreGroup", rewards=["rewards", 0], **score)
    graph["said"] = node(client, "VGRPOTestEcho", text="", value=["score", 5])
    result = client.run(graph, timeout=PATIENCE_S).ok()
    found = json.loads(result.outputs["said"]["said"][0])
    values = [picture["scores"]["brightness"] for group in found["groups"] for picture in group["pictures"]]
    assert len(values) == PROMPTS * SEEDS
    return sum(values) / len(values)


def test_the_gain_survives_the_stock_loader_and_sampler(circle):
    client, lora, before, after = circle
    assert after - before > 0.05, "the training itself must be worth measuring"
    found = []
    for name in (None, lora):
        graph, pictures, texts = stock_pictures(client, name)
        found.append(brightness(client, graph, images=[pictures, 0], prompts="\n".join(texts)))
    gain = found[1] - found[0]
    print(f"trainer {before:.4f} -> {after:.4f}; ComfyUI {found[0]:.4f} -> {found[1]:.4f}")
    assert gain >= 0.8 * (after - before), (found, before, after)


def test_from_the_trainers_noise_come_the_trainers_scores(circle):
    """Sample Prompt Group draws the held-out prompts as the trainer's own evaluation does, so even the means agree."""
    client, lora, before, after = circle
    for name, expected in ((None, before), (lora, after)):
        graph, model = loaders(client, name, 1.0)
        graph["prompts"] = node(client, "VGRPOPromptSet", source="demo")
        group = {"split": "held-out", "prompt_count": PROMPTS, "group_size": SEEDS, "seed": SEED, "width": 64, "height": 64}
        sources = {"model": [model, 0], "clip": ["demo", 1], "vae": ["demo", 2], "prompts": ["prompts", 0]}
        graph["group"] = node(client, "VGRPOSamplePromptGroup", **sources, **group, **SAMPLING, sampler="euler")
        found = brightness(client, graph, group=["group", 1])
        assert found == pytest.approx(expected, abs=0.003)


def test_at_strength_0_the_latents_are_those_of_no_lora_bit_for_bit(circle):
    client, lora, _, _ = circle
    hashes = []
    for name, strength in ((None, 0.0), (lora, 0.0), (lora, 1.0)):
        graph, _, _ = stock_pictures(client, name, strength, prompts=2)
        result = client.run(graph, timeout=PATIENCE_S).ok()
        hashes.append([result.outputs[f"hash{number}"]["said"][0] for number in range(2)])
    assert hashes[0] == hashes[1]
    assert hashes[0] != hashes[2], "and at strength 1 they are others"


def test_comfyui_walks_the_trainers_noise_levels(circle):
    from trainer.policies.samplers import shifted_grid

    client, _, _, _ = circle
    shift = json.loads((PROMPT_FILES["train"].parents[1] / "model/scheduler/scheduler_config.json").read_text())["shift"]
    for steps in (STEPS, 8):
        graph, model = loaders(client, None, 0)
        graph["sigmas"] = node(client, "BasicScheduler", model=[model, 0], scheduler="simple", steps=steps, denoise=1.0)
        graph["said"] = node(client, "VGRPOTestEcho", text="", value=["sigmas", 0])
        theirs = json.loads(client.run(graph).ok().outputs["said"]["said"][0])
        assert theirs == pytest.approx([*shifted_grid(steps, shift).tolist(), 0.0], abs=1e-6)


def test_the_name_goes_to_the_stock_loader_over_a_link(circle):
    """Train LoRA's lora_name output in LoraLoaderModelOnly, in one graph with the training."""
    client, lora, _, _ = circle
    more = f"evaluation: {{seeds: {SEEDS}, steps: {STEPS}}}"
    graph = training(client, mode="wait", iterations=ITERATIONS, settings=LEARNING, more=more, name="circle")
    graph["demo"] = node(client, "VGRPOLoadDemoModel")
    graph["lora"] = node(client, "LoraLoaderModelOnly", model=["demo", 0], lora_name=[TRAIN, 1])
    graph["said"] = node(client, "VGRPOTestEcho", text="", value=["lora", 0])
    graph["name"] = node(client, "VGRPOTestEcho", text="", value=[TRAIN, 1])
    result = client.run(graph, timeout=PATIENCE_S).ok()
    assert result.outputs["name"]["said"] == [lora]
