"""The V-GRPO Settings node: the method's knobs over a preset."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io, ui

from ..trainer.errors import UserError
from . import host, knobs
from .knobs import KNOBS, NODE, Knob
from .values import CATEGORY, SETTINGS, collapsed


class VGRPOSettings(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="VGRPOSettings",
            display_name=NODE,
            category=CATEGORY,
            description="How V-GRPO trains: a preset, and what is to differ from it. Rare knobs are under Show Advanced.",
            inputs=[
                io.Combo.Input(
                    "preset",
                    options=knobs.presets(),
                    default="demo",
                    tooltip="Where every knob starts: demo suits the embedded model, any other base has a preset of its "
                    "family's name, none is the method's own defaults. Model, prompts and rewards come from their own nodes.",
                ),
                *(_input(knob) for knob in KNOBS if not knob.last),
                collapsed(
                    io.String.Input(
                        "more",
                        multiline=True,
                        default="",
                        placeholder="further keys, as YAML: optimizer: {weight_decay: 0.01}",
                        dynamic_prompts=False,
                        optional=True,
                        tooltip="Any other key of the configuration, as YAML, for example 'optimizer: {weight_decay: 0.01}' or "
                        "'optimizer.weight_decay: 0.01'. docs/configuration.md lists them all.",
                    )
                ),
                collapsed(
                    io.String.Input(
                        "sizes",
                        default="",
                        placeholder="832x1216, 1024x1024, 1216x832",
                        dynamic_prompts=False,
                        optional=True,
                        tooltip="Several sizes (aspect buckets) in place of width and height: each prompt group draws one of "
                        "them. Sets rollout.width and rollout.height.",
                    )
                ),
                *(_input(knob) for knob in KNOBS if knob.last),
            ],
            outputs=[
                SETTINGS.Output(display_name="settings", tooltip="How V-GRPO Train LoRA trains."),
                io.String.Output(
                    display_name="changes", tooltip="What differs from the preset, a line each, and what may disappoint."
                ),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, more: str | None = None, sizes: str | None = None) -> bool | str:
        try:
            knobs.read_more(more or "")
            knobs.read_sizes(sizes or "")
        except UserError as error:
            return str(error)
        return True

    @classmethod
    def execute(cls, preset: str, more: str = "", sizes: str = "", **values: Any) -> io.NodeOutput:
        settings = knobs.choose_settings(preset, values, more, sizes)
        text = knobs.differences(settings)
        host.show_text(text, cls.hidden.unique_id)
        return io.NodeOutput(settings, text, ui=ui.PreviewText(text))


def _input(knob: Knob) -> io.Input:
    common = {"default": knob.default, "tooltip": knob.tooltip, "optional": True}
    if knob.choices:
        made = io.Combo.Input(knob.id, options=list(knob.choices), **common)
    elif knob.is_int:
        # False: an input called seed would otherwise draw a new number at each run, and so start a new training.
        made = io.Int.Input(knob.id, min=knob.low, max=knob.high, step=int(knob.step), control_after_generate=False, **common)
    else:
        made = io.Float.Input(knob.id, min=knob.low, max=knob.high, step=knob.step, round=knob.round, **common)
    return made if knob.common else collapsed(made)


NODES: list[type[io.ComfyNode]] = [VGRPOSettings]
