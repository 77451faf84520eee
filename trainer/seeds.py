"""Every random number of a run comes from (run seed, purpose, iteration, prompt, member): never from batch split or rank."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that depends on each part and on their order, the same on every machine and Python.

    `derive_seed(run_seed, "rollout", iteration, prompt_index, member)` gives each output its own noise.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
