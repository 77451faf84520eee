"""A graph as the page saves it -> the prompt that the page would queue, by the node definitions of /object_info.

Strict where the page is lenient: a missing node, a value that no widget takes, a link of the wrong type, a widget too many
are AssertionErrors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

NOT_QUEUED = ("Note", "MarkdownNote")
_WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")
_MUTED, _BYPASSED = 2, 4
_CONTROL = ("fixed", "increment", "decrement", "randomize")
Prompt = dict[str, dict[str, Any]]


def definitions(info: dict[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """(name, type or list of choices, options) of each input of a node, in the page's order."""
    for kind in ("required", "optional"):
        inputs = info["input"].get(kind, {})
        for name in info.get("input_order", {}).get(kind, inputs):
            kind_of, *options = inputs[name]
            yield name, kind_of, (options[0] if options else {})


def is_widget(kind: Any, options: dict[str, Any]) -> bool:
    return (isinstance(kind, list) or kind in _WIDGETS) and not options.get("forceInput")


def has_control(name: str, kind: Any, options: dict[str, Any]) -> bool:
    """Whether the page adds its own widget that changes the number after each run."""
    return kind == "INT" and bool(options.get("control_after_generate", name in ("seed", "noise_seed")))


def choices(kind: Any, options: dict[str, Any]) -> list[Any] | None:
    return kind if isinstance(kind, list) else options.get("options") if kind == "COMBO" else None


def to_prompt(workflow: dict[str, Any], object_info: dict[str, Any], open_choices: tuple[str, ...] = ()) -> Prompt:
    """`open_choices`: "<node type>.<input>" of lists whose content differs from machine to machine."""
    links = {link[0]: link for link in workflow["links"]}
    nodes = {node["id"]: node for node in workflow["nodes"]}
    prompt: Prompt = {}
    for node in workflow["nodes"]:
        if node["type"] in NOT_QUEUED or node.get("mode", 0) in (_MUTED, _BYPASSED):
            continue
        at = f"{node['type']} #{node['id']}"
        assert node["type"] in object_info, f"{at}: no such node"
        info = object_info[node["type"]]
        linked = {entry["name"]: entry["link"] for entry in node.get("inputs", []) if entry.get("link") is not None}
        values = list(node.get("widgets_values", []))
        inputs: dict[str, Any] = {}
        for name, kind, options in definitions(info):
            if is_widget(kind, options):
                assert values, f"{at}: no value for {name}"
                inputs[name] = _checked(values.pop(0), kind, options, f"{at}.{name}", f"{node['type']}.{name}" in open_choices)
                if has_control(name, kind, options):
                    assert values and values.pop(0) in _CONTROL, f"{at}.{name}: no control_after_generate"
            if name in linked:
                inputs[name] = _source(links[linked.pop(name)], node, nodes, object_info, kind, f"{at}.{name}")
            assert name in inputs or name not in info["input"].get("required", {}), f"{at}: {name} is not connected"
        assert not values, f"{at}: values without a widget: {values}"
        assert not linked, f"{at}: links to inputs that do not exist: {list(linked)}"
        prompt[str(node["id"])] = {"class_type": node["type"], "inputs": inputs, "_meta": {"title": node.get("title", at)}}
    return prompt


def find(prompt: Prompt, class_type: str, index: int = 0) -> str:
    """The id of the prompt's node of that type."""
    return [key for key, node in prompt.items() if node["class_type"] == class_type][index]


def _source(link: list[Any], node: Any, nodes: Any, object_info: Any, kind: Any, at: str) -> list[Any]:
    _, origin, slot, target, target_slot, kind_of_link = link
    assert target == node["id"] and node["inputs"][target_slot]["link"] == link[0], f"{at}: link {link[0]} goes elsewhere"
    assert link[0] in nodes[origin]["outputs"][slot]["links"], f"{at}: link {link[0]} is unknown where it starts"
    given = object_info[nodes[origin]["type"]]["output"][slot]
    given = "COMBO" if isinstance(given, list) else given
    wanted = "COMBO" if isinstance(kind, list) else kind
    assert given == kind_of_link, f"{at}: the link says {kind_of_link}, its source gives {given}"
    assert "*" in (given, wanted) or {*given.split(",")} & {*wanted.split(",")}, f"{at}: takes {wanted}, gets {given}"
    return [str(origin), slot]


def _checked(value: Any, kind: Any, options: dict[str, Any], at: str, open_choice: bool) -> Any:
    allowed = choices(kind, options)
    if allowed is not None:
        assert open_choice or value in allowed, f"{at} = {value!r}; allowed: {allowed}"
        return value
    types = {"INT": int, "FLOAT": (int, float), "STRING": str, "BOOLEAN": bool}[kind]
    assert isinstance(value, types) and isinstance(value, bool) == (kind == "BOOLEAN"), f"{at} = {value!r} is no {kind}"
    if kind in ("INT", "FLOAT"):
        low, high = options.get("min", value), options.get("max", value)
        assert low <= value <= high, f"{at} = {value}; allowed: {low} to {high}"
    return value
