"""Tensor files: whole or not at all when writing, never code when reading."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..errors import UserError, one_line

_PICKLED = {".pt", ".pth", ".bin", ".ckpt"}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Path:
    """Writes a safetensors file that is complete or absent; the same content always gives the same bytes.

    The temporary name lies in the same folder (so the rename is atomic) and does not end in .safetensors (so no tool that
    watches the folder lists it). Raises UserError when the file cannot be written; what was there before is then still there.
    """
    # safetensors refuses tensors that share memory, as q, k and v do when they were read from one fused module.
    copies = {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    data = _sorted_header(save(copies, metadata=dict(metadata)))
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"cannot write the LoRA file {path}: {one_line(error)}") from error
    finally:
        # After a success the name is gone already; if the parent is not even a folder, there is nothing to remove.
        if path.parent.is_dir():
            temporary.unlink(missing_ok=True)
    return path


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors (on the CPU) and the text metadata of a .safetensors file, or of a PyTorch file that holds tensors only.

    Raises UserError when the file is missing, damaged, of another kind, or wants to run code.
    """
    if not path.is_file():
        raise UserError(f"LoRA file {path} does not exist")
    if path.suffix.lower() in _PICKLED:
        return _read_pickled(path), {}
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"LoRA file {path} is damaged or is not a safetensors file ({one_line(error)})") from error


def _read_pickled(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises half a dozen kinds for damaged and for unsafe files
        raise UserError(f"LoRA file {path} is damaged or holds more than tensors; convert it to safetensors") from error
    if not isinstance(content, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in content.items()):
        raise UserError(f"LoRA file {path} is not a dictionary of tensors; convert it to safetensors")
    return content


def _sorted_header(data: bytes) -> bytes:
    """The same safetensors file with its metadata in a fixed order (the library's order changes from process to process)."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]
