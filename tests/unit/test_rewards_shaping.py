"""Bounds, logarithm and threshold: what they do to scores, and to the advantages that come of them."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch

from tests.small_run import ROOT
from trainer.objective import combine_advantages
from trainer.rewards.shaping import Shape, problem_of, shape_all, shape_scores

SCORES = torch.tensor([-1.0, 0.1, 0.5, 2.0, math.nan], dtype=torch.float64)


def shaped(**shape):
    return shape_scores(SCORES, Shape(**shape)).nan_to_num(-99).tolist()


def test_nothing_said_changes_nothing():
    assert shape_scores(SCORES, Shape()) is SCORES


def test_bounds():
    assert shaped(low=0.0) == [0.0, 0.1, 0.5, 2.0, -99]
    assert shaped(high=0.5) == [-1.0, 0.1, 0.5, 0.5, -99]
    assert shaped(low=0.2, high=1.0) == [0.2, 0.2, 0.5, 1.0, -99]


def test_log_after_the_bounds():
    assert shaped(low=0.1, log=True) == pytest.approx([math.log(0.1), math.log(0.1), math.log(0.5), math.log(2), -99])


def test_threshold_counts_the_value_itself():
    assert shaped(threshold=0.5) == [0, 0, 1, 1, -99]


def test_scores_stay_as_they_were():
    before = SCORES.clone()
    shaped(low=0.0, threshold=0.5)
    assert torch.equal(SCORES.nan_to_num(7), before.nan_to_num(7))


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (Shape(low=1.0, high=1.0), "low bound must lie under"),
        (Shape(low=math.nan), "finite"),
        (Shape(threshold=math.inf), "finite"),
        (Shape(log=True), "needs clip with a low bound above 0"),
        (Shape(low=0.0, log=True), "needs clip with a low bound above 0"),
        (Shape(low=0.1, log=True, threshold=1.0), "not both"),
        (Shape(low=0.5, threshold=0.5), "lies beyond clip"),
        (Shape(high=0.5, threshold=0.6), "lies beyond clip"),
    ],
)
def test_shapes_that_cannot_act(shape, said):
    assert said in problem_of(shape)
    with pytest.raises(ValueError, match=said):
        shape_scores(SCORES, shape)


def test_a_threshold_at_the_high_bound_can_still_act():
    assert problem_of(Shape(high=0.5, threshold=0.5)) is None


def test_all_in_the_order_of_the_shapes():
    made = shape_all({"a": SCORES, "b": SCORES, "watched": SCORES}, {"b": Shape(low=0.0), "a": Shape()})
    assert list(made) == ["b", "a"] and made["b"][0] == 0


def test_a_penalty_with_a_low_bound_acts_only_where_it_is_exceeded():
    """Harmless pictures differ a little too; without the bound that difference is blown up to a full standard deviation."""
    taste, risk = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.01, 0.02, 0.01, 0.03])
    groups, weights = torch.zeros(4), {"taste": 1.0, "nsfw": -1.0}
    alone = combine_advantages({"taste": taste}, {"taste": 1.0}, groups)
    shape = {"taste": Shape(), "nsfw": Shape(low=0.2)}
    assert torch.equal(combine_advantages(shape_all({"taste": taste, "nsfw": risk}, shape), weights, groups), alone)
    risk[3] = 0.9
    punished = combine_advantages(shape_all({"taste": taste, "nsfw": risk}, shape), weights, groups)
    assert punished[3] < alone[3] and (punished[:3] > alone[:3]).all()


def test_importing_it_loads_no_torch():
    code = "import sys, trainer.rewards.shaping, trainer.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
