"""What the page is made of: the chart library, other languages, its own files, and nothing from elsewhere."""

from __future__ import annotations

import asyncio
import gzip
import json
import re

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from tests.small_run import ROOT
from trainer.runs import page, reveal
from trainer.runs.http import routes

IMPORTS = r"""^(?:import\s+|(?:import|export)\b[^;"'(=]*?\bfrom\s+)["']([^"']+)["']"""


def served(test, control=False):
    async def session():
        app = web.Application()
        app.add_routes(routes(lambda: ROOT / "nowhere"))
        app.add_routes(page.page_routes(control, "runs ü"))
        async with TestClient(TestServer(app), auto_decompress=False) as client:
            await test(client)

    asyncio.run(session())


async def answer(client, path, **headers):
    async with client.get(URL(path, encoded=True), headers=headers) as found:
        return found.status, found.headers, await found.read()


def test_the_page_and_all_that_it_names_is_there():
    async def test(client):
        status, headers, body = await answer(client, "/")
        assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
        policy = headers["Content-Security-Policy"]
        assert "script-src 'self';" in policy and "unsafe-eval" not in policy and "http" not in policy
        text = body.decode()
        named = re.findall(r'(?:href|src)="(?!data:)([^"]+)"', text)
        assert named and not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=", text)  # nothing inline
        todo, seen = ["/" + name for name in named], set()
        while todo:  # every module that is imported, from the page down
            path = todo.pop()
            if path in seen:
                continue
            seen.add(path)
            assert not path.startswith(("//", "/http"))
            status, headers, body = await answer(client, path)
            assert status == 200, path
            kind = "text/css" if path.endswith(".css") else "text/javascript"
            assert headers["Content-Type"] == f"{kind}; charset=utf-8", path
            if kind == "text/javascript":
                for target in re.findall(IMPORTS, body.decode(), re.MULTILINE):
                    assert target.startswith("."), (path, target)
                    todo.append(str(URL(f"http://x{path}").join(URL(target)).path))
        assert {"/web/lib/store.mjs", "/web/views/cards.mjs", "/web/views/detail.mjs"} <= seen
        # All that the page will ask for is told at its beginning: one import after another would take as long again.
        early = {"/" + name for name in re.findall(r'rel="(?:module)?preload"[^>]* href="([^"]+)"', text)}
        assert early == seen - {"/web/page/page.mjs"}
        asked = (page.WEB / "lib" / "styles.mjs").read_text(encoding="utf-8")
        (sheets,) = re.findall(r"const SHEETS = \[(.*)\]", asked)
        names = [*re.findall(r'"(\w+)"', sheets), "page"]
        assert {path for path in early if path.endswith(".css")} == {f"/web/styles/{name}.css" for name in names}

    served(test)


def test_a_file_that_the_browser_has_is_not_sent_again():
    async def test(client):
        _, headers, body = await answer(client, "/web/lib/store.mjs")
        assert body == (page.WEB / "lib" / "store.mjs").read_bytes() and headers["Cache-Control"] == "no-cache"
        for known, status in ((headers["ETag"], 304), (f'"x", {headers["ETag"]}', 304), ('"x"', 200)):
            assert (await answer(client, "/web/lib/store.mjs", **{"If-None-Match": known}))[0] == status

    served(test)


def test_only_files_of_the_page_are_served():
    async def test(client):
        for path in (
            "/web/../README.md",
            "/web/%2e%2e/README.md",
            "/web/..%2fREADME.md",
            "/web/lib/..%2f..%2fREADME.md",
            "/web//etc/passwd",
            "/web/%2fetc%2fpasswd",
            "/web/C:%5cboot.css",
            "/web/lib/.hidden.mjs",
            "/web/lib/store.mjs%00.css",
            "/web/page/index.html",
            "/web/docs/VGRPOPolicy.md",
            "/web/lib/nothing.mjs",
            "/web/lib",
            "/web/",
        ):
            status, _, body = await answer(client, path)
            assert status in (403, 404), path
            assert b"root:" not in body and b"V-GRPO ComfyUI" not in body

    served(test)


@pytest.mark.parametrize("control", [False, True])
def test_what_the_page_asks_first(control):
    async def test(client):
        status, _, body = await answer(client, "/vgrpo/about")
        assert status == 200 and json.loads(body) == {"control": control, "folder": "runs ü"}

    served(test, control)


def test_the_chart_library_from_its_wheel():
    async def test(client):
        status, headers, body = await answer(client, "/vgrpo/assets/plotly.js", **{"Accept-Encoding": "gzip"})
        assert status == 200 and b"plotly.js v" in body[:200] and "Content-Encoding" not in headers  # on one machine
        assert headers["Content-Type"].startswith("text/javascript") and "max-age=86400" in headers["Cache-Control"]
        far = {"Accept-Encoding": "gzip, br", "X-Forwarded-For": "192.0.2.1"}
        status, headers, packed = await answer(client, "/vgrpo/assets/plotly.js", **far)
        assert status == 200 and headers["Content-Encoding"] == "gzip" and len(packed) < len(body) / 2
        assert gzip.decompress(packed) == body
        known = {"If-None-Match": headers["ETag"]}
        status, headers, nothing = await answer(client, "/vgrpo/assets/plotly.js", **known)
        assert status == 304 and nothing == b"" and page.plotly_file()[1] in headers["ETag"]

    served(test)


def test_without_the_wheel_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(page.importlib.util, "find_spec", lambda name: None)

    async def test(client):
        status, _, body = await answer(client, "/vgrpo/assets/plotly.js")
        said = json.loads(body)["error"]
        assert status == 404 and "pip install plotly" in said and "\n" not in said

    served(test)


def test_languages(tmp_path, monkeypatch):
    for language, texts in {"de": '{"a": "eins", "b": "zwei", "n": 3}', "de-AT": '{"b": "zwo"}', "fr": "{"}.items():
        (tmp_path / language).mkdir()
        (tmp_path / language / "vgrpo.json").write_text(texts, encoding="utf-8")
    (tmp_path / "es").mkdir()
    assert page.locale_texts("de", tmp_path) == {"a": "eins", "b": "zwei"}
    assert page.locale_texts("de-at", tmp_path) == {"a": "eins", "b": "zwo"}
    for nothing in ("fr", "es", "it", "en"):
        assert page.locale_texts(nothing, tmp_path) == {}
    assert page.locale_texts("de", tmp_path / "nowhere") == {}

    async def test(client):
        for path, status in (("it", 200), ("..%2f..%2fx", 404), ("x", 404), ("a" * 99, 404)):
            assert (await answer(client, f"/vgrpo/assets/locales/{path}.json"))[0] == status, path

    served(test)


def test_folders_of_languages_hold_known_keys():
    files = [*(ROOT / "web" / "text").glob("*.mjs"), ROOT / "web" / "lib" / "text.mjs"]
    english = "".join(file.read_text(encoding="utf-8") for file in files)
    for file in (ROOT / "locales").glob("*/vgrpo.json"):
        for key, value in json.loads(file.read_text(encoding="utf-8")).items():
            assert f'"{key}":' in english and isinstance(value, str), (file, key)


def test_a_folder_is_opened_without_a_shell(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(reveal.subprocess, "Popen", lambda *args, **kw: calls.append((args, kw)))
    monkeypatch.setattr(reveal, "opener", lambda: ["/usr/bin/xdg-open"])
    folder = tmp_path / "a; rm -rf $HOME"
    assert reveal.open_folder(folder) is False and calls == []
    folder.mkdir()
    assert reveal.open_folder(folder) is True
    ((arguments,), options) = calls[0]
    assert arguments == ["/usr/bin/xdg-open", str(folder)] and options["shell"] is False
    monkeypatch.setattr(reveal, "opener", lambda: None)
    assert reveal.open_folder(folder) is False


def test_no_file_manager_without_a_screen(monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert reveal.opener("linux") is None and reveal.opener("darwin") == ["/usr/bin/open"] and reveal.opener("aix") is None
