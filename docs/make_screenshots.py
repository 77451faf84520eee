"""Writes docs/images/panel-*.png: `python docs/make_screenshots.py`, from the repository's root. `--all FOLDER`: every screen.

A real ComfyUI with a real browser: the demo's workflow is opened and queued as a user does, and the panel is photographed while
it trains and at its end, at 1280 and 1920 pixels, dark and light. About ten minutes on two CPU cores, most of it the training;
`--iterations` shortens it, `--run FOLDER` takes a finished run instead.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.comfyui.server import Client, ComfyServer, serving, wait_until
from tests.comfyui.training_graph import becomes
from tests.web.chromium import chromium
from tests.web.comfy_page import SETTINGS, ComfyPage
from tests.web.frontends import NEWEST, frontend
from tests.web.panel import Panel
from tests.web.serve_process import serve

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
WORKFLOW = ROOT / "workflows" / "1 Train the demo.json"
SIZES = {1280: 800, 1920: 1080}
TRAINING_S, WORKING = 3600.0, ("starting", "running")
# (screen, width, dark): those that README and docs/panel.md show.
SHOWN = {
    ("live", 1920, True),
    ("curves", 1920, False),
    ("samples", 1920, True),
    ("lightbox", 1280, True),
    ("headless", 1280, False),
}
_LARGE = re.compile(r"^a yellow triangle to the right of one yellow square")  # the prompt that is shown in full size
# The left half of the workflow, with the training node in sight above the bottom panel and beside the sidebar.
_TRAINING_ONLY = """workflow => {
  const kept = workflow.nodes.filter(node => node.id >= 2 && node.id <= 11)
  const ids = new Set(kept.map(node => node.id))
  const links = workflow.links.filter(link => ids.has(link[1]) && ids.has(link[3]))
  const known = new Set(links.map(link => link[0]))
  for (const node of kept) for (const output of node.outputs) output.links = output.links.filter(link => known.has(link))
  const train = kept.find(node => node.type === 'VGRPOTrainLoRA')
  train.widgets_values[1] = 'background'
  return app.loadGraphData({...workflow, nodes: kept, links, groups: workflow.groups.slice(0, 2)}, true, true, 'Train the demo')
}"""
_LOOK_AT_TRAINING = """() => {
  const train = app.rootGraph.nodes.find(node => node.type === 'VGRPOTrainLoRA')
  app.canvas.ds.scale = 0.8
  app.canvas.ds.offset = [window.innerWidth * 0.62 / 0.8 - train.pos[0], 100 / 0.8 - train.pos[1]]
  app.canvas.setDirty(true, true)
}"""
# The edge between the graph and the bottom panel, which a user drags up as well.
_EDGE = """() => {
  const wide = [...document.querySelectorAll('.p-splitter-gutter')].map(node => node.getBoundingClientRect())
  const edge = wide.find(box => box.width > 300 && box.height > 0 && box.height < 20)
  return edge && [edge.x + edge.width / 2, edge.y + edge.height / 2]
}"""


class Photographer:
    """Keeps what is shown in the documentation, and with `--all` every picture."""

    def __init__(self, everything: Path | None) -> None:
        self.everything = everything
        for folder in filter(None, (everything, IMAGES)):
            folder.mkdir(parents=True, exist_ok=True)

    def take(self, page: Any, screen: str, width: int, dark: bool) -> None:
        page.mouse.move(0, 0)
        page.wait_for_timeout(1200)  # charts are drawn one after the other, toasts leave
        if self.everything:
            page.screenshot(path=self.everything / f"{screen}-{width}-{'dark' if dark else 'light'}.png")
        if (screen, width, dark) in SHOWN:
            page.screenshot(path=IMAGES / f"panel-{screen}.png")
            print(f"docs/images/panel-{screen}.png", flush=True)

    def wants(self, screen: str, width: int, dark: bool) -> bool:
        return bool(self.everything) or (screen, width, dark) in SHOWN


def each_look(photographer: Photographer, screens: list[str]) -> list[tuple[int, bool]]:
    looks = [(width, dark) for width in SIZES for dark in (True, False)]
    return [look for look in looks if any(photographer.wants(screen, *look) for screen in screens)]


def open_comfy(browser: Any, server: ComfyServer, client: Client, width: int, dark: bool, vue: bool = False) -> ComfyPage:
    look = {"Comfy.VueNodes.Enabled": vue, "Comfy.ColorPalette": "dark" if dark else "light", "Comfy.Minimap.Visible": False}
    client.settings({**SETTINGS, **look})
    context = browser.new_context(viewport={"width": width, "height": SIZES[width]})
    return ComfyPage(context, server.url).open()


def show_panel(tab: ComfyPage, name: str, tab_name: str, share: float = 0.0) -> Any:
    """share: of the window's height that the bottom panel gets; 0 leaves it as it is."""
    tab.panel.open_sidebar().open_run(name)
    if share and (edge := tab.js(_EDGE)):
        tab.page.mouse.move(*edge)
        tab.page.mouse.down()
        tab.page.mouse.move(edge[0], (1 - share) * tab.page.viewport_size["height"], steps=5)
        tab.page.mouse.up()
    view = tab.panel.full(tab_name)
    view.evaluate("view => { view.scrollTop = 0 }")
    return view


def photograph_comfy(shoot: Photographer, browser: Any, server: ComfyServer, client: Client, name: str) -> None:
    """The panel's screens of a run that has ended."""
    screens = ["runs", "curves", "health", "samples", "wipe", "lightbox", "configuration", "log", "events"]
    for width, dark in each_look(shoot, screens):
        tab = open_comfy(browser, server, client, width, dark)
        tab.js(_TRAINING_ONLY, json.loads(WORKFLOW.read_text(encoding="utf-8")))
        tab.js(_LOOK_AT_TRAINING)
        panel = tab.panel.open_sidebar()
        shoot.take(tab.page, "runs", width, dark)
        for word in ("Curves", "Health", "Configuration", "Log", "Events"):
            if shoot.wants(word.lower(), width, dark):
                show_panel(tab, name, word, 0.6)
                shoot.take(tab.page, word.lower(), width, dark)
        view = show_panel(tab, name, "Samples", 0.6)
        shoot.take(tab.page, "samples", width, dark)
        view.get_by_text("Before / after").click()
        shoot.take(tab.page, "wipe", width, dark)
        view.get_by_text("All iterations").click()
        view.get_by_label("Seeds").select_option(index=1)
        panel.pictures().and_(tab.page.get_by_role("button", name=_LARGE)).last.click()
        tab.page.get_by_role("dialog", name="Sample picture").get_by_role("row").nth(1).wait_for()
        shoot.take(tab.page, "lightbox", width, dark)
        tab.page.context.close()


def photograph_headless(shoot: Photographer, browser: Any, server: ComfyServer, name: str) -> None:
    with serve(server.runs_root) as address:
        for width, dark in each_look(shoot, ["headless"]):
            scheme = "dark" if dark else "light"
            context = browser.new_context(viewport={"width": width, "height": SIZES[width]}, color_scheme=scheme)
            page = context.new_page()
            page.goto(address)
            panel = Panel(page)
            panel.card(name).wait_for()
            panel.open_run(name).full("Curves")
            shoot.take(page, "headless", width, dark)
            context.close()


def train(shoot: Photographer, browser: Any, server: ComfyServer, client: Client, iterations: int) -> str:
    """Queues the demo's workflow on the page, photographs it half-way, and returns the run's name once it has ended."""
    tab = open_comfy(browser, server, client, 1920, True)
    workflow = json.loads(WORKFLOW.read_text(encoding="utf-8"))
    if iterations:
        settings = next(node for node in workflow["nodes"] if node["type"] == "VGRPOSettings")
        names = [entry["widget"]["name"] for entry in settings["inputs"] if "widget" in entry]
        at = names.index("iterations") + sum(name == "seed" for name in names[: names.index("iterations")])
        settings["widgets_values"][at] = iterations
    name = next(node for node in workflow["nodes"] if node["type"] == "VGRPOTrainLoRA")["widgets_values"][0]
    tab.js(_TRAINING_ONLY, workflow)
    tab.queue()
    panel = tab.panel.open_sidebar()
    panel.card_says(name, "running")
    run = panel.run_id(name)
    half = int(client.get(f"/vgrpo/runs/{run}")["iterations"]) // 2
    panel.open_run(name)
    panel.until(lambda: panel.iteration(name) >= half, "the training is half-way", TRAINING_S)
    for width, dark in each_look(shoot, ["live"]):
        tab.page.context.close()
        tab = open_comfy(browser, server, client, width, dark, vue=True)
        tab.js(_TRAINING_ONLY, client.get(f"/vgrpo/runs/{run}/workflow"))
        show_panel(tab, name, "Curves")
        tab.js(_LOOK_AT_TRAINING)
        shoot.take(tab.page, "live", width, dark)
    tab.page.context.close()
    wait_until(lambda: client.get(f"/vgrpo/runs/{run}")["status"] not in WORKING, TRAINING_S, "the training ends", every=2)
    becomes(client, run, "finished")
    return name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--all", type=Path, metavar="FOLDER", help="also every screen at both sizes, dark and light, into FOLDER"
    )
    parser.add_argument("--iterations", type=int, default=0, help="of the training; 0: the demo's own")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="a finished run to photograph; nothing is trained")
    arguments = parser.parse_args()
    shoot = Photographer(arguments.all)
    options = ("--front-end-root", str(frontend(NEWEST)))
    with tempfile.TemporaryDirectory() as base, chromium() as browser, serving(Path(base), arguments=options) as server:
        with server.client() as client:
            if arguments.run:
                shutil.copytree(arguments.run, server.runs_root / arguments.run.name)
                name = client.get(f"/vgrpo/runs/{arguments.run.name}")["name"]
            else:
                name = train(shoot, browser, server, client, arguments.iterations)
            photograph_comfy(shoot, browser, server, client, name)
            photograph_headless(shoot, browser, server, name)


if __name__ == "__main__":
    main()
