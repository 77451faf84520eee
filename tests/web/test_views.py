"""The views of one run on a finished training: charts, pictures, configuration, log, events; by keyboard; light and dark."""

from __future__ import annotations

import re

import pytest

from tests.web.audit import faint_texts, nameless_controls
from tests.web.panel import TABS, all_pictures_loaded
from tests.web.runs_for_pages import finished_run

pytestmark = pytest.mark.slow
RUN, OTHER = "tiny", "other"
EVALUATIONS = [0, 2, 4, 6]


@pytest.fixture(autouse=True)
def two_runs(comfy, tiny_sd3):
    if not (comfy.runs_root / RUN).exists():
        finished_run(comfy.runs_root, tiny_sd3, OTHER, iterations=4, seed=6)
        finished_run(comfy.runs_root, tiny_sd3, RUN)


def held_out(panel, name):
    return [line["x"] for line in panel.lines(name) if "held-out" in line["name"]]


def test_curves_smooth_zoom_and_compare(open_page, client):
    panel = open_page(vue=True, **{"VGRPO.Smoothing": 0}).panel.open_sidebar().open_run(RUN)
    view, keys = panel.tab("Curves"), panel.page.keyboard
    events = client.get(f"/vgrpo/runs/{RUN}/events", types="iteration")["events"]
    values = [event["metrics"]["reward/total/mean"] for event in events]
    panel.until(lambda: panel.curve() == [1, 2, 3, 4, 5, 6], "the curve is drawn")
    assert panel.lines()[0]["y"] == pytest.approx(values)
    for name in ("brightness", "colorfulness"):
        panel.until(lambda name=name: held_out(panel, name) == [EVALUATIONS], f"{name} has a chart with its held-out values")

    assert len(panel.lines()) == 2, "as in the settings: without smoothing there are the values and the held-out ones"
    view.get_by_label("Smoothing").fill("0.9")
    panel.until(lambda: len(panel.lines()) == 3, "the smoothed line is there")
    assert max(panel.lines()[1]["y"]) - min(panel.lines()[1]["y"]) < max(values) - min(values)

    view.get_by_label("From iteration").fill("2")
    view.get_by_label("To iteration").fill("4")
    view.get_by_label("To iteration").press("Enter")
    panel.until(
        lambda: set(panel.curve()) < {1, 2, 3, 4, 5, 6} and {2, 3, 4} <= set(panel.curve()), "the chart shows a stretch"
    )
    view.get_by_role("button", name="Whole run").click()
    panel.until(lambda: panel.curve() == [1, 2, 3, 4, 5, 6], "the chart shows the whole run again")

    panel.drag(0.45, 0.6)
    panel.until(lambda: len(panel.curve()) < 6, "the chart shows the stretch that was drawn over")
    panel.until(lambda: view.get_by_label("From iteration").input_value() == "2", "the field says where the stretch begins")
    panel.figure().locator(".nsewdrag").first.dblclick()
    panel.until(lambda: panel.curve() == [1, 2, 3, 4, 5, 6], "a double click shows the whole run again")
    panel.until(lambda: re.search(r"iteration [1-6].*smoothed", panel.hover()), "under the mouse stand iteration and values")

    view.get_by_role("checkbox", name="Log axis").check()
    panel.until(lambda: panel.axis() == "log", "the axis is logarithmic")
    view.get_by_role("checkbox", name="Log axis").uncheck()
    panel.until(lambda: panel.axis() == "linear", "the axis is linear again")

    view.get_by_text("Compare with…").focus()
    keys.press("Enter")
    other = view.get_by_role("checkbox", name=re.compile(f"^{OTHER}"))
    other.focus()
    keys.press("Space")
    panel.until(lambda: any(line["name"].startswith(OTHER) for line in panel.lines()), "the other run is laid over")
    view.get_by_role("list", name="Lines").get_by_text(OTHER).wait_for()
    keys.press("Space")
    panel.until(lambda: not any(line["name"].startswith(OTHER) for line in panel.lines()), "and taken away by the same key")


def test_pictures_by_keyboard(open_page, client):
    tab = open_page()
    panel, keys = tab.panel.open_sidebar().open_run(RUN), tab.page.keyboard
    view = panel.tab("Samples")
    for iteration in EVALUATIONS:
        panel.pictures(iteration).first.wait_for()
    panel.until(lambda: all_pictures_loaded(view), "the pictures are there")

    first = panel.pictures(0).first
    label = first.get_attribute("aria-label")
    prompt, seed = re.fullmatch(r"(.*), iteration 0, seed (\d+)", label).groups()
    entry = client.get(f"/vgrpo/runs/{RUN}")["samples"][0]
    assert prompt in entry["prompts"] and int(seed) in [int(number) for number in entry["seeds"]]
    first.focus()
    keys.press("Enter")
    light = tab.page.get_by_role("dialog", name="Sample picture")
    light.wait_for()
    light.get_by_role("heading", name=prompt).wait_for()
    light.get_by_text(seed, exact=True).wait_for()  # to its last digit
    light.get_by_role("row", name=re.compile("^brightness")).wait_for()
    keys.press("ArrowRight")
    light.get_by_role("img", name=re.compile(f"iteration 2, seed {seed}")).wait_for()
    keys.press("ArrowDown")
    panel.until(lambda: light.get_by_role("img", name=re.compile(f"iteration 2, seed {seed}")).count() == 0, "the next picture")
    keys.press("Escape")
    light.wait_for(state="detached")

    view.get_by_text("One iteration").click()
    slider = view.get_by_role("slider", name="Iteration", exact=True)
    slider.focus()
    keys.press("Home")
    panel.until(lambda: panel.newest_pictures() == 0, "the slider goes to the first iteration")
    keys.press("ArrowRight")
    panel.until(lambda: panel.newest_pictures() == 2, "and on to the next")
    view.get_by_role("button", name=re.compile("Play")).click()
    panel.until(lambda: panel.newest_pictures() == 6, "it plays to the end")
    view.get_by_text("Before / after").click()
    view.get_by_role("slider", name="Edge").fill("20")
    panel.until(lambda: all_pictures_loaded(view), "both pictures are there")


def test_a_picture_that_cannot_be_read_says_so(open_page):
    tab = open_page()
    tab.page.route(re.compile("p000-s0.png|grid.png"), lambda route: route.fulfill(body="torn", content_type="image/png"))
    panel = tab.panel.open_sidebar()
    panel.card(RUN).get_by_text("picture cannot be read").wait_for()
    view = panel.open_run(RUN).tab("Samples")
    torn = view.get_by_role("button", name="This picture cannot be read")
    torn.first.wait_for()
    panel.pictures(6).first.wait_for()
    torn.first.click()
    tab.page.get_by_role("dialog", name="Sample picture").get_by_text("This picture cannot be read").wait_for()


def test_configuration_log_events_and_health(open_page):
    panel = open_page(vue=True).panel.open_sidebar().open_run(RUN)
    view = panel.tab("Configuration")
    view.get_by_role("row", name=re.compile("rollout.group_size")).wait_for()
    view.get_by_text("iterations: 6").first.wait_for()
    panel.tab("Log").get_by_role("log").get_by_text(re.compile("iteration|checkpoint", re.IGNORECASE)).first.wait_for()
    view = panel.tab("Events")
    view.get_by_role("row", name=re.compile("finished")).wait_for()
    view.get_by_role("button", name=re.compile("pictures; look at them")).first.click()
    panel.view("Samples")
    panel.tab("Health")
    panel.until(lambda: panel.page.get_by_role("figure").count() >= 4, "the signs of health are drawn")
    # Tabs by keyboard, as a tab list is used.
    panel.tabs.get_by_role("tab", name="Health").press("ArrowRight")
    panel.view("Samples")


@pytest.mark.parametrize("dark", [True, False], ids=["dark", "light"])
def test_every_view_can_be_read(open_page, dark):
    tab = open_page(dark=dark, vue=dark)
    assert "default-src 'self'" in tab.policy, "--disable-api-nodes: the page may load nothing from elsewhere"
    assert tab.js("() => ['Cancel', 'RefreshSeconds'].map(name => app.extensionManager.setting.get(`VGRPO.${name}`))") == [
        "detach",
        1,
    ]
    panel = tab.panel.open_sidebar()
    panel.offers(RUN, "Delete…")
    panel.open_run(RUN)
    found = {}
    for name in TABS:
        view = panel.full(name)
        root = panel.page.locator(".vgrpo").filter(has=panel.tabs)
        assert root.count() == 1 and view.is_visible()
        found[name] = nameless_controls(root) + faint_texts(root)
    sidebar = panel.page.locator(".vgrpo").filter(has=panel.list)
    found["cards"] = nameless_controls(sidebar) + faint_texts(sidebar)
    assert {name: problems for name, problems in found.items() if problems} == {}
