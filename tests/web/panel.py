"""The panel as a user reads it: by roles, labels and words, wherever it is shown."""

from __future__ import annotations

import re
from typing import Any

from tests.comfyui.server import PATIENCE, wait_until

WAIT_S = 30.0 * PATIENCE
TABS = ("Curves", "Health", "Samples", "Configuration", "Log", "Events")
# What a chart holds: the points of each of its lines that are drawn.
_LINES = """figure => [...figure.querySelector('.js-plotly-plot')?.data ?? []]
  .map(line => ({x: [...line.x], y: [...line.y], name: line.name}))"""
_LOADED = """root => [...root.querySelectorAll('img')]
  .filter(image => image.checkVisibility() && image.hasAttribute('src'))
  .every(image => image.complete && image.naturalWidth > 0)"""

# Whether a tab has its contents: texts are there, and a chart is drawn where there are charts.
_FULL = """view => !view.innerText.includes('Loading…') && view.innerText.trim() !== ''
  && (!view.querySelector('figure') || view.querySelector('.js-plotly-plot .main-svg'))"""


class Panel:
    """`page` is playwright's Page, with ComfyUI or the headless page in it."""

    def __init__(self, page: Any) -> None:
        self.page = page

    # The list of runs

    def open_sidebar(self) -> Panel:
        """In ComfyUI; a second call leaves it open."""
        if not self.list.is_visible():
            self.page.get_by_role("button", name=re.compile("^V-GRPO(: training runs.*)?$")).first.click()
            self.list.wait_for()
        return self

    @property
    def list(self) -> Any:
        return self.page.get_by_role("list", name="V-GRPO runs", exact=True)

    def card(self, name: str) -> Any:
        return self.list.get_by_role("listitem", name=name, exact=True)

    def run_id(self, name: str) -> str:
        return self.card(name).get_by_role("heading").get_attribute("title")

    def card_says(self, name: str, words: str | re.Pattern[str], seconds: float = WAIT_S) -> None:
        self.card(name).get_by_text(words).first.wait_for(timeout=seconds * 1000)

    def iteration(self, name: str) -> int:
        """What the card says; -1 while there is none."""
        card = self.card(name)
        found = re.search(r"(\d+) of \d+", card.inner_text()) if card.count() else None
        return int(found[1]) if found else -1

    def press(self, name: str, button: str) -> None:
        """One of the card's buttons, the folded ones too."""
        card = self.card(name)
        wanted = card.get_by_role("button", name=button, exact=True)
        if not wanted.count() and card.get_by_role("button", name="More", exact=True).count():
            card.get_by_role("button", name="More", exact=True).click()
        wanted.click()

    def offers(self, name: str, button: str) -> bool:
        card = self.card(name)
        more = card.get_by_role("button", name="More", exact=True)
        if more.count():
            more.click()
        return bool(card.get_by_role("button", name=button, exact=True).count())

    # One run

    def open_run(self, name: str) -> Panel:
        self.press(name, "Open")
        self.tabs.wait_for()
        return self

    @property
    def tabs(self) -> Any:
        return self.page.get_by_role("tablist", name="About this run")

    def tab(self, name: str) -> Any:
        """Opens one of TABS and returns its panel."""
        self.tabs.get_by_role("tab", name=name, exact=True).click()
        return self.view(name)

    def full(self, name: str) -> Any:
        """The same once what it shows is there."""
        view = self.tab(name)
        if name in ("Curves", "Health"):
            view.get_by_role("figure").first.scroll_into_view_if_needed()  # a chart is drawn once it is in sight
        self.until(lambda: view.evaluate(_FULL) and all_pictures_loaded(view), f"{name} shows what it has")
        return view

    def view(self, name: str) -> Any:
        found = self.page.get_by_role("tabpanel", name=name, exact=True)
        found.wait_for()
        return found

    def figure(self, title: str = "Total reward") -> Any:
        return self.page.get_by_role("figure").filter(has=self.page.get_by_role("button", name=f"Enlarge: {title}", exact=True))

    def lines(self, title: str = "Total reward") -> list[dict[str, Any]]:
        """The lines drawn in a chart, as {x, y, name}; empty before it is drawn."""
        figure = self.figure(title)
        if not figure.count():
            return []
        figure.scroll_into_view_if_needed()  # a chart is drawn once it is in sight
        return figure.evaluate(_LINES)

    def curve(self, title: str = "Total reward") -> list[float]:
        """The iterations of the chart's first line."""
        lines = self.lines(title)
        return lines[0]["x"] if lines else []

    def axis(self, title: str = "Total reward") -> str:
        """linear or log."""
        figure = self.figure(title)
        figure.scroll_into_view_if_needed()
        return figure.evaluate("figure => figure.querySelector('.js-plotly-plot').layout.yaxis.type")

    def hover(self, title: str = "Total reward") -> str:
        """What the chart says under the mouse in its middle."""
        figure = self.figure(title)
        figure.locator(".nsewdrag").first.hover()
        return figure.locator(".hoverlayer").first.text_content()

    def drag(self, start: float, end: float, title: str = "Total reward", drop: bool = True) -> None:
        """Zooms with the mouse, from one share of the chart's width to another; without `drop` the button is still down."""
        area = self.figure(title).locator(".nsewdrag").first
        area.scroll_into_view_if_needed()
        box = area.bounding_box()
        y = box["y"] + box["height"] / 2
        self.page.mouse.move(box["x"] + start * box["width"], y)
        self.page.mouse.down()
        self.page.mouse.move(box["x"] + end * box["width"], y, steps=5)
        if drop:
            self.page.mouse.up()

    def pictures(self, iteration: int | None = None) -> Any:
        """The pictures in the sample grid."""
        at = r"\d+" if iteration is None else iteration
        grid = self.page.get_by_role("group", name="Sample pictures", exact=True)
        return grid.get_by_role("button", name=re.compile(rf", iteration {at}, seed \d+$"))

    def newest_pictures(self) -> int:
        """The last iteration of which pictures are in sight."""
        labels = self.pictures().evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
        return max((int(re.search(r", iteration (\d+), seed \d+$", label)[1]) for label in labels), default=-1)

    # Waiting

    def until(self, condition: Any, what: str, seconds: float = WAIT_S) -> Any:
        """As wait_until, and the browser goes on meanwhile."""

        def look() -> Any:
            self.page.wait_for_timeout(100)
            return condition()

        return wait_until(look, seconds, what, every=0)


def all_pictures_loaded(root: Any) -> bool:
    """Whether every picture in sight has come, and none is broken."""
    return root.evaluate(_LOADED)
