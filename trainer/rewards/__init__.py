"""Rewards: one module a reward behind one small protocol (`base.Reward`), found by name through `registry`.

Importing this package is light; a reward's own libraries load when it first scores.
"""

from __future__ import annotations

from .base import Reward, RewardOptions
from .registry import create, known, names

__all__ = ["Reward", "RewardOptions", "create", "known", "names"]
