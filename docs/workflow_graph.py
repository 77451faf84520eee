"""A graph in the page's own format, built node by node from a server's node definitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.comfyui.graph import definitions, has_control, is_widget

FOLDER = Path(__file__).parents[1] / "workflows"
BLUE, GREEN, BROWN = "#223", "#232", "#332922"  # nodes: what goes in, rewards, what trains or uses the training
MUTED = 2  # a node's mode: it is not run


class Graph:
    """A graph in the page's own format. Nodes know their definition, so values and links are given by name."""

    def __init__(self, object_info: dict[str, Any]) -> None:
        self.info = object_info
        self.nodes: list[dict[str, Any]] = []
        self.links: list[list[Any]] = []
        self.groups: list[dict[str, Any]] = []

    def add(
        self,
        kind: str,
        at: tuple[int, int],
        size: tuple[int, int],
        title: str = "",
        color: str = "",
        models: tuple[dict[str, str], ...] = (),
        **inputs: Any,
    ) -> int:
        """Adds a node and returns its id. An input is a value, or (id, output's name) for a link; others have their default.

        models: files that the node needs, {"name", "url", "directory"}: the page offers to fetch those that are not there.
        """
        info, number = self.info[kind], len(self.nodes) + 1
        sockets, values = [], []
        for name, kind_of, options in definitions(info):
            given = inputs.pop(name, None)
            shown = "COMBO" if isinstance(kind_of, list) else kind_of
            socket: dict[str, Any] = {"name": name, "type": shown, "link": None}
            if is_widget(kind_of, options):
                socket["widget"] = {"name": name}
                first = kind_of[0] if isinstance(kind_of, list) and kind_of else options.get("options", [None])[0]
                values.append(given if given is not None and not isinstance(given, tuple) else options.get("default", first))
                if has_control(name, kind_of, options):
                    values.append("fixed")
            if isinstance(given, tuple):
                socket["link"] = self._link(given, number, len(sockets))
            sockets.append(socket)
        assert not inputs, f"{kind} has no inputs {list(inputs)}"
        outputs = [
            {"name": name, "type": "COMBO" if isinstance(kind_of, list) else kind_of, "links": [], "slot_index": slot}
            for slot, (name, kind_of) in enumerate(zip(info["output_name"], info["output"], strict=True))
        ]
        self._node(number, kind, at, size, title, color, sockets, outputs, values)
        if models:
            self.nodes[-1]["properties"]["models"] = list(models)
        return number

    def note(self, text: str, at: tuple[int, int], size: tuple[int, int]) -> None:
        self._node(len(self.nodes) + 1, "MarkdownNote", at, size, "Read me", "#432", [], [], [text])

    def group(self, title: str, box: tuple[int, int, int, int], color: str = "#3f789e") -> None:
        new = {"id": len(self.groups) + 1, "title": title, "bounding": list(box), "color": color, "font_size": 24, "flags": {}}
        self.groups.append(new)

    def mute(self, *numbers: int) -> None:
        """Nodes that the user wakes when their time has come."""
        for number in numbers:
            self.nodes[number - 1]["mode"] = MUTED

    def save(self, name: str) -> dict[str, Any]:
        workflow = {
            "id": f"00000000-0000-4000-8000-{len(name):012d}",
            "revision": 0,
            "last_node_id": len(self.nodes),
            "last_link_id": len(self.links),
            "nodes": self.nodes,
            "links": self.links,
            "groups": self.groups,
            "config": {},
            "extra": {},
            "version": 0.4,
        }
        text = json.dumps(workflow, indent=1, ensure_ascii=False) + "\n"
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
        return workflow

    def _link(self, source: tuple[int, str], target: int, slot: int) -> int:
        origin = self.nodes[source[0] - 1]
        start = next(i for i, output in enumerate(origin["outputs"]) if output["name"] == source[1])
        number = len(self.links) + 1
        origin["outputs"][start]["links"].append(number)
        self.links.append([number, source[0], start, target, slot, origin["outputs"][start]["type"]])
        return number

    def _node(self, number, kind, at, size, title, color, sockets, outputs, values) -> None:
        node = {"id": number, "type": kind, "pos": list(at), "size": list(size), "flags": {}, "order": number - 1, "mode": 0}
        node |= {"inputs": sockets, "outputs": outputs}
        node["properties"] = {} if kind == "MarkdownNote" else {"Node name for S&R": kind}
        node["widgets_values"] = values
        self.nodes.append(node | ({"title": title} if title else {}) | ({"color": color} if color else {}))
