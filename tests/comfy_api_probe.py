"""Runs in a process of its own with ComfyUI's code on its path: answers questions about the pack's nodes, a JSON line each.

python comfy_api_probe.py <base directory> <the pack's folder> <package name>
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

THEMES = ("prompts", "policy", "rewards", "settings")


def plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {
            "$type": type(value).__name__,
            **{field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)},
        }
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else repr(value)


class Probe:
    def __init__(self, root: str, package: str) -> None:
        from comfy_api.internal import make_locked_method_func

        self.lock = make_locked_method_func
        outer = types.ModuleType(package)
        outer.__path__ = [root]
        sys.modules[package] = outer
        self.nodes = {}
        for theme in THEMES:
            for node in importlib.import_module(f"{package}.nodes.{theme}").NODES:
                self.nodes[node.GET_SCHEMA().node_id] = node
        self.results: list[tuple] = []

    def names(self) -> list[str]:
        return list(self.nodes)

    def info(self, node: str) -> dict[str, Any]:
        return self.nodes[node].GET_NODE_INFO_V1()

    def run(self, node: str, inputs: dict[str, Any]) -> dict[str, Any]:
        """As ComfyUI's execution.py does: on a locked clone of the class, under inference_mode."""
        import torch
        from comfy_api.latest import io

        kind = self.nodes[node]
        values = {key: self._linked(value) for key, value in inputs.items()}
        hidden = {io.Hidden.unique_id: "1"}
        wrapped = "v3_data" in inspect.signature(kind.PREPARE_CLASS_CLONE).parameters  # ComfyUI 0.33
        clone = kind.PREPARE_CLASS_CLONE({"hidden_inputs": hidden} if wrapped else hidden)
        with torch.inference_mode():
            output = self.lock(kind, kind.FUNCTION, clone)(**values)
        self.results.append(output.result)
        ui = output.ui if output.ui is None or isinstance(output.ui, dict) else output.ui.as_dict()
        return {"token": len(self.results) - 1, "outputs": plain(output.result), "ui": plain(ui)}

    def call(self, node: str, method: str, inputs: dict[str, Any]) -> Any:
        return plain(getattr(self.nodes[node], method)(**inputs))

    def _linked(self, value: Any) -> Any:
        return self.results[value["$result"]][value["output"]] if isinstance(value, dict) and "$result" in value else value


def main(base: str, root: str, package: str) -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever is printed must not stand between the answers
    sys.path.remove(str(Path(__file__).parent))  # the tests are no packages of ComfyUI
    sys.argv = ["main.py", "--cpu", "--base-directory", base]
    import comfy.options

    comfy.options.enable_args_parsing()
    probe = Probe(root, package)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = {"answer": getattr(probe, question.pop("op"))(**question)}
        except Exception as error:
            answer = {"error": [type(error).__name__, str(error)]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
