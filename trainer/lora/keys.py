"""The keys of other tools' LoRA files: which part of which module a key means."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import UserError
from .families import Family, Network

_DOWN = r"lora_A(?:\.[^.]+)?\.weight|lora_A|lora_down\.weight|lora\.down\.weight|lora_linear_layer\.down\.weight"
_UP = r"lora_B(?:\.[^.]+)?\.weight|lora_B|lora_up\.weight|lora\.up\.weight|lora_linear_layer\.up\.weight"
_KEY = re.compile(rf"(?P<module>.+?)\.(?:(?P<down>{_DOWN})|(?P<up>{_UP})|(?P<alpha>alpha))")
# diffusers before 0.23 put a UNet's factors into attention processors: `attn1.processor.to_out_lora.down.weight`.
_PROCESSOR = re.compile(r"(?P<attention>.+)\.processor\.(?P<to>to_[qkv]|to_out)_lora\.(?P<rest>(?:down|up)\.weight)")

_DOTTED_PREFIXES = ("base_model.model.", "model.diffusion_model.", "diffusion_model.", "unet.")
_FLAT_PREFIXES = ("lora_unet_", "lora_transformer_", "lycoris_")
_TEXT_ENCODER = ("text_encoder", "lora_te")

_OTHER_KINDS = (
    (("dora_scale", "lora_magnitude_vector"), "DoRA"),
    (("lokr_",), "LoKr"),
    (("hada_",), "LoHa"),
    (("lora_mid",), "LoCon"),
    (("lora_B.bias",), "LoRA with trained biases"),
)

# First match wins: families share names (transformer_blocks), and an SDXL is told from a Stable Diffusion 1.5 by its depth.
_LOOKS_LIKE = (
    (r"(down_blocks|mid_block|up_blocks|input_blocks|output_blocks|middle_block).*transformer_blocks[._][1-9]", "SDXL"),
    (r"down_blocks|up_blocks|mid_block|input_blocks|output_blocks|middle_block", "Stable Diffusion 1.5 or SDXL"),
    (r"distilled_guidance_layer", "Chroma"),
    (r"to_qkv_mlp_proj|linear_in|(double|single)_stream_modulation", "FLUX.2"),
    (r"single_transformer_blocks|double_blocks|single_blocks", "FLUX"),
    (r"img_mod|img_mlp|txt_mlp|txt_mod", "Qwen-Image"),
    (r"noise_refiner|context_refiner|layers[._]\d+[._](attention|feed_forward|adaLN)", "Z-Image or Lumina"),
    (r"(?<!transformer_)(?<!joint_)blocks[._]\d+[._](self_attn|cross_attn|ffn)", "Wan"),
    (r"joint_blocks|transformer_blocks", "Stable Diffusion 3"),
)


@dataclass(frozen=True)
class Target:
    """A diffusers module of the network, or an original module that stands for several of them."""

    name: str
    native: bool


class KeyMap:
    """Finds the module that a file's key names, for one network. Prefixes may be missing or doubled (finetrainers#133)."""

    def __init__(self, family: Family, network: Network) -> None:
        self._prefixes = (*_DOTTED_PREFIXES, f"{family.prefix}.")
        # Diffusers' names come last: where both are spelt alike (context_embedder), they win.
        self._dotted = {name: Target(name, True) for name in family.native_modules(network)}
        self._dotted |= {name: Target(name, False) for name in network}
        self._flat = {name.replace(".", "_"): target for name, target in self._dotted.items()}

    def find(self, token: str) -> Target | None:
        """The target of a key without its `.lora_A.weight` and the like, or None."""
        for prefix in _FLAT_PREFIXES:
            if token.startswith(prefix):
                return self._flat.get(token[len(prefix) :])
        while prefix := next((p for p in self._prefixes if token.startswith(p)), None):
            token = token[len(prefix) :]
        return self._dotted.get(token)


def split_key(key: str) -> tuple[str, str] | None:
    """(module token, "down" | "up" | "alpha") of a plain LoRA key, or None for a key of another kind."""
    if old := _PROCESSOR.fullmatch(key):
        key = f"{old['attention']}.{old['to']}{'.0' if old['to'] == 'to_out' else ''}.lora.{old['rest']}"
    found = _KEY.fullmatch(key)
    return (found["module"], str(found.lastgroup)) if found else None


def is_text_encoder(key: str) -> bool:
    return key.removeprefix("base_model.model.").startswith(_TEXT_ENCODER)


def refuse_other_kinds(keys: Iterable[str], where: str) -> None:
    """UserError for adapters that are not two plain factors: their change of the weights cannot be continued as a LoRA."""
    for key in keys:
        for marks, kind in _OTHER_KINDS:
            if any(mark in key for mark in marks):
                raise UserError(f"{where} is a {kind} (key {key}); only plain LoRA (two factors a module) can be read")


def describe_unmatched(unmatched: list[str], total: int, family: Family, where: str) -> str:
    """One line that says how many keys fit nothing, names some, and what model they look like."""
    shown = ", ".join(unmatched[:3])
    text = f"{where}: {len(unmatched)} of {total} keys name no module of this {family.label} model ({shown})"
    joined = "\n".join(unmatched)
    guess = next((label for pattern, label in _LOOKS_LIKE if re.search(pattern, joined)), None)
    if guess is None:
        return f"{text}; a LoRA for {family.label} is needed"
    other_size = " of another size" if family.label in guess or guess in family.label else ""
    return f"{text}; it looks like a LoRA for {guess}{other_size}"
