"""Load Run and Apply Run LoRA: what a run has made so far, in any graph, while it trains and after."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..trainer.errors import UserError
from . import host, pictures
from .run_lora import lora_tensors, misfit_error, misfits
from .run_reading import (
    BEST,
    ITERATION,
    LATEST,
    config_of,
    digest,
    fingerprint,
    metrics_text,
    nothing_chosen,
    open_run,
    run_ids,
    view,
)
from .values import CATEGORY, RUN, RunRef

NO_RUNS = "(no run yet)"  # what the list holds while there is none; it stays in workflows saved then


class VGRPOLoadRun(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="VGRPOLoadRun",
            display_name="Load Run",
            category=CATEGORY,
            description="A training run from the output folder: its checkpoint, reward curve, held-out pictures and numbers.",
            inputs=[
                io.Combo.Input(
                    "run",
                    options=run_ids(host.runs_root()) or [NO_RUNS],
                    tooltip="The run, newest first. Press R to see runs that were made since the page loaded.",
                ),
                io.Combo.Input(
                    "checkpoint",
                    options=[LATEST, BEST, ITERATION],
                    default=LATEST,
                    tooltip="latest: the newest there is when this runs, so it follows a training. best: the highest reward on "
                    "held-out prompts. iteration: the one given below.",
                ),
                io.Int.Input(
                    "iteration",
                    default=0,
                    min=0,
                    max=1_000_000,
                    tooltip="Which iteration, if checkpoint is 'iteration'; 0 shows the pictures from before training.",
                ),
            ],
            outputs=[
                RUN.Output(display_name="run", tooltip="For Apply Run LoRA."),
                io.Image.Output(display_name="curve", tooltip="Reward over iterations, training and held-out prompts."),
                io.Image.Output(
                    display_name="grid", tooltip="Held-out pictures of that checkpoint, by prompt, then seed: one IMAGE batch."
                ),
                io.String.Output(display_name="metrics", tooltip="State and held-out rewards before and after, as text."),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, run: str) -> bool | str:
        """Lenient: an old workflow loads and says what is missing only when it is run."""
        return True

    @classmethod
    def fingerprint_inputs(cls, run: str | None = None, **_: Any) -> str:
        """Another value whenever the run has grown, so that queueing again shows it."""
        if run is None:  # it comes over a link, and is not known yet
            return digest([fingerprint(open_run(host.runs_root(), name)) for name in run_ids(host.runs_root())])
        try:
            return digest(fingerprint(open_run(host.runs_root(), run)))
        except UserError as error:
            return str(error)

    @classmethod
    def execute(cls, run: str, checkpoint: str = LATEST, iteration: int = 0) -> io.NodeOutput:
        if run == NO_RUNS:
            raise UserError(nothing_chosen(host.runs_root()))
        found = open_run(host.runs_root(), run)
        word = str(iteration) if checkpoint == ITERATION else checkpoint
        shown, config = view(found, word), config_of(found)
        grid, note = pictures.evaluation_pictures(found, config, shown.evaluation)
        text = metrics_text(found, config, shown, (note,) if note else ())
        host.show_text(text, cls.hidden.unique_id)
        ui = {"text": [text], "vgrpo_run": [found.id], **pictures.ui_images(found, shown.evaluation, host.RUNS_FOLDER)}
        return io.NodeOutput(RunRef(found.id, word), pictures.curve(found, config), grid, text, ui=ui)


class VGRPOApplyRunLoRA(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="VGRPOApplyRunLoRA",
            display_name="Apply Run LoRA",
            category=CATEGORY,
            description="Puts a run's LoRA on a model, also while the run still trains.",
            inputs=[
                io.Model.Input("model", tooltip="The base model that the run was trained on."),
                RUN.Input(
                    "run",
                    tooltip="From Load Run, which chooses the checkpoint, or from V-GRPO Train LoRA (the latest one).",
                ),
                io.Float.Input(
                    "strength",
                    default=1.0,
                    min=-20.0,
                    max=20.0,
                    step=0.05,
                    tooltip="1 is what was trained, 0 leaves the model as it is, less than 0 pushes the other way.",
                ),
            ],
            outputs=[io.Model.Output(display_name="model", tooltip="The model with the LoRA.")],
        )

    @classmethod
    def execute(cls, model: Any, run: RunRef, strength: float = 1.0) -> io.NodeOutput:
        if strength == 0:
            return io.NodeOutput(model)
        found = open_run(host.runs_root(), run.id)
        tensors, _ = lora_tensors(found, run.checkpoint)
        import comfy.lora
        import comfy.sd

        weights = model.model.state_dict()
        missing, total = misfits(tensors, comfy.lora.model_lora_keys_unet(model.model, {}), weights.get)
        if missing:
            raise misfit_error(found, missing, total)
        patched, _ = comfy.sd.load_lora_for_models(model, None, tensors, strength, 0.0)
        return io.NodeOutput(patched)


NODES: list[type[io.ComfyNode]] = [VGRPOLoadRun, VGRPOApplyRunLoRA]
