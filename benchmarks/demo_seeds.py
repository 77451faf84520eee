"""The demo over several seeds, as a table and pictures.

    python benchmarks/demo_seeds.py --output /tmp/demo-seeds            seeds 0, 1, 2; prints the table
    python benchmarks/demo_seeds.py --output /tmp/demo-seeds --write    and puts it, with pictures, into the README

Each seed is one `python trainer/cli.py demo --seed N` with its defaults. Results: <output>/demo-seeds.csv and demo-seeds.md.
"""

from __future__ import annotations

from seeds import ROOT, Benchmark, Figure, main

DEMO = Benchmark(
    marker="demo-seeds",
    page=ROOT / "README.md",
    command=lambda seed: ("demo", "--seed", str(seed)),
    figures=(Figure("scene/mean", "held-out `scene` reward"), Figure("scene/accuracy", "strictly correct")),
)

if __name__ == "__main__":
    main(DEMO, __doc__)
