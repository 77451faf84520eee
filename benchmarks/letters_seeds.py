"""The embedded model of letters learns to write by the OCR reward: over several seeds, as a table and pictures.

    python benchmarks/letters_seeds.py --output /tmp/letters-seeds            seeds 0, 1, 2; prints the table
    python benchmarks/letters_seeds.py --output /tmp/letters-seeds --write    and puts it, with pictures, into the docs

Each seed is one `python trainer/cli.py train letters --set seed=N`. It needs rapidocr and onnxruntime.
Results: <output>/letters-seeds.csv and letters-seeds.md.
"""

from __future__ import annotations

from seeds import ROOT, Benchmark, Figure, main

LETTERS = Benchmark(
    marker="letters-seeds",
    page=ROOT / "docs" / "embedded-model.md",
    command=lambda seed: ("train", "letters", "--set", f"seed={seed}"),
    figures=(Figure("ocr/exact", "held-out words written exactly"), Figure("ocr/mean", "held-out `ocr` reward")),
)

if __name__ == "__main__":
    main(LETTERS, __doc__)
