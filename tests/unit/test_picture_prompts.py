"""The prompt of a picture: from ComfyUI's graph, a web UI's parameters, this program's own text, or a caption beside it."""

from __future__ import annotations

import json

import pytest
from PIL import Image, PngImagePlugin

from trainer.picture_prompts import prompt_of, prompt_of_graph


def node(kind, **inputs):
    return {"class_type": kind, "inputs": inputs}


def classic(**changes):
    """The graph that ComfyUI opens with."""
    graph = {
        "3": node("KSampler", seed=1, model=["4", 0], positive=["6", 0], negative=["7", 0], latent_image=["5", 0]),
        "4": node("CheckpointLoaderSimple", ckpt_name="a.safetensors"),
        "5": node("EmptyLatentImage", width=512, height=512, batch_size=1),
        "6": node("CLIPTextEncode", text="a red cube", clip=["4", 1]),
        "7": node("CLIPTextEncode", text="blurry", clip=["4", 1]),
        "8": node("VAEDecode", samples=["3", 0], vae=["4", 2]),
        "9": node("SaveImage", images=["8", 0], filename_prefix="x"),
    }
    return {**graph, **changes}


FLUX = {
    "6": node("CLIPTextEncodeFlux", clip_l="cube", t5xxl="a red cube on a table", guidance=3.5, clip=["11", 0]),
    "8": node("VAEDecode", samples=["13", 0], vae=["10", 0]),
    "9": node("SaveImage", images=["8", 0]),
    "13": node("SamplerCustomAdvanced", noise=["25", 0], guider=["22", 0], sampler=["16", 0], latent_image=["27", 0]),
    "22": node("BasicGuider", model=["12", 0], conditioning=["26", 0]),
    "26": node("FluxGuidance", conditioning=["6", 0], guidance=3.5),
}


@pytest.mark.parametrize(
    ("graph", "prompt"),
    [
        (classic(), "a red cube"),
        (FLUX, "a red cube on a table"),
        # text from another node, by way of a third
        (classic(**{"6": node("CLIPTextEncode", text=["20", 0]), "20": node("PrimitiveString", value="blue")}), "blue"),
        # a second pass over the first one's latent
        (
            classic(**{
                "8": node("VAEDecode", samples=["30", 0]),
                "30": node("KSampler", positive=["31", 0], negative=["7", 0], latent_image=["3", 0]),
                "31": node("CLIPTextEncode", text="finer"),
            }),
            "finer",
        ),
        # conditioning that other nodes changed first
        (
            classic(**{
                "3": node("KSampler", positive=["40", 0], negative=["40", 1], latent_image=["5", 0]),
                "40": node("ControlNetApplyAdvanced", positive=["41", 0], negative=["7", 0]),
                "41": node("ConditioningCombine", conditioning_1=["6", 0], conditioning_2=["7", 0]),
            }),
            "a red cube",
        ),
        ({"1": node("LoadImage", image="a.png"), "2": node("SaveImage", images=["1", 0])}, None),
        (classic(**{"6": node("CLIPTextEncode", text=["6", 0])}), None),  # a link to itself
        (classic(**{"6": node("CLIPTextEncode", text=["99", 0])}), None),  # a link to nothing
        ({"1": "not a node", "2": node("SaveImage", images=["3"])}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_graphs(graph, prompt):
    assert prompt_of_graph(graph) == prompt


def saved(tmp_path, **texts):
    info = PngImagePlugin.PngInfo()
    for key, value in texts.items():
        info.add_itxt(key, value)
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png", pnginfo=info)
    return tmp_path / "a.png"


def read(path):
    with Image.open(path) as picture:
        return prompt_of(path, picture)


@pytest.mark.parametrize(
    ("texts", "prompt"),
    [
        ({"prompt": json.dumps(classic()), "workflow": "{}"}, "a red cube"),
        ({"prompt": "ein rötlicher Würfel"}, "ein rötlicher Würfel"),
        ({"prompt": '{"a": 1}'}, '{"a": 1}'),  # JSON, but no graph: the prompt is what it says
        ({"prompt": "[" * 100_000}, "[" * 100_000),
        (
            {"parameters": "a red cube,\non a table\nNegative prompt: blurry\nSteps: 20, Sampler: Euler"},
            "a red cube,\non a table",
        ),
        ({"parameters": "a red cube\nSteps: 20"}, "a red cube"),
        ({}, None),
    ],
)
def test_text_inside_a_png(tmp_path, texts, prompt):
    assert read(saved(tmp_path, **texts)) == prompt


def test_a_graph_in_a_webp(tmp_path):
    picture, exif = Image.new("RGB", (8, 8)), Image.Exif()
    exif[0x0110] = "prompt:" + json.dumps(classic())
    picture.save(tmp_path / "a.webp", exif=exif)
    assert read(tmp_path / "a.webp") == "a red cube"


def test_a_caption_beside_the_picture(tmp_path):
    path = saved(tmp_path)
    path.with_suffix(".txt").write_text("\ufeff a green cube \n", encoding="utf-8")
    assert read(path) == "a green cube"
    path.with_suffix(".txt").write_bytes(b"caf\xe9")
    assert read(path) == "caf\ufffd"
    path.with_suffix(".txt").write_text(" \n")
    assert read(path) is None


def test_the_picture_itself_is_asked_before_the_caption(tmp_path):
    path = saved(tmp_path, prompt="inside")
    path.with_suffix(".txt").write_text("beside")
    assert read(path) == "inside"
