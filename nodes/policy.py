"""The Policy node: what is trained."""

from __future__ import annotations

from comfy_api.latest import io

from . import bases, host
from .bases import AUTO, EMBEDDED, NO_LORA
from .values import CATEGORY, POLICY


class VGRPOPolicy(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="VGRPOPolicy",
            display_name=bases.NODE,
            category=CATEGORY,
            description="What is trained: a frozen base model and the LoRA that V-GRPO puts on it.",
            inputs=[
                io.Combo.Input(
                    "base",
                    # Single checkpoint files join this list with the first family that trains from one.
                    options=[EMBEDDED, *host.model_folders()],
                    default=EMBEDDED,
                    tooltip="The frozen base: the embedded model, which needs no download, or a diffusers folder in "
                    f"models/diffusers that holds a {' or '.join(bases.PIPELINES)}.",
                ),
                io.Int.Input(
                    "rank",
                    default=16,
                    min=1,
                    max=1024,
                    tooltip="Rank of the LoRA factors: 16 suits the embedded model, 32 is the paper's for SD 3.5 Medium.",
                ),
                io.Float.Input(
                    "alpha",
                    default=0.0,
                    min=0.0,
                    max=4096.0,
                    step=1.0,
                    round=0.01,
                    tooltip="LoRA strength times rank; 0 = 2 x rank, as in the paper.",
                ),
                io.Combo.Input(
                    "targets",
                    options=list(bases.TARGETS),
                    default="attention+mlp",
                    tooltip="Which linear layers get a LoRA: those of the attention, or those of the MLPs as well.",
                ),
                io.Combo.Input(
                    "start_from",
                    options=[NO_LORA, *(name for name in host.loras() if name.lower().endswith(".safetensors"))],
                    default=NO_LORA,
                    tooltip="A LoRA of the same base to continue from (diffusers, kohya or peft keys), out of the loras "
                    "folders; none = a new one.",
                ),
                io.Combo.Input(
                    "dtype",
                    options=list(bases.DTYPES),
                    default=AUTO,
                    tooltip=f"{bases.tooltip('dtype')}. auto = float32 for the embedded model, bfloat16 for others.",
                ),
                io.Boolean.Input(
                    "gradient_checkpointing", default=False, tooltip=f"{bases.tooltip('gradient_checkpointing')}."
                ),
            ],
            outputs=[POLICY.Output(display_name="policy", tooltip="What V-GRPO Train LoRA trains.")],
        )

    @classmethod
    def execute(
        cls, base: str, rank: int, alpha: float, targets: str, start_from: str, dtype: str, gradient_checkpointing: bool
    ) -> io.NodeOutput:
        folder = None if base == EMBEDDED else host.diffusers_folder(base)
        init = None if start_from == NO_LORA else host.lora_file(start_from)
        return io.NodeOutput(bases.choose_policy(folder, rank, alpha, targets, init, dtype, gradient_checkpointing))


NODES: list[type[io.ComfyNode]] = [VGRPOPolicy]
