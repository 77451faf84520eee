"""A run's LoRA in memory, under the names that ComfyUI maps, and whether a model takes it. Imports nothing of ComfyUI."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..trainer import runs
from ..trainer.commands.common import factors_of
from ..trainer.errors import UserError
from ..trainer.runs import RunDir
from ..trainer.runs.checkpoints import DamagedCheckpoint, list_checkpoints
from ..trainer.runs.state import lora_left
from .run_reading import BEST, LATEST, best_checkpoint, checkpoints, config_of, state_of, status_line

if TYPE_CHECKING:
    from torch import Tensor

    from ..trainer.lora import LoraFactors

_TRIES = 3  # a running trainer may prune the checkpoint that was chosen before it is read


def finished_lora(run: RunDir) -> Path | None:
    """The LoRA file that a finished run left, None while it is unfinished. Raises UserError if it is finished without one."""
    state = state_of(run)
    if state is None or state.status != runs.FINISHED:
        return None
    if path := lora_left(run, state):
        return path
    raise UserError(
        f"the run '{run.id}' says that it is finished, but its LoRA is not in {run.lora_dir}; "
        "choose one of its checkpoints with Load Run, or train it again with a higher 'take'"
    )


def lora_tensors(run: RunDir, word: str) -> tuple[dict[str, Tensor], str]:
    """The LoRA of a checkpoint (`latest`, `best`, a number) as ComfyUI reads it, and which one it is, in words.

    The moving average where the run keeps one, at its true strength. Raises UserError when there is no such checkpoint.
    """
    if word == LATEST and (path := finished_lora(run)):
        from ..trainer.lora.files import read_tensors

        return read_tensors(path)[0], "the finished LoRA"
    from ..trainer.lora.families import get_family
    from ..trainer.lora.formats import comfyui_tensors

    factors, iteration = _factors(run, word)
    return comfyui_tensors(factors, get_family(config_of(run).policy.family)), f"iteration {iteration}"


def misfits(tensors: Mapping[str, Tensor], key_map: Mapping[str, Any], weight: Callable[[str], Any]) -> tuple[list[str], int]:
    """The modules of a LoRA that a ComfyUI model has no weight of that shape for, and how many modules there are.

    key_map: `comfy.lora.model_lora_keys_unet`'s names -> a weight's key, or (key, (axis, start, length), ...) for a part of it.
    weight: a key's tensor, None if the model has none. A weight that is packed or quantised passes.
    """
    missing, pairs = [], _pairs(tensors)
    for module, (a, b) in pairs.items():
        target = key_map.get(module)
        key, part = (target, None) if isinstance(target, str) or target is None else (target[0], target[1])
        found = weight(key) if key is not None else None
        if found is None or not _fits(a, b, found, part):
            missing.append(module.removeprefix("lora_unet_").removeprefix("diffusion_model.").removeprefix("transformer."))
    return missing, len(pairs)


def misfit_error(run: RunDir, missing: list[str], total: int) -> UserError:
    """One line for a LoRA that a model does not take whole."""
    config = config_of(run)
    which = f"none of the {total}" if len(missing) == total else f"only {total - len(missing)} of the {total}"
    return UserError(
        f"{which} modules that the run '{run.id}' trained fit this model (missing here: {', '.join(missing[:3])}); "
        f"it was trained on {config.policy.model} (family {config.policy.family}): connect that base model"
    )


def _factors(run: RunDir, word: str) -> tuple[LoraFactors, int]:
    for attempt in range(_TRIES):
        chosen = word
        if word == BEST and (best := best_checkpoint(run)) is not None:
            chosen = str(best)
        if not list_checkpoints(run)[0]:
            raise UserError(_nothing_saved(run))
        if chosen.isdecimal() and int(chosen) not in checkpoints(run):
            have = ", ".join(map(str, checkpoints(run)))
            raise UserError(f"the run '{run.id}' has no checkpoint of iteration {chosen}; there are: latest, best, {have}")
        try:
            return factors_of(run, chosen)
        except DamagedCheckpoint:
            if attempt == _TRIES - 1 or word not in (LATEST, BEST):
                raise
    raise AssertionError("unreachable")


def _nothing_saved(run: RunDir) -> str:
    text = f"the run '{run.id}' has no checkpoint yet, so there is no LoRA to apply ({status_line(run)})"
    state = state_of(run)
    if state is not None and state.active:
        every = config_of(run).checkpoint.every
        when = f"the first is saved after iteration {every}" if every else "it saves one at its end"
        return f"{text}; {when}"
    if state is not None and state.status == runs.FINISHED:
        return f"the checkpoints of the finished run '{run.id}' are gone or damaged; choose latest, which is its finished LoRA"
    return f"{text}; resume it"


def _pairs(tensors: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """A and B of each module, whichever of the two spellings the file has."""
    pairs = {}
    for down, up in ((".lora_A.weight", ".lora_B.weight"), (".lora_down.weight", ".lora_up.weight")):
        modules = [key.removesuffix(down) for key in tensors if key.endswith(down)]
        pairs |= {module: (tensors[module + down], tensors[module + up]) for module in modules}
    return pairs


def _fits(a: Tensor, b: Tensor, found: Any, part: Any) -> bool:
    if found.ndim < 2 or not found.is_floating_point():
        return True
    rows = found.shape[0] if part is None else part[2]  # (axis, start, length) of a fused weight
    return (b.shape[0], a.shape[1:].numel()) == (rows, found.shape[1:].numel())
