"""Score Group: what rewards say about pictures, and whether a training could learn from it."""

from __future__ import annotations

import json

from comfy_api.latest import io, ui
from PIL import Image

from ..trainer.rewards.residency import park
from . import host
from .annotate import annotate
from .score_pictures import appoint, score_all, subject_of
from .score_report import best_and_worst, captions, data, marks, summary, table
from .values import CATEGORY, GROUP, REWARDS


class ScoreGroup(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="VGRPOScoreGroup",
            display_name="Score Group",
            category=CATEGORY,
            description=(
                "Scores pictures with the connected rewards and compares them within each prompt's group, as a training would: "
                "would these rewards teach anything here?"
            ),
            inputs=[
                REWARDS.Input("rewards", tooltip="The rewards and monitors to score with, from Reward nodes."),
                GROUP.Input(
                    "group",
                    optional=True,
                    tooltip="Pictures with their prompts, from Sample Prompt Group. Or use images and prompts.",
                ),
                io.Image.Input(
                    "images",
                    optional=True,
                    tooltip="Any batch of pictures, with prompts below. With a group connected they take the place of its "
                    "pictures, one by one.",
                ),
                io.String.Input(
                    "prompts",
                    default="",
                    multiline=True,
                    dynamic_prompts=False,
                    optional=True,
                    placeholder="only for images without a group: one prompt a line",
                    tooltip="For images without a group: one line for all of them, one for each, or one for equally many in a "
                    'row. Rewards that need more than the text: {"prompt": "...", "metadata": {...}} a line.',
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="annotated", tooltip="Every picture with its scores below; best and worst are tinted."
                ),
                io.Image.Output(display_name="best", tooltip="The picture with the highest advantage of each group."),
                io.Image.Output(display_name="worst", tooltip="The picture with the lowest advantage of each group."),
                io.String.Output(display_name="scores", tooltip="A table: prompt, member, every score, the advantage."),
                io.String.Output(
                    display_name="verdict",
                    tooltip="For each reward the spread within the groups, and whether it would teach anything.",
                ),
                io.String.Output(display_name="data", tooltip="Everything as JSON, for other nodes and scripts."),
                io.Float.Output(
                    display_name="advantages",
                    is_output_list=True,
                    tooltip="The advantage of each picture, as a list in their order.",
                ),
            ],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, rewards, group=None, images=None, prompts="") -> io.NodeOutput:
        subject = subject_of(group, images, prompts or "")
        judges = appoint(rewards, host.device(), host.raise_if_cancelled)
        pictures = len(subject.prompts)
        progress, shown = host.progress(pictures * len(judges.rewards)), -1

        def between(done: int) -> None:
            nonlocal shown
            host.raise_if_cancelled()
            if done != shown:  # asked four times a second, shown when something was done: the last picture that was scored
                scored = Image.fromarray(subject.images[(done - 1) % pictures].numpy()) if done else None
                progress.update_absolute(done, preview=scored)
                shown = done

        try:
            scored = score_all(subject, judges, between)
        finally:  # kept for the next execution, but not in the way of ComfyUI's own models
            park(judges.kept.values())
        best, worst = best_and_worst(scored)
        annotated = annotate(subject.images, captions(scored), marks(scored))
        images = subject.images.float() / 255
        verdict = summary(scored)
        return io.NodeOutput(
            annotated,
            images[best],
            images[worst],
            table(scored),
            verdict,
            json.dumps(data(scored), ensure_ascii=False, indent=1),
            scored.advantages.tolist(),
            ui={**ui.PreviewImage(annotated, cls=cls).as_dict(), "text": (verdict,)},
        )


NODES: list[type[io.ComfyNode]] = [ScoreGroup]
