"""Strict, typed configuration: YAML in and out, presets, overrides. Imports pydantic and yaml only."""

from __future__ import annotations

from .load import load_config, load_preset, preset_names
from .model import CheckpointConfig, EvaluationConfig, PromptsConfig, RolloutConfig, RunConfig
from .policy import FAMILIES, LoraConfig, PolicyConfig
from .table import KeyRow
from .update import AdvantageConfig, ObjectiveConfig, OptimizerConfig, SurrogateConfig

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
