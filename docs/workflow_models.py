"""The workflows for models that users fetch: 4 (SDXL) and 5 (FLUX.1 dev)."""

from __future__ import annotations

from typing import Any

from workflow_graph import BLUE, BROWN, GREEN, Graph

HUB = "https://huggingface.co"
SDXL = {
    "name": "sd_xl_base_1.0.safetensors",
    "url": f"{HUB}/stabilityai/stable-diffusion-xl-base-1.0/resolve/main/sd_xl_base_1.0.safetensors",
    "directory": "checkpoints",
}
FLUX = {
    "name": "flux1-dev-fp8.safetensors",
    "url": f"{HUB}/Comfy-Org/flux1-dev/resolve/main/flux1-dev-fp8.safetensors",
    "directory": "checkpoints",
}
TRAIN = """\
a portrait of an old fisherman mending a net, morning light
a red fox asleep in fresh snow
two ceramic cups on a windowsill, rain outside
a narrow street in Lisbon with laundry between the houses
a girl reading under a large oak tree
a bowl of ramen with a soft egg, seen from above
an astronaut planting a flower on the moon
a lighthouse in a storm, oil painting
a wooden chair in an empty white room
three hot-air balloons over a lavender field
a cat in a cardboard box, looking up
a glass greenhouse full of ferns
a watchmaker at work, close-up of the hands
a mountain lake at dawn with a small boat
a vintage bicycle with a basket of bread
a paper crane on a dark table, one lamp
a child drawing on a pavement with chalk
a steam train crossing a stone bridge in autumn
a market stall with oranges and lemons
a knight resting beside a campfire, ink drawing
a robot watering house plants
a black dog running along a beach
an open book with a dried flower between the pages
a desert road at night under many stars"""
HELD_OUT = """\
a portrait of a young baker covered in flour
a white owl on a fence post in fog
two apples and a knife on a wooden board
a small bookshop at night, warm light inside
a tram climbing a steep street
a sailing boat in a bottle, watercolour
a hedgehog under autumn leaves
a violin on a velvet chair"""


def sdxl_preference(info: dict[str, Any]) -> dict[str, Any]:
    graph = Graph(info)
    graph.note(
        "## SDXL, human preference\n\n"
        "SDXL learns to make pictures that people prefer: HPSv2.1 is the reward, PickScore and two statistics of the "
        "pixels are watched, so that a reward that is gained at the pictures' cost is seen.\n\n"
        "You need a GPU, an SDXL checkpoint in `models/checkpoints`, and the weights of both rewards: *model* names their "
        "hub ids, so the first run fetches them (2 and 4 GB); empty means: only look in the models folders.\n\n"
        "1. **Queue it.** *V-GRPO Train LoRA* starts the training in the background; the panel shows it, queueing again "
        "shows how far it is.\n"
        "2. When the first checkpoint is there, select the right half, press **Ctrl+M** to wake it, and queue: the same "
        "noise without and with the newest LoRA.\n\n"
        "For Pony, Illustrious or NoobAI choose their checkpoint in *Policy* and in *Load Checkpoint*; for a "
        "v-prediction model set *prediction* or the preset `sdxl-vpred`. Write your own prompts: what is not in them is "
        "not trained.",
        (-400, 60),
        (360, 620),
    )
    scores = [("Hpsv2", {"model": "xswu/HPSv2"}), ("Pickscore", {"model": "yuvalkirstain/PickScore_v1", "monitor_only": True})]
    train = _training(graph, SDXL, "sdxl", "sdxl-preference", scores)
    base = graph.add("CheckpointLoaderSimple", (1130, 60), (320, 100), models=(SDXL,), color=BLUE, ckpt_name=SDXL["name"])
    words = graph.add("CLIPTextEncode", (1130, 330), (320, 140), "Prompt", clip=(base, "CLIP"), text=HELD_OUT.splitlines()[0])
    negative = graph.add("CLIPTextEncode", (1130, 530), (320, 100), "Negative prompt", clip=(base, "CLIP"), text="")
    latent = graph.add("EmptyLatentImage", (1130, 690), (320, 110), width=1024, height=1024, batch_size=2)
    sampling = {"seed": 1, "steps": 30, "cfg": 5.0, "sampler_name": "dpmpp_2m", "scheduler": "karras"}
    _compare(graph, base, train, (words, "CONDITIONING"), (negative, "CONDITIONING"), latent, sampling)
    return graph.save("4 SDXL, human preference")


def flux_rewards(info: dict[str, Any]) -> dict[str, Any]:
    graph = Graph(info)
    graph.note(
        "## FLUX.1 dev, several rewards\n\n"
        "Three rewards at once, as arXiv 2604.23380 trains FLUX.1 dev: HPSv2.1, PickScore and ImageReward, each "
        "normalised inside its prompt's group and then summed by *weight*, so that their units do not matter. CLIPScore "
        "is watched. The paper's fourth, UnifiedReward, is a vision-language model behind a server: *Reward: judge*.\n\n"
        "You need a GPU, `flux1-dev-fp8.safetensors` in `models/checkpoints` (or the diffusion model, its text encoders "
        "and its VAE in files of their own, chosen in *Policy*), and the rewards' weights: *model* names their hub ids, so "
        "the first run fetches them (2 to 4 GB each). Only ImageReward's `vocab.txt` is put by hand, into "
        "`models/vgrpo/bert-base-uncased`.\n\n"
        "1. **Queue it**: the training runs in the background.\n"
        "2. When the first checkpoint is there, select the right half, press **Ctrl+M** to wake it, and queue.\n\n"
        "The preset `flux` has the paper's numbers where they are known and says where they are not. FLUX.1 dev takes "
        "its guidance as an input of the network; rollouts and scoring use the same one.",
        (-400, 60),
        (360, 620),
    )
    scores = [
        ("Hpsv2", {"model": "xswu/HPSv2"}),
        ("Pickscore", {"model": "yuvalkirstain/PickScore_v1"}),
        ("Imagereward", {"model": "THUDM/ImageReward"}),
        ("Clipscore", {"model": "openai/clip-vit-large-patch14", "monitor_only": True}),
    ]
    train = _training(graph, FLUX, "flux", "flux-rewards", scores)
    base = graph.add("CheckpointLoaderSimple", (1130, 60), (320, 100), models=(FLUX,), color=BLUE, ckpt_name=FLUX["name"])
    words = graph.add("CLIPTextEncode", (1130, 330), (320, 140), "Prompt", clip=(base, "CLIP"), text=HELD_OUT.splitlines()[3])
    guided = graph.add("FluxGuidance", (1130, 530), (320, 80), conditioning=(words, "CONDITIONING"), guidance=3.5)
    latent = graph.add("EmptySD3LatentImage", (1130, 690), (320, 110), width=720, height=720, batch_size=2)
    # At cfg 1 the negative prompt is not used.
    sampling = {"seed": 1, "steps": 20, "cfg": 1.0, "sampler_name": "euler", "scheduler": "simple"}
    _compare(graph, base, train, (guided, "CONDITIONING"), (words, "CONDITIONING"), latent, sampling)
    return graph.save("5 FLUX, several rewards")


def _training(graph: Graph, base: dict[str, str], preset: str, name: str, scores: list[tuple[str, dict[str, Any]]]) -> int:
    """The left half: what is trained on what, and the training; returns its node."""
    prompts = graph.add("VGRPOPromptSet", (20, 60), (320, 420), color=BLUE, source="text", train=TRAIN, held_out=HELD_OUT)
    policy = graph.add(
        "VGRPOPolicy",
        (20, 540),
        (320, 400),
        color=BLUE,
        models=(base,),
        base=f"{base['directory']}/{base['name']}",
        rank=32,
        targets="attention",
        gradient_checkpointing=True,
    )
    settings = graph.add("VGRPOSettings", (20, 1000), (320, 560), color=BLUE, preset=preset)
    last, y = None, 60
    for kind, options in (*scores, ("Saturation", {"monitor_only": True}), ("HighFrequency", {"monitor_only": True})):
        chain = {} if last is None else {"rewards": (last, "rewards")}
        tall = 130 if kind in ("Saturation", "HighFrequency") else 300
        last = graph.add(f"VGRPOReward{kind}", (370, y), (310, tall), color=GREEN, **options, **chain)
        y += tall + 50
    train = graph.add(
        "VGRPOTrainLoRA",
        (720, 60),
        (340, 420),
        color=BROWN,
        policy=(policy, "policy"),
        prompts=(prompts, "prompts"),
        rewards=(last, "rewards"),
        settings=(settings, "settings"),
        name=name,
        mode="background",
    )
    graph.add("PreviewImage", (720, 540), (340, 280), "Reward curve", images=(train, "curve"))
    graph.add("PreviewImage", (720, 870), (340, 380), "Held-out pictures of the training", images=(train, "grid"))
    graph.group("What to train, on what, by which rewards", (0, 0, 690, max(1580, y)))
    graph.group("The training", (705, 0, 375, 1270), "#8A8")
    return train


def _compare(
    graph: Graph,
    base: int,
    train: int,
    positive: tuple[int, str],
    negative: tuple[int, str],
    latent: int,
    sampling: dict[str, Any],
) -> None:
    """The right half, asleep at first: the same noise without and with the LoRA."""
    lora = graph.add("VGRPOApplyRunLoRA", (1130, 210), (320, 70), color=BROWN, model=(base, "MODEL"), run=(train, "run"))
    for row, (word, model) in enumerate((("without", (base, "MODEL")), ("with", (lora, "model")))):
        y = 60 + 560 * row
        conditions = {"positive": positive, "negative": negative, "latent_image": (latent, "LATENT")}
        sampled = graph.add("KSampler", (1500, y), (300, 270), f"Sample {word} the LoRA", model=model, **conditions, **sampling)
        decoded = graph.add("VAEDecode", (1500, y + 320), (300, 60), samples=(sampled, "LATENT"), vae=(base, "VAE"))
        graph.add("SaveImage", (1850, y), (380, 480), images=(decoded, "IMAGE"), filename_prefix=f"vgrpo/{word}-lora")
    graph.group("The same noise, without and with the LoRA (Ctrl+M wakes it)", (1110, 0, 1140, 1180), "#a1309b")
    graph.mute(*range(base, len(graph.nodes) + 1))
