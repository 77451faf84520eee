"""The page of `trainer/cli.py serve`: it only shows, unless it was started with --control and given the token."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.comfyui.training_graph import PATIENCE_S
from tests.web.audit import faint_texts, nameless_controls
from tests.web.panel import TABS, Panel, all_pictures_loaded
from tests.web.runs_for_pages import finished_run, stopped_run
from tests.web.serve_process import serve
from tests.web.test_live import ends_at, grows
from trainer import runs
from trainer.runs.state import state_or_lost

pytestmark = pytest.mark.slow
TOKEN = "a token of the tests"
CHANGES = ("Pause", "Resume", "Stop and save", "Checkpoint now", "Sample now", "Delete…")


@pytest.mark.parametrize("dark", [True, False], ids=["dark", "light"])
def test_it_shows_all_and_changes_nothing(tmp_path, tiny_sd3, new_page, dark):
    finished_run(tmp_path, tiny_sd3, "tiny")
    with serve(tmp_path) as address:
        page = new_page(address, dark=dark)
        panel = Panel(page)
        panel.card_says("tiny", "finished")
        assert [button for button in CHANGES if panel.offers("tiny", button)] == []
        page.get_by_text("Read only").wait_for()
        panel.open_run("tiny")
        for name in TABS:
            panel.full(name)
            assert nameless_controls(page.locator("body")) + faint_texts(page.locator("body")) == []
        panel.tab("Curves")
        panel.until(lambda: panel.curve() == [1, 2, 3, 4, 5, 6], "the curve is drawn")
        panel.tab("Samples")
        panel.pictures(6).first.wait_for()
        panel.until(lambda: all_pictures_loaded(page.locator("body")), "the pictures are there")
        page.reload()
        panel.tabs.wait_for()
        chosen = page.get_by_role("combobox", name="Run", exact=True)
        panel.until(lambda: "tiny" in chosen.input_value(), "the run is chosen")


@pytest.fixture
def stopped(tmp_path, tiny_sd3):
    run = stopped_run(tmp_path, tiny_sd3, "tiny")
    yield run
    state = state_or_lost(run)
    if state.active and state.pid:
        os.kill(state.pid, signal.SIGKILL)


def test_with_the_token_it_resumes_pauses_and_stops_a_training(tmp_path, stopped, new_page):
    with serve(tmp_path, "--control", "--token", TOKEN) as address:
        reader = Panel(new_page(address))
        reader.card_says("tiny", "stopped")
        assert [button for button in CHANGES if reader.offers("tiny", button)] == []
        reader.page.get_by_role("button", name="Enter token").wait_for()

        page = new_page(f"{address}#token={TOKEN.replace(' ', '%20')}")
        panel = Panel(page)
        panel.card_says("tiny", "stopped")
        assert "token" not in page.url, "it leaves the address"
        panel.open_run("tiny").tab("Curves")
        panel.press("tiny", "Resume")
        for each in (panel, reader):
            each.card_says("tiny", "running", PATIENCE_S)
        grows(panel)
        panel.press("tiny", "Pause")
        for each in (panel, reader):
            each.card_says("tiny", "paused", PATIENCE_S)
        panel.press("tiny", "Stop and save")
        panel.card_says("tiny", "stopped", PATIENCE_S)
        ends_at(panel, runs.read_state(stopped).iteration)


def test_a_wrong_token_is_said(tmp_path, stopped, new_page):
    with serve(tmp_path, "--control", "--token", TOKEN) as address:
        page = new_page(address, complaints=False)  # a refusal is an error in the console too
        page.get_by_role("button", name="Enter token").click()
        page.get_by_label("Token that the server printed").fill("guessed")
        page.keyboard.press("Enter")
        panel = Panel(page)
        panel.card_says("tiny", "stopped")
        panel.press("tiny", "Resume")
        page.get_by_text(re.compile("token is missing or wrong")).first.wait_for()
        assert runs.read_state(stopped).status == runs.STOPPED
