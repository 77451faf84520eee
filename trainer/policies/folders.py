"""Diffusers folders and hub ids: read, checked, and loaded without what is not needed. Every failure is one UserError line."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch

from ..errors import UserError, one_line
from ..families import FAMILIES, Family, family_of_pipeline

_HUB_TIMEOUT_S = 10


class Folder:
    """A diffusers folder, or a hub id, of one family."""

    def __init__(self, model: str, family: str) -> None:
        self.model, self.family = model, FAMILIES[family]
        self.title = Path(model).name if Path(model).is_dir() else model

    def hints(self) -> dict[str, Any]:
        """Options of the policy that the files themselves state."""
        return {}

    @staticmethod
    def read_index(model: str, needed: Family, key: str) -> dict[str, Any]:
        """A model_index.json of the needed family. Raises UserError about the configuration's `key`."""
        from diffusers import DiffusionPipeline

        here = Path(model)
        if here.is_dir() and not (here / "model_index.json").is_file():
            raise UserError(f"{key}: {model} is not a diffusers pipeline folder: it has no model_index.json")
        if not here.is_dir() and (reason := unreachable(model)):
            raise UserError(
                f"{key}: {model!r} is no folder here, and as a hub id it can't be fetched: {reason}; give a diffusers folder, "
                "or a hub id that is cached or reachable"
            )
        try:
            with quiet():
                index = DiffusionPipeline.load_config(model)
        except Exception as error:
            raise UserError(
                f"{key}: {model!r} can't be read as a diffusers folder or hub id ({one_line(error)[:200]}); "
                "give a folder with a model_index.json, or a hub id that is cached or reachable"
            ) from error
        found = index.get("_class_name") if isinstance(index, dict) else "file that is no pipeline"
        if found != needed.pipeline:
            right = family_of_pipeline(found)
            advice = f"set policy.family to {right.name}" if right else f"families: {', '.join(FAMILIES)}"
            raise UserError(
                f"policy.family: {model} holds a {found}, but family {needed.name} needs a {needed.pipeline}; {advice}"
            )
        return index

    def index(self, unused: Sequence[str]) -> dict[str, Any]:
        """Its list of parts, all but the `unused` of which are there. Raises UserError, also for a model of another family."""
        model, here = self.model, Path(self.model)
        index = self.read_index(model, self.family, "policy.model")
        parts = [k for k, v in index.items() if not k.startswith("_") and isinstance(v, list) and v[0] and k not in unused]
        missing = [part for part in parts if here.is_dir() and not (here / part).is_dir()]
        if missing:
            raise UserError(
                f"policy.model: {model} has no folder {', '.join(missing)}, which its model_index.json lists; copy it again"
            )
        return index

    def load(self, dtype: torch.dtype, **parts: Any) -> Any:
        """The pipeline, with `parts` put in instead of the folder's own (None: left out). Raises UserError."""
        kind = pipeline_class(self.family)
        try:
            with quiet():
                pipe = kind.from_pretrained(self.model, torch_dtype=dtype, use_safetensors=True, **parts)
        except Exception as error:
            raise UserError(f"policy.model: loading {self.model} failed: {one_line(error)[:300]}") from error
        require_whole(pipe, self.model)
        pipe.set_progress_bar_config(disable=True)
        return pipe


def unreachable(model: str) -> str | None:
    """Why a hub id that is not cached can't be fetched; None if the hub answers, whatever it says.

    Asked first, because the hub's own library tries for half a minute, aloud, and then blames the model.
    """
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.constants import ENDPOINT, HF_HUB_OFFLINE

    with suppress(ValueError):  # not a hub id at all: the library says so itself
        if isinstance(try_to_load_from_cache(model, "model_index.json"), str):
            return None
    if HF_HUB_OFFLINE:
        return "it is not cached, and HF_HUB_OFFLINE is set"
    try:
        urlopen(Request(ENDPOINT, method="HEAD"), timeout=_HUB_TIMEOUT_S).close()
    except HTTPError:
        return None
    except (OSError, ValueError) as error:
        return f"{ENDPOINT} can't be reached ({getattr(error, 'reason', None) or one_line(error)})"
    return None


def pipeline_class(family: Family) -> Any:
    """The family's pipeline. Raises UserError where diffusers is too old to have it."""
    import diffusers

    kind = getattr(diffusers, family.pipeline, None)
    if kind is None:
        raise UserError(
            f"policy.family: {family.name} needs a diffusers that has {family.pipeline}; found {diffusers.__version__}: "
            "pip install -U diffusers"
        )
    return kind


def assembled(
    family: Family,
    index: Mapping[str, Any],
    build: Callable[[Mapping[str, tuple[str, str]]], Mapping[str, Any]],
    given: Mapping[str, Any],
) -> Any:
    """The family's pipeline of an index (as in model_index.json): `given` parts (None: left out), and what `build` makes of the
    others, part -> (library, class). Raises UserError."""
    kind = pipeline_class(family)
    listed = {name: value for name, value in index.items() if isinstance(value, list)}
    options = {name: value for name, value in index.items() if not name.startswith("_") and name not in listed}
    absent = {name: None for name, value in listed.items() if not value[0]}
    with quiet():
        built = build({name: tuple(value) for name, value in listed.items() if value[0] and name not in given})
        pipe = kind(**{**options, **absent, **built, **given})
    pipe.set_progress_bar_config(disable=True)
    return pipe


def require_whole(pipe: Any, model: str) -> None:
    """Raises UserError for a weight that no file held: diffusers only warns, and leaves it without storage."""
    for part, module in pipe.components.items():
        lacking = [k for k, v in module.state_dict().items() if v.is_meta] if isinstance(module, torch.nn.Module) else []
        if lacking:
            raise UserError(f"policy.model: the weights of {part} in {model} lack {len(lacking)} tensors, first {lacking[0]}")


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars while parts are loaded."""
    from diffusers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            # Newer diffusers call it `dtype`, older ones would ignore that word and load float32.
            warnings.filterwarnings("ignore", message=".*torch_dtype.*", category=FutureWarning)
            warnings.filterwarnings("ignore", message=".*local_dir_use_symlinks.*", category=UserWarning)
            yield
    finally:
        if bars:
            logging.enable_progress_bar()
