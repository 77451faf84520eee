"""`serve`: read-only unless asked, the token, names of this machine only, and a real server process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.small_run import ROOT
from trainer import cli, runs
from trainer.commands import serve
from trainer.runs import RunState, write_state


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "Läufe hier"
    run = runs.create_run(root, "busy")
    write_state(run, RunState("running", iterations=3, **runs.own_process()))
    runs.write_atomic(run.config_file, "name: busy\n")
    run = runs.create_run(root, "old")
    write_state(run, RunState("stopped", iterations=3))
    return root


def session(root, token, test, host="127.0.0.1"):
    async def inner():
        actions = serve.Actions(root, "cpu") if token else None
        app = serve.application(root, actions, token, serve._host_check(host))
        async with TestClient(TestServer(app)) as client:
            await test(client)

    asyncio.run(inner())


async def post(client, path, body=None, **headers):
    async with client.post(path, json=body or {}, headers=headers) as answer:
        return answer.status, await answer.json()


def test_read_only_by_default(root):
    async def test(client):
        for prefix in ("", "/api"):
            async with client.get(f"{prefix}/vgrpo/runs") as answer:
                assert answer.status == 200 and len((await answer.json())["runs"]) == 2
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
            for change in ("control", "delete", "resume"):
                status, said = await post(client, f"{prefix}/vgrpo/runs/old/{change}", {"action": "stop"})
                assert status == 403 and "--control" in said["error"]

    session(root, None, test)


def test_control_needs_the_token(root):
    async def test(client):
        stop = ("/vgrpo/runs/busy/control", {"action": "stop"})
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}, {"Authorization": "Bearer "}):
            status, said = await post(client, *stop, **headers)
            assert status == 401 and "Authorization: Bearer" in said["error"]
        good = {"Authorization": "Bearer secret ü"}
        assert runs.pending(runs.find_run(root, "busy")) == []
        assert await post(client, *stop, **good) == (200, {"run": "busy", "action": "stop"})
        assert runs.pending(runs.find_run(root, "busy")) == ["stop"]
        status, said = await post(client, "/vgrpo/runs/busy/delete", **good)
        assert status == 409 and "cannot be deleted" in said["error"]
        status, said = await post(client, "/vgrpo/runs/busy/resume", **good)
        assert status == 409 and "cannot be resumed" in said["error"]
        status, said = await post(client, "/vgrpo/runs/old/control", {"action": "stop"}, **good)
        assert status == 409 and "nobody is there" in said["error"]
        assert (await post(client, "/vgrpo/runs/old/delete", **good))[0] == 200
        assert not (root / "old").exists()

    session(root, "secret ü", test)


def test_the_page_comes_with_the_runs(root):
    async def test(client):
        async with client.get("/") as answer:
            assert answer.status == 200 and "script-src 'self'" in answer.headers["Content-Security-Policy"]
        for path in ("/web/page/page.mjs", "/web/lib/store.mjs", "/vgrpo/assets/plotly.js", "/api/vgrpo/assets/plotly.js"):
            async with client.get(path) as answer:
                assert answer.status == 200 and answer.content_type == "text/javascript", path
        async with client.get("/vgrpo/about") as answer:
            assert await answer.json() == {"control": False, "folder": root.name}
        # To look where a run lies changes nothing; no window opens on the server.
        assert await post(client, "/vgrpo/runs/old/reveal") == (
            200,
            {"run": "old", "path": str(root / "old"), "opened": False},
        )

    session(root, None, test)


def test_with_control_even_the_folder_needs_the_token(root):
    async def test(client):
        async with client.get("/vgrpo/about") as answer:
            assert (await answer.json())["control"] is True
        assert (await post(client, "/vgrpo/runs/old/reveal"))[0] == 401
        assert (await post(client, "/vgrpo/runs/old/reveal", Authorization="Bearer s"))[0] == 200

    session(root, "s", test)


def test_on_the_loopback_address_only_its_own_names_count(root):
    """A page of evil.example whose name was made to resolve to 127.0.0.1 could read everything otherwise."""

    async def test(client):
        for name, status in (("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("evil.example:80", 403), ("", 403)):
            async with client.get("/vgrpo/runs", headers={"Host": name}) as answer:
                assert answer.status == status, name

    session(root, None, test)
    assert serve._host_check("0.0.0.0")("any.name:80")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "there is no folder"),
        ([".", "--port", "70000"], "--port is 70000; allowed: 0 to 65535"),
        ([".", "--token", "x"], "--token is for --control"),
        ([".", "--host", "256.1.1.1"], "cannot listen on 256.1.1.1"),
    ],
)
def test_wrong_arguments(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["serve", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_help_shows_examples_that_the_command_takes(capsys):
    import re
    import shlex

    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    examples = re.findall(
        r"^  python trainer/cli\.py (.*?)(?:  .*)?$", capsys.readouterr().out.split("example:")[1], re.MULTILINE
    )
    assert len(examples) == 2
    for example in examples:
        cli.build_parser().parse_args(shlex.split(example))


def test_a_real_server(root):
    command = [sys.executable, str(ROOT / "trainer" / "cli.py"), "serve", str(root), "--port", "0", "--control"]
    environment = {key: value for key, value in os.environ.items() if key != "VGRPO_TOKEN"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8", env=environment
    )
    try:
        first, second, third = (process.stdout.readline() for _ in range(3))
        page = first.split(" at ")[1].split(",")[0]
        assert "with control" in first and second.startswith("token: ")
        assert third == f"open: {page}#token={second.split()[1]}\n"
        with urllib.request.urlopen(page, timeout=60) as answer:
            assert b"web/page/page.mjs" in answer.read()
        url = page + "vgrpo/runs"
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert {run["id"] for run in json.load(answer)["runs"]} == {"busy", "old"}
        request = urllib.request.Request(f"{url}/old/delete", b"{}", {"Content-Type": "application/json"})
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(request, timeout=60)
        assert error.value.code == 401
        request.add_header("Authorization", f"Bearer {second.split()[1]}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["deleted"]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0 and out == "" and err == ""
    finally:
        process.kill()
        process.communicate()
