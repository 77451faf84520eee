"""The UNet families: z_k = a_k x + b_k eps at trained timesteps k, network output eps or v = a eps - b x.

t in the protocol is (k + 1) / T: in (0, 1], and 1 where the noise is strongest.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from ..errors import UserError
from ..objective import clean_from_eps, clean_from_v_prediction
from .base import Sampling
from .pipeline import PipelinePolicy, Rows
from .vp_samplers import EPSILON, V_PREDICTION, Schedule

_PREDICTIONS = (EPSILON, V_PREDICTION)


class UNetPolicy(PipelinePolicy):
    """Grid, coefficients and x_theta of a variance-preserving schedule; a family adds its network's conditions."""

    DENOISER = "unet"
    OPTIONS: ClassVar = ("prediction", "zero_terminal_snr")

    def __init__(
        self, *args: Any, prediction: str | None = None, zero_terminal_snr: bool | None = None, **options: Any
    ) -> None:
        """`prediction` and `zero_terminal_snr`: None = as the model's scheduler says."""
        self._wanted = prediction, zero_terminal_snr
        super().__init__(*args, **options)

    def prepare(self, index: dict[str, Any]) -> None:
        config, unet, model = self._pipe.scheduler.config, self.denoiser.config, self._source.model
        prediction, zero_terminal = self._wanted
        hints = self._source.hints()
        prediction = prediction or hints.get("prediction") or config.get("prediction_type", EPSILON)
        if prediction not in _PREDICTIONS:
            raise UserError(
                f"policy.model: the network of {model} predicts {prediction!r}; family {self.family} trains "
                f"{' and '.join(_PREDICTIONS)}"
            )
        if zero_terminal is None:
            zero_terminal = bool(hints.get("zero_terminal_snr") or config.get("rescale_betas_zero_snr"))
        if zero_terminal and prediction == EPSILON:
            raise UserError(
                "policy.zero_terminal_snr: where a picture starts as pure noise, a predicted noise says nothing of it; set "
                "policy.prediction to v_prediction if the base was trained so, else policy.zero_terminal_snr to false"
            )
        if unet.in_channels != unet.out_channels:
            raise UserError(
                f"policy.model: the network of {model} takes {unet.in_channels} channels and gives {unet.out_channels}, as "
                "inpainting models do; train the text-to-image model"
            )
        if unet.get("time_cond_proj_dim") is not None:
            raise UserError(
                f"policy.model: the network of {model} is a latent consistency model, distilled to a few steps; train the "
                "model that it was made of"
            )
        try:
            self.schedule = Schedule(config, prediction, zero_terminal)
        except (NotImplementedError, ValueError, TypeError) as error:
            raise UserError(f"policy.model: the noise schedule of {model} is not known: {error}") from error

    def lora_facts(self) -> dict[str, str]:
        return {"prediction": self.schedule.prediction}

    # The network takes the timestep, which is an integer, in float32 whatever its dtype.

    def _timestep(self, t: torch.Tensor) -> torch.Tensor:
        return (t.float() * self.schedule.timesteps).round().long() - 1

    def _level(self, timestep: torch.Tensor) -> torch.Tensor:
        return (timestep + 1).float() / self.schedule.timesteps

    def visible_time(self, t: torch.Tensor) -> torch.Tensor:
        return self._level(self._timestep(t))

    def coefficients(self, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.schedule.coefficients(self._timestep(t))

    def scheduler(self, sampling: Sampling) -> Any:
        return self.schedule.scheduler(sampling.sampler)

    def noise_levels(self, sampling: Sampling) -> tuple[torch.Tensor, int]:
        scheduler = self.scheduler(sampling)
        scheduler.set_timesteps(sampling.steps)
        levels = torch.unique_consecutive(self._level(scheduler.timesteps.cpu()))
        return levels, len(scheduler.timesteps) * self.passes(sampling.guidance)

    def clean(self, z_t: torch.Tensor, t: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        a, b = self.coefficients(t)
        solve = clean_from_eps if self.schedule.prediction == EPSILON else clean_from_v_prediction
        return solve(z_t, output, a, b)

    def added_conditions(self, z_t: torch.Tensor, rows: Rows) -> dict[str, torch.Tensor] | None:
        """What the network is told besides the prompt's tokens."""
        return None

    def output(self, z_t: torch.Tensor, t: torch.Tensor, rows: Rows, guidance: float) -> torch.Tensor:
        return self.denoiser(
            z_t.to(self.dtype),
            self._timestep(t),
            encoder_hidden_states=rows["context"],
            added_cond_kwargs=self.added_conditions(z_t, rows),
            return_dict=False,
        )[0]
