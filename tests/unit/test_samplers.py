from __future__ import annotations

import math

import pytest
import torch
from diffusers import DPMSolverMultistepScheduler, UniPCMultistepScheduler

from trainer.policies.samplers import flow_scheduler, noise_levels, shifted_grid

SAMPLERS = ("euler", "heun", "dpmsolver++", "unipc")
MULTISTEP = ("dpmsolver++", "unipc")


def test_the_grid_is_the_shifted_even_one():
    torch.testing.assert_close(shifted_grid(4, 1.0), torch.tensor([1.0, 0.75, 0.5, 0.25]))
    expected = [3 * u / (1 + 2 * u) for u in (1.0, 0.8, 0.6, 0.4, 0.2)]
    torch.testing.assert_close(shifted_grid(5, 3.0), torch.tensor(expected), rtol=1e-7, atol=0)


@pytest.mark.parametrize("shift", [1.0, 3.0])
@pytest.mark.parametrize("steps", [1, 2, 7, 40])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_solver_walks_the_same_levels(sampler, steps, shift):
    levels, evaluations = noise_levels(sampler, steps, shift)
    assert levels.dtype == torch.float32 and levels.shape == (steps,)
    torch.testing.assert_close(levels, shifted_grid(steps, shift), rtol=2e-7, atol=1.1e-6 if sampler in MULTISTEP else 0)
    torch.testing.assert_close(levels[1:], shifted_grid(steps, shift)[1:], rtol=2e-7, atol=0)
    assert evaluations == (2 * steps - 1 if sampler == "heun" else steps)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_timesteps_are_the_solvers_own_levels_unrounded(sampler):
    scheduler = flow_scheduler(sampler, 3.0)
    scheduler.set_timesteps(7)
    assert torch.equal(scheduler.timesteps, scheduler.sigmas[:-1] * 1000)
    assert scheduler.sigmas[-1] == 0 and bool((scheduler.sigmas[:-1] > 0).all())


@pytest.mark.parametrize("parent", [DPMSolverMultistepScheduler, UniPCMultistepScheduler])
def test_what_is_mended_is_broken_in_diffusers(parent):
    """If this fails diffusers no longer rounds, and the subclass may go."""
    scheduler = parent(use_flow_sigmas=True, prediction_type="flow_prediction", flow_shift=3.0)
    scheduler.set_timesteps(7)
    assert scheduler.timesteps.dtype == torch.int64
    assert (scheduler.timesteps - scheduler.sigmas[:-1] * 1000).abs().max() > 0.3


def _solve(scheduler, steps: int, z: torch.Tensor, mean: float, spread: float) -> torch.Tensor:
    """Walk the flow of N(mean, spread^2), whose exact velocity is known, as a pipeline would."""
    scheduler.set_timesteps(steps)
    for timestep in scheduler.timesteps:
        t = (timestep / 1000).double()
        variance = (1 - t) ** 2 * spread**2 + t**2
        centred = z.double() - (1 - t) * mean
        x = mean + (1 - t) * spread**2 / variance * centred  # E[x | z]
        eps = t / variance * centred  # E[eps | z]
        z = scheduler.step((eps - x).float(), timestep, z, return_dict=False)[0]
    return z


@pytest.mark.parametrize(("sampler", "order"), [("euler", 1), ("heun", 2), ("dpmsolver++", 2), ("unipc", 2)])
def test_solvers_reach_the_exact_end_at_their_order(sampler, order):
    """The flow carries noise xi to mean + spread * xi. Doubling the steps divides the error by about 2^order."""
    xi = torch.linspace(-2, 2, 9).view(1, 1, 3, 3)
    exact = 0.7 + 0.5 * xi
    errors = {}
    for steps in (8, 64, 128):  # fewer steps are not yet in the regime where the order shows: the error changes its sign
        z = _solve(flow_scheduler(sampler, 1.0), steps, xi, 0.7, 0.5)
        errors[steps] = float((z - exact).abs().max())
    assert errors[8] < (0.2 if order == 1 else 0.04)
    assert abs(math.log2(errors[64] / errors[128]) - order) < 0.35


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_second_batch_starts_afresh(sampler):
    """Multistep solvers remember earlier outputs; a pipeline uses one scheduler for every batch."""
    scheduler, xi = flow_scheduler(sampler, 3.0), torch.linspace(-2, 2, 9).view(1, 1, 3, 3)
    first = _solve(scheduler, 5, xi, 0.7, 0.5)
    again = _solve(scheduler, 5, xi, 0.7, 0.5)
    assert torch.equal(first, again)
    assert torch.isfinite(first).all()


def test_an_unknown_sampler_names_the_known_ones():
    with pytest.raises(ValueError, match=r"'ddim'.*euler, heun, dpmsolver\+\+, unipc"):
        flow_scheduler("ddim", 1.0)
