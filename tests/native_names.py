"""The tensors of diffusers and transformers models by the names that ComfyUI's files have.

The denoiser's layers are named by the LoRA tables (`trainer/lora/families`), which diffusers' converters know nothing of; a
file that is read back unchanged so says that both are right.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch

from tests import ldm
from trainer.lora.families import get_family

State = dict[str, torch.Tensor]

# What the LoRA tables leave out: norms and positions.
_FLUX_NORMS = [
    (r"^transformer_blocks\.(\d+)\.attn\.norm_q\.weight", r"double_blocks.\1.img_attn.norm.query_norm.scale"),
    (r"^transformer_blocks\.(\d+)\.attn\.norm_k\.weight", r"double_blocks.\1.img_attn.norm.key_norm.scale"),
    (r"^transformer_blocks\.(\d+)\.attn\.norm_added_q\.weight", r"double_blocks.\1.txt_attn.norm.query_norm.scale"),
    (r"^transformer_blocks\.(\d+)\.attn\.norm_added_k\.weight", r"double_blocks.\1.txt_attn.norm.key_norm.scale"),
    (r"^single_transformer_blocks\.(\d+)\.attn\.norm_q\.weight", r"single_blocks.\1.norm.query_norm.scale"),
    (r"^single_transformer_blocks\.(\d+)\.attn\.norm_k\.weight", r"single_blocks.\1.norm.key_norm.scale"),
    (r"^(distilled_guidance_layer\.norms\.\d+)\.weight", r"\1.scale"),
]
_REST: dict[str, list[tuple[str, str]]] = {
    "sd3": [
        (r"^pos_embed\.pos_embed$", "pos_embed"),
        (r"^transformer_blocks\.(\d+)\.(attn2?)\.norm_([qk])\.", r"joint_blocks.\1.x_block.\2.ln_\3."),
        (r"^transformer_blocks\.(\d+)\.attn\.norm_added_([qk])\.", r"joint_blocks.\1.context_block.attn.ln_\2."),
    ],
    "flux": _FLUX_NORMS,
    "chroma": _FLUX_NORMS,
    "flux2_klein": _FLUX_NORMS,
    "z_image": [(r"\.attention\.norm_([qk])\.", r".attention.\1_norm.")],
    "qwen_image": [],
}


def denoiser(family: str, state: State) -> State:
    """A transformer's or UNet's tensors (on any device, `meta` too)."""
    if family in ("sd15", "sdxl"):
        layers = 1 + max(int(found[1]) for key in state if (found := re.match(r"down_blocks\.0\.resnets\.(\d+)", key)))
        return ldm.ldm_unet_state(state, layers)
    rest, out = dict(state), {}
    network = {
        key.removesuffix(".weight"): (value.shape[1], value.shape[0], *value.shape[2:])
        for key, value in state.items()
        if key.endswith(".weight") and value.ndim > 1
    }
    for native, module in get_family(family).native_modules(network).items():
        for leaf in ("weight", "bias"):
            if f"{module.parts[0]}.{leaf}" in rest:
                value = torch.cat([rest.pop(f"{part}.{leaf}") for part in module.parts])
                out[f"{native}.{leaf}"] = torch.cat(value.chunk(2)[::-1]) if module.swap_halves else value
    for key, value in rest.items():
        for pattern, name in _REST[family]:
            key = re.sub(pattern, name, key)
        out[key] = value
    return out


def text_encoder(model: Any) -> State:
    """As in ComfyUI's `text_encoders`."""
    state, kind = dict(model.state_dict()), type(model).__name__
    if kind == "CLIPTextModel":
        return ldm.hf_clip(model)
    if kind == "T5EncoderModel":
        state.pop("encoder.embed_tokens.weight")  # published files have one of its two names
    if kind == "Qwen3Model":
        return {f"model.{key}": value for key, value in state.items()}
    if kind == "Qwen3ForCausalLM":
        state.pop("lm_head.weight")  # it is the embedding
    if kind == "Qwen2_5_VLForConditionalGeneration":
        return {
            key.replace("model.language_model.", "model.").replace("model.visual.", "visual."): value
            for key, value in state.items()
        }
    return state


def decoder(vae: Any) -> State:
    """As in ComfyUI's `vae`."""
    kind = type(vae).__name__
    if kind == "AutoencoderKLQwenImage":
        return {_wan(key): value for key, value in vae.state_dict().items()}
    state = ldm.ldm_vae(vae)
    if kind == "AutoencoderKLFlux2":
        inside = {"quant_conv.": "encoder.quant_conv.", "post_quant_conv.": "decoder.post_quant_conv."}
        for old, new in inside.items():
            state = {new + key[len(old) :] if key.startswith(old) else key: value for key, value in state.items()}
    return state


_WAN_RESNET = {
    "norm1": "residual.0",
    "conv1": "residual.2",
    "norm2": "residual.3",
    "conv2": "residual.6",
    "conv_shortcut": "shortcut",
}
_WAN_TOP = {
    "quant_conv": "conv1",
    "post_quant_conv": "conv2",
    **{f"{half}.conv_in": f"{half}.conv1" for half in ("encoder", "decoder")},
    **{f"{half}.norm_out": f"{half}.head.0" for half in ("encoder", "decoder")},
    **{f"{half}.conv_out": f"{half}.head.2" for half in ("encoder", "decoder")},
}


def _wan(key: str) -> str:
    stem, _, leaf = key.rpartition(".")
    if stem in _WAN_TOP:
        return f"{_WAN_TOP[stem]}.{leaf}"
    key = re.sub(r"(norm1|conv1|norm2|conv2|conv_shortcut)(?=\.\w+$)", lambda found: _WAN_RESNET[found[0]], key)
    key = re.sub(r"mid_block\.resnets\.(\d)", lambda found: f"middle.{2 * int(found[1])}", key)
    key = key.replace("mid_block.attentions.0", "middle.1").replace("encoder.down_blocks.", "encoder.downsamples.")
    key = re.sub(r"up_blocks\.(\d)\.resnets\.(\d)", lambda found: f"upsamples.{4 * int(found[1]) + int(found[2])}", key)
    return re.sub(r"up_blocks\.(\d)\.upsamplers\.0", lambda found: f"upsamples.{4 * int(found[1]) + 3}", key)


# What stands before a part's names in a whole file.
_CLIPS = ("conditioner.embedders.0.transformer.", "conditioner.embedders.1.model.")
PREFIXES: dict[str, tuple[str, ...]] = {
    "sd15": ("cond_stage_model.transformer.",),
    "sdxl": _CLIPS,
    "sd3": tuple(f"text_encoders.{name}.transformer." for name in ("clip_l", "clip_g", "t5xxl")),
    "flux": tuple(f"text_encoders.{name}.transformer." for name in ("clip_l", "t5xxl")),
    "chroma": ("text_encoders.t5xxl.transformer.",),
    "qwen_image": ("text_encoders.qwen25_7b.transformer.",),
    "z_image": ("text_encoders.qwen3_4b.transformer.",),
    "flux2_klein": ("text_encoders.qwen3_4b.transformer.",),
}


def parts(family: str, pipe: Any) -> dict[str, State]:
    """Every part with weights, by its name in the pipeline."""
    out = {}
    for name, part in pipe.components.items():
        if not isinstance(part, torch.nn.Module):
            continue
        if name == "vae":
            out[name] = decoder(part)
        elif name.startswith("text_encoder"):
            out[name] = text_encoder(part)
        else:
            out[name] = denoiser(family, part.state_dict())
    return {name: {key: value.contiguous().clone() for key, value in state.items()} for name, state in out.items()}


def whole(family: str, pipe: Any) -> State:
    """The same as one checkpoint file."""
    states = parts(family, pipe)
    if family == "sdxl":
        states["text_encoder_2"] = {key: value.clone() for key, value in ldm.open_clip(pipe.text_encoder_2).items()}
    encoders = sorted(name for name in states if name.startswith("text_encoder"))
    prefixes = dict(zip(encoders, PREFIXES[family], strict=True))
    first = "vae." if family in ("qwen_image", "z_image", "flux2_klein") else "first_stage_model."
    prefixes |= {"vae": first, "unet": "model.diffusion_model.", "transformer": "model.diffusion_model."}
    return {f"{prefixes[name]}{key}": value for name, state in states.items() for key, value in state.items()}


def comfy_tokenizers(root: Path) -> Path:
    """A folder as ComfyUI's `comfy`, with tokenizers of next to no words."""
    (root / "sd1_tokenizer").mkdir(parents=True)
    (root / "sd1_tokenizer" / "vocab.json").write_text(json.dumps({"<|startoftext|>": 0, "<|endoftext|>": 1, "!": 2}))
    (root / "sd1_tokenizer" / "merges.txt").write_text("#version: 0.2\n")
    (root / "text_encoders" / "t5_tokenizer").mkdir(parents=True)
    (root / "text_encoders" / "t5_tokenizer" / "tokenizer.json").write_text("{}")
    qwen = root / "text_encoders" / "qwen25_tokenizer"
    qwen.mkdir()
    (qwen / "vocab.json").write_text(json.dumps({"<|endoftext|>": 0, "a": 1}))
    (qwen / "merges.txt").write_text("#version: 0.2\n")
    (qwen / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<|endoftext|>", "chat_template": "another"}))
    return root
