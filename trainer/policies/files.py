"""A base that is a single file: a checkpoint as in ComfyUI's `checkpoints`, or a denoiser alone as in `diffusion_models`.

diffusers converts the tensors. What the file lacks comes from `files` (part -> file), else from `parts` (a diffusers folder or
hub id), which also gives configurations and tokenizers; SD 1.5, SDXL and FLUX.1 dev do without it. Only safetensors are read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..errors import UserError, one_line
from ..families import FAMILIES
from .checkpoint import Recognised, read_shapes, recognise
from .folders import Folder, pipeline_class, quiet, require_whole
from .references import write_reference

State = dict[str, torch.Tensor]

# Beginnings of a part's names in a whole checkpoint: LDM's, SDXL's, and those of ComfyUI's and SD3's all-in-one files.
_PREFIXES = {
    "vae": ("first_stage_model.", "vae."),
    "text_encoder": ("cond_stage_model.", "conditioner.embedders.0.", "text_encoders.clip_l."),
    "text_encoder_2": ("conditioner.embedders.1.", "text_encoders.clip_g.", "text_encoders.t5xxl."),
    "text_encoder_3": ("text_encoders.t5xxl.",),
}
_INNER = ("text_encoders.clip_l.transformer.", "text_encoders.clip_g.transformer.", "text_encoders.t5xxl.transformer.")
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_SCALES = (".scale_weight", ".weight_scale")  # ComfyUI's, older and newer
_NOT_WEIGHTS = ("scaled_fp8", ".scale_input", ".input_scale", ".comfy_quant", "v_pred", "ztsnr")


class CheckpointFile:
    """Has what `Folder` has: `index`, `load`, `title`, `model`, `hints`."""

    def __init__(
        self,
        path: Path,
        family: str,
        parts: str | None = None,
        files: Mapping[str, str] | None = None,
        tokenizers: str | None = None,
    ) -> None:
        """Raises UserError for a file that is damaged, unknown, or of another family."""
        self.model, self.title, self.family = str(path), path.stem, FAMILIES[family]
        self._path, self._parts, self._files = path, parts, dict(files or {})
        self._tokenizers = Path(tokenizers) if tokenizers else None
        self._found: Recognised = recognise(path)
        if self._found.family != family:
            raise UserError(
                f"policy.family: {path} holds a model of family {self._found.family} ({FAMILIES[self._found.family].title}), "
                f"not of {family}; set policy.family to {self._found.family}"
            )

    def hints(self) -> dict[str, Any]:
        if not self._found.v_prediction:
            return {}
        return {"prediction": "v_prediction", "zero_terminal_snr": self._found.zero_terminal}

    def index(self, unused: Sequence[str]) -> dict[str, Any]:
        with self._reference() as reference:
            return Folder.read_index(reference, self.family, "policy.parts")

    def load(self, dtype: torch.dtype, **given: Any) -> Any:
        """The pipeline, with `given` parts put in instead (None: left out). Raises UserError."""
        kind = pipeline_class(self.family)
        with self._reference() as reference, quiet():
            index = Folder.read_index(reference, self.family, "policy.parts")
            wanted = {
                name: value for name, value in index.items() if isinstance(value, list) and value[0] and name not in given
            }
            classes = {name: _class(*value) for name, value in sorted(wanted.items())}
            self._require(classes)
            try:
                built = {name: self._part(name, cls, reference, dtype) for name, cls in classes.items()}
                options = {
                    name: value for name, value in index.items() if not name.startswith("_") and not isinstance(value, list)
                }
                pipe = kind(**{**options, **built, **given})
            except UserError:
                raise
            except Exception as error:
                raise UserError(f"policy.model: loading {self.model} failed: {one_line(error)[:300]}") from error
        require_whole(pipe, self.model)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    @contextmanager
    def _reference(self) -> Iterator[str]:
        """The diffusers folder or hub id that says what the parts are."""
        if self._parts:
            yield self._parts
            return
        with tempfile.TemporaryDirectory(prefix="vgrpo-") as folder:
            changes = self._decided_by_file()
            write_reference(self.family.name, self.family.pipeline, Path(folder), self._tokenizers, changes)
            yield folder

    def _decided_by_file(self) -> dict[str, Any]:
        """What differs between models of one family and shows in the file alone."""
        if self.family.name != "flux":
            return {}
        shapes = read_shapes(self._path)
        return {"guidance_embeds": any(name.removeprefix(self._found.prefix).startswith(_GUIDANCE) for name in shapes)}

    def _has(self, name: str) -> bool:
        """Whether the file, or one of those beside it, holds the part."""
        t5_second = name == "text_encoder_2" and "text_encoder_3" in self._found.parts
        return name in (*self._files, "unet", "transformer") or name in self._found.parts or t5_second

    def _require(self, classes: Mapping[str, Any]) -> None:
        """Raises UserError, before anything is loaded, for a part with weights that is nowhere."""
        for name, cls in classes.items():
            if self._parts is None and issubclass(cls, torch.nn.Module) and not self._has(name):
                raise UserError(
                    f"policy.files: {self.model} has no {name}; name its file in policy.files.{name}, or in policy.parts a "
                    "diffusers folder or hub id that has it"
                )

    def _part(self, name: str, cls: Any, reference: str, dtype: torch.dtype) -> Any:
        import transformers

        if not issubclass(cls, torch.nn.Module):  # a scheduler or a tokenizer
            return cls.from_pretrained(reference, subfolder=name)
        state = self._state(name)
        if state is None:
            return cls.from_pretrained(reference, subfolder=name, torch_dtype=dtype, use_safetensors=True)
        state = plain_weights(state, dtype, self._files.get(name, self.model))
        if issubclass(cls, transformers.PreTrainedModel):
            return _text_encoder(cls, state, reference, name, dtype)
        offline = Path(reference).is_dir()  # else the user named a hub id
        return cls.from_single_file(state, config=reference, subfolder=name, torch_dtype=dtype, local_files_only=offline)

    def _state(self, name: str) -> State | None:
        """The tensors of a part, from its own file or from the checkpoint; None where neither has them."""
        if name in self._files:
            return _read(Path(self._files[name]))
        if name in ("unet", "transformer"):
            prefix = self._found.prefix
            state = _read(self._path, prefix)
            # The LDM converter looks for the prefix; the others take it or leave it.
            return state if name == "unet" and prefix else {key[len(prefix) :]: value for key, value in state.items()}
        return _read(self._path, _PREFIXES[name]) if self._has(name) else None


def _class(library: str, kind: str) -> Any:
    import diffusers
    import transformers

    return getattr(transformers if library == "transformers" else diffusers, kind)


_GUIDANCE = ("guidance_in.", "time_text_embed.guidance_embedder.")


def plain_weights(state: State, dtype: torch.dtype, file: str) -> State:
    """float8 weights in `dtype`, multiplied by their scales where they have some; marks that are no weights left out.

    Raises UserError for weights that are packed otherwise (4 bits and the like).
    """
    scales = {}
    for key, value in state.items():
        for ending in _SCALES:
            if key.endswith(ending):
                scales[key[: -len(ending)] + ".weight"] = value.float()
    out = {}
    for key, value in state.items():
        if key.endswith((*_SCALES, *_NOT_WEIGHTS)):
            continue
        if not value.is_floating_point() and key.endswith(".weight"):
            raise UserError(
                f"policy.model: {file} holds packed weights ({key} is {value.dtype}); take the fp16, bf16 or fp8 file"
            )
        if key in scales:
            value = (value.float() * scales[key]).to(dtype)
        elif value.dtype in _FLOAT8:
            value = value.to(dtype)
        out[key] = value
    return out


def _read(path: Path, beginnings: str | tuple[str, ...] = "") -> State:
    """The tensors whose names begin so; the others stay on the disk."""
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys() if name.startswith(beginnings)}
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"policy.files: {path} is damaged or is not a safetensors file ({one_line(error)})") from error


def _text_encoder(cls: Any, state: State, reference: str, name: str, dtype: torch.dtype) -> torch.nn.Module:
    """CLIP by diffusers' converter where the names are LDM's or open_clip's; else the names are transformers' own."""
    from diffusers.loaders.single_file_utils import create_diffusers_clip_model_from_ldm

    if any(key.startswith(("cond_stage_model.", "conditioner.embedders.")) for key in state):
        return create_diffusers_clip_model_from_ldm(
            cls,
            checkpoint=state,
            config=reference,
            subfolder=name,
            torch_dtype=dtype,
            local_files_only=Path(reference).is_dir(),
        )
    model = cls(cls.config_class.from_pretrained(reference, subfolder=name))
    for prefix in _INNER:
        state = {key.removeprefix(prefix): value for key, value in state.items()}
    if not hasattr(model, "text_model"):  # transformers 5.6 and newer have CLIPTextModel without this level
        state = {key.removeprefix("text_model."): value for key, value in state.items()}
    known = model.state_dict()
    # T5's embedding is one tensor under two names; its files have either.
    alike = {"encoder.embed_tokens.weight": "shared.weight", "shared.weight": "encoder.embed_tokens.weight"}
    for one, other in alike.items():
        if one in known and one not in state and other in state:
            state[one] = state[other]
    if "text_projection.weight" in known:  # files of CLIP-L alone leave it out; it is the identity then
        state.setdefault("text_projection.weight", torch.eye(len(known["text_projection.weight"])))
    lacking = [key for key in known if key not in state and not key.endswith("position_ids")]
    if lacking:
        raise UserError(
            f"policy.files: the file of {name} lacks {len(lacking)} tensors of a {cls.__name__}, first {lacking[0]}"
        )
    model.load_state_dict({key: state[key] for key in known if key in state}, strict=False)
    return model.to(dtype).eval()
