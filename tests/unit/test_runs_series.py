"""Curves for a page: nothing is lost by thinning, a growing file is read once, and a replaced one from its beginning."""

from __future__ import annotations

import json
import math

import pytest

from trainer.runs import EventWriter, metric_series, read_events
from trainer.runs.event_index import EventIndex
from trainer.runs.follow import Kept
from trainer.runs.series import Columns, RunSeries, run_series


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.jsonl"


def iterations(path, numbers, **metrics):
    with EventWriter(path) as events:
        for number in numbers:
            events.write("iteration", iteration=number, metrics={"reward/total/mean": number / 3, **metrics})


def whole(path):
    return RunSeries(path).answer(20_000)


def test_an_empty_or_missing_file_has_empty_tables(path):
    empty = {"x": [], "columns": {}}
    expected = {"last_seq": 0, "train": empty, "evaluate": empty, "decimated": False}
    assert whole(path) == expected
    path.touch()
    assert whole(path) == expected


def test_tables_hold_what_the_events_say(path):
    with EventWriter(path) as events:
        events.write("evaluation", iteration=0, metrics={"eval/total/mean": 0.25})
        events.write("iteration", iteration=1, metrics={"a": 1.0, "b": float("nan")})
        events.write("grid", iteration=1, grid="x")
        events.write("iteration", iteration=2, metrics={"a": 2, "c": float("inf")})
        events.write("iteration", iteration=3, metrics={"b": 1 / 3, "d": None, "e": True})
    found = whole(path)
    assert found["train"]["x"] == [1, 2, 3] and found["evaluate"] == {"x": [0], "columns": {"eval/total/mean": [0.25]}}
    columns = found["train"]["columns"]
    assert columns["a"] == [1, 2, None] and columns["b"] == [None, None, 0.3333333]
    assert columns["c"] == [None] * 3 and columns["d"] == [None] * 3
    assert all(len(values) == 3 for values in columns.values())
    assert found["last_seq"] == 5 and found["decimated"] is False
    json.dumps(found, allow_nan=False)


def test_a_resumed_run_takes_back_what_it_does_again(path):
    iterations(path, range(1, 11), late=1.0)
    with EventWriter(path) as events:
        events.write("evaluation", iteration=8, metrics={"eval/total/mean": 8.0})
        events.write("resumed", iteration=5)
    assert whole(path)["train"]["x"] == [1, 2, 3, 4, 5] and whole(path)["evaluate"]["x"] == []
    with EventWriter(path) as events:
        events.write("iteration", iteration=6, metrics={"reward/total/mean": 60.0})
    found = whole(path)
    assert found["train"]["x"] == [1, 2, 3, 4, 5, 6] and found["train"]["columns"]["reward/total/mean"][-1] == 60
    assert found["train"]["columns"]["late"] == [1.0] * 5 + [None]
    truth = metric_series(read_events(path))["reward/total/mean"]
    assert [iteration for iteration, _ in truth] == found["train"]["x"]


def test_the_later_event_replaces_the_earlier_one(path):
    iterations(path, [1, 2, 3], old=1.0)
    iterations(path, [2])
    found = whole(path)["train"]
    assert found["x"] == [1, 2, 3] and found["columns"]["old"] == [1.0, None, 1.0]


def test_a_growing_file_is_read_once(path, monkeypatch):
    iterations(path, range(1, 101))
    series, taken = RunSeries(path), []
    original = RunSeries.line
    monkeypatch.setattr(RunSeries, "line", lambda self, offset, line: (taken.append(offset), original(self, offset, line)))
    assert len(series.answer(1000)["train"]["x"]) == 100 and len(taken) == 100
    series.answer(1000)
    assert len(taken) == 100
    iterations(path, range(101, 104))
    assert series.answer(1000)["train"]["x"][-1] == 103 and len(taken) == 103


def test_a_line_that_is_being_written_waits(path):
    iterations(path, [1])
    series = RunSeries(path)
    assert series.answer(9)["last_seq"] == 1
    line = json.dumps({"seq": 2, "time": 1, "type": "iteration", "iteration": 2, "metrics": {"a": 1}}).encode()
    with open(path, "ab") as file:
        file.write(line[:30])
    assert series.answer(9)["last_seq"] == 1
    with open(path, "ab") as file:
        file.write(line[30:])  # whole but for its newline: a reader of events has it, so the curve has
    assert series.answer(9)["train"]["x"] == [1, 2]
    with EventWriter(path) as events:
        events.write("iteration", iteration=3, metrics={"a": 2})
    assert series.answer(9)["train"]["x"] == [1, 2, 3]


def test_a_torn_line_and_foreign_lines_are_passed_over(path):
    iterations(path, [1])
    with open(path, "ab") as file:
        file.write(b'{"seq": 2, "time": 1, "type": "itera')  # a kill
    iterations(path, [2])
    with open(path, "ab") as file:
        file.write(b'null\n[1]\n\xff\xfe\n{"seq": 3, "type": "iteration", "iteration": "x", "metrics": {}}\n')
        file.write(b'{"seq": 4, "type": "iteration", "iteration": 3, "metrics": {"a": 1' + b"0" * 400 + b', "b": "x"}}\n')
    found = whole(path)
    assert found["train"]["x"] == [1, 2, 3] and found["last_seq"] == 4
    assert found["train"]["columns"]["a"] == [None] * 3 and found["train"]["columns"]["b"] == [None] * 3


@pytest.mark.parametrize("longer", [False, True])
def test_another_file_in_its_place_is_read_anew(path, longer):
    iterations(path, range(1, 21))
    series, index = RunSeries(path), EventIndex(path)
    assert series.answer(99)["train"]["x"][-1] == 20 and index.after(19, 9)[0]["iteration"] == 20
    other = path.with_name("other")
    iterations(other, range(1001, 1101 if longer else 1003))
    other.replace(path)
    assert series.answer(999)["train"]["x"][0] == 1001
    assert index.after(0, 1)[0]["iteration"] == 1001
    path.unlink()
    assert series.answer(9)["last_seq"] == 0 and index.after(0, 9) == []


def test_thinning_keeps_ends_extremes_and_order(path):
    table = Columns()
    for number in range(1, 10_001):
        table.put(number, {"wave": math.sin(number / 500), "spike": 9.0 if number == 5037 else 0.0, "hole": math.nan})
    thin, thinned = table.table(2000)
    assert thinned and 1000 < len(thin["x"]) <= 2000
    assert thin["x"][0] == 1 and thin["x"][-1] == 10_000
    assert all(a < b for a, b in zip(thin["x"], thin["x"][1:], strict=False))
    assert max(thin["columns"]["spike"]) == 9.0
    at = thin["x"][thin["columns"]["spike"].index(9.0)]
    assert abs(at - 5037) <= 10  # no further away than a point is wide
    assert max(thin["columns"]["wave"]) == pytest.approx(1, abs=1e-5)
    assert min(thin["columns"]["wave"]) == pytest.approx(-1, abs=1e-5)
    for x, value in zip(thin["x"], thin["columns"]["wave"], strict=True):
        assert value == pytest.approx(math.sin(x / 500), abs=0.025)
    assert set(thin["columns"]["hole"]) == {None}
    assert thin["columns"]["wave"][-1] == pytest.approx(math.sin(20), abs=1e-6)


@pytest.mark.parametrize("rows", [3, 4, 5, 7, 98, 99, 100, 101, 1000, 1001])
@pytest.mark.parametrize("points", [2, 3, 4, 5, 99])
def test_never_more_rows_than_asked_for(rows, points):
    table = Columns()
    for number in range(rows):
        table.put(number, {"a": float(number % 7)})
    thin, thinned = table.table(points)
    assert len(thin["x"]) <= points and len(thin["columns"]["a"]) == len(thin["x"]) and thinned == (rows > points)
    assert thin["x"] == sorted(set(thin["x"])) and thin["x"][-1] == rows - 1
    if not thinned:
        assert thin["columns"]["a"] == [float(number % 7) for number in range(rows)]


def test_a_stretch_is_shown_whole(path):
    iterations(path, range(1, 3001))
    series = RunSeries(path)
    part = series.answer(2000, 1000, 1499)
    assert part["train"]["x"] == list(range(1000, 1500)) and part["decimated"] is False
    assert series.answer(100, 1000, 1499)["decimated"] is True
    assert series.answer(9, 5000, 6000)["train"] == {"x": [], "columns": {"reward/total/mean": []}}
    assert series.answer(9, 20, 10)["train"]["x"] == []


def test_numbers_are_sent_with_as_many_digits_as_matter():
    table = Columns()
    values = [1 / 3, 2e-12 / 3, 123456.789, -0.1, 0.0, 1e300, 2**40 + 1.0, 5e-324, 1e-3]
    for number, value in enumerate(values):
        table.put(number, {"a": value})
    found = table.table(99)[0]["columns"]["a"]
    assert found[:5] == [0.3333333, 6.666667e-13, 123456.8, -0.1, 0.0] and found[-1] == 0.001
    assert found == pytest.approx(values, rel=1e-6)


def test_index_finds_rare_kinds_and_the_newest(path):
    with EventWriter(path) as events:
        for number in range(1, 1001):
            events.write("iteration", iteration=number, metrics={})
            if number % 100 == 0:
                events.write("grid", iteration=number, grid="g")
        events.write("warning", iteration=1000, message='a "type": "grid" in a text')
    index = EventIndex(path)
    assert [event["iteration"] for event in index.after(0, 3, ["grid"])] == [100, 200, 300]
    assert [event["iteration"] for event in index.before(2**53, 3, ["grid", "warning"])] == [900, 1000, 1000]
    assert [event["seq"] for event in index.before(5, 2)] == [3, 4]
    assert index.before(1, 9) == [] and index.after(10**6, 9) == []
    with EventWriter(path) as events:
        events.write("grid", iteration=1001, grid="g")
    assert index.before(2**53, 1, ["grid"])[0]["iteration"] == 1001


def test_what_is_kept_is_bounded(tmp_path):
    made = []
    kept = Kept(lambda path: made.append(path) or [path], most=3)
    paths = [tmp_path / str(number) for number in range(5)]
    for path in paths:
        kept.get(path)
    assert len(kept) == 3 and list(kept) == paths[2:]
    first = kept.get(paths[2])
    kept.get(tmp_path / "new")
    assert kept.get(paths[2]) is first and list(kept)[-1] == paths[2]
    heavy = Kept(lambda path: [0] * 10, most=99, weight=25, weigh=len)
    for path in paths:
        heavy.get(path)
    assert len(heavy) == 2
    one = Kept(lambda path: [0] * 100, most=99, weight=25, weigh=len)
    assert len(one.get(paths[0])) == 100 and len(one) == 1  # what is asked for is there, however large


def test_the_same_file_has_the_same_series(path):
    iterations(path, [1])
    assert run_series(path) is run_series(path)
