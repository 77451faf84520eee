"""A real training, watched and steered from the page: queued, followed, reloaded, paused in one tab and resumed in another."""

from __future__ import annotations

import re

import pytest

from tests.comfyui.training_graph import PATIENCE_S, becomes, state
from tests.web.panel import all_pictures_loaded
from tests.web.test_graph import nodes

pytestmark = pytest.mark.slow
FEW = 200  # a chart leaves points out only where it has more than it has pixels


def whole(panel, client, run):
    """The curve in the page is the run's: every iteration once, in order, with the values of its events."""
    drawn = panel.lines()[0]
    told = rewards(client, run)
    assert drawn["x"] == [x for x in sorted(told) if len(told) <= FEW or x in set(drawn["x"])]
    assert drawn["y"] == pytest.approx([told[x] for x in drawn["x"]], abs=1e-6)


def rewards(client, run):
    """The total reward of every iteration, as the events tell it."""
    found, last, more = {}, 0, True
    while more:
        answer = client.get(f"/vgrpo/runs/{run}/events", after=last, types="iteration")
        found |= {event["iteration"]: event["metrics"]["reward/total/mean"] for event in answer["events"]}
        last, more = answer["events"][-1]["seq"] if answer["events"] else last, answer["more"]
    return found


def grows(panel, by=3):
    """The curve gets new points without anybody doing anything."""
    before = panel.until(lambda: panel.curve()[-1:], "there is a curve", PATIENCE_S)[0]
    panel.until(lambda: panel.curve()[-1] >= before + by, f"the curve goes on from iteration {before}", PATIENCE_S)


def ends_at(panel, iteration):
    panel.until(lambda: panel.curve()[-1:] == [iteration], f"the curve ends at iteration {iteration}")


@pytest.mark.parametrize("vue", [False, True], ids=["classic", "vue"])
def test_a_queued_graph_is_followed_and_survives_a_reload(comfy, client, live, open_page, vue):
    if live.id:  # from the same test with the other nodes; queueing the graph attaches to it
        live.running(client)
    tab = open_page(vue=vue)
    panel = tab.panel
    tab.load(live.graph(client))
    tab.look_at("VGRPOTrainLoRA")
    tab.queue()
    panel.open_sidebar().card_says(live.NAME, "running", PATIENCE_S)
    live.id = panel.run_id(live.NAME)
    node = tab.page.get_by_label("State of the training")
    node.get_by_text("running").first.wait_for()

    panel.open_run(live.NAME).tab("Curves")
    grows(panel)
    panel.tab("Samples")
    panel.pictures().first.wait_for()
    newest = panel.newest_pictures()
    panel.until(lambda: panel.newest_pictures() > newest, "the pictures of the next evaluation appear", PATIENCE_S)
    panel.until(lambda: all_pictures_loaded(panel.view("Samples")), "the pictures are there")

    tab.reload()
    panel.open_sidebar().card_says(live.NAME, "running")
    tab.look_at("VGRPOTrainLoRA")
    node.get_by_text("running").first.wait_for()
    node.get_by_role("img", name=re.compile("^Reward curve, from")).wait_for()
    newest = node.get_by_role("button", name=re.compile("^The latest pictures"))
    panel.until(lambda: newest.count() and all_pictures_loaded(node), "the node shows the newest pictures", PATIENCE_S)
    panel.open_run(live.NAME).tab("Curves")
    grows(panel)
    live.ask(client, "pause")
    panel.card_says(live.NAME, "paused")
    node.get_by_text("paused").first.wait_for()
    done = becomes(client, live.id, "paused")["iteration"]
    ends_at(panel, done)
    whole(panel, client, live.id)

    tab.js("() => app.rootGraph.clear()")
    panel.press(live.NAME, "Open its workflow")
    tab.page.get_by_role("dialog").get_by_role("button", name="Open workflow").click()
    panel.until(lambda: nodes(tab, "VGRPOTrainLoRA"), "the graph is back")
    tab.look_at("VGRPOTrainLoRA")
    node.get_by_text("paused").first.wait_for()


def test_two_tabs_show_the_same_and_both_control(comfy, client, live, open_page):
    live.running(client)
    one, two = open_page(vue=True).panel, open_page(vue=False).panel
    for panel in (one, two):
        panel.open_sidebar().card_says(live.NAME, "running")
    one.press(live.NAME, "Pause")
    one.card_says(live.NAME, "paused")
    two.card_says(live.NAME, "paused")
    two.until(lambda: not two.offers(live.NAME, "Pause"), "a paused run is not paused again")
    two.press(live.NAME, "Resume")
    two.card_says(live.NAME, "running")
    one.card_says(live.NAME, "running")
    at = one.iteration(live.NAME)
    one.until(lambda: one.iteration(live.NAME) > at and two.iteration(live.NAME) > at, "both go on", PATIENCE_S)

    # Of a run that stands still nothing but what is asked for makes a checkpoint or pictures.
    at = stands_without_pictures(one, client, live)
    one.press(live.NAME, "Checkpoint now")
    two.press(live.NAME, "Sample now")

    def obeyed():
        now = state(client, live.id)
        return at in iterations(now["checkpoints"]) and at in iterations(now["samples"])

    one.until(obeyed, f"a checkpoint and pictures of iteration {at} are made", PATIENCE_S)
    for panel in (one, two):
        panel.open_run(live.NAME).tab("Samples")
        panel.pictures(at).first.wait_for()
        panel.until(lambda panel=panel: all_pictures_loaded(panel.view("Samples")), "the new pictures are there")
        panel.tab("Events").get_by_text("checkpoint").first.wait_for()


def stands_without_pictures(panel, client, live):
    """Pauses the run at an iteration that is between two evaluations, and returns which."""
    while True:
        panel.press(live.NAME, "Pause")
        panel.card_says(live.NAME, "paused")
        now = becomes(client, live.id, "paused")
        if now["iteration"] not in iterations(now["samples"]) + iterations(now["checkpoints"]):
            return now["iteration"]
        panel.press(live.NAME, "Resume")
        becomes(client, live.id, "running", iteration=now["iteration"] + 1)
        panel.card_says(live.NAME, "running")


def iterations(entries):
    return [entry["iteration"] for entry in entries]


def test_the_panel_comes_back_when_the_server_restarts_in_mid_run(comfy, client, live, open_page):
    run = live.running(client)
    tab = open_page()
    panel = tab.panel.open_sidebar()
    panel.card_says(live.NAME, "running")
    panel.open_run(live.NAME).tab("Curves")
    grows(panel, by=1)
    with tab.complaints.expected():
        comfy.kill()
        panel.page.get_by_text(re.compile("Connection lost")).first.wait_for()
        at = panel.iteration(live.NAME)
        comfy.start()
        panel.until(lambda: panel.iteration(live.NAME) > at, "the card goes on", PATIENCE_S)
    panel.page.get_by_text(re.compile("Connection lost")).first.wait_for(state="hidden")
    grows(panel)
    with comfy.client() as fresh:
        panel.press(live.NAME, "Pause")
        panel.card_says(live.NAME, "paused")
        done = becomes(fresh, run, "paused")["iteration"]
        ends_at(panel, done)
        whole(panel, fresh, run)
