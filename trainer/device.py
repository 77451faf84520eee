"""Which device a run uses, and how many CPU threads."""

from __future__ import annotations

import os

from .errors import UserError

KINDS = ("cuda", "xpu", "mps", "cpu")


def choose_threads(environ=os.environ) -> None:
    """Set OpenMP's thread count and short waiting, unless the user has. Must run before torch is first imported.

    OpenMP's default spins long while it waits; with more threads than free cores that makes small models many times slower.
    Never to spin is slow too, as a small model's threads meet thousands of times a second.
    """
    environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    environ.setdefault("GOMP_SPINCOUNT", "20000")
    if "OMP_NUM_THREADS" not in environ:
        environ["OMP_NUM_THREADS"] = str(max(1, min(_usable_cores(), 8)))


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory for the next tensor; whether it could be asked to.

    By default it hands large blocks back to the kernel and fetches zeroed pages again for every tensor of every step, which
    costs a small model on a CPU a tenth of its time. Up to 1 GB of freed memory stays with the process.
    """
    import ctypes
    import sys

    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    # <malloc.h>: M_TRIM_THRESHOLD -1, M_TOP_PAD -2, M_MMAP_THRESHOLD -3; older versions take at most 32 MB for the last
    return bool(mallopt(-1, 1 << 30) and mallopt(-2, 256 << 20) and (mallopt(-3, 1 << 30) or mallopt(-3, 32 << 20)))


def _usable_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # Windows, macOS
        return os.cpu_count() or 1


def multiplies_bfloat16() -> bool:
    """Whether this CPU has matrix units for bfloat16 (Intel's AMX), so that it is faster there than float32."""
    import torch

    supported = getattr(torch.cpu, "_is_amx_tile_supported", None)  # torch says it nowhere else
    return bool(supported and supported())


def choose_device(wanted: str = "auto"):
    """`auto` takes cuda, xpu, mps or cpu, the first there is. Raises UserError for a device that is not there."""
    import torch

    present = {
        "cuda": torch.cuda.is_available(),
        "xpu": hasattr(torch, "xpu") and torch.xpu.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if wanted == "auto":
        return torch.device(next(kind for kind in KINDS if present[kind]))
    kind, colon, number = wanted.partition(":")
    if kind not in present or (colon and not (number.isascii() and number.isdecimal())):
        raise UserError(f"device: {wanted!r} is not a device; allowed: auto, {', '.join(KINDS)}, or cuda:N")
    if not present[kind]:
        have = ", ".join(k for k in KINDS if present[k])
        raise UserError(f"device: {kind} is not available to this torch {torch.__version__}; found here: {have}")
    count = {"cuda": torch.cuda.device_count, "xpu": lambda: torch.xpu.device_count()}.get(kind, lambda: 1)()
    if colon and int(number) >= count:
        raise UserError(f"device: there is no {wanted}; this machine has {count} {kind} device(s), from {kind}:0")
    return torch.device(wanted)


def free_memory(device) -> int | None:
    """Bytes that a process of its own would find free on a torch device, counting what this one holds; None if nobody says."""
    import torch

    if device.type in ("cuda", "xpu"):
        kind = getattr(torch, device.type)
        free, _ = kind.mem_get_info(device)
        return free + kind.memory_reserved(device)
    if device.type == "mps":
        return torch.mps.recommended_max_memory()
    try:
        import psutil  # comes with accelerate
    except ImportError:
        return None
    return psutil.virtual_memory().available
