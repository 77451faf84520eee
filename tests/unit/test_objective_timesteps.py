"""Drawing noise levels from the sampler's grid."""

from __future__ import annotations

import pytest
import torch

from trainer.objective import sample_timesteps


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def grid(size: int) -> torch.Tensor:
    return torch.linspace(1.0, 0.04, size)


def indices(levels: torch.Tensor, sigmas: torch.Tensor) -> list[int]:
    """Positions of the levels in the grid; fails for a level that is no grid point."""
    found = (levels[:, None] == sigmas[None, :]).nonzero()
    assert len(found) == len(levels), "a level that is not on the grid was drawn"
    return found[:, 1].tolist()


@pytest.mark.parametrize(("size", "pairs"), [(8, 4), (40, 4), (16, 5), (7, 3), (4, 4), (9, 1)])
def test_stratified_draws_one_level_from_each_near_equal_chunk(size, pairs):
    sigmas = grid(size)
    chunks = torch.tensor_split(torch.arange(size), pairs)  # numpy's array_split
    for seed in range(50):
        drawn = indices(sample_timesteps(sigmas, pairs, generator(seed)), sigmas)
        assert len(drawn) == pairs
        assert all(index in chunk.tolist() for index, chunk in zip(drawn, chunks, strict=True))


@pytest.mark.parametrize(("size", "pairs"), [(8, 4), (10, 4), (7, 3), (5, 1)])
@pytest.mark.parametrize("stratified", [True, False])
def test_every_level_is_reached_both_ends_included(size, pairs, stratified):
    sigmas, source, draws = grid(size), generator(1), 2000
    counts = [0] * size
    for _ in range(draws):
        for index in indices(sample_timesteps(sigmas, pairs, source, stratified), sigmas):
            counts[index] += 1
    if stratified:
        expected = [draws / len(chunk) for chunk in torch.tensor_split(torch.arange(size), pairs) for _ in chunk]
    else:
        expected = [draws * pairs / size] * size
    # Five standard deviations and more: a level that is never or twice as often drawn fails, chance does not.
    assert all(abs(count - mean) < 6 * mean**0.5 for count, mean in zip(counts, expected, strict=True)), counts


@pytest.mark.parametrize(("size", "pairs"), [(4, 4), (4, 8), (4, 11), (1, 3)])
def test_more_pairs_than_levels_pass_the_whole_grid_before_a_stratified_rest(size, pairs):
    sigmas = grid(size)
    passes, rest = divmod(pairs, size)
    for seed in range(20):
        drawn = indices(sample_timesteps(sigmas, pairs, generator(seed)), sigmas)
        assert drawn[: passes * size] == list(range(size)) * passes
        tail = drawn[passes * size :]
        assert len(tail) == rest and tail == sorted(set(tail))


def test_uniform_draws_are_independent_and_with_replacement():
    sigmas, source = grid(4), generator(2)
    draws = [indices(sample_timesteps(sigmas, 3, source, stratified=False), sigmas) for _ in range(400)]
    assert any(len(set(drawn)) < 3 for drawn in draws), "a repeat must be possible"
    assert any(drawn != sorted(drawn) for drawn in draws), "order must be free"
    assert len({tuple(drawn) for drawn in draws}) == 4**3


def test_same_generator_state_same_levels_and_the_grid_keeps_its_dtype():
    sigmas = grid(12).double()
    first, again = (sample_timesteps(sigmas, 4, generator(5)) for _ in range(2))
    assert torch.equal(first, again) and first.dtype == torch.float64
    assert len({tuple(sample_timesteps(sigmas, 4, generator(seed)).tolist()) for seed in range(20)}) > 10


@pytest.mark.parametrize(
    ("sigmas", "pairs", "message"),
    [
        ([1.0, 0.5, 0.0], 2, "leave the final 0 out"),
        ([1.0, -0.5, 0.2], 2, "above 0"),
        ([1.0, float("nan")], 2, "not finite"),
        ([], 2, "non-empty"),
        ([1.0, 0.5], 0, "pairs is 0"),
    ],
)
def test_a_bad_grid_or_count_is_named(sigmas, pairs, message):
    with pytest.raises(ValueError, match=message):
        sample_timesteps(torch.tensor(sigmas), pairs, generator())


def test_a_missing_generator_is_refused():
    with pytest.raises(ValueError, match="generator"):
        sample_timesteps(grid(4), 2, None)
