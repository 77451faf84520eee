"""Text encoders and decoders from the tensors of a file, whose names are those of ComfyUI's files or the library's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError

State = dict[str, torch.Tensor]

_LDM = ("cond_stage_model.", "conditioner.embedders.")
_LAST_LAYER = "lm_head.weight"  # a language model's; pipelines take what lies below it, and ComfyUI's files may lack it


def build_text_encoder(cls: Any, state: State, reference: str, name: str, dtype: torch.dtype) -> torch.nn.Module:
    """A transformers model `name` of the folder or hub id `reference`. Raises UserError for tensors that are missing.

    CLIP goes through diffusers' converter where the names are LDM's or open_clip's; transformers itself knows its older names.
    """
    if any(key.startswith(_LDM) for key in state):
        from diffusers.loaders.single_file_utils import create_diffusers_clip_model_from_ldm

        return create_diffusers_clip_model_from_ldm(
            cls,
            checkpoint=state,
            config=reference,
            subfolder=name,
            torch_dtype=dtype,
            local_files_only=Path(reference).is_dir(),
        )
    config = cls.config_class.from_pretrained(reference, subfolder=name)
    if cls.__name__.endswith("WithProjection"):  # files of CLIP-L alone leave it out; it is the identity then
        state.setdefault("text_projection.weight", torch.eye(config.projection_dim, config.hidden_size))
    model, found = cls.from_pretrained(None, config=config, state_dict=state, torch_dtype=dtype, output_loading_info=True)
    _require(cls, name, sorted(set(found["missing_keys"]) - {_LAST_LAYER}))
    if _LAST_LAYER in found["missing_keys"]:
        torch.nn.init.zeros_(model.lm_head.weight)
    return model.eval()


def build_decoder(cls: Any, state: State, reference: str, dtype: torch.dtype) -> torch.nn.Module:
    """A diffusers autoencoder. Raises UserError for tensors that are missing."""
    config = cls.load_config(reference, subfolder="vae", local_files_only=Path(reference).is_dir())  # else it is a hub id
    with torch.device("meta"):
        model = cls.from_config(config)
    known, convert = model.state_dict(), _CONVERTED.get(cls.__name__)
    if convert and not known.keys() <= state.keys():
        state = convert(state, dict(model.config))
    _require(cls, "vae", [key for key in known if key not in state])
    model.load_state_dict({key: state[key] for key in known}, assign=True)
    return model.to(dtype).eval()


def _ldm_vae(state: State, config: dict[str, Any]) -> State:
    from diffusers.loaders.single_file_utils import convert_ldm_vae_checkpoint

    return convert_ldm_vae_checkpoint(state, config)


def _flux2_vae(state: State, config: dict[str, Any]) -> State:
    """LDM's names, two of them inside encoder and decoder, and the statistics of the latents."""
    moved = {"encoder.quant_conv.": "quant_conv.", "decoder.post_quant_conv.": "post_quant_conv."}
    for old, new in moved.items():
        state = {new + key[len(old) :] if key.startswith(old) else key: value for key, value in state.items()}
    statistics = {key: value for key, value in state.items() if key.startswith("bn.")}
    return {**_ldm_vae(state, config), **statistics}


def _qwen_vae(state: State, config: dict[str, Any]) -> State:
    """Qwen-Image's autoencoder has Wan's layers, and its file Wan's names."""
    from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers

    return convert_wan_vae_to_diffusers(state)


# From the names of files to the class's own.
_CONVERTED: dict[str, Callable[[State, dict[str, Any]], State]] = {
    "AutoencoderKL": _ldm_vae,
    "AutoencoderKLFlux2": _flux2_vae,
    "AutoencoderKLQwenImage": _qwen_vae,
}


def _require(cls: Any, name: str, lacking: list[str]) -> None:
    if lacking:
        raise UserError(
            f"policy.files: the file of {name} lacks {len(lacking)} tensors of a {cls.__name__}, first {lacking[0]}; put the "
            f"right file into policy.files.{name}"
        )
