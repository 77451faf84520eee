"""Flow-GRPO (arXiv 2505.05470): every step is one of an SDE with the flow's own marginals, and every step is trained."""

from __future__ import annotations

import torch

from ..objective import flow_noise, flow_sde_step
from ..policies.base import Policy
from .trajectory import TrajectoryAlgorithm, Transition


class FlowGRPO(TrajectoryAlgorithm):
    name = "flow_grpo"

    def transition(
        self, policy: Policy, z: torch.Tensor, x_hat: torch.Tensor, t: torch.Tensor, t_next: torch.Tensor
    ) -> Transition:
        return flow_sde_step(z, x_hat, t, t_next, flow_noise(t, t_next, self.setting("trajectory.noise")))
