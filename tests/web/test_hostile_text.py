"""Text from outside is text: prompts, names, errors, warnings, log lines that hold markup, wherever they are shown."""

from __future__ import annotations

import pytest

from tests.web.panel import TABS, Panel
from tests.web.runs_for_pages import ERROR, NAME, PROMPTS, WARNING, hostile_run
from tests.web.serve_process import serve

pytestmark = pytest.mark.slow
_CARRIED_OUT = "() => window.pwned ?? document.querySelectorAll('img[onerror], .vgrpo script, .vgrpo b').length"


def every_place(panel):
    page = panel.page
    panel.card_says(NAME, ERROR)
    panel.open_run(NAME)
    page.get_by_text(ERROR, exact=True).last.wait_for()
    for name in TABS:
        view = panel.full(name)
        if name == "Samples":
            view.get_by_text(PROMPTS[0]).first.wait_for()
            panel.pictures(0).last.click()
            page.get_by_role("dialog").get_by_role("heading", name=PROMPTS[1]).wait_for()
            page.keyboard.press("Escape")
        if name == "Log":
            view.get_by_text(ERROR).first.wait_for()
        if name == "Events":
            view.get_by_text(WARNING).first.wait_for()
            view.get_by_text(ERROR).first.wait_for()
        if name == "Configuration":
            view.get_by_text("onerror").first.wait_for()
    assert page.evaluate(_CARRIED_OUT) == 0


def test_in_comfyui(comfy, open_page, tiny_sd3):
    if not (comfy.runs_root / "hostile").exists():
        hostile_run(comfy.runs_root, tiny_sd3)
    panel = open_page(vue=True).panel.open_sidebar()
    every_place(panel)
    # The questions and answers that name a run.
    panel.press(NAME, "Delete…")
    panel.page.get_by_role("dialog", name="Delete this run?").wait_for()
    panel.page.keyboard.press("Escape")
    assert panel.page.evaluate(_CARRIED_OUT) == 0


def test_headless(tmp_path, tiny_sd3, new_page):
    hostile_run(tmp_path, tiny_sd3)
    with serve(tmp_path) as address:
        page = new_page(address)
        every_place(Panel(page))
