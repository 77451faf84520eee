"""The embedded model's tokenizer and text encoders in ComfyUI's own classes.

ComfyUI's SD3 encoder has the sizes of the published SD3 built in (CLIP-L, CLIP-G, a context of 4096); ours are far smaller and
there is no T5, so the parts are put together here. Imports ComfyUI: only a node that runs may import this.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from comfy import sd1_clip
from comfy.clip_model import CLIPTextModel
from transformers import PreTrainedTokenizerFast

ENCODERS = {"l": "text_encoder", "g": "text_encoder_2"}  # ComfyUI's names of the two, and their folders


class DemoTokenizer:
    """Prompts as one chunk of tokens for both encoders, cut where the trainer cuts them. ComfyUI's weight syntax works."""

    def __init__(self, folder: Path):
        self.clip = _OneChunk(
            str(folder / "tokenizer"),
            max_length=_config(folder / ENCODERS["l"])["max_position_embeddings"],
            embedding_size=0,  # no embedding file fits this model
            embedding_key="clip_l",
            tokenizer_class=_TokenizerFile,
        )

    def tokenize_with_weights(self, text: str, return_word_ids: bool = False, **kwargs):
        tokens = self.clip.tokenize_with_weights(text, return_word_ids, **kwargs)
        return {name: tokens for name in ENCODERS}

    def untokenize(self, token_weight_pair):
        return self.clip.untokenize(token_weight_pair)

    def state_dict(self):
        return {}


class _TokenizerFile:
    """Reads tokenizer.json with any transformers; its CLIPTokenizer does so only since version 5."""

    @staticmethod
    def from_pretrained(folder: str) -> PreTrainedTokenizerFast:
        return PreTrainedTokenizerFast(tokenizer_file=str(Path(folder) / "tokenizer.json"))


class _OneChunk(sd1_clip.SDTokenizer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.max_word_length = 0  # a word may be split, as by a plain cut; ComfyUI would move a short one to the next chunk

    def tokenize_with_weights(self, *args, **kwargs):
        return super().tokenize_with_weights(*args, **kwargs)[:1]


class DemoTextEncoders(torch.nn.Module):
    """Both encoders; what they make is what `StableDiffusion3Pipeline.encode_prompt` makes without a T5.

    Context [1, 20, 192]: the penultimate hidden states side by side. Pooled [1, 192]: the projected end states side by side.
    """

    def __init__(self, folder: Path, device="cpu", dtype=None, model_options=None):
        super().__init__()
        self.dtypes = {dtype}
        for name, part in ENCODERS.items():
            setattr(self, f"clip_{name}", _encoder(_config(folder / part), device, dtype, model_options or {}))

    def _parts(self):
        return {name: getattr(self, f"clip_{name}") for name in ENCODERS}

    def set_clip_options(self, options) -> None:
        for encoder in self._parts().values():
            encoder.set_clip_options(options)

    def reset_clip_options(self) -> None:
        for encoder in self._parts().values():
            encoder.reset_clip_options()

    def encode_token_weights(self, token_weight_pairs):
        outputs = [encoder.encode_token_weights(token_weight_pairs[name]) for name, encoder in self._parts().items()]
        return torch.cat([o[0] for o in outputs], dim=-1), torch.cat([o[1] for o in outputs], dim=-1), {}

    def load_sd(self, sd):
        """`sd` holds both encoders under `clip_l.` and `clip_g.`. Returns (missing, unexpected) as ComfyUI's encoders do."""
        missing, unexpected = [], []
        for name, encoder in self._parts().items():
            prefix = f"clip_{name}."
            own = {key.removeprefix(prefix): value for key, value in sd.items() if key.startswith(prefix)}
            lacks, leaves = encoder.load_sd(own)
            missing += [prefix + key for key in lacks]
            unexpected += [prefix + key for key in leaves]
        return missing, unexpected


class _TextModel(CLIPTextModel):
    """ComfyUI's CLIP text model, with a vocabulary of the size that the configuration says; theirs always has CLIP's own."""

    def __init__(self, config, dtype, device, operations):
        super().__init__(config, dtype, device, operations)
        table = operations.Embedding(config["vocab_size"], config["hidden_size"], dtype=dtype, device=device)
        self.set_input_embeddings(table)


def _config(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def _encoder(config: dict, device, dtype, model_options) -> sd1_clip.SDClipModel:
    return sd1_clip.SDClipModel(
        device=device,
        dtype=dtype,
        max_length=config["max_position_embeddings"],
        layer="hidden",
        layer_idx=config["num_hidden_layers"] - 2,  # the penultimate; -2 is refused for an encoder of two layers
        textmodel_json_config=config,
        model_class=_TextModel,
        special_tokens={"start": config["bos_token_id"], "end": config["eos_token_id"], "pad": config["pad_token_id"]},
        layer_norm_hidden_state=False,
        return_projected_pooled=True,
        model_options=model_options,
    )
