"""One browser, and one ComfyUI server a frontend, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.comfyui.comfyui_tree import NoComfyUI, missing
from tests.comfyui.server import Client, ComfyServer, serving
from tests.comfyui.training_graph import ask, becomes, run_of, training
from tests.web.chromium import chromium_or_skip
from tests.web.comfy_page import SETTINGS, WAIT_MS, ComfyPage, Complaints
from tests.web.frontends import NEWEST, OLDEST, frontend

ENDLESS = 100_000  # more iterations than any test waits for


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    with chromium_or_skip() as browser:
        yield browser


@pytest.fixture(scope="package", params=[OLDEST, NEWEST])
def comfy(request: Any, browser: Any, tmp_path_factory: Any) -> Iterator[ComfyServer]:
    """A running server with that version of the frontend; tests may kill it if they start it again."""
    try:
        options = ("--front-end-root", str(frontend(request.param)))
        base = tmp_path_factory.mktemp(f"web-{request.param}") / "ComfyUI"
        with serving(base, arguments=options) as server:
            yield server
            assert server.pack_changes() == [], "opening pages writes nothing into the pack's folder"
    except NoComfyUI as error:
        missing(str(error))


@pytest.fixture
def client(comfy: ComfyServer) -> Iterator[Client]:
    with comfy.client() as client:
        yield client


@pytest.fixture
def open_page(browser: Any, comfy: ComfyServer, client: Client) -> Iterator[Callable[..., ComfyPage]]:
    """open_page(vue=, dark=, url=, width=): a tab with a profile of its own. At the end nothing of ours may have complained."""
    tabs: list[ComfyPage] = []
    with ExitStack() as stack:

        def make(*, vue: bool = False, dark: bool = True, url: str = "", width: int = 1280, **settings: Any) -> ComfyPage:
            palette = "dark" if dark else "light"
            client.settings({**SETTINGS, "Comfy.VueNodes.Enabled": vue, "Comfy.ColorPalette": palette, **settings})
            context = browser.new_context(viewport={"width": width, "height": width * 9 // 16}, reduced_motion="reduce")
            stack.callback(context.close)
            tabs.append(ComfyPage(context, url or comfy.url))
            return tabs[-1].open()

        yield make
        assert [text for tab in tabs for text in tab.complaints.ours()] == []


class Live:
    """A training on the embedded model that goes on as long as the tests want it; paused while none looks at it."""

    NAME = "Live 训练"
    EVERY = 6  # iterations from one evaluation to the next

    def __init__(self, server: ComfyServer) -> None:
        self.server = server
        self.id = ""

    def graph(self, client: Client) -> dict[str, Any]:
        settings = {"evaluate_every": self.EVERY, "checkpoint_every": 1000, "seed": 7}
        return training(client, iterations=ENDLESS, name=self.NAME, settings=settings)

    def ask(self, client: Client, action: str) -> None:
        ask(client, self.id, action)

    def running(self, client: Client, iteration: int = 1) -> str:
        """Its id, once it is at work; started or waked where needed."""
        known = {run["id"]: run["status"] for run in client.get("/vgrpo/runs")["runs"]}
        status = known.get(self.id)
        if status not in ("starting", "running", "paused"):
            self.id = run_of(client.run(self.graph(client)).ok())
        elif status == "paused":
            self.ask(client, "resume")
        becomes(client, self.id, "running", iteration=iteration)
        return self.id


@pytest.fixture(scope="package")
def the_live_run(comfy: ComfyServer) -> Live:
    return Live(comfy)


@pytest.fixture
def live(the_live_run: Live, client: Client) -> Iterator[Live]:
    yield the_live_run
    # The test may have restarted the server, deleted the run, or failed.
    run = the_live_run.id
    if run and client.call("GET", f"/vgrpo/runs/{run}")[1].get("status") == "running":
        the_live_run.ask(client, "pause")
        becomes(client, run, "paused")  # else the next test may still find it running


@pytest.fixture
def new_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """new_page(url, dark=, width=): a page that is not ComfyUI's. At the end none may have complained."""
    seen: list[Complaints] = []
    with ExitStack() as stack:

        def make(url: str, *, dark: bool = True, width: int = 1280, complaints: bool = True) -> Any:
            scheme = "dark" if dark else "light"
            size = {"width": width, "height": width * 9 // 16}
            context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
            stack.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(WAIT_MS)
            if complaints:
                seen.append(Complaints(page))
            page.goto(url)
            return page

        yield make
        assert [text for complaints in seen for text in complaints.all] == []
