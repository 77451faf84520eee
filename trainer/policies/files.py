"""A base that is a single file: a checkpoint as in ComfyUI's `checkpoints`, or a denoiser alone as in `diffusion_models`.

diffusers converts the tensors. What the file lacks comes from `files` (part -> file), else from `parts` (a diffusers folder or
hub id). Without `parts`, configurations are the published ones where the tensors do not say otherwise, and tokenizers come
from ComfyUI's folder. Only safetensors are read.
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
from .checkpoint import LDM_PREFIX, LDM_UNET, Recognised, Shapes, part_prefixes, read_shapes, recognise
from .file_parts import State, build_decoder, build_text_encoder
from .folders import Folder, assembled, require_whole
from .inferred import inferred
from .references import write_reference

# Parts that a model of a family can do without, as ComfyUI does.
_OPTIONAL = {"sd3": ("text_encoder_3", "tokenizer_3")}
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
            return self._index(reference)

    def _index(self, reference: str) -> dict[str, Any]:
        """The list of parts; an optional one that is nowhere is null."""
        index = Folder.read_index(reference, self.family, "policy.parts")
        return {**index, **{name: [None, None] for name in self.absent()}}

    def load(self, dtype: torch.dtype, **given: Any) -> Any:
        """The pipeline, with `given` parts put in instead (None: left out). Raises UserError."""
        with self._reference() as reference:

            def build(wanted: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
                classes = {name: _class(*value) for name, value in sorted(wanted.items())}
                self._require(classes)
                return {name: self._built(name, cls, reference, dtype) for name, cls in classes.items()}

            pipe = assembled(self.family, self._index(reference), build, given)
        require_whole(pipe, self.model)
        return pipe

    def _built(self, name: str, cls: Any, reference: str, dtype: torch.dtype) -> Any:
        try:
            return self._part(name, cls, reference, dtype)
        except UserError:
            raise
        except Exception as error:
            key = "policy.files" if name in self._files else "policy.model"
            said = one_line(error)[:300]
            raise UserError(f"{key}: {name} can't be loaded from {self._file_of(name)}: {said}") from error

    @contextmanager
    def _reference(self) -> Iterator[str]:
        """The diffusers folder or hub id that says what the parts are."""
        if self._parts:
            yield self._parts
            return
        with tempfile.TemporaryDirectory(prefix="vgrpo-") as folder:
            name, pipeline = self.family.name, self.family.pipeline
            write_reference(name, pipeline, Path(folder), self._tokenizers, *self.differences())
            yield folder

    def denoiser_shapes(self) -> Shapes:
        """The tensors of its denoiser, without what stands before their names."""
        prefix = self._found.prefix
        return {name[len(prefix) :]: shape for name, shape in read_shapes(self._path).items() if name.startswith(prefix)}

    def differences(self) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
        """What it says against the published configurations of its family: part -> keys; and options of the pipeline."""
        return inferred(self.family.name, self.denoiser_shapes()), self._options()

    def absent(self) -> tuple[str, ...]:
        """Optional parts that are nowhere."""
        optional = _OPTIONAL.get(self.family.name, ())
        return () if self._parts or not optional or self._has(optional[0]) else optional

    def _options(self) -> dict[str, Any]:
        """What differs between models of one family and shows in no tensor, but in the name of the published file."""
        if self.family.name != "flux2_klein":
            return {}
        return {"is_distilled": "klein" in self.title.lower() and "base" not in self.title.lower()}

    def _has(self, name: str) -> bool:
        """Whether the file, or one of those beside it, holds the part."""
        return name in (*self._files, "unet", "transformer") or name in self._found.parts

    def _file_of(self, name: str) -> str:
        return self._files.get(name, self.model)

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
        state = plain_weights(state, dtype, self._file_of(name))
        if issubclass(cls, transformers.PreTrainedModel):
            return build_text_encoder(cls, state, reference, name, dtype)
        if name == "vae":
            return build_decoder(cls, state, reference, dtype)
        offline = Path(reference).is_dir()  # else the user named a hub id
        return cls.from_single_file(state, config=reference, subfolder=name, torch_dtype=dtype, local_files_only=offline)

    def _state(self, name: str) -> State | None:
        """The tensors of a part, from its own file or from the checkpoint; None where neither has them."""
        if name in self._files:
            return _read(Path(self._files[name]))
        if name in ("unet", "transformer"):
            state = _without(_read(self._path, self._found.prefix), (self._found.prefix,))
            # diffusers' converter looks for the prefix, which files of a UNet alone lack.
            return {f"{LDM_PREFIX}{key}": value for key, value in state.items()} if LDM_UNET in state else state
        if not self._has(name):
            return None
        prefixes = part_prefixes(self.family.name)[name]
        state = _read(self._path, prefixes)
        if name.startswith("text_encoder") and not prefixes[0].startswith("text_encoders."):
            return state  # its converter looks for LDM's prefix
        return _without(_without(state, prefixes), ("transformer.",))


def _without(state: State, prefixes: tuple[str, ...]) -> State:
    """The names without what they begin with."""
    for prefix in prefixes:
        state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def _class(library: str, kind: str) -> Any:
    import diffusers
    import transformers

    return getattr(transformers if library == "transformers" else diffusers, kind)


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
