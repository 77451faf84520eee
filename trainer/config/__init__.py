"""Strict, typed configuration: YAML in and out, presets, overrides. Imports pydantic and yaml only."""

from __future__ import annotations

from .load import load_config, load_preset, preset_names
from .model import (
    FAMILIES,
    AdvantageConfig,
    CheckpointConfig,
    EvaluationConfig,
    LoraConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PolicyConfig,
    PromptsConfig,
    RolloutConfig,
    RunConfig,
    SurrogateConfig,
)
from .table import KeyRow

__all__ = [
    "FAMILIES",
    "AdvantageConfig",
    "CheckpointConfig",
    "EvaluationConfig",
    "KeyRow",
    "LoraConfig",
    "ObjectiveConfig",
    "OptimizerConfig",
    "PolicyConfig",
    "PromptsConfig",
    "RolloutConfig",
    "RunConfig",
    "SurrogateConfig",
    "load_config",
    "load_preset",
    "preset_names",
]
