"""Load Demo Model: the embedded model as ComfyUI's own MODEL, CLIP and VAE objects."""

from __future__ import annotations

import inspect
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from comfy_api.latest import io

from ..trainer.demo import EMBEDDED_MODELS, MODEL_DIR
from ..trainer.errors import UserError, one_line
from .bases import EMBEDDED, EMBEDDED_BASES
from .checks import one_of
from .values import CATEGORY

NAME = "Load Demo Model"
TAESD_WIDTH = 64  # channels, fixed in ComfyUI's class
DTYPE = torch.float32  # the files are in half precision to be small; the trainer, too, computes in float32


class LoadDemoModel(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="VGRPOLoadDemoModel",
            display_name=NAME,
            category=CATEGORY,
            description=(
                "The small SD3s that come with the pack, for trying everything out without a download. One draws coloured "
                "shapes at 64 x 64 pixels, one writes words of three letters at 64 x 32, each in its own world of prompts; "
                "KSampler: euler, simple, 4 steps, cfg 1."
            ),
            inputs=[
                io.Combo.Input(
                    "model",
                    options=list(EMBEDDED_BASES),
                    default=EMBEDDED,
                    optional=True,
                    tooltip="Which embedded model: the one that draws shapes, or the one that writes letters.",
                )
            ],
            outputs=[
                io.Model.Output(display_name="MODEL", tooltip="The denoiser. Loras trained on the embedded model fit on it."),
                io.Clip.Output(
                    display_name="CLIP", tooltip="Both text encoders. Prompts are cut after 18 tokens, letters' after 14."
                ),
                io.Vae.Output(display_name="VAE", tooltip="The autoencoder: 16 latent channels, 8 pixels a latent."),
            ],
        )

    @classmethod
    def execute(cls, model: str = EMBEDDED) -> io.NodeOutput:
        one_of(NAME, "model", model, tuple(EMBEDDED_BASES))
        folder = EMBEDDED_MODELS[EMBEDDED_BASES[model]].model
        return io.NodeOutput(load_model(folder), load_clip(folder), load_vae(folder))


def load_model(folder: Path = MODEL_DIR):
    """The denoiser as a ModelPatcher; ComfyUI recognises the diffusers weights as an SD3 and converts them."""
    import comfy.sd

    model = comfy.sd.load_diffusion_model_state_dict(_weights(folder, "transformer"), model_options={"dtype": DTYPE})
    if model is None:
        raise UserError(f"this ComfyUI does not recognise the embedded model in {folder} as an SD3; update the pack")
    return model


def load_clip(folder: Path = MODEL_DIR):
    """Both text encoders as a `comfy.sd.CLIP`."""
    import comfy.sd

    from .demo_clip import ENCODERS, DemoTextEncoders, DemoTokenizer

    weights = {f"clip_{name}.{key}": value for name, part in ENCODERS.items() for key, value in _weights(folder, part).items()}
    target = SimpleNamespace(
        params={},
        clip=partial(DemoTextEncoders, folder),
        tokenizer=lambda embedding_directory=None, tokenizer_data=None: DemoTokenizer(folder),
    )
    options = {"parameters": sum(value.numel() for value in weights.values()), "model_options": {"dtype": DTYPE}}
    # Newer versions read the weights while they build the object, so that they can place them; 0.3.75 reads them afterwards.
    if "state_dict" in inspect.signature(comfy.sd.CLIP.__init__).parameters:
        return comfy.sd.CLIP(target, state_dict=[weights], **options)
    clip = comfy.sd.CLIP(target, **options)
    missing, unexpected = clip.load_sd(weights)
    if missing or unexpected:
        raise UserError(f"the text encoders in {folder} do not fit, first {[*missing, *unexpected][0]}; reinstall the pack")
    return clip


def load_vae(folder: Path = MODEL_DIR):
    """The autoencoder as a `comfy.sd.VAE`."""
    import comfy.sd

    return comfy.sd.VAE(sd=vae_weights(_weights(folder, "vae")), dtype=DTYPE)


def vae_weights(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A diffusers `AutoencoderTiny`'s weights under the names of ComfyUI's TAESD, and as wide as that is.

    Channels that a narrower one lacks are 0 in every layer, so its output stays what it is.
    """
    missing = TAESD_WIDTH - weights["encoder.layers.0.weight"].shape[0]
    renamed = {"vae_scale": torch.tensor(1.0), "vae_shift": torch.tensor(0.0)}
    for name, value in weights.items():
        part, number, rest = re.fullmatch(r"(encoder|decoder)\.layers\.(\d+)\.(.*)", name).groups()
        # ComfyUI's decoder has its clamp as a layer of its own.
        added = [0 if size != TAESD_WIDTH - missing else missing for size in value.shape]
        padding = [amount for more in reversed(added) for amount in (0, more)]
        renamed[f"taesd_{part}.{int(number) + (part == 'decoder')}.{rest}"] = torch.nn.functional.pad(value, padding)
    return renamed


def _weights(folder: Path, part: str) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    found = sorted((folder / part).glob("*.safetensors"))
    if len(found) != 1:
        raise UserError(f"the embedded model lacks its file of weights in {folder / part}; reinstall the pack")
    try:
        return {name: value.to(DTYPE) for name, value in load_file(found[0]).items()}
    except Exception as error:
        raise UserError(f"{found[0]} cannot be read ({one_line(error)}); reinstall the pack") from error


NODES: list[type[io.ComfyNode]] = [LoadDemoModel]
