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

    def kl_spread(self, std: torch.Tensor, t: torch.Tensor, t_next: torch.Tensor) -> torch.Tensor:
        # sigma_t, not the step's sigma_t sqrt(t - t_next): so the authors' code has it (yifan123/flow_grpo#78), and the
        # reported weights of 0.04 and 0.01 belong to that. The paper's formula weighs each step 1 / (t - t_next) times more.
        return std / (t - t_next).sqrt()
