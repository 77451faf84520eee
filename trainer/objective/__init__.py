"""The V-GRPO objective (arXiv 2604.23380) and its peers' as pure tensor functions: no model, no file, no global state.

Shapes: B outputs, J pairs `(t, eps)` per output, S levels of the sampler's grid. Values are computed in at least float32
whatever the inputs are; float64 stays float64. Arguments that cannot be meant raise ValueError.
"""

from __future__ import annotations

from .advantages import combine_advantages, down_sample, group_advantages, hard_clip, soft_clip, zero_variance_groups
from .forward import contrast_loss, lagging_decay, matching_loss, optimality
from .pairs import PairDraw, draw_pairs
from .policy_loss import clip_fraction, importance_ratio, on_policy_ratio, policy_loss, simple_kl
from .prediction import add_noise, clean_from_eps, clean_from_v_prediction, clean_from_velocity
from .surrogate import surrogate
from .timesteps import sample_timesteps
from .transitions import ddim_step, flow_noise, flow_sde_step, gaussian_log_prob, ode_step

__all__ = [
    "PairDraw",
    "add_noise",
    "clean_from_eps",
    "clean_from_v_prediction",
    "clean_from_velocity",
    "clip_fraction",
    "combine_advantages",
    "contrast_loss",
    "ddim_step",
    "down_sample",
    "draw_pairs",
    "flow_noise",
    "flow_sde_step",
    "gaussian_log_prob",
    "group_advantages",
    "hard_clip",
    "importance_ratio",
    "lagging_decay",
    "matching_loss",
    "ode_step",
    "on_policy_ratio",
    "optimality",
    "policy_loss",
    "sample_timesteps",
    "simple_kl",
    "soft_clip",
    "surrogate",
    "zero_variance_groups",
]
