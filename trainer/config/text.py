"""YAML text <-> plain data.

Scalars follow YAML 1.2's core schema, since 1.1 has traps in a training configuration: `1e-4` would be a string, a prompt `no`
a boolean, a name `2026-11-30` a date and `010` the number 8.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from ..errors import UserError

_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?[0-9]+$")
_FLOAT = re.compile(r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$")
_NUMBER_STARTS = list("-+.0123456789")
_MAX_DIGITS = 100
_UNICODE_BREAKS = "\x85\u2028\u2029"


class Row(dict):
    """A mapping that is written on one line."""


class _Problem(yaml.MarkedYAMLError):
    def __init__(self, node: yaml.Node, problem: str) -> None:
        super().__init__(problem=problem, problem_mark=node.start_mark)


def make_loader(parser: type) -> type:
    """A safe loader on top of PyYAML's own, the fast one in C or the one in Python; both read alike."""

    class Loader(parser):
        yaml_implicit_resolvers: dict = {}  # noqa: RUF012 - PyYAML's name for the class's own table; 1.1's is dropped

        def get_single_node(self) -> yaml.Node | None:
            node = super().get_single_node()
            if node is not None:
                _check(node)
            return node

        def construct_number(self, node: yaml.ScalarNode) -> int:
            if len(node.value) > _MAX_DIGITS:
                raise _Problem(node, f"a number of {len(node.value)} digits is beyond every range")
            return int(self.construct_scalar(node))

    Loader.add_implicit_resolver(_TAG + "bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
    Loader.add_implicit_resolver(_TAG + "null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
    Loader.add_implicit_resolver(_TAG + "int", _INT, _NUMBER_STARTS)
    Loader.add_implicit_resolver(_TAG + "float", _FLOAT, _NUMBER_STARTS)
    Loader.add_constructor(_TAG + "int", Loader.construct_number)
    return Loader


def make_dumper(emitter: type) -> type:
    """A dumper that quotes whatever either reading of YAML, 1.1 or 1.2, would take for something other than a string."""

    class Dumper(emitter):
        def ignore_aliases(self, data: object) -> bool:
            return True

        def represent_text(self, data: str) -> yaml.ScalarNode:
            # PyYAML's own emitter loses these line breaks in every other style.
            style = '"' if any(mark in data for mark in _UNICODE_BREAKS) else None
            return self.represent_scalar(_TAG + "str", data, style=style)

    Dumper.add_implicit_resolver(_TAG + "float", _FLOAT, _NUMBER_STARTS)
    Dumper.add_implicit_resolver(_TAG + "int", _INT, _NUMBER_STARTS)
    Dumper.add_representer(str, Dumper.represent_text)
    Dumper.add_representer(Row, lambda dumper, row: dumper.represent_mapping(_TAG + "map", row, flow_style=True))
    return Dumper


# libyaml's are six times as fast: a file with ten thousand prompts is read in about a second.
_Loader = make_loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader))
_Dumper = make_dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper))


def parse(text: str, where: str, loader: type = _Loader) -> Any:
    """The one YAML document in `text`. Raises UserError with `where`, the line number and the reason."""
    try:
        return yaml.load(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark and "\n" in text.strip() else ""
        said = f"{error.context or ''} {error.problem}" if (error.problem or "").startswith("but ") else error.problem
        raise UserError(f"{where}{line}: {' '.join((said or error.context or 'not YAML text').split())}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{where}: not YAML text: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise UserError(f"{where}: nested too deeply") from error
    except ValueError as error:  # a tag such as !!int that its value contradicts
        raise UserError(f"{where}: {' '.join(str(error).split())}") from error


def dump(data: Any, dumper: type = _Dumper) -> str:
    """YAML text in the order of `data`; `parse` gives the same data back."""
    return yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=2**20)


def _check(root: yaml.Node) -> None:
    """Refuse keys that stand twice, keys that are no plain words, and aliases.

    Aliases let a few lines expand to gigabytes, or to a structure that holds itself; presets do their work here.
    """
    seen: set[int] = set()
    nodes = [root]
    while nodes:
        node = nodes.pop()
        if id(node) in seen:
            raise _Problem(node, "anchors and aliases (&name, *name) are not supported: write the value out")
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            nodes += reversed(node.value)
        elif isinstance(node, yaml.MappingNode):
            lines: dict[str, int] = {}
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise _Problem(key, "a key must be a plain word")
                if key.value in lines:
                    raise _Problem(key, f"the key {key.value!r} appears twice, first on line {lines[key.value]}")
                lines[key.value] = key.start_mark.line + 1
            nodes += reversed([value for _, value in node.value])
