"""DanceGRPO (arXiv 2505.07818): an SDE with constant noise on flows, DDIM with noise on diffusion models; a share of the
steps is trained, drawn anew for each output.
"""

from __future__ import annotations

import torch

from ..families import FAMILIES
from ..objective import ddim_step, flow_sde_step
from ..policies.base import Policy
from .trajectory import TrajectoryAlgorithm, Transition

DDIM_ETA = 1.0  # the authors' configuration for Stable Diffusion


class DanceGRPO(TrajectoryAlgorithm):
    name = "dance_grpo"

    def transition(
        self, policy: Policy, z: torch.Tensor, x_hat: torch.Tensor, t: torch.Tensor, t_next: torch.Tensor
    ) -> Transition:
        if FAMILIES[policy.family].kind == "flow":
            return flow_sde_step(z, x_hat, t, t_next, self.setting("trajectory.noise"))
        given = self.config.trajectory.noise
        return ddim_step(z, x_hat, *policy.coefficients(t), *policy.coefficients(t_next), DDIM_ETA if given is None else given)
