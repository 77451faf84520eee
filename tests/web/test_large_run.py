"""A run of 10,000 iterations, 8 rewards and 500 evaluations opens, scrolls, zooms; benchmarks/panel_page.py has times."""

from __future__ import annotations

import pytest

from benchmarks.panel import generate
from tests.web.panel import Panel, all_pictures_loaded
from tests.web.serve_process import serve

pytestmark = pytest.mark.slow


def test_a_large_run_opens_scrolls_and_zooms(tmp_path, new_page):
    run = generate(tmp_path, "long")
    for number in range(60):
        generate(tmp_path, f"short-{number:02d}", iterations=3, rewards=1, grids=1)
    with serve(tmp_path) as address:
        panel = Panel(new_page(f"{address}#run=long"))
        page = panel.page
        panel.tabs.wait_for()
        view = panel.tab("Curves")
        panel.until(lambda: panel.curve()[-1:] == [10_000], "the curve is drawn to its end")
        assert 200 < len(panel.curve()) < 5000, "as many points as can be seen"
        assert panel.curve() == sorted(set(panel.curve()))
        hint = page.get_by_role("list", name="What this run may suffer from").get_by_role("listitem").first
        hint.locator("summary").click()
        hint.get_by_text("Try:").wait_for()

        # A stretch is shown in full.
        view.get_by_label("From iteration").fill("6990")
        view.get_by_label("To iteration").fill("7010")
        view.get_by_label("To iteration").press("Enter")
        panel.until(lambda: set(range(6990, 7011)) <= set(panel.curve()), "every iteration of the stretch is there")
        view.get_by_role("button", name="Whole run").click()

        panel.tab("Samples")
        panel.until(lambda: panel.newest_pictures() > 9900, "the newest pictures are in sight")
        assert panel.pictures().count() < 400, "only pictures in sight are in the page"
        slider = page.get_by_role("slider", name="Iteration", exact=True)
        slider.focus()
        page.keyboard.press("Home")
        panel.until(lambda: panel.pictures(0).count(), "the first pictures are in sight")
        panel.until(lambda: all_pictures_loaded(panel.view("Samples")), "the pictures are there")
        assert panel.pictures().count() < 400

        panel.tab("Events").get_by_role("button", name="Show older events").scroll_into_view_if_needed()
        panel.tab("Log").get_by_text("iteration 10000 of 10000").wait_for()
        # The list of runs goes on as it is scrolled.
        assert panel.list.get_by_role("listitem").count() < 62
        panel.until(lambda: scrolled_to(panel, run.id), "the last run of the list is in sight")


def scrolled_to(panel, name):
    panel.list.get_by_role("listitem").last.scroll_into_view_if_needed()
    return panel.card(name).count() and panel.card(name).is_visible()
