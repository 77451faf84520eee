"""The Prompt Set node: what is trained on, and what it is judged on."""

from __future__ import annotations

from comfy_api.latest import io, ui

from ..trainer.errors import UserError
from ..trainer.prompts import SUFFIXES
from . import host, prompt_text
from .checks import one_of
from .prompt_text import FILE, NODE, SOURCES, TEXT
from .values import CATEGORY, PROMPTS

NO_FILE = "none"


class VGRPOPromptSet(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        files = [NO_FILE, *host.input_files(SUFFIXES)]
        lines = (
            "One a line; blank lines and lines that start with # are skipped. A line that starts with { is a JSON object with "
            'a prompt and metadata for rewards: {"prompt": "two red circles", "metadata": {...}}.'
        )
        return io.Schema(
            node_id="VGRPOPromptSet",
            display_name=NODE,
            category=CATEGORY,
            description="Prompts to train on, and held-out prompts that are never trained on and show what was learnt.",
            inputs=[
                io.Combo.Input(
                    "source",
                    options=list(SOURCES),
                    default=TEXT,
                    tooltip="text: the two boxes below. file: the two files below. demo, demo-letters: an embedded model's "
                    "own prompts, training and held out, those of demo with the metadata that the scene reward reads.",
                ),
                io.String.Input(
                    "train",
                    multiline=True,
                    default="",
                    placeholder="prompts to train on, one a line",
                    dynamic_prompts=False,  # braces are JSON here, not alternatives to draw from
                    tooltip=f"Prompts to train on. {lines} Used with source = text.",
                ),
                io.String.Input(
                    "held_out",
                    multiline=True,
                    default="",
                    placeholder="held-out prompts, one a line (empty: see holdout)",
                    dynamic_prompts=False,
                    optional=True,
                    tooltip="Held-out prompts, written like those above; none may stand in both. Empty: the last lines of "
                    "train are held out, see holdout. Used with source = text.",
                ),
                io.Combo.Input(
                    "train_file",
                    options=files,
                    default=NO_FILE,
                    optional=True,
                    tooltip="Prompts to train on: a .txt (one a line) or .jsonl file in ComfyUI's input folder. Used with "
                    "source = file.",
                ),
                io.Combo.Input(
                    "held_out_file",
                    options=files,
                    default=NO_FILE,
                    optional=True,
                    tooltip="Held-out prompts, a file like the one above; none: the last prompts of train_file are held out, "
                    "see holdout. Used with source = file.",
                ),
                io.Int.Input(
                    "holdout",
                    default=4,
                    min=0,
                    max=65536,
                    optional=True,
                    tooltip="Where no held-out prompts are given: so many are taken out of the end of the training "
                    "prompts, judged on and never trained on.",
                ),
            ],
            outputs=[
                PROMPTS.Output(display_name="prompts", tooltip="Training and held-out prompts."),
                io.String.Output(display_name="preview", tooltip="How many prompts there are, and the first of them."),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def fingerprint_inputs(
        cls, source: str, train_file: str | None = NO_FILE, held_out_file: str | None = NO_FILE, **_: object
    ) -> tuple:
        """A file that was edited is read again; all else is told by the inputs themselves."""
        return tuple(_state(name) for name in (train_file, held_out_file)) if source == FILE else ()

    @classmethod
    def execute(
        cls,
        source: str,
        train: str = "",
        held_out: str = "",
        train_file: str = NO_FILE,
        held_out_file: str = NO_FILE,
        holdout: int = 4,
    ) -> io.NodeOutput:
        one_of(NODE, "source", source, SOURCES)
        if source == TEXT:
            prompts = prompt_text.from_text(train, held_out, holdout)
        elif source == FILE:
            if train_file == NO_FILE:
                raise UserError(f"{NODE}: train_file = none; choose a .txt or .jsonl file (put it into ComfyUI's input folder)")
            judged = None if held_out_file == NO_FILE else host.input_file(held_out_file, SUFFIXES)
            prompts = prompt_text.from_files(host.input_file(train_file, SUFFIXES), judged, holdout)
        else:
            prompts = prompt_text.from_demo(source)
        text = prompt_text.preview(prompts)
        host.show_text(text, cls.hidden.unique_id)
        return io.NodeOutput(prompts, text, ui=ui.PreviewText(text))


def _state(name: str | None) -> tuple[int, int] | None:
    try:
        found = host.input_file(name, SUFFIXES).stat() if name and name != NO_FILE else None
    except (UserError, OSError):  # said when the node runs
        return None
    return (found.st_mtime_ns, found.st_size) if found else None


NODES: list[type[io.ComfyNode]] = [VGRPOPromptSet]
