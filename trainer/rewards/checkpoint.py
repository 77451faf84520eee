"""Weight files of rewards: read without running code, and filled into a model whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import UserError, one_line

_WRAPPERS = ("state_dict", "model", "module")


def read_state(path: Path, title: str, hint: str = "") -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a PyTorch file that holds nothing but tensors and plain values.

    A checkpoint's `state_dict` is unwrapped, `module.` before every name is taken off. Raises UserError of one line, which
    ends in `hint`.
    """
    try:
        if path.suffix.lower() == ".safetensors":
            from safetensors.torch import load_file

            content = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # both libraries raise half a dozen kinds for damaged and for unsafe files
        reason = one_line(error)[:200]
        raise UserError(
            f"{title}: {path} can't be read as weights ({type(error).__name__}: {reason}); files that would run code are "
            f"refused{hint}"
        ) from error
    for wrapper in _WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, Mapping):
        raise UserError(f"{title}: {path} holds a {type(content).__name__}, not a dictionary of tensors{hint}")
    tensors = {name: value for name, value in content.items() if isinstance(name, str) and isinstance(value, Tensor)}
    if tensors and all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): value for name, value in tensors.items()}
    return tensors


def fill(model: nn.Module, state: Mapping[str, Tensor], title: str, path: Path, ignore: Iterable[str] = ()) -> None:
    """Take every tensor of `state` as the model's parameter or buffer of that name, in the state's own dtype.

    `ignore` names tensors that the model has no use for. Raises UserError of one line that counts and names what is missing,
    left over or of another shape; the model may be on the device `meta`.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    state = {name: tensor for name, tensor in state.items() if name not in set(ignore)}
    missing = [name for name in wanted if name not in state]
    extra = [name for name in state if name not in wanted]
    wrong = [name for name, shape in wanted.items() if name in state and tuple(state[name].shape) != shape]
    if wrong:
        first = wrong[0]
        raise UserError(
            f"{title}: {path} has weights of another shape: {first} is {list(state[first].shape)}, expected "
            f"{list(wanted[first])}{_more(wrong)}; it is another model"
        )
    if missing or extra:
        said = [f"lacks {missing[0]}{_more(missing)}"] if missing else []
        said += [f"has {extra[0]}{_more(extra)} that do not belong to it"] if extra else []
        raise UserError(f"{title}: {path} is another model: it {' and '.join(said)}")
    model.load_state_dict(state, strict=True, assign=True)


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
