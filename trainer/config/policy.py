"""The section `policy`: what is trained, in what precision, and what saves memory."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from ..demo import EMBEDDED_MODELS
from ..families import FAMILIES as _FAMILIES
from . import fields
from .later import LATER
from .section import STAGE_1, Section

FAMILIES = tuple(_FAMILIES)
PARTS = ("vae", "text_encoder", "text_encoder_2", "text_encoder_3")  # that may lie in files of their own
TARGETS = ("attention", "attention+mlp", "attention+mlp+conv")

_NullIsNone = BeforeValidator(lambda value: "none" if value is None else value)


class LoraConfig(Section):
    rank: int = Field(32, ge=1, le=1024, description=f"rank of the LoRA factors. {STAGE_1}")
    alpha: float = Field(
        None,
        gt=0,
        le=4096,
        description=f"LoRA strength times rank; null = 2 x rank. {STAGE_1} (64 at rank 32)",
        json_schema_extra={"default_text": "2 x rank"},
    )
    targets: str | tuple[str, ...] = Field(
        "attention",
        description="which layers get a LoRA; attention+mlp+conv is for the UNet families. The names in a list are ends of "
        "module names. Default: ours",
        json_schema_extra={"takes": "attention, attention+mlp, attention+mlp+conv or a list of module name endings"},
    )
    init: str | None = Field(
        None,
        description="LoRA to continue from. A .safetensors file or a folder that holds one (diffusers, kohya or peft)",
        json_schema_extra={"takes": "null, or the path of a .safetensors file or a folder"},
    )

    @model_validator(mode="before")
    @classmethod
    def _default_alpha(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("alpha") is None:
            rank = data.get("rank", cls.model_fields["rank"].default)
            # A rank that is itself wrong is reported as such; the alpha made up here must not add a second error.
            valid = isinstance(rank, int) and not isinstance(rank, bool) and 1 <= rank <= 1024
            return {**data, "alpha": 2.0 * rank if valid else 1.0}
        return data

    @field_validator("targets", mode="before")
    @classmethod
    def _check_targets(cls, value: Any) -> Any:
        return fields.targets(value, TARGETS)

    @field_validator("init")
    @classmethod
    def _check_init(cls, value: str | None, info: ValidationInfo) -> str | None:
        return value if value is None else fields.lora_path(value, _checks_files(info))


class PolicyConfig(Section):
    family: Literal[FAMILIES] = Field("sd3", description="model family of the base")
    model: str = Field(
        description="the base: the embedded model, a diffusers folder, a hub id, or a checkpoint file",
        json_schema_extra={
            "takes": "demo, demo-letters, the path of a diffusers folder or of a .safetensors file, "
            "or a hub id such as org/name"
        },
    )
    parts: str | None = Field(
        None,
        description="what completes a checkpoint file: configurations, tokenizers, and parts that the file lacks",
        json_schema_extra={"takes": "null, the path of a diffusers folder, or a hub id such as org/name"},
    )
    files: dict[str, str] = Field(
        default_factory=dict,
        description="parts of a checkpoint file's model in files of their own: part -> .safetensors file",
        json_schema_extra={"takes": "a mapping such as {vae: ae.safetensors}", "default_text": "{}"},
    )
    tokenizers: str | None = Field(
        None,
        description="where the tokenizers of a checkpoint file are, laid out as in ComfyUI's folder comfy",
        json_schema_extra={"takes": "null, or the path of a folder"},
    )
    prediction: Literal["epsilon", "v_prediction"] | None = Field(
        None, description="what the network of a UNet family predicts, null = as the base's scheduler says"
    )
    zero_terminal_snr: bool | None = Field(
        None,
        description="whether a UNet family's last timestep is pure noise (arXiv 2305.08891), null = as the base's scheduler "
        "says",
    )
    lora: LoraConfig = Field(default_factory=lambda: LoraConfig.model_validate({}), description="the trained factors")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "bfloat16", description="number format of the frozen base; the LoRA itself is always float32. Default: ours"
    )
    vae_dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="number format of the decoder; auto = as dtype, but bfloat16 on a CPU that multiplies it in hardware "
        "(decoding is several times faster then). Default: ours",
    )
    quantization: Annotated[Literal["none", "nf4", "int8", "fp8"], _NullIsNone] = Field(
        "none",
        description="compression of the frozen denoiser: 4 or 8 bits by bitsandbytes, or float8 by torchao; installed "
        "separately. Default: ours",
    )
    offload: Annotated[Literal["none", "model", "blocks"], _NullIsNone] = Field(
        "none",
        description="what waits in the CPU's memory: nothing; model = what a phase does not need; blocks = also the blocks of "
        "the denoiser that do not compute now. Default: ours",
    )
    vae_tiling: Literal["auto", "on", "off"] = Field(
        "auto",
        description="decode in overlapping tiles: less memory, pixels that differ a little; auto = pictures of more than 4 "
        "megapixels, and where a whole one does not fit. Default: ours",
        json_schema_extra=LATER,
    )
    attention: Literal["auto", "native", "flash", "xformers", "sage"] = Field(
        "auto",
        description="library that computes the attention, where the family lets it be chosen; auto = torch's own as diffusers "
        "calls it. Default: ours",
        json_schema_extra=LATER,
    )
    compile: bool = Field(
        False,
        description="translate the denoiser's blocks by torch.compile: faster after a slow start. Default: ours",
        json_schema_extra=LATER,
    )
    gradient_checkpointing: bool = Field(
        False, description="recompute activations in the backward pass: less memory, more time. Default: ours"
    )

    @field_validator("model")
    @classmethod
    def _check_model(cls, value: str, info: ValidationInfo) -> str:
        return value if value in EMBEDDED_MODELS else fields.model_source(value, _checks_files(info))

    @field_validator("parts")
    @classmethod
    def _check_parts(cls, value: str | None, info: ValidationInfo) -> str | None:
        return value if value is None else fields.model_source(value, _checks_files(info), files=False)

    @field_validator("files")
    @classmethod
    def _check_part_files(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if unknown := [part for part in value if part not in PARTS]:
            raise ValueError(f"{unknown[0]!r} is no part; allowed: {', '.join(PARTS)}")
        return {part: fields.weights_file(path, _checks_files(info)) for part, path in value.items()}

    @field_validator("tokenizers")
    @classmethod
    def _check_tokenizers(cls, value: str | None, info: ValidationInfo) -> str | None:
        return value if value is None else fields.folder(value, _checks_files(info))


def _checks_files(info: ValidationInfo) -> bool:
    return (info.context or {}).get("check_files", True)
