"""The knobs of the Settings node: which key of the configuration each sets, and how a preset, knobs and further keys become
`Settings`. Imports nothing of ComfyUI.

Every knob has a value that means "as the preset says": `preset` in a list, 0 where 0 itself is not allowed, else -1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from ..trainer.config import RolloutConfig, RunConfig, load_config, load_preset, preset_names
from ..trainer.config.each import constraints
from ..trainer.config.hardware import CHOICES as HARDWARE
from ..trainer.config.table import is_section, show
from ..trainer.config.text import parse
from ..trainer.demo import DEMO
from ..trainer.errors import UserError
from ..trainer.sizes import parse_size
from .checks import one_of
from .choices import Settings, typed

NODE = "V-GRPO Settings"
NO_PRESET = NO_HARDWARE = "none"
AS_PRESET = "preset"
_MOST = 2**53 - 1  # the largest whole number that a page keeps exactly
# Sections that other nodes hold, by the names of those nodes.
_ELSEWHERE = {
    "prompts": "the Prompt Set node",
    "rewards": "the reward nodes",
    "monitors": "the reward nodes (monitor_only)",
    "preset": "the input preset of this node",
    "name": "the node V-GRPO Train LoRA",
}
_POLICY_HERE = ("vae_dtype",)  # keys of `policy` that the Policy node has no input for


@dataclass(frozen=True)
class Knob:
    """One input. `key`: the dotted key it sets. `common`: shown without being asked for. `off`: 0 stands for null.

    `last`: after the node's other inputs, so that graphs saved before it was there keep their values in place.
    """

    id: str
    key: str
    tooltip: str
    default: Any
    low: float = 0
    high: float = 0
    step: float = 1
    round: float = 1
    choices: tuple[str, ...] = ()
    is_int: bool = False
    common: bool = False
    off: bool = False
    last: bool = False


def presets() -> list[str]:
    return [NO_PRESET, *preset_names()]


def choose_settings(preset: str, values: Mapping[str, Any], more: str, sizes: str = "") -> Settings:
    """values: the knobs by input id; those left out are as the preset says. sizes: as `read_sizes` takes them.

    Raises UserError of one line: the key, its value and what is allowed.
    """
    one_of(NODE, "preset", preset, presets())
    changes = read_more(more)
    hardware = values.get("hardware") or NO_HARDWARE
    one_of(NODE, "hardware", hardware, HARDWARE)
    if hardware != NO_HARDWARE:
        _set(changes, "hardware", hardware, f"{NODE}: the input hardware and 'more'")
    for knob in KNOBS:
        value = values.get(knob.id, knob.default)
        if value is None or value == knob.default:
            continue
        if knob.choices:
            one_of(NODE, knob.id, value, knob.choices)
        elif not knob.is_int:
            value = typed(value)
        _set(changes, knob.key, None if knob.off and value == 0 else value, f"{NODE}: the input {knob.id} and 'more'")
    for key, sides in read_sizes(sizes).items():
        _set(changes, key, sides, f"{NODE}: the input sizes and another one")
    settings = Settings(None if preset == NO_PRESET else preset, changes)
    _checked(settings)
    return settings


def read_more(text: str) -> dict[str, Any]:
    """YAML -> nested plain data; dotted keys are opened up. UserError for what is no mapping and for what other nodes hold."""
    where = f"{NODE}: more"
    if not text.strip():
        return {}
    data = parse(text, where)
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UserError(f"{where} is {show(data)}; allowed: keys with values, for example optimizer: {{weight_decay: 0.01}}")
    changes: dict[str, Any] = {}
    for key, value in _leaves(data):
        first, _, rest = key.partition(".")
        home = _ELSEWHERE.get(first)
        if first == "policy" and rest.partition(".")[0] not in _POLICY_HERE:
            home = "the Policy node"
        if home:
            raise UserError(f"{where}: {key} belongs to {home}; set it there")
        _set(changes, key, value, f"{where}: two lines")
    return changes


def read_sizes(text: str) -> dict[str, list[int]]:
    """`832x1216, 1024x1024` -> the keys that it sets; {} for a blank text. UserError for what is no size."""
    try:
        sizes = [parse_size(word) for word in re.split(r"[,;\n]", text) if word.strip()]
    except ValueError as error:
        raise UserError(f"{NODE}: sizes: {error}") from error
    return {"rollout.width": [w for w, _ in sizes], "rollout.height": [h for _, h in sizes]} if sizes else {}


def differences(settings: Settings) -> str:
    """A line for each key that differs from the preset (`optimizer.lr: 0.001 -> 0.0003`), and what may disappoint."""
    untouched = Settings(settings.preset)
    mine, base = _checked(settings, untouched), _checked(untouched, settings)
    old, new = _flat(base.to_dict()), _flat(mine.to_dict())
    lines = [f"{key}: {show(old.get(key))} -> {show(new.get(key))}" for key in mine.diff_from(base)]
    start = f"preset {settings.preset}" if settings.preset else "the method's defaults"
    head = f"{start}, {len(lines)} change{'s' if len(lines) != 1 else ''}" if lines else f"{start}, unchanged"
    hardware = settings.changes.get("hardware", NO_HARDWARE)
    later = [f"hardware: {hardware}, settled when the training starts, for its base"] if hardware != NO_HARDWARE else []
    return "\n".join([head, *lines, *later, *(f"note: {warning}" for warning in mine.warnings())])


def _checked(settings: Settings, also: Settings | None = None) -> RunConfig:
    """The settings with the smallest model, prompts and rewards that let every other key be checked.

    also: settings to compare with; both then have equally many prompts.
    """
    most = max(_prompts_an_iteration(one) for one in (settings, also or settings))
    data: dict[str, Any] = {
        **settings.changes,
        "policy": {**settings.changes.get("policy", {}), "model": DEMO},
        "prompts": {"train": [f"prompt {number}" for number in range(most + 1)], "evaluate": ["held out"]},
        "rewards": {"brightness": {}},
        "monitors": {},
    }
    if settings.preset:
        data["preset"] = settings.preset
    try:
        return load_config(data)
    except UserError as error:
        raise UserError(f"{NODE}: {error}") from error


def _prompts_an_iteration(settings: Settings) -> int:
    """How many prompts an iteration draws, for as many made-up ones; whether it is allowed is checked with everything else."""
    preset = load_preset(settings.preset) if settings.preset else {}
    for data in (settings.changes, preset):
        rollout = data.get("rollout")
        value = rollout.get("prompts_per_iteration") if isinstance(rollout, dict) else None
        if isinstance(value, int):
            return min(max(value, 1), 65536)
    return RolloutConfig.model_fields["prompts_per_iteration"].default


def _leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        elif (
            value is not None or "." in prefix + key or key not in _SECTIONS
        ):  # a heading with nothing under it changes nothing
            yield f"{prefix}{key}", value


def _set(data: dict[str, Any], key: str, value: Any, who: str) -> None:
    *sections, last = key.split(".")
    for name in sections:
        data = data.setdefault(name, {})
        if not isinstance(data, dict):
            raise UserError(f"{who} both set {key}; keep one")
    if last in data:
        raise UserError(f"{who} both set {key}; keep one")
    data[last] = value


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    return dict(_leaves(data, prefix))


def _field(key: str) -> FieldInfo:
    model: Any = RunConfig
    *sections, last = key.split(".")
    for name in sections:
        model = model.model_fields[name].annotation
    return model.model_fields[last]


def _knob(name: str, key: str, step: float = 1, round: float = 1, common: bool = False, last: bool = False) -> Knob:
    """A knob whose range, choices and text are those of its key."""
    field = _field(key)
    # A page has no null: where the configuration takes it, 0 stands for it.
    text = (field.description or key).replace("null = off", "0 = off")
    text = f"{text[:1].upper()}{text[1:]}. "
    kinds = get_args(field.annotation) if get_origin(field.annotation) in (Union, UnionType) else (field.annotation,)
    literal = next((kind for kind in kinds if get_origin(kind) is Literal), None)
    if literal:
        choices = (AS_PRESET, *get_args(literal))
        text += "preset = as the preset says."
        return Knob(name, key, text, AS_PRESET, choices=choices, common=common, last=last)
    off = type(None) in kinds
    low, high = _range(field)
    zero_is_free = not off and low > 0
    default = 0 if zero_is_free else -1
    text += f"{default} = as the preset says."
    is_int = int in kinds
    high = min(high, _MOST)
    if not is_int:
        default, high = float(default), float(high)
    return Knob(name, key, text, default, default, high, step, round, (), is_int, common, off, last)


def _range(field: FieldInfo) -> tuple[float, float]:
    low, high = 0.0, float(_MOST)
    for item in constraints(field):
        if isinstance(item, annotated_types.Ge):
            low = item.ge
        elif isinstance(item, annotated_types.Gt):
            low = item.gt or 1e-12  # above 0: 0 itself is free to mean something else
        elif isinstance(item, annotated_types.Le):
            high = item.le
        elif isinstance(item, annotated_types.Lt):
            high = item.lt
    return low, high


_SECTIONS = tuple(name for name, field in RunConfig.model_fields.items() if is_section(field.annotation))
KNOBS = (
    _knob("iterations", "iterations", common=True),
    _knob("seed", "seed", common=True),
    _knob("group_size", "rollout.group_size", common=True),
    _knob("prompts_per_iteration", "rollout.prompts_per_iteration", common=True),
    _knob("sampler", "rollout.sampler"),
    _knob("steps", "rollout.steps"),
    _knob("width", "rollout.width", step=16),
    _knob("height", "rollout.height", step=16),
    _knob("guidance", "rollout.guidance", 0.1, 0.01),
    _knob("rollout_batch_size", "rollout.batch_size"),
    _knob("pairs", "surrogate.pairs"),
    _knob("share", "surrogate.share"),
    _knob("weighting", "surrogate.weighting"),
    _knob("update_batch_size", "surrogate.batch_size"),
    _knob("gradient_steps", "objective.gradient_steps"),
    _knob("clip_eps", "objective.clip_eps", 0.001, 0.00001),
    _knob("kl_coef", "objective.kl_coef", 0.01, 0.0001),
    _knob("soft_clip_eta", "objective.soft_clip_eta", 0.1, 0.01),
    _knob("lr", "optimizer.lr", 0.00001, 0.0000001, common=True),
    _knob("ema_decay", "optimizer.ema_decay", 0.01, 0.0001),
    _knob("warmup", "optimizer.warmup"),
    _knob("schedule", "optimizer.schedule"),
    _knob("evaluate_every", "evaluation.every"),
    _knob("evaluate_prompts", "evaluation.prompts"),
    _knob("checkpoint_every", "checkpoint.every"),
    _knob("checkpoint_keep", "checkpoint.keep"),
    _knob("algorithm", "algorithm", last=True),
)
