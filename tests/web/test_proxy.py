"""ComfyUI below a path of another server, and connections that lose messages."""

from __future__ import annotations

import pytest

from tests.comfyui.training_graph import becomes
from tests.web.comfy_page import OURS
from tests.web.frontends import OLDEST, frontend
from tests.web.panel import all_pictures_loaded
from tests.web.proxy import Proxy
from tests.web.test_live import ends_at, grows, whole

pytestmark = pytest.mark.slow


@pytest.fixture
def proxy(comfy):
    # Below a path the oldest frontend shows an empty page, with or without this pack: its router knows only "./".
    prefix = "" if str(frontend(OLDEST)) in comfy.arguments else "/tools/comfy"
    with Proxy(lambda: comfy.url, prefix) as proxy:
        yield proxy


def test_behind_a_proxy(comfy, client, live, open_page, proxy):
    live.running(client)
    panel = open_page(url=proxy.url).panel.open_sidebar()
    panel.card_says(live.NAME, "running")
    panel.open_run(live.NAME).tab("Curves")
    grows(panel, by=2)
    panel.tab("Samples")
    panel.pictures().first.wait_for()
    panel.until(lambda: all_pictures_loaded(panel.view("Samples")), "the pictures are there")
    panel.press(live.NAME, "Pause")
    panel.card_says(live.NAME, "paused")
    assert [path for path in proxy.strays if OURS.search(path)] == []


def test_lost_messages_lose_no_points(comfy, client, live, open_page, proxy):
    """Three of four messages are lost, and none of the others may be shown twice."""
    run = live.running(client)
    seen = iter(range(10**9))
    proxy.drop = lambda message: message.get("type") == "vgrpo.event" and next(seen) % 4 != 0
    panel = open_page(url=proxy.url, vue=True).panel.open_sidebar().open_run(live.NAME)
    panel.tab("Curves")
    grows(panel, by=6)
    proxy.drop = lambda message: message.get("type") == "vgrpo.event" and message["data"].get("status") != "paused"
    panel.press(live.NAME, "Pause")
    panel.card_says(live.NAME, "paused")
    done = becomes(client, run, "paused")["iteration"]
    ends_at(panel, done)
    whole(panel, client, run)
