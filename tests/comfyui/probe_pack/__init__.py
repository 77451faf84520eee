"""The test server's own trivial V3 pack: one node, and what prestartup_script.py saw."""

import hashlib
import json
import sys

import torch
from aiohttp import web
from comfy_api.latest import ComfyExtension, io
from server import PromptServer


@PromptServer.instance.routes.get("/vgrpo-test/imports")
async def imports(request):
    recorder = sys.modules["vgrpo_test_recorder"]
    return web.json_response({"caused": recorder.caused, "cpu_s": recorder.cpu_s})


def describe(value):
    """Text for a test: tensors by their bytes, short ones by their values."""
    if isinstance(value, dict) and "samples" in value:
        return describe(value["samples"])
    if isinstance(value, torch.Tensor):
        if value.numel() <= 64:
            return json.dumps(value.tolist())
        return f"{list(value.shape)} {hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()}"
    return str(value)


class Echo(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="VGRPOTestEcho",
            category="test",
            inputs=[io.String.Input("text"), io.AnyType.Input("value", optional=True)],
            outputs=[io.String.Output()],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, text, value=None):
        said = text if value is None else describe(value)
        return io.NodeOutput(said, ui={"said": [said]})


class Extension(ComfyExtension):
    async def get_node_list(self):
        return [Echo]


async def comfy_entrypoint():
    return Extension()
