"""Ending a training from the page, and removing it for good."""

from __future__ import annotations

import re

import pytest

from benchmarks.panel import generate
from tests.comfyui.training_graph import PATIENCE_S, state
from tests.web.panel import WAIT_S

pytestmark = pytest.mark.slow
KEPT = "kept"


def test_stop_and_save_then_delete(comfy, client, live, open_page):
    if not (comfy.runs_root / KEPT).exists():
        generate(comfy.runs_root, KEPT, iterations=3, rewards=1, grids=1)
    run = live.running(client)
    tab, other = open_page(vue=True), open_page()
    panel = tab.panel.open_sidebar().open_run(live.NAME)
    other.panel.open_sidebar().open_run(live.NAME).card_says(live.NAME, "running")
    assert not panel.offers(live.NAME, "Delete…")
    panel.press(live.NAME, "Stop and save")
    panel.card_says(live.NAME, "stopped", PATIENCE_S)
    stopped = state(client, run)
    assert stopped["checkpoints"][-1]["iteration"] == stopped["iteration"]

    panel.press(live.NAME, "Delete…")
    dialog = tab.page.get_by_role("dialog", name="Delete this run?")
    dialog.wait_for()
    tab.page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    panel.card(live.NAME).wait_for()
    assert state(client, run)["id"] == run
    panel.press(live.NAME, "Delete…")
    dialog.get_by_role("button", name="Delete run").click()
    for page in (panel, other.panel):
        page.card(live.NAME).wait_for(state="detached", timeout=WAIT_S * 1000)
    assert client.call("GET", f"/vgrpo/runs/{run}")[0] == 404
    for page in (panel, other.panel):
        state_is(page, "deleted")
        page.page.get_by_role("button", name="Show the newest run").click()
        state_is(page, "finished")


def state_is(panel, word):
    """What stands above the tabs of one run."""
    panel.page.get_by_role("status").filter(has_text=re.compile(f"^{word}$")).wait_for()
