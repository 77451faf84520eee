"""The prompt that a picture on disk was made from: its caption, or what the program that made it wrote into the file.

Read are this program's own PNGs, ComfyUI's (its graph, as PNG text or in the EXIF data of a WebP), the `parameters` text of
Stable Diffusion web UIs, and a .txt beside the picture. All of it is a stranger's data: only text is ever taken from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

# Inputs that hold a prompt, the fullest first: FLUX's CLIP Text Encode has a short text for CLIP-L and the whole one for T5.
_TEXTS = ("text", "prompt", "t5xxl", "text_g", "clip_g", "text_l", "clip_l", "value", "string")
# Inputs that lead from a sampler to its prompt, and from a picture to its sampler; a negative prompt is on none of these roads.
_TO_PROMPT = ("positive", "guider", "conditioning", "conditioning_1", "conditioning_to")
_TO_SAMPLER = (*_TO_PROMPT, "images", "image", "samples", "latent_image")
_MAX_NODES = 10_000
_PARAMETERS_END = re.compile(r"\n(?=Negative prompt:|Steps: )")


def prompt_of(path: Path, picture: Image.Image) -> str | None:
    """The prompt inside the file, else that of the .txt beside it, else None. Raises OSError if a .txt can't be read."""
    found = _inside(picture)
    beside = path.with_suffix(".txt")
    if found is None and beside.is_file():
        found = beside.read_bytes().decode("utf-8-sig", errors="replace")
    return (found or "").strip() or None


def prompt_of_graph(graph: Mapping[str, Any]) -> str | None:
    """The positive prompt of a ComfyUI graph in its API form, {node id: {class_type, inputs}}; None if it can't be told.

    It walks back from every node whose output no other node uses, along the links that lead to the positive prompt.
    """
    nodes = {str(key): node for key, node in list(graph.items())[:_MAX_NODES] if isinstance(node, Mapping)}
    used = {source for node in nodes.values() for value in _inputs(node).values() if (source := _link(value)) is not None}
    for end in (key for key in nodes if key not in used):
        for key in _upstream(nodes, end, _TO_SAMPLER):
            if "positive" in _inputs(nodes[key]) or "conditioning" in _inputs(nodes[key]):
                if text := _text(nodes, key):
                    return text
    return None


def _inside(picture: Image.Image) -> str | None:
    texts = getattr(picture, "text", {})
    prompt = texts.get("prompt")
    if prompt is None:
        exif = (value for value in picture.getexif().values() if isinstance(value, str))
        prompt = next((value.removeprefix("prompt:") for value in exif if value.startswith("prompt:")), None)
    if prompt is not None:
        graph = _as_graph(prompt)
        return prompt if graph is None else prompt_of_graph(graph)
    parameters = texts.get("parameters")
    return None if parameters is None else _PARAMETERS_END.split(parameters, maxsplit=1)[0]


def _as_graph(text: str) -> dict[str, Any] | None:
    """The graph if the text is one; a prompt of this program's own is plain text."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    nodes = isinstance(data, dict) and data and all(isinstance(node, dict) and "class_type" in node for node in data.values())
    return data if nodes else None


def _upstream(nodes: Mapping[str, Any], start: str, roads: tuple[str, ...]) -> Iterator[str]:
    """`start` and all nodes that the inputs `roads` lead back to, each once, the nearest first."""
    waiting, seen = [start], set()
    while waiting:
        key = waiting.pop(0)
        if key in seen or key not in nodes:
            continue
        seen.add(key)
        yield key
        inputs = _inputs(nodes[key])
        waiting += [source for road in roads if (source := _link(inputs.get(road))) is not None]


def _text(nodes: Mapping[str, Any], start: str) -> str | None:
    """The first text on the way back from a sampler or guider along its positive side."""
    for key in _upstream(nodes, start, _TO_PROMPT):
        inputs = _inputs(nodes[key])
        for name in _TEXTS:
            value = inputs.get(name)
            if (source := _link(value)) is not None:
                value = next(filter(None, (_plain_text(nodes[k]) for k in _upstream(nodes, source, _TEXTS))), None)
            if isinstance(value, str) and value.strip():
                return value
    return None


def _plain_text(node: Mapping[str, Any]) -> str | None:
    return next((value for name in _TEXTS if isinstance(value := _inputs(node).get(name), str) and value.strip()), None)


def _inputs(node: Mapping[str, Any]) -> Mapping[str, Any]:
    inputs = node.get("inputs")
    return inputs if isinstance(inputs, Mapping) else {}


def _link(value: Any) -> str | None:
    """The id of the node that a link comes from: ComfyUI writes [node id, output number]."""
    is_link = isinstance(value, list) and len(value) == 2 and isinstance(value[0], str | int) and isinstance(value[1], int)
    return str(value[0]) if is_link else None
