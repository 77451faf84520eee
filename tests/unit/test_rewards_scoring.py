"""A scorer that fails is NaN and a message: never a 0, never the end of the run by itself (verl-omni#366, UniRL#232)."""

from __future__ import annotations

import pytest
import torch

from trainer.errors import UserError
from trainer.rewards.base import Reward
from trainer.rewards.scoring import FailureCount, ScoreTable, join, load_rewards, score_rewards

IMAGES = torch.zeros(3, 8, 8, 3, dtype=torch.uint8)
BATCH = (IMAGES, ["a", "b", "c"], [{}, {}, {}])


class Fake(Reward):
    """Answers what it is given, or raises it."""

    name = "fake"

    def __init__(self, answer, details=None):
        super().__init__()
        self.answer, self.more, self.loaded = answer, details, None

    def load(self, device="cpu", dtype=None):
        if isinstance(self.answer, Exception):
            raise self.answer
        self.loaded = (device, dtype)

    def score(self, images, prompts, metadata):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def details(self, images, prompts, metadata):
        if isinstance(self.more, Exception):
            raise self.more
        return self.more or {}


def table_of(answer, **more):
    return score_rewards({"good": Fake(torch.tensor([1.0, 2.0, 3.0])), "fake": Fake(answer)}, *BATCH, **more)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (RuntimeError("CUDA error:\n  out of memory"), "RuntimeError: CUDA error: out of memory"),
        (KeyError("score"), "KeyError: 'score'"),
        (UserError("weights are missing, run X"), "weights are missing, run X"),
        (torch.zeros(2), "ValueError: returned shape [2] for 3 pictures, expected [3]"),
        (torch.zeros(3, 1), "ValueError: returned shape [3, 1] for 3 pictures, expected [3]"),
        (torch.tensor(1.0), "ValueError: returned shape [] for 3 pictures, expected [3]"),
        (torch.zeros(3, dtype=torch.complex64), "ValueError: returned torch.complex64, expected real numbers"),
        (torch.full((3,), torch.nan), "NaN or infinite score"),
    ],
)
def test_a_failing_scorer_is_nan_for_the_batch_and_named(answer, message):
    table = table_of(answer)
    assert table.scores["fake"].isnan().all() and table.scores["fake"].shape == (3,)
    assert table.failures == [("fake", f"3 of 3 outputs not scored: {message}")] and not table.warnings
    assert table.scores["good"].tolist() == [1, 2, 3]


def test_no_answer_is_a_failure():
    table = table_of(None)
    assert table.scores["fake"].isnan().all() and table.failures[0][0] == "fake"


def test_infinite_scores_become_nan():
    table = table_of(torch.tensor([torch.inf, -torch.inf, 0.5]))
    assert table.scores["fake"].isnan().tolist() == [True, True, False] and table.scores["fake"][2] == 0.5
    assert table.warnings == [("fake", "2 of 3 outputs not scored: NaN or infinite score")] and not table.failures


@pytest.mark.parametrize("answer", [torch.tensor([1, 2, 3]), torch.tensor([1, 2, 3]).bfloat16(), [1.0, 2.0, 3.0]])
def test_scores_come_as_float64(answer):
    scores = table_of(answer).scores["fake"]
    assert scores.dtype == torch.float64 and scores.device.type == "cpu" and scores.tolist() == [1, 2, 3]


def test_scores_need_no_gradient_and_are_a_copy():
    answer = torch.ones(3, dtype=torch.float64, requires_grad=True)
    scores = table_of(answer).scores["fake"]
    scores += 1
    assert not scores.requires_grad and answer.tolist() == [1, 1, 1]


class Counting(Fake):
    def counts(self):
        return {"retries": 2}

    def trouble(self):
        return "the server was slow"


def test_what_a_reward_went_through():
    table = score_rewards({"remote": Counting(torch.tensor([1.0, torch.nan, 2.0]))}, *BATCH)
    assert table.counts == {"remote/retries": 2.0}
    assert table.warnings == [("remote", "1 of 3 outputs not scored: the server was slow")]
    table = score_rewards({"remote": Counting(RuntimeError("no"))}, *BATCH)
    assert table.counts == {"remote/retries": 2.0} and "RuntimeError: no" in table.failures[0][1]


def test_tables_of_batches_join_into_one():
    good, bad = Fake(torch.ones(3), {"accuracy": torch.ones(3)}), Fake(RuntimeError("no"))
    first = score_rewards({"a": good, "b": bad}, *BATCH, details=True)
    second = score_rewards({"a": Fake(torch.tensor([2.0, torch.nan, 3.0])), "b": Counting(torch.ones(3))}, *BATCH, details=True)
    whole = join([first, second])
    assert whole.scores["a"].nan_to_num(-1).tolist() == [1, 1, 1, 2, -1, 3]
    assert len(whole.scores["b"]) == 6 and whole.scores["b"].isnan().sum() == 3
    assert whole.details["a/accuracy"].isnan().tolist() == [False] * 3 + [True] * 3
    assert whole.failures == [] and dict(whole.warnings) == {
        "a": "1 of 6 outputs not scored: NaN or infinite score",
        "b": "3 of 6 outputs not scored: RuntimeError: no",
    }
    assert join([second, second]).counts == {"b/retries": 4.0}


def test_interruption_is_not_swallowed():
    class Interrupted(Fake):
        def score(self, images, prompts, metadata):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_rewards({"fake": Interrupted(None)}, *BATCH)


def test_details_only_when_asked_for_and_never_fatal():
    good = Fake(torch.ones(3), {"accuracy": torch.tensor([0, 1, torch.inf])})
    assert score_rewards({"good": good}, *BATCH).details == {}
    bad = Fake(torch.ones(3), RuntimeError("no"))
    short = Fake(torch.ones(3), {"accuracy": torch.ones(1)})
    table = score_rewards({"good": good, "bad": bad, "short": short}, *BATCH, details=True)
    assert list(table.details) == ["good/accuracy"]
    assert table.details["good/accuracy"].isnan().tolist() == [False, False, True]
    assert [name for name, _ in table.warnings] == ["bad", "short"] and not table.failures
    assert table.scores["bad"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "batch",
    [
        (IMAGES.float(), *BATCH[1:]),
        (IMAGES.permute(0, 3, 1, 2), *BATCH[1:]),
        (IMAGES, ["a", "b"], [{}] * 3),
        (IMAGES, ["a"] * 3, [{}] * 2),
        (IMAGES[:0], [], []),
    ],
)
def test_a_malformed_batch_is_the_callers_error(batch):
    with pytest.raises(ValueError):
        score_rewards({"good": Fake(torch.ones(3))}, *batch)


def test_loading_names_what_failed():
    good, bad = Fake(torch.ones(3)), Fake(OSError("no such file"))
    assert load_rewards({"bad": bad, "good": good}, "cpu", torch.float32) == [("bad", "OSError: no such file")]
    assert good.loaded == ("cpu", torch.float32)


def failed(*names, among=("main", "watch")):
    scores = {name: torch.full((1,), torch.nan if name in names else 0.0) for name in among}
    return ScoreTable(scores, reasons={name: f"{name} broke" for name in names})


def test_training_reward_that_keeps_failing_stops_the_run():
    count = FailureCount(["main"], limit=3)
    count.update(failed("main"))
    count.update(failed("main"))
    with pytest.raises(UserError, match="'main' failed 3 times in a row, last: 1 of 1 outputs not scored: main broke"):
        count.update(failed("main", "watch"))


def test_a_success_starts_the_count_anew():
    count = FailureCount(["main"], limit=2)
    for _ in range(5):
        count.update(failed("main"))
        count.update(failed())
    assert count.counts == {"main": 0, "watch": 0}


def test_a_monitor_never_stops_the_run():
    count = FailureCount(["main"], limit=2)
    for _ in range(10):
        count.update(failed("watch"))
    assert count.counts["watch"] == 10


def test_partly_scored_batches_do_not_count():
    count = FailureCount(["fake"], limit=1)
    count.update(table_of(torch.tensor([1.0, torch.nan, torch.nan])))
    with pytest.raises(UserError):
        count.update(table_of(torch.full((3,), torch.nan)))
