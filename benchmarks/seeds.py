"""What the benchmarks over several seeds share: run, tabulate, put into a page.

Each seed is one command in a process of its own, so what is measured is what a newcomer runs.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CLI = ROOT / "trainer" / "cli.py"


@dataclass(frozen=True)
class Figure:
    """A column pair of the table: the held-out means `eval/<name>` of a run before and after."""

    name: str
    title: str


@dataclass(frozen=True)
class Benchmark:
    """command: what follows `python trainer/cli.py` for a seed. marker: names the table's place in `page`, and the files."""

    marker: str
    page: Path
    command: Callable[[int], Sequence[str]]
    figures: tuple[Figure, ...]


def main(benchmark: Benchmark, doc: str) -> None:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--write", action="store_true", help=f"put the table and the pictures into {benchmark.page.name}")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to the run")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    extra = [x for item in args.set for x in ("--set", item)]
    rows = [run_seed([*benchmark.command(seed), *extra], args.output) for seed in args.seeds]
    columns = ["seed", "iterations", "wall_s", "process_s"]
    columns += [f"{figure.name} {when}" for figure in benchmark.figures for when in ("before", "after")]
    with open(args.output / f"{benchmark.marker}.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in rows:
            pairs = [value for figure in benchmark.figures for value in _pair(row, figure)]
            writer.writerow([row["seed"], row["iterations"], row["wall_s"], row["process_s"], *pairs])
    text = table(rows, benchmark.figures)
    (args.output / f"{benchmark.marker}.md").write_text(text + "\n", encoding="utf-8")
    print("\n" + text)
    if args.write:
        write(benchmark, text, rows[0]["folder"])


def run_seed(command: Sequence[str], output: Path) -> dict[str, Any]:
    """The run's summary, with the seconds of the whole process and the run's folder."""
    before = set(output.glob("*/summary.json"))
    started = time.perf_counter()
    subprocess.run([sys.executable, str(CLI), *command, "--output", str(output)], check=True)
    seconds = time.perf_counter() - started
    (summary,) = set(output.glob("*/summary.json")) - before
    return {**json.loads(summary.read_text()), "process_s": round(seconds, 1), "folder": summary.parent}


def table(rows: Sequence[dict[str, Any]], figures: Sequence[Figure]) -> str:
    titles = ["seed", *(title for figure in figures for title in (figure.title, "gain")), "training", "whole command"]
    lines = [_line(titles), "|" + "---|" * len(titles)]
    for row in rows:
        cells = []
        for figure in figures:
            old, new = _pair(row, figure)
            cells += [f"{old:.3f} -> {new:.3f}", f"{new - old:+.3f}"]
        lines.append(_line([str(row["seed"]), *cells, f"{row['wall_s']:.0f} s", f"{row['process_s']:.0f} s"]))
    return "\n".join([*lines, "", f"{rows[0]['iterations']} iterations each, {_machine()}."])


def _machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = int(os.environ.get("OMP_NUM_THREADS") or cores)
    return f"on {cores} CPU cores ({platform.machine()}), {f'{threads} of them used, ' if threads < cores else ''}no GPU"


def write(benchmark: Benchmark, text: str, folder: Path) -> None:
    """The table between its markers in the page, and the curve and the before/after grid of the first seed."""
    name, images = benchmark.marker.removesuffix("-seeds"), ROOT / "docs" / "images"
    images.mkdir(parents=True, exist_ok=True)
    for picture in ("curve", "before-after"):
        shutil.copy(folder / f"{picture}.png", images / f"{name}-{picture}.png")
    begin, end = (f"<!-- {benchmark.marker}: {edge} -->" for edge in ("begin", "end"))
    head, rest = benchmark.page.read_text(encoding="utf-8").split(begin)
    _, tail = rest.split(end)
    benchmark.page.write_text(f"{head}{begin}\n{text}\n{end}{tail}", encoding="utf-8")


def _pair(row: dict[str, Any], figure: Figure) -> tuple[float, float]:
    return row["before"][f"eval/{figure.name}"], row["after"][f"eval/{figure.name}"]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
