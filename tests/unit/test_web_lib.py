"""web/lib under node, where there is one: the pure modules, and the store against a real server. A browser runs the rest."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
from aiohttp import web

from tests.small_run import ROOT
from trainer import runs
from trainer.commands import serve
from trainer.runs import EventWriter, RunState, metric_series, read_events, write_state

JS = Path(__file__).parent / "js"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="there is no node; the browser tests cover these modules")


@needs_node
def test_the_pure_modules():
    found = subprocess.run([NODE, "--test", str(JS / "lib.test.mjs")], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-2000:]


def test_nothing_of_the_panel_comes_from_elsewhere_or_becomes_markup():
    files = [path for path in (ROOT / "web").rglob("*") if path.suffix in (".js", ".mjs", ".css")]
    assert len(files) > 10
    for path in files:
        text = path.read_text(encoding="utf-8")
        code = re.sub(r"/\*.*?\*/|(?<![:\"'`])//[^\n]*", "", text, flags=re.DOTALL)
        assert not re.search(r"https?://(?!www\.w3\.org/)", code), path
        markup = r"\b(outerHTML|insertAdjacentHTML|document\.write|eval)\b\s*[(=]|\.innerHTML\b|new Function\("
        assert not re.search(markup, code), path
    # ComfyUI imports every .js below the folder as an extension of its own.
    assert [path.name for path in files if path.suffix == ".js"] in ([], ["vgrpo.js"])


class Server:
    """`serve` in a thread; it can go away and come back at the same port."""

    def __init__(self, root, token=None):
        self.root, self.token, self.port = root, token, 0
        self.start()

    def start(self):
        self._loop, ready = asyncio.new_event_loop(), threading.Event()

        async def main():
            actions = serve.Actions(self.root, "cpu") if self.token else None
            app = serve.application(self.root, actions, self.token, serve._host_check("127.0.0.1"))
            self._runner = web.AppRunner(app, shutdown_timeout=0.1)
            await self._runner.setup()
            site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
            await site.start()
            self.port = site._server.sockets[0].getsockname()[1]
            ready.set()

        def work():
            self._loop.run_until_complete(main())
            self._loop.run_forever()

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()
        assert ready.wait(30)

    def stop(self):
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


class Page:
    def __init__(self, server, run, token=""):
        self._process = subprocess.Popen(
            [NODE, str(JS / "follow.mjs"), f"http://127.0.0.1:{server.port}/", run, token],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def ask(self, *words):
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def until(self, check, seconds=60):
        deadline = time.monotonic() + seconds
        while not check(state := self.ask("state")):
            assert time.monotonic() < deadline, json.dumps(state)[:3000]
            time.sleep(0.05)
        return state

    def close(self):
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def run(tmp_path):
    run = runs.create_run(tmp_path / "runs", "demo-1")
    write_state(run, RunState("running", iteration=0, iterations=500, **runs.own_process()))
    run.log_file.write_text("one\n", encoding="utf-8")
    return run


@pytest.fixture
def writer(run):
    with EventWriter(run.events_file) as writer:
        yield writer


@pytest.fixture
def server(run):
    server = Server(run.path.parent)
    yield server
    server.stop()


@pytest.fixture
def page(server):
    page = Page(server, "demo-1")
    yield page
    page.close()


def train(writer, numbers, value=lambda number: number / 8):
    for number in numbers:
        writer.write("iteration", iteration=number, metrics={"reward/total/mean": value(number)})


def agrees(state, run):
    """Nothing lost, nothing doubled: the page has what is in the file."""
    truth = metric_series(read_events(run.events_file))
    for name, points in truth.items():
        table = state["evaluate" if name.startswith("eval/") else "train"]
        if name not in table["columns"]:
            return False
        shown = [(x, y) for x, y in zip(table["x"], table["columns"][name], strict=True) if y is not None]
        if [x for x, _ in shown] != [x for x, _ in points] or [y for _, y in shown] != pytest.approx([y for _, y in points]):
            return False
    kinds = [(event["seq"], event["type"]) for event in read_events(run.events_file) if event["type"] != "iteration"]
    return [tuple(event) for event in state["events"]] == kinds


@needs_node
def test_a_run_is_followed(run, writer, page):
    writer.write("evaluation", iteration=0, metrics={"eval/total/mean": 0.5})
    train(writer, range(1, 31))
    state = page.until(lambda state: agrees(state, run))
    assert state["same"] and state["error"] is None and state["order"] == ["demo-1"]
    train(writer, range(31, 41))
    writer.write("grid", iteration=40, grid="samples/000040/grid.png")
    writer.write("resumed", iteration=35)
    train(writer, range(36, 38), lambda number: -float(number))
    writer.write("evaluation", iteration=37, metrics={"eval/total/mean": 0.75})
    state = page.until(lambda state: agrees(state, run) and state["summary"]["seq"] == 46)
    assert state["train"]["x"] == list(range(1, 38))
    write_state(run, RunState("finished", iteration=500, iterations=500))
    state = page.until(lambda state: state["detail"]["status"] == state["summary"]["status"] == "finished")
    assert state["summary"]["actions"] == ["delete"]


@needs_node
def test_a_server_that_goes_and_comes_back(run, writer, server, page):
    train(writer, range(1, 11))
    page.until(lambda state: agrees(state, run))
    server.stop()
    page.until(lambda state: state["connection"] == "reconnecting")
    train(writer, range(11, 21))
    writer.write("warning", iteration=20, message="meanwhile")
    server.start()
    # The views hear of it in the next frame.
    state = page.until(lambda state: state["connections"] == ["reconnecting", "live"] and agrees(state, run))
    assert state["connection"] == "live" and state["train"]["x"] == list(range(1, 21))


@pytest.fixture
def long_run(run, writer):
    """A run of a past that a page does not load whole; asked for before `page`, it is all there when the page comes."""
    train(writer, range(1, 5001))
    for number in range(450):
        writer.write("warning", iteration=number, message=str(number))
    return run


@needs_node
def test_zoom_log_and_older_events(long_run, run, writer, page):
    state = page.until(lambda state: len(state["events"]) >= 200)
    assert len(state["train"]["x"]) <= 2000 and state["older"]
    assert state["events"][-1] == [5450, "warning"]
    page.ask("zoom", 2000.4, 2100)
    state = page.until(lambda state: all(x in state["train"]["x"] for x in range(2000, 2101)))
    x = state["train"]["x"]
    assert x == sorted(set(x)) and x[0] == 1 and x[-1] == 5000
    assert all(len(values) == len(x) for values in state["train"]["columns"].values())
    train(writer, [5001])
    page.until(lambda state: state["train"]["x"][-1] == 5001 and 2050 in state["train"]["x"])
    page.ask("zoom", None, None)
    page.until(lambda state: sum(2000 <= x <= 2100 for x in state["train"]["x"]) < 101 and state["train"]["x"][-1] == 5001)
    assert page.ask("older") is True and page.ask("older") is False and page.ask("older") is False
    assert [event[0] for event in page.ask("state")["events"]] == list(range(5001, 5451))
    assert page.ask("log", 5) == ["one"]
    with open(run.log_file, "a", encoding="utf-8") as log:
        log.write("two\n")
    train(writer, [5002])
    page.until(lambda state: state["log"] == ["one", "two"])


@needs_node
def test_what_is_asked_of_runs(run, tmp_path):
    root = run.path.parent
    other = runs.create_run(root, "other")
    write_state(other, RunState("stopped", iterations=3))
    server = Server(root, "secret")
    page, reader = Page(server, "demo-1", "secret"), Page(server, "demo-1")
    try:
        page.until(lambda state: sorted(state["order"]) == ["demo-1", "other"])
        assert page.ask("act", "demo-1", "pause") == {"run": "demo-1", "action": "pause"}
        assert runs.pending(run) == ["pause"]
        refused = reader.ask("act", "demo-1", "stop")
        assert refused["status"] == 401 and "token" in refused["error"]
        assert page.ask("act", "demo-1", "delete")["status"] == 409
        assert page.ask("act", "other", "delete")["deleted"] is True
        assert page.ask("state")["order"] == ["demo-1"]
        reader.until(lambda state: state["order"] == ["demo-1"])  # another page finds out by itself
        runs.create_run(root, "new")
        page.until(lambda state: sorted(state["order"]) == ["demo-1", "new"])
        assert page.ask("release") is True
    finally:
        page.close()
        reader.close()
        server.stop()
