"""The handlers over a real aiohttp server: what they show, what they refuse, and how fast they are."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from trainer import runs
from trainer.config import load_config
from trainer.runs import EventWriter, RunState, write_state
from trainer.runs.http import MAX_BODY, routes

CONFIG = {
    "preset": "demo",
    "name": "Größe",
    "iterations": 9,
    "optimizer": {"lr": 2e-3},
    "rollout": {"prompts_per_iteration": 2},
    "prompts": {"train": ["a red square", "a blue circle"]},
}


@pytest.fixture
def root(tmp_path):
    return tmp_path / "runs ü"


@pytest.fixture
def run(root):
    """A paused run of this very process."""
    run = runs.create_run(root, "demo-1")
    runs.write_atomic(run.config_file, load_config(CONFIG).to_yaml())
    write_state(run, RunState("paused", iteration=4, iterations=9, device="cpu", name="Größe", **runs.own_process()))
    with EventWriter(run.events_file) as events:
        events.write("evaluation", iteration=0, metrics={"eval/total/mean": float("nan")})
        for number in range(1, 5):
            events.write("iteration", iteration=number, metrics={"reward/total/mean": number / 10})
        events.write("paused", iteration=4)
    run.log_file.write_text("eins\nzwei\ndrei ö\n", encoding="utf-8")
    folder = run.samples / "000000"
    folder.mkdir()
    for name in ("p000-s0.png", "grid.png"):
        (folder / name).write_bytes(b"\x89PNG")
    index = {
        "files": ["p000-s0.png", "../../secret.png", 7],
        "prompts": ["a"],
        "seeds": [2**62 + 1],
        "seeds_per_prompt": 1,
        "scores": {"scene": [0.5]},
        "means": {},
    }
    runs.write_json(folder / "index.json", index)
    (run.path / "curve.png").write_bytes(b"\x89PNG")
    return run


class Recorder:
    """Actions that only remember what they were asked, or raise."""

    def __init__(self, error=None):
        self.calls, self.error = [], error

    def _call(self, *call):
        self.calls.append(call)
        if self.error:
            raise self.error

    def control(self, run, action):
        self._call("control", run.id, action)

    def delete(self, run):
        self._call("delete", run.id)

    def resume(self, run, device):
        self._call("resume", run.id, device)


def served(root, actions=None, **kw):
    """A decorator: runs `async test(client)` against a server for `root`."""

    def decorate(test):
        async def session():
            app = web.Application()
            app.add_routes(routes(lambda: root, actions, **kw))
            async with TestClient(TestServer(app)) as client:
                await test(client)

        asyncio.run(session())

    return decorate


async def got(client, path, status=200):
    async with client.get(path) as answer:
        assert answer.status == status, await answer.text()
        assert answer.headers["Cache-Control"] == "no-store" and answer.content_type == "application/json"
        return await answer.json()


async def posted(client, path, body=None, status=200, **kw):
    kw = kw or {"json": body if body is not None else {}}
    async with client.post(path, **kw) as answer:
        found = await answer.json()
        assert answer.status == status, found
        if status != 200:
            assert list(found) == ["error"] and "\n" not in found["error"]
        return found


def test_what_is_shown(root, run):
    torn = runs.create_run(root, "torn")
    torn.state_file.write_text('{"sta', encoding="utf-8")
    (root / "notes").mkdir()

    @served(root, describe=lambda run: {"view": "x"})
    async def test(client):
        listed = (await got(client, "/vgrpo/runs"))["runs"]
        by_id = {one["id"]: one for one in listed}
        assert set(by_id) == {"demo-1", "torn"}
        one = by_id["demo-1"]
        assert (one["status"], one["iteration"], one["iterations"], one["name"]) == ("paused", 4, 9, "Größe")
        assert one["seq"] == 6 and one["device"] == "cpu" and one["actions"] == ["resume", "stop", "checkpoint", "sample"]
        # A torn state does not take the list away, and offers what mends it.
        assert by_id["torn"]["status"] == "lost" and by_id["torn"]["actions"] == ["resume", "delete"]
        assert "Resume the run to write it anew" in by_id["torn"]["message"]

        runs.request(run, "sample")
        all_of_it = await got(client, "/vgrpo/runs/demo-1")
        assert all_of_it["requests"] == ["sample"] and all_of_it["view"] == "x" and all_of_it["reports"] == ["curve.png"]
        assert all_of_it["samples"][0]["files"] == ["p000-s0.png"]  # a name that leads elsewhere is not passed on
        assert all_of_it["samples"][0]["grid"] == "samples/000000/grid.png" and all_of_it["checkpoints"] == []
        assert all_of_it["log"] == str(run.log_file) and all_of_it["summary"] is None

        assert all_of_it["workflow"] is False and "scores" not in all_of_it["samples"][0]

        log = await got(client, "/vgrpo/runs/demo-1/log?tail=2")
        assert log == {"run": "demo-1", "lines": ["zwei", "drei ö"]}
        assert (await got(client, "/vgrpo/runs/torn/log"))["lines"] == []

        config = await got(client, "/vgrpo/runs/demo-1/config")
        assert config["yaml"] == run.config_file.read_text(encoding="utf-8") and config["preset"] == "demo"
        assert {"key": "optimizer.lr", "value": 0.002, "preset": 0.001} in config["diff"]
        assert {row["key"] for row in config["diff"]} == {
            "iterations",
            "optimizer.lr",
            "prompts.train",
            "rollout.prompts_per_iteration",
        }
        assert [row["preset"] for row in config["diff"] if row["key"] == "prompts.train"] == ["240 entries"]
        assert (config["rewards"], config["clip_eps"]) == ({"scene": 1.0}, 0.02) and "saturation" in config["monitors"]
        assert (await got(client, "/vgrpo/runs/torn/config", 409))["error"]


def test_what_a_preset_leaves_open_is_no_difference(root, run):
    prompts = [{"text": f"prompt {number}", "metadata": {"tag": "counting"}} for number in range(48)]
    given = {
        "preset": "sd3",
        "seed": 5,
        "rewards": {"geneval": {"weight": 2}},
        "prompts": {"train": prompts, "evaluate": ["b"]},
    }
    runs.write_atomic(run.config_file, load_config(given, check_files=False).to_yaml())

    @served(root)
    async def test(client):
        config = await got(client, "/vgrpo/runs/demo-1/config")
        assert (config["preset"], config["diff"]) == ("sd3", [{"key": "seed", "value": 5, "preset": 0}])


def test_events_are_windows(root, run):
    @served(root)
    async def test(client):
        whole = await got(client, "/vgrpo/runs/demo-1/events")
        assert [event["seq"] for event in whole["events"]] == [1, 2, 3, 4, 5, 6]
        assert (whole["last_seq"], whole["more"], whole["after"]) == (6, False, 0)
        assert whole["events"][0]["metrics"] == {"eval/total/mean": None}
        part = await got(client, "/vgrpo/runs/demo-1/events?after=1&limit=2")
        assert [event["seq"] for event in part["events"]] == [2, 3] and part["more"] and part["last_seq"] == 6
        kinds = await got(client, "/vgrpo/runs/demo-1/events?types=paused,evaluation")
        assert [event["seq"] for event in kinds["events"]] == [1, 6]
        assert (await got(client, "/vgrpo/runs/demo-1/events?after=6"))["events"] == []
        for wrong in ("after=-1", "after=x", "after=1e3", "limit=0", "limit=1001", "types=nonsense", "after=" + "9" * 99):
            assert "allowed: " in (await got(client, f"/vgrpo/runs/demo-1/events?{wrong}", 400))["error"]
        assert "allowed: " in (await got(client, "/vgrpo/runs/demo-1/log?tail=0", 400))["error"]
        # A line that is being written is not there yet.
        with open(run.events_file, "ab") as file:
            file.write(b'{"seq": 7, "time": 1, "type": "iter')
        assert (await got(client, "/vgrpo/runs/demo-1/events?after=5"))["last_seq"] == 6


def test_any_window_of_a_long_run_takes_less_than_100_ms(root, run):
    """Server and client together, in processor time: a busy machine's clock says more about its other work."""
    metrics = {f"metric/{number}/mean": number / 7 for number in range(40)}
    with EventWriter(run.events_file) as events:
        for number in range(5, 10_001):
            events.write("iteration", iteration=number, metrics=metrics)

    @served(root)
    async def test(client):
        async def quickest(query):
            times = []
            for _ in range(5):
                start = time.process_time()
                async with client.get(f"/vgrpo/runs/demo-1/events?{query}") as answer:
                    assert answer.status == 200
                    await answer.read()
                times.append(time.process_time() - start)
            return min(times)

        for after in (0, 3000, 6000, 9000, 9990):
            assert await quickest(f"after={after}") < 0.1
            assert await quickest(f"before={after + 1}&types=evaluation,paused") < 0.1
        assert await quickest("after=0&types=evaluation,paused") < 0.1
        last = await got(client, "/vgrpo/runs/demo-1/events?after=9990")
        assert last["events"][-1]["iteration"] == 10_000 and not last["more"]


def test_the_newest_events_backwards(root, run):
    @served(root)
    async def test(client):
        newest = await got(client, f"/vgrpo/runs/demo-1/events?before={2**53}&limit=2")
        assert [event["seq"] for event in newest["events"]] == [5, 6] and newest["more"] and newest["last_seq"] == 6
        older = await got(client, "/vgrpo/runs/demo-1/events?before=5&limit=1000")
        assert [event["seq"] for event in older["events"]] == [1, 2, 3, 4] and not older["more"]
        kind = await got(client, "/vgrpo/runs/demo-1/events?before=6&types=evaluation,paused")
        assert [event["seq"] for event in kind["events"]] == [1]
        both = await got(client, "/vgrpo/runs/demo-1/events?before=6&after=3")
        assert [event["seq"] for event in both["events"]] == [4, 5]
        for wrong in ("before=0", "before=x", "before=" + "9" * 17):
            assert "allowed: " in (await got(client, f"/vgrpo/runs/demo-1/events?{wrong}", 400))["error"]


def test_series(root, run):
    @served(root)
    async def test(client):
        found = await got(client, "/vgrpo/runs/demo-1/series")
        assert found == {
            "run": "demo-1",
            "last_seq": 6,
            "train": {"x": [1, 2, 3, 4], "columns": {"reward/total/mean": [0.1, 0.2, 0.3, 0.4]}},
            "evaluate": {"x": [0], "columns": {"eval/total/mean": [None]}},
            "decimated": False,
        }
        part = await got(client, "/vgrpo/runs/demo-1/series?from=2&to=3")
        assert part["train"]["x"] == [2, 3] and part["evaluate"]["x"] == []
        few = await got(client, "/vgrpo/runs/demo-1/series?points=2")
        assert few["train"]["x"] == [1, 4] and few["decimated"] is True
        for wrong in ("points=1", "points=99999", "from=-1", "to=x"):
            assert "allowed: " in (await got(client, f"/vgrpo/runs/demo-1/series?{wrong}", 400))["error"]


def test_some_runs_of_the_list(root, run):
    runs.create_run(root, "other")

    @served(root, view=lambda run: {"view": run.id})
    async def test(client):
        listed = (await got(client, "/vgrpo/runs?ids=demo-1,gone,demo-1"))["runs"]
        assert [one["id"] for one in listed] == ["demo-1"] and listed[0]["view"] == "demo-1"
        assert listed[0]["spark"] == [0.1, 0.2, 0.3, 0.4] and listed[0]["thumbnail"] == "samples/000000/grid.png"
        assert (await got(client, "/vgrpo/runs?ids="))["runs"] == []
        for wrong in ("../x", "A", ",".join(f"r{number}" for number in range(201))):
            assert "allowed: " in (await got(client, f"/vgrpo/runs?ids={wrong}", 400))["error"]


def test_a_run_whose_files_cannot_be_read_takes_no_other_away(root, run):
    broken = runs.create_run(root, "broken")
    runs.write_state(broken, runs.RunState(status=runs.FINISHED, name="broken", iterations=3, message="done"))
    broken.events_file.mkdir()

    @served(root)
    async def test(client):
        entries = {entry["id"]: entry for entry in (await got(client, "/vgrpo/runs"))["runs"]}
        told, whole = entries["broken"], entries[run.id]
        assert told["message"].startswith("done; its files cannot be read: ") and told.keys() == whole.keys()
        assert told["status"] == "finished" and told["actions"] == ["delete"]


def test_evaluations_are_told_once_and_in_full_where_asked(root, run):
    first = json.loads((run.samples / "000000" / "index.json").read_text())
    for iteration, prompts in ((8, ["a"]), (16, ["b"])):
        folder = run.samples / f"{iteration:06d}"
        folder.mkdir()
        runs.write_json(folder / "index.json", {**first, "prompts": prompts})

    @served(root)
    async def test(client):
        samples = (await got(client, "/vgrpo/runs/demo-1"))["samples"]
        assert [one["iteration"] for one in samples] == [0, 8, 16]
        assert [one["prompts"] for one in samples] == [["a"], None, ["b"]]
        assert [one["seeds"] for one in samples] == [[str(2**62 + 1)], None, None]  # a browser would round the number
        assert samples[1]["files"] is None and samples[1]["grid"] is None
        one = await got(client, "/vgrpo/runs/demo-1/samples/8")
        assert (one["prompts"], one["scores"], one["iteration"]) == (["a"], {"scene": [0.5]}, 8)
        assert (await got(client, "/vgrpo/runs/demo-1/samples/000000"))["grid"] == "samples/000000/grid.png"
        for wrong in ("9", "x", "..%2f000000", "1" * 13):
            assert "no such evaluation" in (await got(client, f"/vgrpo/runs/demo-1/samples/{wrong}", 404))["error"]


def test_the_command_that_repeats_a_run(root, run):
    import shlex

    from trainer.cli import build_parser

    @served(root)
    async def test(client):
        command = (await got(client, "/vgrpo/runs/demo-1/command"))["command"]
        words = shlex.split(command)
        args = build_parser().parse_args(words[2:])
        assert words[1].endswith("cli.py") and args.command == "train"
        assert args.config == str(run.config_file) and args.output == root
        run.config_file.unlink()
        assert "no config.yaml" in (await got(client, "/vgrpo/runs/demo-1/command", 409))["error"]


def test_the_graph_that_started_a_run(root, run):
    @served(root)
    async def test(client):
        assert "not started from a graph" in (await got(client, "/vgrpo/runs/demo-1/workflow", 404))["error"]
        runs.write_json(run.path / "workflow.json", {"nodes": [{"id": 1}]})
        assert await got(client, "/vgrpo/runs/demo-1/workflow") == {"nodes": [{"id": 1}]}
        assert (await got(client, "/vgrpo/runs/demo-1"))["workflow"] is True


def test_the_folder_is_opened_only_for_who_sits_here(root, run):
    opened = []

    def open_folder(path):
        opened.append(path)
        return True

    path = "/vgrpo/runs/demo-1/reveal"

    @served(root, reveal=open_folder)
    async def test(client):
        assert await posted(client, path) == {"run": "demo-1", "path": str(run.path), "opened": True}
        for headers in ({"Host": "runs.example"}, {"X-Forwarded-For": "192.0.2.1"}, {"Host": "192.0.2.9:80"}):
            answer = await posted(client, path, json={}, headers=headers)
            assert answer == {"run": "demo-1", "path": str(run.path), "opened": False}
        await posted(client, path, status=400, data="{}", headers={"Content-Type": "text/plain"})
        await posted(client, "/vgrpo/runs/other/reveal", status=404)
        assert opened == [run.path]

    @served(root)
    async def told(client):
        assert (await posted(client, path))["opened"] is False


TAILS = ["events", "series", "log", "config", "command", "workflow", "samples/0", "samples/000000/grid.png"]
BAD_IDS = ["..", "%2e%2e", "a%2Fb", "..%2f..%2fetc", "A", "a" * 65, "-a", "a%00", "%C3%A4", "C:", "a b"]


def test_ids_and_names_never_leave_the_folder(root, run, tmp_path):
    (tmp_path / "secret.png").write_bytes(b"secret")

    @served(root, Recorder(), pictures=True)
    async def test(client):
        from yarl import URL

        for name in BAD_IDS:
            for tail in ("", *(f"/{part}" for part in TAILS)):
                async with client.get(URL(f"/vgrpo/runs/{name}{tail}", encoded=True)) as answer:
                    assert answer.status in (400, 404), (name, tail)
                    assert b"secret" not in await answer.read()
            async with client.post(URL(f"/vgrpo/runs/{name}/delete", encoded=True), json={}) as answer:
                assert answer.status in (400, 404, 405)
        assert "there is no run 'other'" in (await got(client, "/vgrpo/runs/other", 404))["error"].lower()
        async with client.get("/vgrpo/runs/demo-1/samples/000000/grid.png") as answer:
            assert answer.status == 200 and answer.content_type == "image/png"
            assert answer.headers["Cache-Control"] == "no-cache"  # a resumed run may draw it anew
        async with client.get("/vgrpo/runs/demo-1/reports/curve.png") as answer:
            assert answer.status == 200
        samples = ("index.json", "..%2f..%2fconfig.yaml", "grid.png%00", "p0-s0.png", "p001-s0.png")
        reports = ("config.yaml", "..%2fcurve.png", "before-after.png")
        elsewhere = ("samples/00/grid.png", "samples/000009/grid.png", "samples/..%2f000000/grid.png")
        paths = [*(f"samples/000000/{name}" for name in samples), *(f"reports/{name}" for name in reports), *elsewhere]
        for path in paths:
            async with client.get(URL(f"/vgrpo/runs/demo-1/{path}", encoded=True)) as answer:
                assert answer.status == 404, path

    @served(root)
    async def no_pictures(client):
        async with client.get("/vgrpo/runs/demo-1/samples/000000/grid.png") as answer:
            assert answer.status == 404


def test_what_changes_a_run(root, run):
    recorder = Recorder()

    @served(root, recorder)
    async def test(client):
        assert await posted(client, "/vgrpo/runs/demo-1/control", {"action": "stop"}) == {"run": "demo-1", "action": "stop"}
        assert (await posted(client, "/vgrpo/runs/demo-1/delete"))["deleted"] is True
        assert (await posted(client, "/vgrpo/runs/demo-1/resume", {"device": "cuda:1"}))["status"] == "paused"
        assert recorder.calls == [("control", "demo-1", "stop"), ("delete", "demo-1"), ("resume", "demo-1", "cuda:1")]
        recorder.calls.clear()

        path = "/vgrpo/runs/demo-1/control"
        text = json.dumps({"action": "stop"})
        for kw in (
            {"data": {"action": "stop"}},  # what a form of a strange page could send
            {"data": text, "headers": {"Content-Type": "text/plain"}},
            {"data": text.encode(), "headers": {"Content-Type": "application/jsonx"}},
        ):
            assert "it must be application/json" in (await posted(client, path, status=400, **kw))["error"]
        for body in (b"", b"[]", b'"stop"', b"{", b"\xff", b"[" * 5000, b'{"action": "explode"}', b'{"action": ["stop"]}'):
            await posted(client, path, status=400, data=body, headers={"Content-Type": "application/json"})
        large = b'{"action": "stop", "x": "' + b"x" * MAX_BODY + b'"}'
        said = await posted(client, path, status=400, data=large, headers={"Content-Type": "application/json"})
        assert "larger than" in said["error"]
        for device in ("gpu", "cuda:", "../x", 3, "cuda:1; rm"):
            await posted(client, "/vgrpo/runs/demo-1/resume", {"device": device}, status=400)
        await posted(client, "/vgrpo/runs/other/control", {"action": "stop"}, status=404)
        for change in ("control", "delete", "resume"):  # nothing changes by looking
            async with client.get(f"/vgrpo/runs/demo-1/{change}") as answer:
                assert answer.status in (404, 405)
        assert recorder.calls == []


def test_a_refusal_is_409(root, run):
    from trainer.errors import UserError

    @served(root, Recorder(UserError("The run is\nbusy.")))
    async def test(client):
        for change, body in (("control", {"action": "stop"}), ("delete", {}), ("resume", {})):
            assert (await posted(client, f"/vgrpo/runs/demo-1/{change}", body, status=409)) == {"error": "The run is busy."}


def test_without_actions_nothing_can_be_changed(root, run):
    @served(root)
    async def test(client):
        for change, body in (("control", {"action": "stop"}), ("delete", {}), ("resume", {})):
            said = await posted(client, f"/vgrpo/runs/demo-1/{change}", body, status=403)
            assert "only shows runs" in said["error"]

    assert run.path.is_dir() and runs.pending(run) == []


def test_an_empty_or_missing_folder(tmp_path):
    @served(tmp_path / "nowhere")
    async def test(client):
        assert await got(client, "/vgrpo/runs") == {"runs": []}
        await got(client, "/vgrpo/runs/a", 404)
