"""How fast the panel itself is, in a browser, on a generated run of 10,000 iterations, 8 rewards and 500 grids.

    python benchmarks/panel_page.py

The page of `trainer/cli.py serve` in the system's Chromium, without a GPU; benchmarks/panel.py measures the server alone.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

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
# What was done is on the screen after the second frame.
_PAINTED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def measure(address: str, browser: Any) -> list[tuple[str, str]]:
    context = browser.new_context(viewport={"width": 1920, "height": 1080})
    page = context.new_page()
    panel = Panel(page)
    rows = []

    def timed(what: str, act: Any, done: Any) -> None:
        begin = time.perf_counter()
        act()
        done()
        page.evaluate(_PAINTED)
        rows.append((what, f"{1000 * (time.perf_counter() - begin):.0f} ms"))

    def drawn(*stretch: int) -> None:
        page.wait_for_function(_DRAWN, arg=stretch, polling=10)

    def opened() -> None:
        drawn(10_000, 10_000, 1)

    def newest() -> None:
        while panel.newest_pictures() <= 9900:
            page.wait_for_timeout(10)

    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    timed("page opened anew until its curve is drawn", lambda: page.goto(f"{address}#run=long"), opened)
    rows.append(("of that, processor time of its main thread", f"{_work(session):.0f} ms"))
    timed("reloaded until its curve is drawn", page.reload, opened)
    rows.append(("of that, processor time of its main thread", f"{_work(session):.0f} ms"))
    view = panel.view("Curves")
    view.get_by_label("From iteration").fill("6000")
    timed(
        "zoomed until 500 iterations are drawn in full",
        lambda: (view.get_by_label("To iteration").fill("6499"), view.get_by_label("To iteration").press("Enter")),
        lambda: drawn(6000, 6499, 500),
    )
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
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory(prefix="vgrpo-panel-page-") as folder, chromium() as browser:
        generate(Path(folder), "long")
        with serve(Path(folder)) as address:
            rows = measure(address, browser)
    print("| what | measured |\n|---|---|")
    print("\n".join(f"| {what} | {value} |" for what, value in rows))
    print(f"\n{len(os.sched_getaffinity(0))} CPU cores ({platform.machine()}), no GPU.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
