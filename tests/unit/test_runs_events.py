"""events.jsonl: numbered without gaps, never glued, strict JSON, any window at once."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from trainer.runs import EVENT_TYPES, EventReader, EventWriter, metric_series, read_events

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path):
    folder = tmp_path / "Läufe mit Leerzeichen"
    folder.mkdir()
    return folder / "events.jsonl"


def strict(line):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(line, parse_constant=refuse)


def test_events_are_numbered_and_read_back(path):
    with EventWriter(path) as writer:
        written = [writer.write(kind, iteration=i, text='"ä\n\u2028\ud800') for i, kind in enumerate(EVENT_TYPES)]
        assert [event["seq"] for event in written] == list(range(1, len(EVENT_TYPES) + 1))
        assert list(read_events(path)) == written  # flushed at once: the writer is still open
    lines = path.read_bytes().split(b"\n")
    assert lines.pop() == b"" and [strict(line) for line in lines] == written
    assert abs(written[0]["time"] - time.time()) < 60


def test_a_later_writer_goes_on_counting(path):
    for expected in range(1, 4):
        with EventWriter(path) as writer:
            assert writer.last_seq == expected - 1
            assert writer.write("resumed", iteration=0)["seq"] == expected
    assert EventReader(path).last_seq() == 3


@pytest.mark.parametrize("cut", [1, 2, 10, 40, "newline"])
def test_a_torn_last_line_is_ended_not_glued_not_rewritten(path, cut):
    with EventWriter(path) as writer:
        for i in range(3):
            writer.write("iteration", iteration=i, metrics={"kl": 0.5, "name": "xxxxxxxxxxxxxxxxxxxxxxxxxxx"})
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    torn = whole[:-1] if cut == "newline" else whole[: last + cut]
    path.write_bytes(torn)
    survivors = 3 if cut == "newline" else 2  # only the newline is gone: the event is whole
    assert [event["seq"] for event in read_events(path)] == list(range(1, survivors + 1))
    with EventWriter(path) as writer:
        assert writer.write("resumed", iteration=1)["seq"] == survivors + 1
        assert writer.write("paused")["seq"] == survivors + 2
    assert path.read_bytes().startswith(torn + b"\n")
    assert [event["seq"] for event in read_events(path)] == list(range(1, survivors + 3))
    assert EventReader(path).last_seq() == survivors + 2


@pytest.mark.parametrize(
    "junk",
    [
        b"\x00" * 300 + b"\n",
        b"\xff\xfe\n",
        b"[1]\n",
        b'{"seq": "9"}\n',
        b'{"seq": true}\n',
        b"\n",
        b"[" * 5000 + b"\n",
        b"nul\n",
    ],
)
def test_lines_that_are_no_events_are_passed_over(path, junk):
    with EventWriter(path) as writer:
        writer.write("iteration", iteration=0)
    with open(path, "ab") as file:
        file.write(junk)
    with EventWriter(path) as writer:
        assert writer.write("iteration", iteration=1)["seq"] == 2
    assert [event["seq"] for event in read_events(path)] == [1, 2]
    assert [event["seq"] for event in EventReader(path).window(after=1)] == [2]


def test_numbers_that_json_lacks_become_null_and_foreign_ones_plain(path):
    odd = {
        "nan": math.nan,
        "inf": math.inf,
        "deep": [1.5, {"x": -math.inf}, (np.float64("nan"), 2)],
        "f32": np.float32(0.5),
        "t": torch.tensor(3),
    }
    odd |= {"nan_t": torch.tensor(math.nan), "b": np.bool_(True), "p": path, "i": np.int64(7)}
    with EventWriter(path) as writer:
        event = writer.write("iteration", metrics=odd)
    expected = {
        "nan": None,
        "inf": None,
        "deep": [1.5, {"x": None}, [None, 2]],
        "f32": 0.5,
        "t": 3,
        "nan_t": None,
        "b": True,
        "p": str(path),
        "i": 7,
    }
    assert event["metrics"] == expected
    assert strict(path.read_text())["metrics"] == expected
    assert "NaN" not in path.read_text() and "Infinity" not in path.read_text()


def test_bad_events_are_refused_and_take_no_number(path):
    with EventWriter(path) as writer:
        for kind, fields, error in [
            ("metric", {}, ValueError),
            ("error", {"seq": 3}, ValueError),
            ("error", {"type": "x"}, ValueError),
            ("error", {"x": object()}, TypeError),
            ("error", {"x": {1, 2}}, TypeError),
            ("error", {"x": torch.zeros(2)}, (ValueError, RuntimeError)),
        ]:
            with pytest.raises(error):
                writer.write(kind, **fields)
        assert path.read_bytes() == b""
        assert writer.write("error", message="x")["seq"] == 1


@pytest.mark.parametrize("lost", ["most of the line", "its newline"])
def test_a_full_disk_in_mid_line_tears_one_line_only(path, lost):
    writer = EventWriter(path)
    writer.write("iteration", iteration=0)
    real = writer._file

    class Full:
        full = False

        def write(self, data):
            if self.full:
                raise OSError(28, "No space left on device")
            self.full = True
            return real.write(data[:-1] if lost == "its newline" else data[:20])

    writer._file = Full()
    with pytest.raises(OSError, match="No space"):
        writer.write("iteration", iteration=1)
    writer._file = real
    writer.write("iteration", iteration=2)
    writer.close()
    expected = [(1, 0), (2, 1), (3, 2)] if lost == "its newline" else [(1, 0), (2, 2)]
    assert [(event["seq"], event["iteration"]) for event in read_events(path)] == expected


def test_threads_share_a_writer(path):
    with EventWriter(path) as writer:
        threads = [
            threading.Thread(target=lambda: [writer.write("warning", text="x" * 500) for _ in range(100)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [event["seq"] for event in read_events(path)] == list(range(1, 401))


@pytest.mark.skipif(os.name == "nt", reason="fork and SIGKILL")
def test_killed_writers_leave_a_readable_file(path):
    code = (
        "import os, sys\nfrom trainer.runs import EventWriter\n"
        "writer = EventWriter(sys.argv[1])\nprint('up', flush=True)\n"
        "while True: writer.write('iteration', iteration=writer.last_seq, metrics={'m': 'x' * 20000})"
    )
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", code, str(path)], cwd=ROOT, stdout=subprocess.PIPE)
        child.stdout.readline()
        time.sleep(random.uniform(0.01, 0.05))
        child.kill()
        child.wait()
        child.stdout.close()
    seqs = [event["seq"] for event in read_events(path)]
    assert len(seqs) > 3 and seqs == list(range(1, len(seqs) + 1))


def test_a_missing_file_holds_nothing(path):
    assert list(read_events(path)) == [] and EventReader(path).window() == [] and EventReader(path).last_seq() == 0
    assert not path.exists()


# --- windows


REWARDS = [f"reward/r{i}" for i in range(8)]


def big_file(path, iterations=10_000):
    """What a long run with eight rewards writes, with junk in it; every hundredth event is a checkpoint."""
    rng = random.Random(0)
    with EventWriter(path) as writer, open(path, "ab", buffering=0) as raw:
        lines = []
        for i in range(iterations):
            kind = "checkpoint" if i % 100 == 99 else "iteration"
            metrics = {f"{name}/{part}": rng.random() for name in REWARDS for part in ("mean", "std")}
            metrics |= {"kl": rng.random(), "grad_norm": rng.random(), "lr": 3e-4, "time/rollout": rng.random()}
            event = {"seq": i + 1, "time": 1.7e9 + i, "type": kind, "iteration": i, "metrics": metrics}
            lines.append(json.dumps(event).encode())
            if i % 500 == 7:
                lines.append(lines[-1][:100])  # a torn line, ended
        raw.write(b"\n".join(lines) + b"\n")
    del writer


def test_any_window_of_a_long_file_equals_the_full_read_and_is_quick(path):
    big_file(path)
    assert path.stat().st_size > 5_000_000
    everything = list(read_events(path))
    assert [event["seq"] for event in everything] == list(range(1, 10_001))
    rng = random.Random(1)
    shared = EventReader(path)
    slowest = 0.0
    afters = [0, 1, 9_998, 9_999, 10_000, 20_000] + [rng.randrange(10_000) for _ in range(60)]
    for after in afters:
        for reader in (shared, EventReader(path)):  # one that remembers, one that is cold
            began = time.process_time()  # the machine may be busy with something else
            window = reader.window(after, 50)
            slowest = max(slowest, time.process_time() - began)
            assert window == everything[after : after + 50]
    assert slowest < 0.1
    assert shared.last_seq() == 10_000
    assert shared.window(9_000) == everything[9_000:]
    checkpoints = [event for event in everything if event["type"] == "checkpoint"]
    began = time.process_time()
    assert shared.window(types={"checkpoint"}) == checkpoints
    assert time.process_time() - began < 0.1
    assert shared.window(after=5_000, limit=3, types=["checkpoint", "grid"]) == [e for e in checkpoints if e["seq"] > 5_000][:3]
    assert EventReader(path).window(after=9_999, types=["grid"]) == []


def test_following_a_growing_file_sees_each_event_once(path):
    reader, after, seen = EventReader(path), 0, []
    with EventWriter(path) as writer:
        for i in range(200):
            writer.write("iteration", iteration=i)
            if i % 3 == 0:
                window = reader.window(after, 2)
                seen += window
                after = window[-1]["seq"] if window else after
    while window := reader.window(after, 2):
        seen += window
        after = window[-1]["seq"]
    assert seen == list(read_events(path)) and len(seen) == 200
    assert reader.window(0) == seen  # and back to the beginning, as a page that was reloaded does


def test_following_waits_for_a_line_in_the_making(path):
    with EventWriter(path) as writer:
        writer.write("iteration", iteration=0)
        whole = path.read_bytes()
        writer.write("iteration", iteration=1)
    grown = path.read_bytes()
    path.write_bytes(grown[: len(whole) + 15])
    reader = EventReader(path)
    assert [event["seq"] for event in reader.window(0)] == [1]
    path.write_bytes(grown)
    assert [event["seq"] for event in reader.window(1)] == [2]


# --- curves


def row(iteration, kind="iteration", **metrics):
    return {"type": kind, "iteration": iteration, "metrics": metrics}


def test_the_last_event_of_an_iteration_counts():
    events = [
        row(1, kl=0.1),
        row(2, kl=0.2, old=1),
        row(3, kl=0.3),
        row(2, kl=0.25),
        row(4, kl=None),
        row(5, kl=0.5),
        row(3, kl=0.35),
    ]
    assert metric_series(events) == {"kl": [(1, 0.1), (2, 0.25), (3, 0.35), (5, 0.5)]}


def test_evaluations_do_not_hide_iterations():
    events = [
        row(0, "evaluation", **{"eval/scene/mean": 0.3}),
        row(1, kl=0.1),
        row(1, "evaluation", **{"eval/scene/mean": 0.4}),
    ]
    assert metric_series(events) == {"kl": [(1, 0.1)], "eval/scene/mean": [(0, 0.3), (1, 0.4)]}


def test_a_resume_takes_back_what_the_checkpoint_does_not_hold():
    events = [
        row(1, kl=1),
        row(2, kl=2),
        row(3, kl=3),
        row(3, "evaluation", e=3),
        {"type": "resumed", "iteration": 1},
        row(2, kl=20),
    ]
    assert metric_series(events) == {"kl": [(1, 1), (2, 20)]}


def test_other_events_and_shapes_are_passed_over():
    assert (
        metric_series(
            [{"type": "error", "iteration": 1, "metrics": {"kl": 1}}, {"type": "iteration"}, row("1", kl=1), row(1, note="x")]
        )
        == {}
    )
