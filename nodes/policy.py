"""The Policy node: what is trained."""

from __future__ import annotations

from pathlib import Path

from comfy_api.latest import io

from ..trainer.families import FAMILIES
from . import bases, host
from .bases import AS_PRESET, AUTO, EMBEDDED, EMBEDDED_BASES, FROM_BASE, NO_LORA
from .values import CATEGORY, POLICY, collapsed


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
                    options=[*EMBEDDED_BASES, *host.model_folders(), *_file_bases()],
                    default=EMBEDDED,
                    tooltip="The frozen base: an embedded model, which needs no download; a diffusers folder in "
                    "models/diffusers; a checkpoint; or a diffusion model, whose text encoders and VAE stand below. Families: "
                    f"{', '.join(family.title for family in FAMILIES.values())}.",
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
                    tooltip="Which layers get a LoRA: those of the attention, those of the MLPs as well, or (UNets: SD 1.5 and "
                    "SDXL) the convolutions too.",
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
                io.Combo.Input(
                    "prediction",
                    options=list(bases.PREDICTIONS),
                    default=AUTO,
                    optional=True,
                    tooltip="What the network of an SD 1.5 or SDXL model predicts. auto = as its folder says, which is wrong "
                    "for some v-prediction models (NoobAI's: v_prediction, zero terminal SNR).",
                ),
                *(
                    io.Combo.Input(
                        part,
                        options=[FROM_BASE, *_files(folder)],
                        default=FROM_BASE,
                        optional=True,
                        tooltip=f"A base that is a file: its {part.replace('_', ' ')} in a file of its own, out of "
                        f"models/{folder}. {FROM_BASE} = the base holds it, or needs none.",
                    )
                    for part, folder in bases.PART_FOLDERS.items()
                ),
                *(
                    collapsed(
                        io.Combo.Input(
                            key,
                            options=list(choices),
                            default=AS_PRESET,
                            optional=True,
                            tooltip=f"{bases.tooltip(key)}. {AS_PRESET} = as the preset of V-GRPO Settings says.",
                        )
                    )
                    for key, choices in bases.SAVINGS.items()
                ),
                collapsed(io.Boolean.Input("compile", default=False, optional=True, tooltip=f"{bases.tooltip('compile')}.")),
            ],
            outputs=[POLICY.Output(display_name="policy", tooltip="What V-GRPO Train LoRA trains.")],
        )

    @classmethod
    def execute(
        cls,
        base: str,
        rank: int,
        alpha: float,
        targets: str,
        start_from: str,
        dtype: str,
        gradient_checkpointing: bool,
        prediction: str = AUTO,
        vae: str = FROM_BASE,
        text_encoder: str = FROM_BASE,
        text_encoder_2: str = FROM_BASE,
        text_encoder_3: str = FROM_BASE,
        quantization: str = AS_PRESET,
        offload: str = AS_PRESET,
        vae_tiling: str = AS_PRESET,
        attention: str = AS_PRESET,
        compile: bool = False,
    ) -> io.NodeOutput:
        given = {"vae": vae, "text_encoder": text_encoder, "text_encoder_2": text_encoder_2, "text_encoder_3": text_encoder_3}
        parts = {part: host.model_file(bases.PART_FOLDERS[part], name) for part, name in given.items() if name != FROM_BASE}
        init = None if start_from == NO_LORA else host.lora_file(start_from)
        chosen = bases.choose_policy(
            _base(base),
            rank,
            alpha,
            targets,
            init,
            dtype,
            gradient_checkpointing,
            prediction,
            parts,
            host.comfy_folder(),
            {"quantization": quantization, "offload": offload, "vae_tiling": vae_tiling, "attention": attention},
            compile,
        )
        return io.NodeOutput(chosen)


def _files(folder: str) -> list[str]:
    return [name for name in host.models(folder) if name.lower().endswith(bases.FILE)]


def _file_bases() -> list[str]:
    """`checkpoints/<name>`, `diffusion_models/<name>`."""
    return [f"{folder}/{name}" for folder in bases.FILE_FOLDERS for name in _files(folder)]


def _base(name: str) -> Path | str:
    """The embedded model, folder or file behind a name of the list. Raises UserError for any other text."""
    if name in EMBEDDED_BASES:
        return EMBEDDED_BASES[name]
    folder, _, file = name.partition("/")
    if folder in bases.FILE_FOLDERS:
        return host.model_file(folder, file)
    return host.diffusers_folder(name)


NODES: list[type[io.ComfyNode]] = [VGRPOPolicy]
