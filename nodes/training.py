"""V-GRPO Train LoRA: policy, prompts, rewards and settings become a run in a process of its own."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

from comfy_api.latest import io

from ..trainer import runs
from ..trainer.demo import EMBEDDED_MODELS
from ..trainer.errors import UserError
from . import host, jobs, pictures
from . import training_flow as flow
from .assemble import assemble
from .checks import one_of
from .publish import publish
from .run_reading import LATEST, state_of, view
from .values import CATEGORY, POLICY, PROMPTS, REWARDS, RUN, SETTINGS, PolicyChoice, PromptSet, RewardChoice, RunRef, Settings

NODE = "V-GRPO Train LoRA"


class _NameType(str):
    """The type of a name that is text and, in a list of files, one of its entries: stock Load LoRA takes it over a link.

    ComfyUI compares a link's types with `!=`; a list of files is a list there, and "COMBO" on the page. An input for anything
    ("*", as Preview Any has) relies on the same comparison.
    """

    def __ne__(self, other: object) -> bool:
        return False if isinstance(other, list) or other == "*" else str.__ne__(self, other)

    __hash__ = str.__hash__


class _NameOutput(io.String.Output):
    @property
    def io_type(self) -> str:
        return _NameType("STRING,COMBO")


class VGRPOTrainLoRA(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="VGRPOTrainLoRA",
            display_name=NODE,
            category=CATEGORY,
            description="Trains a LoRA with V-GRPO in a process of its own, which goes on when the page or ComfyUI is closed. "
            "Queueing the same graph again shows the same run; it is never started twice.",
            inputs=[
                POLICY.Input("policy", tooltip="What is trained: the base model and the LoRA on it, from Policy."),
                PROMPTS.Input(
                    "prompts", tooltip="What is trained on, and the held-out prompts it is judged by, from Prompt Set."
                ),
                REWARDS.Input("rewards", tooltip="What is maximised, from one reward node or a chain of them."),
                SETTINGS.Input(
                    "settings",
                    optional=True,
                    tooltip="How it trains, from V-GRPO Settings. Without: the preset 'demo' or that of the family.",
                ),
                io.String.Input(
                    "name",
                    default="my-lora",
                    tooltip="Names the run and its LoRA. It does not make the training another one: see take.",
                ),
                io.Combo.Input(
                    "mode",
                    options=list(flow.MODES),
                    default=flow.BACKGROUND,
                    tooltip="background: starts the run and is done; the queue stays free, queueing again shows how far it is. "
                    "wait: shows progress and pictures here until the LoRA is ready for the nodes behind.",
                ),
                io.Int.Input(
                    "take",
                    default=0,
                    min=0,
                    max=1_000_000,
                    control_after_generate=False,
                    tooltip="Raise it to train the same thing again. With the same take, the run that exists is shown.",
                ),
                io.Combo.Input(
                    "device",
                    options=list(flow.DEVICES),
                    default=flow.DEVICES[0],
                    tooltip="Where it trains; auto takes the device that ComfyUI itself uses. One run a device, others wait.",
                ),
                io.Combo.Input(
                    "on_cancel",
                    options=list(flow.ON_CANCEL),
                    default=flow.AS_IN_SETTINGS,
                    tooltip="What Cancel does to the run while this node waits. detach: it goes on in the background. pause: "
                    "it frees the GPU and keeps its place. stop and save: queueing again goes on from its checkpoint.",
                ),
            ],
            outputs=[
                RUN.Output(display_name="run", tooltip="For Apply Run LoRA: the newest checkpoint."),
                _NameOutput(
                    display_name="lora_name",
                    tooltip="The finished LoRA as Load LoRA lists it, also for its lora_name input; empty while a background "
                    "run is unfinished.",
                ),
                io.Image.Output(display_name="curve", tooltip="Reward over iterations so far."),
                io.Image.Output(
                    display_name="grid", tooltip="The newest held-out pictures, by prompt, then seed: one IMAGE batch."
                ),
            ],
            is_output_node=True,
            hidden=[io.Hidden.unique_id, io.Hidden.prompt, io.Hidden.extra_pnginfo],
        )

    @classmethod
    def validate_inputs(cls, device: str | None = None) -> bool | str:
        """Any device that the trainer may know, cuda:7 too; whether this machine has it, the trainer says."""
        return (device is not None and flow.device_problem(device)) or True  # None: it comes over a link

    @classmethod
    def fingerprint_inputs(cls, take: int | None = None, **_: Any) -> str:
        return flow.take_fingerprint(host.runs_root(), take)

    @classmethod
    def execute(
        cls,
        policy: PolicyChoice,
        prompts: PromptSet,
        rewards: RewardChoice,
        name: str = "my-lora",
        mode: str = flow.BACKGROUND,
        take: int = 0,
        device: str = "auto",
        on_cancel: str = flow.AS_IN_SETTINGS,
        settings: Settings | None = None,
    ) -> io.NodeOutput:
        one_of(NODE, "mode", mode, flow.MODES)
        one_of(NODE, "on_cancel", on_cancel, flow.ON_CANCEL)
        if problem := flow.device_problem(device):
            raise UserError(f"{NODE}: device = {problem}")
        node_id, waits = cls.hidden.unique_id, mode == flow.WAIT
        config = assemble(policy, prompts, rewards, settings or default_settings(policy), name)

        def free() -> None:
            wanted = host.device() if device == "auto" else device
            jobs.check_device(wanted)
            # A run that joins a line needs nothing yet; when its turn comes, the watcher asks.
            if wanted != "cpu" and not jobs.in_use(wanted):
                host.free_models()

        origin = cls._origin()
        obtained = flow.obtain(jobs, config, take, device, origin, free, waits, host.raise_if_cancelled)
        run = obtained.run
        # At once, for the pages: a node that waits gives its output only at the end.
        host.send("vgrpo.node", {"run": run.id, "node": node_id, "workflow": origin.get("workflow_id"), "time": time.time()})
        if waits:

            def cancelled() -> None:
                if action := flow.on_cancel_action(on_cancel, host.setting(flow.CANCEL_SETTING, flow.DETACH)):
                    jobs.control(run, action)

            bar, say = host.progress(config.iterations, node_id), partial(host.show_text, node_id=node_id)
            with flow.on_interrupt(cancelled):
                state = flow.follow(run, bar, host.raise_if_cancelled, pictures.grid_preview, say)
            if error := flow.ending_error(run, state):
                raise error
        state = state_of(run)
        lora = publish(run) if state is not None and state.status == runs.FINISHED else ""
        shown = view(run, LATEST)
        grid, _ = pictures.evaluation_pictures(run, config, shown.evaluation)
        text = flow.status_text(obtained, lora)
        host.show_text(text, node_id)
        ui = {"text": [text], "vgrpo_run": [run.id], **pictures.ui_images(run, shown.evaluation, host.RUNS_FOLDER)}
        return io.NodeOutput(RunRef(run.id), lora, pictures.curve(run, config), grid, ui=ui)

    @classmethod
    def _origin(cls) -> dict[str, Any]:
        """What the run keeps of the graph that made it."""
        graph = (cls.hidden.extra_pnginfo or {}).get("workflow")
        found = {
            "node": cls.hidden.unique_id,
            "workflow": graph,
            "workflow_id": graph.get("id") if isinstance(graph, dict) else None,
            "prompt": cls.hidden.prompt,
        }
        return {key: json.loads(json.dumps(value, default=str)) for key, value in found.items() if value is not None}


def default_settings(policy: PolicyChoice) -> Settings:
    """The preset that fits the base, unchanged."""
    embedded = EMBEDDED_MODELS.get(policy.config.get("model"))
    return Settings(embedded.preset if embedded else policy.config["family"])


NODES: list[type[io.ComfyNode]] = [VGRPOTrainLoRA]
