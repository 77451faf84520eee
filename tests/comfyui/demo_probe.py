"""Runs in a process with a real ComfyUI's code (tests/comfy_process): what it makes of the embedded model and of our nodes.

`report(...)` returns plain figures and writes tensors to a safetensors file.
"""

import logging
from importlib import import_module
from types import SimpleNamespace

import comfy.samplers
import comfy.sd
import comfy.utils
import torch
from comfy import sd1_clip
from comfy.taesd.taesd import TAESD
from comfy_extras.nodes_sd3 import EmptySD3LatentImage
from safetensors.torch import load_file, save_file

import nodes

demo, sampling = import_module("pack.nodes.demo_model"), import_module("pack.nodes.sampling")
plans, choices = import_module("pack.nodes.prompt_groups"), import_module("pack.nodes.choices")
Prompt = import_module("pack.trainer.prompts").Prompt


class Warnings(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def encode(clip, text):
    return clip.encode_from_tokens_scheduled(clip.tokenize(text))


def largest(a, b):
    return float((a - b).abs().max())


def error_of(call):
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None


class Graph:
    """The embedded model's outputs, and the nodes that tests run on them, called as ComfyUI calls them."""

    def __init__(self, prompts, steps):
        self.model, self.clip, self.vae = demo.LoadDemoModel.execute().result
        self.prompts, self.steps = prompts, steps
        self.encoded = [encode(self.clip, text) for text in prompts]
        self.nothing = encode(self.clip, "")
        self.latent = EmptySD3LatentImage.execute(64, 64, 1).result[0]

    def picture(self, seed, positive, model=None, latent=None):
        """Stock KSampler and VAE Decode."""
        made = nodes.KSampler().sample(
            model or self.model, seed, self.steps, 1.0, "euler", "simple", positive, self.nothing, latent or self.latent
        )
        return nodes.VAEDecode().decode(self.vae, made[0])[0]

    def sample(self, **changes):
        """(images, group) of Sample Prompt Group."""
        held_out = tuple(Prompt(text) for text in self.prompts)
        inputs = {
            "model": self.model, "clip": self.clip, "vae": self.vae, "split": "held-out", "prompt_count": 1, "group_size": 3,
            "prompts": choices.PromptSet((Prompt("a train prompt"),), held_out), "seed": 5, "sampler": "euler",
            "scheduler": "simple", "steps": 4, "cfg": 1.0, "width": 64, "height": 64, "batch_size": 2,
        }  # fmt: skip
        return sampling.SamplePromptGroup.execute(**{**inputs, **changes}).result


def texts(graph, odd_prompts, found):
    found["context"] = torch.cat([c[0][0] for c in graph.encoded])
    found["pooled"] = torch.cat([c[0][1]["pooled_output"] for c in graph.encoded])
    odd = [encode(graph.clip, text)[0] for text in odd_prompts]
    plain, same, more = (encode(graph.clip, t)[0][0] for t in ("a red circle", "a (red:1.0) circle", "a (red:1.4) circle"))
    skipping = graph.clip.clone()
    skipping.clip_layer(-1)
    return {
        "odd": [[list(c[0].shape), list(c[1]["pooled_output"].shape)] for c in odd],
        "odd_finite": all(bool(c[0].isfinite().all()) for c in odd),
        "weight_1_changes": largest(plain, same),
        "weight_1.4_changes": largest(plain, more),
        "clip_skip_changes": largest(plain, encode(skipping, "a red circle")[0][0]),
    }


def parts(graph, given, found):
    network = graph.model.get_model_object("diffusion_model")
    found["velocity"] = network(given["z"], given["t"] * 1000, context=given["context"], y=given["pooled"])
    found["decoded"] = graph.vae.decode(given["latents"])
    found["encoded"] = graph.vae.encode(given["pictures"])


def stock_nodes(graph, seeds, lora, found):
    pictures = [graph.picture(seed, c) for seed, c in zip(seeds, graph.encoded, strict=True)]
    found["pictures"] = torch.cat(pictures)
    four_channels = nodes.EmptyLatentImage().generate(64, 64, 1)[0]
    load = nodes.LoraLoaderModelOnly().load_lora_model_only
    off, on = (graph.picture(seeds[0], graph.encoded[0], model=load(graph.model, lora, strength)[0]) for strength in (0.0, 1.0))
    found["with_lora"] = on
    return {
        "either_latent": torch.equal(graph.picture(seeds[0], graph.encoded[0], latent=four_channels), pictures[0]),
        "strength_0_is_none": torch.equal(off, pictures[0]),
        "base_is_left_alone": torch.equal(graph.picture(seeds[0], graph.encoded[0]), pictures[0]),
    }


def sampled_groups(graph, found):
    images, group = graph.sample(prompt_count=2, steps=graph.steps)
    alone = graph.sample(prompt_count=2, steps=graph.steps, batch_size=1)[0]
    stock = [graph.picture(seed, graph.encoded[i]) for i, seed in zip(group.prompt_index, group.seeds, strict=True)]
    found["group"] = images
    known = set(comfy.samplers.KSampler.SAMPLERS)
    positive, negative = graph.sample(cfg=3.0)[0], graph.sample(cfg=3.0, negative="a blue square")[0]
    sizes = [graph.sample(group_size=1, width=w, height=h)[0] for w, h in ((128, 64), (64, 96))]
    other_vae = comfy.sd.VAE(sd=TAESD(latent_channels=4).state_dict())
    return {
        "group": {
            "prompts": [prompt.text for prompt in group.prompts],
            "prompt_index": list(group.prompt_index),
            "seeds": [str(seed) for seed in group.seeds],
            "same_images": torch.equal(group.images, images),
        },
        "one_by_one_is_ksampler": torch.equal(alone, torch.cat(stock).clamp(0, 1)),
        "batch_differs": largest(images, alone),
        "samplers": {
            name: largest(graph.sample(sampler=name, batch_size=1)[0], graph.sample(sampler=name, batch_size=3)[0])
            for name in sorted(plans.DETERMINISTIC & known)
        },
        "unknown": sorted(plans.DETERMINISTIC - known),
        "negative_changes": largest(positive, negative),
        "sizes": [list(image.shape) for image in sizes],
        "preview": list(sampling.Previewer(graph.model)(torch.randn(2, 16, 8, 8)).size),
        "errors": {
            "too large": error_of(lambda: graph.sample(width=512, height=512)),
            "another's VAE": error_of(lambda: graph.sample(vae=other_vae)),
            "no such prompt": error_of(lambda: graph.sample(first_prompt=99)),
        },
    }


def letters(prompts, seeds, steps):
    """Pictures of the other embedded model, one a prompt, by stock nodes."""
    model, clip, vae = demo.LoadDemoModel.execute(model="letters (embedded model)").result
    latent, nothing = EmptySD3LatentImage.execute(64, 32, 1).result[0], encode(clip, "")
    made = [
        nodes.KSampler().sample(model, seed, steps, 1.0, "euler", "simple", encode(clip, prompt), nothing, latent)[0]
        for seed, prompt in zip(seeds, prompts, strict=True)
    ]
    return torch.cat([nodes.VAEDecode().decode(vae, latents)[0] for latents in made])


def an_sd15(graph, unet):
    """A model of another family: an SD1.5 of one block (`unet`: diffusers weights), its CLIP of one layer, its kind of VAE."""
    torch.manual_seed(0)
    config = {"num_channels": 4, "model_channels": 320, "num_res_blocks": [1], "channel_mult": [1], "transformer_depth": [1]}
    names = comfy.utils.unet_to_diffusers({**config, "transformer_depth_middle": 1, "transformer_depth_output": [1, 1]})
    weights = load_file(unet)
    model = comfy.sd.load_diffusion_model_state_dict({names[k]: v for k, v in weights.items() if k in names})

    target = SimpleNamespace(params={}, clip=sd1_clip.SD1ClipModel, tokenizer=sd1_clip.SD1Tokenizer)
    clip = comfy.sd.CLIP(target, model_options={"clip_l_model_config": {"num_hidden_layers": 1}})
    vae = comfy.sd.VAE(sd=TAESD(latent_channels=4).state_dict())
    for weight in (*clip.cond_stage_model.parameters(), *vae.first_stage_model.parameters()):
        weight.normal_(std=0.05)
    images, group = graph.sample(model=model, clip=clip, vae=vae, cfg=5.0, scheduler="karras", sampler="dpmpp_2m", steps=2)
    return {
        "kind": type(model.model.model_config).__name__,
        "shape": list(images.shape),
        "different": len({tuple(image.flatten().tolist()) for image in group.images}),
    }


def report(inputs, outputs, prompts, odd_prompts, words, lora, steps, seeds, unet):
    seen, found, answer = Warnings(), {}, {}
    logging.getLogger().addHandler(seen)
    given = load_file(inputs)
    with torch.inference_mode():
        graph = Graph(prompts, steps)
        answer["types"] = [f"{type(x).__module__}.{type(x).__name__}" for x in (graph.model.model, graph.clip, graph.vae)]
        answer["shift"] = float(graph.model.get_model_object("model_sampling").shift)
        answer |= texts(graph, odd_prompts, found)
        parts(graph, given, found)
        answer |= stock_nodes(graph, seeds, lora, found)
        answer["warnings"] = list(seen.lines)
        answer |= sampled_groups(graph, found)
        answer["sd15"] = an_sd15(graph, unet)
        found["letters"] = letters(words, seeds[: len(words)], steps)
        answer["no such model"] = error_of(lambda: demo.LoadDemoModel.execute(model="another"))
    save_file({name: value.contiguous() for name, value in found.items()}, outputs)
    return answer
