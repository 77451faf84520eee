"""The list of runs: what a card tells, filters, finding, and what a card offers of a run that stands still."""

from __future__ import annotations

import re

import pytest

from benchmarks.panel import generate
from tests.web.panel import Panel, all_pictures_loaded
from tests.web.serve_process import serve
from trainer import runs
from trainer.runs import RunState

pytestmark = pytest.mark.slow


@pytest.fixture
def panel(tmp_path, new_page):
    generate(tmp_path, "done", iterations=4, rewards=1, grids=2)
    ended = generate(tmp_path, "ended", iterations=4, rewards=1, grids=2)
    runs.write_state(ended, RunState(runs.STOPPED, iteration=3, iterations=4, name="ended", message="stopped on request"))
    with serve(tmp_path) as address:
        panel = Panel(new_page(address))
        panel.card("done").wait_for()
        yield panel


def shown(panel):
    return [name for name in ("done", "ended") if panel.card(name).count()]


def test_what_a_card_tells(panel):
    card = panel.card("ended")
    for words in ("stopped", "3 of 4", "stopped on request", "since start", re.compile("^Base: ")):
        card.get_by_text(words).first.wait_for()
    card.get_by_role("img", name=re.compile("^Reward curve, from")).wait_for()
    card.get_by_role("button", name=re.compile("latest pictures")).wait_for()
    panel.until(lambda: all_pictures_loaded(card), "the picture is there")


def test_filters_and_finding(panel):
    page = panel.page
    filters = page.get_by_role("group", name="Which runs")
    for name, expected in (("Finished", ["done"]), ("Ended early", ["ended"]), ("All", ["done", "ended"])):
        filters.get_by_role("button", name=re.compile(f"^{name}")).click()
        panel.until(lambda expected=expected: shown(panel) == expected, f"{name} shows {expected}")
    page.get_by_role("searchbox").fill("END")
    panel.until(lambda: shown(panel) == ["ended"], "runs are found by a part of their name")
    filters.get_by_role("button", name=re.compile("^Active")).click()
    page.get_by_text("No run matches.").wait_for()
    page.get_by_role("button", name="Show all runs").click()
    panel.until(lambda: shown(panel) == ["done", "ended"], "all are back")


def test_folder_and_command(panel, tmp_path):
    page = panel.page
    page.context.grant_permissions(["clipboard-read"])
    panel.press("done", "Copy command")
    page.get_by_text("The command is in the clipboard").wait_for()
    command = page.evaluate("() => navigator.clipboard.readText()")
    assert f"train {tmp_path / 'done' / 'config.yaml'}" in command
    panel.press("ended", "Show folder")
    dialog = page.get_by_role("dialog", name="Folder of the run")
    assert dialog.get_by_role("textbox").input_value() == str(tmp_path / "ended")
    page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
