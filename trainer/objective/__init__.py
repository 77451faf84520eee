"""The V-GRPO objective (arXiv 2604.23380), its peers' and the options beyond the paper as pure tensor functions: no model, no
file, no global state.

Shapes: B outputs, J pairs `(t, eps)` per output, S levels of the sampler's grid. Values are computed in at least float32
whatever the inputs are; float64 stays float64. Arguments that cannot be meant raise ValueError.
"""

from __future__ import annotations

from .advantages import combine_advantages, down_sample, group_advantages, hard_clip, scored, soft_clip, zero_variance_groups
from .forward import contrast_loss, lagging_decay, matching_loss, optimality, velocity_matching_loss
from .norm_guard import norm_excess, velocity_norm
from .pairs import PairDraw, draw_pairs
from .policy_loss import clip_fraction, importance_ratio, on_policy_ratio, policy_loss, simple_kl
from .prediction import add_noise, clean_from_eps, clean_from_v_prediction, clean_from_velocity, velocity_from_clean
from .simplex import simplex_advantages
from .surrogate import surrogate
from .timestep_weight import is_uniform, lean_at, noise_share, timestep_weights
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
    "is_uniform",
    "lagging_decay",
    "lean_at",
    "matching_loss",
    "noise_share",
    "norm_excess",
    "ode_step",
    "on_policy_ratio",
    "optimality",
    "policy_loss",
    "sample_timesteps",
    "scored",
    "simple_kl",
    "simplex_advantages",
    "soft_clip",
    "surrogate",
    "timestep_weights",
    "velocity_from_clean",
    "velocity_matching_loss",
    "velocity_norm",
    "zero_variance_groups",
]
