"""How fast the panel itself is, in a browser, on a generated run of 10,000 iterations, 8 rewards and 500 grids.

    python benchmarks/panel_page.py

The page of `trainer/cli.py serve` in the system's Chromium, without a GPU; benchmarks/panel.py measures the server alone.
It is open once its first chart holds the run's curve to the last iteration, and the page has painted that and answers. It is
opened by a server and a browser that have just started, so nothing is in any cache but the operating system's.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.bare_browser import PAINTED, opening
from benchmarks.panel import generate
from tests.web.chromium import chromium
from tests.web.panel import Panel
from tests.web.serve_process import serve

# Scrolls for two seconds, and tells how long each frame took.
_SCROLL = """async node => {
  const times = []
  let last = performance.now()
  const end = last + 2000
  while (performance.now() < end) {
    node.scrollLeft -= 40
    node.scrollTop += 10
    await new Promise(requestAnimationFrame)
    times.push(performance.now() - last)
    last = performance.now()
  }
  return times
}"""
# Whether the first line of the first chart has that many points from one iteration to another.
_DRAWN = """([from, to, points]) => {
  const drawn = document.querySelector('figure .js-plotly-plot')?.data?.[0]?.x ?? []
  return drawn.filter(x => x >= from && x <= to).length >= points
}"""
_OPEN = (10_000, 10_000, 1)
_WIDTH, _HEIGHT = 1920, 1080


def measure_opening(runs: Path, times: int) -> list[tuple[str, str]]:
    """How long a user waits, each time with a new server and a new browser."""
    found = []
    for _ in range(times):
        with serve(runs) as address:
            found.append(opening(f"{address}#run=long", f"({_DRAWN})({list(_OPEN)})", (_WIDTH, _HEIGHT)))
    return [
        (f"opened anew, median of {times}", f"{median(found):.0f} ms"),
        (f"opened anew, longest of {times}", f"{max(found):.0f} ms"),
    ]


def measure(address: str, browser: Any) -> list[tuple[str, str]]:
    """All else, with playwright's debugger in the page."""
    context = browser.new_context(viewport={"width": _WIDTH, "height": _HEIGHT})
    page = context.new_page()
    panel = Panel(page)
    rows = []

    def timed(what: str, act: Any, done: Any) -> None:
        begin = time.perf_counter()
        act()
        done()
        page.evaluate(PAINTED)
        rows.append((what, f"{1000 * (time.perf_counter() - begin):.0f} ms"))

    def drawn(*stretch: int) -> None:
        page.wait_for_function(_DRAWN, arg=stretch, polling=10)

    def opened() -> None:
        drawn(*_OPEN)

    def newest() -> None:
        while panel.newest_pictures() <= 9900:
            page.wait_for_timeout(10)

    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    timed("opened anew with a debugger in the page", lambda: page.goto(f"{address}#run=long"), opened)
    rows.append(("of that, processor time of its main thread", f"{_work(session):.0f} ms"))
    timed("reloaded with a debugger in the page", page.reload, opened)
    rows.append(("of that, processor time of its main thread", f"{_work(session):.0f} ms"))
    page.wait_for_timeout(1000)  # until the other charts are drawn too
    panel.drag(0.6, 0.7, drop=False)
    timed("zoomed with the mouse until the stretch is drawn in detail", page.mouse.up, lambda: drawn(6000, 7500, 500))
    to = panel.view("Curves").get_by_label("To iteration")
    to.fill("6499")
    panel.view("Curves").get_by_label("From iteration").fill("6000")
    page.wait_for_timeout(1000)
    typed = "zoomed by the fields until 500 iterations are drawn in full"
    timed(typed, lambda: to.press("Enter"), lambda: drawn(6000, 6499, 500))
    timed("pictures until the newest are in the page", lambda: panel.tab("Samples"), newest)
    frames = sorted(page.get_by_role("group", name="Sample pictures", exact=True).evaluate(_SCROLL))
    rows.append(("a frame while pictures are scrolled: median", f"{frames[len(frames) // 2]:.0f} ms"))
    rows.append(("the same: 95 of 100 are under", f"{frames[len(frames) * 95 // 100]:.0f} ms"))
    session.send("HeapProfiler.collectGarbage")
    heap = session.send("Runtime.getHeapUsage")
    rows.append(("memory of the page's scripts", f"{heap['usedSize'] / 2**20:.0f} MB"))
    rows.append(("private memory of the page's whole process", f"{_process_memory(browser):.0f} MB"))
    rows.append(("elements in the page", str(page.evaluate("() => document.querySelectorAll('*').length"))))
    context.close()
    return rows


def _work(session: Any) -> float:
    """Milliseconds since the page was opened: what it costs where other work does not make it wait."""
    found = session.send("Performance.getMetrics")["metrics"]
    return 1000 * next(each["value"] for each in found if each["name"] == "ThreadTime")


def _process_memory(browser: Any) -> float:
    """MB that no other process shares, of the largest renderer: the one with the page in it."""
    session = browser.new_browser_cdp_session()
    found = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    sizes = []
    for process in found:
        if process["type"] == "renderer":
            lines = Path(f"/proc/{process['id']}/smaps_rollup").read_text().splitlines()
            sizes.append(sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024)
    return max(sizes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5, help="how often it is opened anew (default 5)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vgrpo-panel-page-") as folder:
        runs = Path(folder)
        generate(runs, "long")
        rows = measure_opening(runs, args.times)
        with chromium() as browser, serve(runs) as address:
            rows += measure(address, browser)
    print("| what | measured |\n|---|---|")
    print("\n".join(f"| {what} | {value} |" for what, value in rows))
    print(f"\n{len(os.sched_getaffinity(0))} CPU cores ({platform.machine()}), no GPU.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
