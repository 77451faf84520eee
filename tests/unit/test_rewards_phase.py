"""Scoring in a thread of its own, while further pictures are made."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from trainer.prompts import Prompt
from trainer.rewards.base import Reward
from trainer.rewards.phase import ScoringPhase


def batch(*values):
    return torch.tensor(values, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 4, 4, 3).contiguous()


class Level(Reward):
    """The picture's own level; waits for `gate` first and notes the order of calls."""

    name = "level"

    def __init__(self, gate=None):
        super().__init__()
        self.gate, self.seen, self.threads = gate, [], set()

    def score(self, images, prompts, metadata):
        self.threads.add(threading.current_thread())
        if self.gate is not None:
            assert self.gate.wait(10)
        self.seen.append([(p, m["n"]) for p, m in zip(prompts, metadata, strict=True)])
        if "bad" in prompts:
            raise RuntimeError("bad")
        return images[:, 0, 0, 0].double()

    def details(self, images, prompts, metadata):
        return {"twice": images[:, 0, 0, 0].double() * 2}


def prompts(*texts):
    return [Prompt(text, {"n": number}) for number, text in enumerate(texts)]


def test_batches_are_scored_in_their_order_beside_the_caller():
    gate, reward = threading.Event(), Level()
    reward.gate = gate
    with ScoringPhase({"level": reward}, details=True) as phase:
        phase.add(batch(1, 2), prompts("a", "b"))
        phase.add(batch(3), prompts("c"))
        assert reward.seen == []  # the caller went on
        gate.set()
        table = phase.result()
    assert table.scores["level"].tolist() == [1, 2, 3] and table.details["level/twice"].tolist() == [2, 4, 6]
    assert reward.seen == [[("a", 0), ("b", 1)], [("c", 0)]]
    assert len(reward.threads) == 1 and threading.current_thread() not in reward.threads


def test_a_batch_that_fails_is_nan_and_the_others_count():
    with ScoringPhase({"level": Level()}) as phase:
        phase.add(batch(1, 2), prompts("a", "bad"))
        phase.add(batch(3), prompts("c"))
        table = phase.result()
    assert table.scores["level"].isnan().tolist() == [True, True, False]
    assert table.warnings == [("level", "2 of 3 outputs not scored: RuntimeError: bad")] and not table.failures


def test_waiting_looks_at_requests():
    gate, looks = threading.Event(), []

    def check():
        looks.append(1)
        if len(looks) == 2:
            gate.set()

    with ScoringPhase({"level": Level(gate)}) as phase:
        phase.add(batch(1), prompts("a"))
        assert phase.result(check).scores["level"].tolist() == [1]
    assert len(looks) >= 2


def test_an_interruption_drops_what_has_not_begun():
    gate = threading.Event()
    reward = Level(gate)

    class Stop(Exception):
        pass

    def check():
        gate.set()
        raise Stop

    with pytest.raises(Stop), ScoringPhase({"level": reward}) as phase:
        for number in range(20):
            phase.add(batch(number), prompts("a"))
        time.sleep(0.05)
        phase.result(check)
    assert len(reward.seen) < 20


def test_an_interruption_ends_a_reward_that_waits():
    class Waiting(Level):
        def interrupt(self):
            self.gate.set()

    class Stop(Exception):
        pass

    def check():
        raise Stop

    started = time.monotonic()
    with pytest.raises(Stop), ScoringPhase({"level": Waiting(threading.Event())}) as phase:
        phase.add(batch(1), prompts("a"))
        phase.result(check)
    assert time.monotonic() - started < 5


def test_what_no_reward_may_raise_reaches_the_caller():
    class Interrupting(Level):
        def score(self, images, prompts, metadata):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), ScoringPhase({"level": Interrupting()}) as phase:
        phase.add(batch(1), prompts("a"))
        phase.result()
