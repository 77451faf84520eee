"""The demo over several seeds, as a table and pictures.

    python benchmarks/demo_seeds.py --output /tmp/demo-seeds                   seeds 0, 1, 2; prints the table
    python benchmarks/demo_seeds.py --output /tmp/demo-seeds --write-readme    and puts it, with pictures, into the README

Each seed is one `python trainer/cli.py demo --seed N` with its defaults, in a process of its own, so what is measured is what
a newcomer runs. Results: <output>/demo-seeds.csv and <output>/demo-seeds.md.
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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ("eval_reward_before", "eval_reward_after", "eval_accuracy_before", "eval_accuracy_after")
COLUMNS = ("seed", *MEASURED, "iterations", "wall_s", "process_s")
BEGIN, END = "<!-- demo-seeds: begin -->", "<!-- demo-seeds: end -->"


def run_seed(seed: int, output: Path, extra: list[str]) -> dict:
    before = set(output.glob("*/summary.json"))
    started = time.perf_counter()
    command = [sys.executable, str(ROOT / "trainer" / "cli.py"), "demo", "--seed", str(seed), "--output", str(output), *extra]
    subprocess.run(command, check=True)
    seconds = time.perf_counter() - started
    (summary,) = set(output.glob("*/summary.json")) - before
    return {**json.loads(summary.read_text()), "process_s": round(seconds, 1), "folder": summary.parent}


def table(rows: list[dict]) -> str:
    lines = [
        "| seed | held-out `scene` reward | gain | strictly correct | training | whole command |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        before, after, strict_before, strict_after = (r[name] for name in MEASURED)
        reward = f"{before:.3f} -> {after:.3f} | +{after - before:.3f}"
        strict = f"{strict_before:.3f} -> {strict_after:.3f}"
        lines.append(f"| {r['seed']} | {reward} | {strict} | {r['wall_s']:.0f} s | {r['process_s']:.0f} s |")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    lines.append("")
    lines.append(f"{rows[0]['iterations']} iterations each, on {cores} CPU cores ({platform.machine()}), no GPU.")
    return "\n".join(lines)


def write_readme(text: str, folder: Path) -> None:
    images = ROOT / "docs" / "images"
    images.mkdir(parents=True, exist_ok=True)
    shutil.copy(folder / "curve.png", images / "demo-curve.png")
    shutil.copy(folder / "before-after.png", images / "demo-before-after.png")
    readme = ROOT / "README.md"
    head, rest = readme.read_text(encoding="utf-8").split(BEGIN)
    _, tail = rest.split(END)
    readme.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--write-readme", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to the demo")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    rows = [run_seed(seed, args.output, [x for item in args.set for x in ("--set", item)]) for seed in args.seeds]
    with open(args.output / "demo-seeds.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    text = table(rows)
    (args.output / "demo-seeds.md").write_text(text + "\n", encoding="utf-8")
    print("\n" + text)
    if args.write_readme:
        write_readme(text, rows[0]["folder"])


if __name__ == "__main__":
    main()
