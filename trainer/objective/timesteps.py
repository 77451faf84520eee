"""Which noise levels an output is scored at (arXiv 2604.23380, stratified timesteps)."""

from __future__ import annotations

import torch
from torch import Tensor


def sample_timesteps(sigmas: Tensor, pairs: int, generator: torch.Generator, stratified: bool = True) -> Tensor:
    """Draw J = `pairs` noise levels from the sampler's own grid.

    Args:
        sigmas: [S], the sampler's noise levels in (0, ...], its final 0 left out (at 0 the input is the output itself).
        pairs: J >= 1.
        generator: a CPU generator, so that the draw is the same on every device.
        stratified: split the grid into J contiguous chunks whose sizes differ by at most one (the longer ones first) and draw
            one level uniformly from each; every level, both ends included, can be drawn. With J > S the grid is passed
            J // S times whole, each level once, and the remaining J % S come from a stratified draw. Not stratified: J
            independent uniform draws with replacement.

    Returns: [J] levels of the grid, in the order of the chunks, with the dtype and device of `sigmas`.
    Raises: ValueError for an empty, non-finite or non-positive grid, for `pairs` < 1, or a generator not on the CPU.
    """
    _check(sigmas, pairs, generator)
    size = sigmas.shape[0]
    if not stratified:
        index = torch.randint(0, size, (pairs,), generator=generator)
    else:
        passes, rest = divmod(pairs, size)
        index = torch.cat([torch.arange(size)] * passes + [_one_per_chunk(size, rest, generator)])
    return sigmas.detach()[index.to(sigmas.device)]


def _one_per_chunk(size: int, chunks: int, generator: torch.Generator) -> Tensor:
    """One index drawn uniformly from each of `chunks` contiguous, near-equal chunks of range(size)."""
    if chunks == 0:
        return torch.empty(0, dtype=torch.long)
    short, longer = divmod(size, chunks)
    drawn, start = [], 0
    for chunk in range(chunks):
        stop = start + short + (chunk < longer)
        drawn.append(torch.randint(start, stop, (1,), generator=generator))
        start = stop
    return torch.cat(drawn)


def _check(sigmas: Tensor, pairs: int, generator: torch.Generator) -> None:
    if pairs < 1:
        raise ValueError(f"pairs is {pairs}; at least 1 noise level per output is needed")
    if sigmas.ndim != 1 or sigmas.shape[0] == 0:
        raise ValueError(f"sigmas has shape {list(sigmas.shape)}; a non-empty list of noise levels [S] is needed")
    if not bool(torch.isfinite(sigmas).all()):
        raise ValueError("sigmas holds a value that is not finite")
    if float(sigmas[-1]) == 0:
        raise ValueError("sigmas ends with 0, the finished output, where there is nothing to predict; leave the final 0 out")
    if bool((sigmas <= 0).any()):
        raise ValueError(f"sigmas holds {float(sigmas.min()):g}; every noise level must be above 0")
    if generator is None or generator.device.type != "cpu":
        raise ValueError("the generator must be a torch.Generator on the CPU, so that draws do not depend on the device")
