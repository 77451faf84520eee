"""Optional packages: which value of the configuration needs which, and what to do where it is absent. Imports none of them."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from .errors import UserError

if TYPE_CHECKING:
    from .config import RunConfig

# (key, value) -> (module, what pip calls it, pip's options)
_NEEDED = {
    ("policy.quantization", "nf4"): ("bitsandbytes", "bitsandbytes", ""),
    ("policy.quantization", "int8"): ("bitsandbytes", "bitsandbytes", ""),
    ("policy.quantization", "fp8"): ("torchao", "torchao", ""),
    ("policy.attention", "flash"): ("flash_attn", "flash-attn", "--no-build-isolation "),  # its build asks for torch
    ("policy.attention", "sage"): ("sageattention", "sageattention", ""),
    ("policy.attention", "xformers"): ("xformers", "xformers", "--no-deps "),  # else it may replace the user's torch
    ("optimizer.name", "adamw8bit"): ("bitsandbytes", "bitsandbytes", ""),
}


def installed(module: str) -> bool:
    """Whether a module can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # half removed, or replaced by something without a spec
        return False


def require(key: str, value: str) -> None:
    """Raises UserError, one line with the command that installs it, if what the value needs is not there."""
    module, name, options = _NEEDED.get((key, value), (None, "", ""))
    if module is not None and not installed(module):
        install = f'"{sys.executable}" -m pip install {options}{name}'
        raise UserError(f"{key} = {value} needs {name}, which is not installed; install it with: {install}")


def require_all(config: RunConfig) -> None:
    """`require` for every key of a configuration that may need something."""
    require("policy.quantization", config.policy.quantization)
    require("policy.attention", config.policy.attention)
    require("optimizer.name", config.optimizer.name)
