"""Where a base's configuration is read from when only its sizes are wanted: it stands in for `policies.folders.Folder`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..demo import EMBEDDED_MODELS
from ..errors import UserError, one_line
from ..families import FAMILIES
from ..policies.files import CheckpointFile
from ..policies.folders import Folder, assembled
from ..policies.published import PUBLISHED, Parts
from .hollow import meta_module, read_config
from .tokens import stand_in

if TYPE_CHECKING:
    from ..config import PolicyConfig

# Whose sizes `policies.published` has.
_WHOSE = {
    "sd15": "Stable Diffusion 1.5",
    "sdxl": "Stable Diffusion XL",
    "sd3": "Stable Diffusion 3.5 Medium",
    "flux": "FLUX.1 dev",
    "chroma": "Chroma1",
    "qwen_image": "Qwen-Image",
    "z_image": "Z-Image",
    "flux2_klein": "FLUX.2 klein base 4B",
}
_CLIP_TOKENS, _OTHER_TOKENS = 77, 512
_TOLERANCE = 0.01  # of a file's parameters: some files carry a few more than the network takes


@dataclass
class Blueprint:
    """Has what `Folder` has: `index`, `load`, `title`, `model`, `hints`. The modules that it makes are on the device `meta`.

    `folder` holds the configurations, or `parts` does (then tokenizers are made up).
    """

    model: str
    family: str
    title: str
    folder: Path | None = None
    parts: Parts = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def hints(self) -> dict[str, Any]:
        return self.facts

    def index(self, unused: Sequence[str]) -> dict[str, Any]:
        """The list of parts. Raises UserError, also for a folder of another family."""
        if self.folder is None:
            pipeline = FAMILIES[self.family].pipeline
            parts = {name: [library, kind] for name, (library, kind, _) in self.parts.items()}
            return {"_class_name": pipeline, **self.options, **parts}
        return Folder(str(self.folder), self.family).index(unused)

    def load(self, dtype: torch.dtype, **given: Any) -> Any:
        """The pipeline, with `given` parts put in instead (None: left out). Raises UserError."""
        index = self.index(tuple(name for name, value in given.items() if value is None))

        def build(wanted: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
            return {name: self._part(name, library, kind, dtype) for name, (library, kind) in wanted.items()}

        return assembled(FAMILIES[self.family], index, build, given)

    def module(self, name: str, dtype: torch.dtype) -> torch.nn.Module:
        """One part with weights, on the device `meta`. Raises UserError."""
        return self._part(name, *self.index(())[name], dtype)

    def _part(self, name: str, library: str, kind: str, dtype: torch.dtype) -> Any:
        import diffusers
        import transformers

        found = getattr(transformers if library == "transformers" else diffusers, kind, None)
        if found is None:
            raise UserError(f"policy.model: {self.model} needs a {kind}, which this {library} does not have; update {library}")
        try:
            if issubclass(found, torch.nn.Module):
                config = read_config(self.folder / name) if self.folder else self.parts[name][2]
                return meta_module(found, config, dtype)
            if self.folder:
                return found.from_pretrained(self.folder, subfolder=name)
        except Exception as error:  # whatever is wrong with a stranger's configuration
            where = self.folder / name if self.folder else name
            raise UserError(f"policy.model: the configuration {where} can't be used: {one_line(error)[:200]}") from error
        if name.startswith("tokenizer"):
            clip = "CLIP" in self.parts[name.replace("tokenizer", "text_encoder")][1]
            return stand_in(_CLIP_TOKENS if clip else _OTHER_TOKENS)
        return found.from_config(self.parts[name][2])


def blueprint_of(config: PolicyConfig) -> Blueprint:
    """The blueprint of what `policy.model` names; nothing is fetched and no weights are read. Raises UserError."""
    model, family = config.model, config.family
    if embedded := EMBEDDED_MODELS.get(model):
        return Blueprint(model, family, embedded.title, embedded.model)
    path = Path(model)
    if path.is_file():
        return _of_file(path, config)
    if folder := _folder(model):
        return Blueprint(model, family, path.name if path.is_dir() else model, folder)
    if path.is_dir():
        raise UserError(f"policy.model: {model} is not a diffusers pipeline folder: it has no model_index.json")
    if family not in PUBLISHED:
        raise UserError(
            f"policy.model: {model!r} is not on this machine, and no sizes of a {family} are built in; fetch it, or give a "
            "folder"
        )
    note = f"{model} is not on this machine: planned with the published sizes of {_WHOSE[family]}"
    return Blueprint(model, family, model, parts=PUBLISHED[family], notes=[note])


def _folder(model: str) -> Path | None:
    """The folder of a diffusers folder or of a hub id that is cached; None if it is neither."""
    from huggingface_hub import try_to_load_from_cache

    if (Path(model) / "model_index.json").is_file():
        return Path(model)
    try:
        found = try_to_load_from_cache(model, "model_index.json")
    except ValueError:  # not a hub id
        return None
    return Path(found).parent if isinstance(found, str) else None


def _of_file(path: Path, config: PolicyConfig) -> Blueprint:
    source = CheckpointFile(path, config.family, config.parts, config.files, config.tokenizers)
    if config.parts:
        folder = _folder(config.parts)
        if folder is None:
            raise UserError(
                f"policy.parts: {config.parts!r} is neither a diffusers folder nor a hub id that is on this machine, so the "
                "sizes of the model are unknown; fetch it, or give a folder"
            )
        made = Blueprint(str(path), config.family, path.stem, folder, facts=source.hints())
    else:
        changes, options = source.differences()
        parts = {
            name: (library, kind, {**sizes, **changes.get(name, {})})
            for name, (library, kind, sizes) in PUBLISHED[config.family].items()
        }
        parts |= {name: (None, None, {}) for name in source.absent()}
        made = Blueprint(str(path), config.family, path.stem, parts=parts, options=options, facts=source.hints())
    _require_size(made, path, source)
    return made


def _require_size(made: Blueprint, path: Path, source: CheckpointFile) -> None:
    """Raises UserError where the file's denoiser is not as large as the configuration says."""
    from ..policies import policy_class

    part = policy_class(made.family).DENOISER
    expected = sum(p.numel() for p in made.module(part, torch.bfloat16).parameters())
    found = sum(torch.Size(shape).numel() for shape in source.denoiser_shapes().values())
    if abs(found - expected) > _TOLERANCE * expected:
        raise UserError(
            f"policy.model: the denoiser in {path} has {found / 1e9:.3f} billion parameters, and its configuration says "
            f"{expected / 1e9:.3f}; name the right folder in policy.parts"
        )
