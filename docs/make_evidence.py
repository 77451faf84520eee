"""Write docs/evidence.md from benchmarks/results: python docs/make_evidence.py

Every figure of ours comes from a file there; what has no file stands as "not run", with its command.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from levels import kept_at  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "evidence.md"
NOT_RUN = "not run"


class Benchmark(NamedTuple):
    """A program whose table (`<name>.md`), rows (`<name>.csv`) and picture (`<name>.png`) lie in the results, if it was run."""

    name: str
    title: str
    command: str
    about: str


BENCHMARKS = (
    Benchmark(
        "sample_efficiency",
        "V-GRPO and its peers",
        "python benchmarks/sample_efficiency.py --output /tmp/se --write-results",
        "Same base, rollouts, rewards, LoRA and budget of network evaluations; each method at its own best learning rate of "
        "one grid, chosen on seeds that are not reported. [algorithms.md](algorithms.md) says what each peer is.",
    ),
    Benchmark(
        "ablations",
        "V-GRPO without its parts",
        "python benchmarks/ablations.py --output /tmp/ablations --write-results",
        '"Area" is the mean held-out reward over a run. "cv" is the coefficient of variation of the surrogate over all outputs '
        "of an iteration, then inside a group; R^2 is the share of the gradient norm's variance that a line in the surrogate's "
        "size explains.",
    ),
    Benchmark(
        "forgetting",
        "What is forgotten",
        "python benchmarks/forgetting.py --output /tmp/forgetting --write-results",
        "Trained on a part, watched on the rest, with and without the KL to theta_old.",
    ),
    Benchmark(
        "beyond",
        "Beyond the paper",
        "python benchmarks/beyond.py --output /tmp/beyond --write-results",
        "Options that the paper does not have, each against the same configuration without it. What shows no gain is off by "
        "default.",
    ),
    Benchmark(
        "overhead",
        "An iteration against the work that it can't do without",
        "python benchmarks/overhead.py --iterations 6 --write-results",
        "On a quiet machine. The goal is a ratio of at most 1.05.",
    ),
)

Runs = dict[str, dict[int, list[tuple[float, float]]]]  # method -> seed -> (network evaluations, held-out reward)
Ours = tuple[str, str]  # (figures, whether the claim holds)


def runs(name: str) -> Runs | None:
    """The curves of a benchmark; None: not run."""
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        return None
    found: Runs = defaultdict(lambda: defaultdict(list))
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found[row["method"]][int(row["seed"])].append((float(row["evaluations"]), float(row["held_out_reward"])))
    return {method: dict(seeds) for method, seeds in found.items()}


def area(rows: list[tuple[float, float]]) -> float:
    """Mean held-out reward over a run, the untrained model left out."""
    return sum(reward for _, reward in rows[1:]) / (len(rows) - 1)


def end(rows: list[tuple[float, float]]) -> float:
    return rows[-1][1]


def gain(rows: list[tuple[float, float]]) -> float:
    return rows[-1][1] - rows[0][1]


def ahead(name: str, better: str, worse: str, of: Callable[[list[tuple[float, float]]], float] = area) -> Callable[[], Ours]:
    """Claim: `better` is ahead of `worse`. Holds where it is so for every seed, fails where for none."""

    def found() -> Ours:
        curves = runs(name) or {}
        if better not in curves or worse not in curves:
            return NOT_RUN, ""
        seeds = sorted(curves[better].keys() & curves[worse].keys())
        one, two = ([of(curves[method][seed]) for seed in seeds] for method in (better, worse))
        wins = sum(a > b for a, b in zip(one, two, strict=True))
        text = f"{_mean(one):.3f} against {_mean(two):.3f}; ahead in {wins} of {len(seeds)} seeds"
        return text, _verdict(wins, len(seeds))

    return found


def learns(name: str, method: str) -> Callable[[], Ours]:
    """Claim: `method` raises the held-out reward."""

    def found() -> Ours:
        curves = (runs(name) or {}).get(method)
        if not curves:
            return NOT_RUN, ""
        gains = [gain(rows) for rows in curves.values()]
        up = sum(value > 0 for value in gains)
        text = f"{_mean(gains):+.3f}; up in {up} of {len(gains)} seeds"
        return text, _verdict(up, len(gains))

    return found


def not_(claim: Callable[[], Ours]) -> Callable[[], Ours]:
    """The opposite claim, on the same figures."""

    def found() -> Ours:
        text, verdict = claim()
        return text, {"yes": "no", "no": "yes"}.get(verdict, verdict)

    return found


def needs(level: str, peers: tuple[str, ...] = ("MixGRPO", "DiffusionNFT")) -> Callable[[], Ours]:
    """Claim: V-GRPO needs fewer evaluations than each of the peers to reach a level. Holds where the intervals lie under 1."""

    def found() -> Ours:
        rows = table_rows(RESULTS / "sample_efficiency.md")
        cells = {peer: rows[peer][level] for peer in peers if level in rows.get(peer, {})}
        if not cells:
            return NOT_RUN, ""
        text = f"evaluations to {level}, " + "; ".join(f"over {peer}'s: {cells.get(peer, NOT_RUN)}" for peer in peers)
        bounds = [re.search(r"\((\S+) to ([\d.]+)", cell) for cell in cells.values()]
        if len(cells) < len(peers) or not all(bounds) or any(cell.startswith("~") for cell in cells.values()):
            return text, "unclear"
        all_fewer = all(float(bound[2]) < 1 for bound in bounds)
        return text, "yes" if all_fewer else "no" if all(float(bound[1]) > 1 for bound in bounds) else "unclear"

    return found


def keeps(lesson: str) -> Callable[[], Ours]:
    """Claim: with a KL of 0.3 more of what is not trained on is kept, at one gain in what is: a KL also slows the learning."""

    def found() -> Ours:
        path = RESULTS / "forgetting.csv"
        courses: dict[str, dict[str, list[tuple[float, float, float]]]] = defaultdict(lambda: defaultdict(list))
        if path.exists():
            with open(path, newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    if row["lesson"] == lesson:
                        courses[row["kl"]][row["seed"]].append(
                            (float(row["evaluations"]), float(row["learnt"]), float(row["kept"]))
                        )
        if not {"0.0", "0.3"} <= courses.keys():
            return NOT_RUN, ""
        with_kl, without = [], []
        for seed, course in courses["0.3"].items():
            other = courses["0.0"][seed]
            both = min(max(learnt for _, learnt, _ in rows) for rows in (course, other))
            with_kl.append(kept_at(course, both) - course[0][2])
            without.append(kept_at(other, both) - other[0][2])
        wins = sum(a > b for a, b in zip(with_kl, without, strict=True))
        text = f"{_mean(with_kl):+.3f} against {_mean(without):+.3f} at one gain; better in {wins} of {len(without)} seeds"
        return text, _verdict(wins, len(without))

    return found


def letters() -> Ours:
    """Claim: trained on ocr, a model writes better. From the page of the embedded models."""
    cells = [row.get("held-out words written exactly") for row in table_rows(ROOT / "docs" / "embedded-model.md").values()]
    pairs = [tuple(map(float, cell.split(" -> "))) for cell in cells if cell]
    if not pairs:
        return NOT_RUN, ""
    before, after = map(_mean, zip(*pairs, strict=True))
    better = sum(b > a for a, b in pairs)
    text = f"held-out words written exactly, `demo-letters`: {before:.3f} -> {after:.3f}; up in {better} of {len(pairs)} seeds"
    return text, _verdict(better, len(pairs))


def lower(column: str) -> Callable[[], Ours]:
    """Claim: the three parts of the variance reduction lower a statistic of the surrogate."""

    def found() -> Ours:
        rows = table_rows(RESULTS / "ablations.md")
        if not {"V-GRPO", "none of the three"} <= rows.keys():
            return NOT_RUN, ""
        before, after = (float(rows[title][column]) for title in ("none of the three", "V-GRPO"))
        return f"{before:.3f} -> {after:.3f}", "yes" if after < before else "no"

    return found


def table_rows(path: Path) -> dict[str, dict[str, str]]:
    """The cells of a file's tables by row title, then column title; the first of two rows of one name counts. {}: no file."""
    found: dict[str, dict[str, str]] = {}
    head: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            head = []
        elif not head:
            head = [cell.rsplit(": ", 1)[-1] for cell in cells]
        elif not set(cells[0]) <= set("-"):
            found.setdefault(cells[0], dict(zip(head[1:], cells[1:], strict=True)))
    return found


SE, AB = "sample_efficiency", "ablations"
PAPER = "[2604.23380](https://arxiv.org/abs/2604.23380)"
CLAIMS: tuple[tuple[str, str, Callable[[], Ours]], ...] = (
    (
        "V-GRPO needs fewer network evaluations than MixGRPO and DiffusionNFT",
        "twice and three times as fast (abstract); FLUX.1 dev: 150 iterations beat MixGRPO's 300",
        needs("0.60"),
    ),
    (
        "more reward than MixGRPO for the same budget",
        "FLUX.1 dev, HPSv2.1: .372 against .367",
        ahead(SE, "vgrpo", "mix_grpo", end),
    ),
    ("more than DanceGRPO", "FLUX.1 dev, HPSv2.1: .372 against .334", ahead(SE, "vgrpo", "dance_grpo", end)),
    (
        "as much as Flow-GRPO, in a fraction of its steps",
        "SD 3.5 M, GenEval and OCR: .91 and .91 in 580 steps, .95 and .66 in more than 5000",
        ahead(SE, "vgrpo", "flow_grpo", end),
    ),
    (
        "as much as DiffusionNFT, in a third of its steps",
        "SD 3.5 M, GenEval and OCR: .91 and .91 in 580 steps, .94 and .91 in 1700",
        ahead(SE, "vgrpo", "diffusion_nft", end),
    ),
    ("an ELBO without the three parts learns less", "the naive method falls behind", ahead(SE, "vgrpo", "naive_elbo")),
    ("the three parts lower the surrogate's coefficient of variation", "FLUX: .230 -> .128", lower("cv")),
    ("and that inside a group", "FLUX: .170 -> .038", lower("cv in the group")),
    ("and R^2 of the gradient norm on the surrogate's size", "FLUX: .406 -> .328", lower("R^2")),
    ("group sharing helps", "figures 4 to 6", ahead(AB, "full", "no_share")),
    ("stratified levels help", "figures 4 to 6", ahead(AB, "full", "no_strata")),
    ("adaptive weighting helps", "x-prediction, self-normalised, is best", ahead(AB, "full", "no_adaptive")),
    ("two pairs do not suffice", "2 do not converge", ahead(AB, "full", "pairs_2")),
    ("eight add little to four", "8 are marginal", not_(ahead(AB, "pairs_8", "full"))),
    ("the error of eps collapses", "collapses", not_(learns(AB, "weighting_eps"))),
    ("that of v works", "works", learns(AB, "weighting_v")),
    ("several steps need control: the clip", "clip 6e-3 to 1e-2", ahead(AB, "four_clip", "four")),
    ("the KL alone does not replace the clip", "does not stop loss spikes", ahead(AB, "four_clip", "four_kl")),
    ("the soft clip helps with one step", "eta 3 to 5", ahead(AB, "full", "one_no_soft")),
    ("and hurts with a coarse reward", "hurts with GenEval", ahead(AB, "coarse", "coarse_soft")),
    ("any solver may make the outputs: Heun", "high-order solvers included", learns(AB, "sampler_heun")),
    ("DPM-Solver++", "16 steps of it on FLUX", learns(AB, "sampler_dpmsolver")),
    ("UniPC", "high-order solvers included", learns(AB, "sampler_unipc")),
    ("the KL keeps what is not trained on: another reward", "KL 0.3 in stage 5", keeps("colour")),
    ("other prompts", "KL 0.3 in stage 5", keeps("objects")),
    ("the `ocr` reward teaches writing", "SD 3.5 M, OCR: .12 -> .91, with stages before it", letters),
)

GPU = (
    ("FLUX.1 dev, 300 iterations: HPSv2.1", ".313 -> .372 (MixGRPO .367, BranchGRPO .363, DanceGRPO .334)"),
    ("PickScore", ".227 -> .241 (MixGRPO .237)"),
    ("ImageReward", "1.088 -> 1.73 to 1.75 (MixGRPO 1.629)"),
    ("UnifiedReward", "3.370 -> 3.437 (MixGRPO 3.418)"),
    ("network evaluations an image, behaviour / policy", "16 + 4 / 4 (MixGRPO 25 / 4)"),
    ("SD 3.5 M, 580 iterations, no CFG: GenEval", ".24 -> .91 (with CFG .63; DiffusionNFT .94, Flow-GRPO .95)"),
    ("OCR", ".12 -> .91 (with CFG .59; DiffusionNFT .91, Flow-GRPO .66)"),
    ("HPSv2.1, Aesthetic, ImageReward after it", ".341, 6.02, 1.52"),
)

HEAD = """\
# Evidence

Written by `python docs/make_evidence.py` from `benchmarks/results`; a test keeps it true.

Two questions: what the paper ({paper}) reports, and what this code does. The
paper's models need GPUs that have not been used here, so its figures on them stand beside nothing of ours
([below](#on-the-papers-models)). What can be compared is the shape of its claims, on the [embedded model](embedded-model.md)
with the `scene` reward: a small network, pictures of 64 x 64 pixels, and a reward that counts and compares. A claim that does
not hold there may hold on FLUX, and the other way round.

## Claim by claim

"Holds here" goes by single seeds: *yes* where every seed shows it, *no* where none does, else *unclear*; a ratio goes by
its interval, a statistic by the mean. Figures are held-out reward, its mean over the run unless the paper's is an end result.
Each method has the learning rate that is best for it on seeds that are not reported.

| claim | the paper | here | holds here |
|---|---|---|---|
"""


def claims() -> str:
    lines = []
    for claim, paper, ours in CLAIMS:
        figures, verdict = ours()
        lines.append(f"| {claim} | {paper} | {figures} | {verdict} |")
    return "\n".join(lines)


def section(benchmark: Benchmark) -> str:
    """Its table as the program wrote it, with its picture."""
    path, picture = RESULTS / f"{benchmark.name}.md", RESULTS / f"{benchmark.name}.png"
    parts = [f"## {benchmark.title}", f"    {benchmark.command}", fill(benchmark.about, 128)]
    parts.append(path.read_text(encoding="utf-8").strip() if path.exists() else f"*{NOT_RUN.capitalize()}.*")
    if picture.exists():
        parts.append(f"![{benchmark.title}](../benchmarks/results/{picture.name})")
    return "\n\n".join(parts)


def on_the_papers_models() -> str:
    rows = "\n".join(f"| {name} | {paper} | {NOT_RUN} |" for name, paper in GPU)
    return (
        "## On the paper's models\n\nWith the presets `flux-multireward`, and `sd3-stage1` to `sd3-stage5` by "
        "[a curriculum](curriculum.md). Both want GPUs.\n\n"
        f"| | the paper | here |\n|---|---|---|\n{rows}"
    )


def text() -> str:
    head = HEAD.format(paper=PAPER) + claims()
    return "\n\n".join([head, *map(section, BENCHMARKS), on_the_papers_models()]) + "\n"


def _verdict(seeds_for_it: int, seeds: int) -> str:
    return "yes" if seeds_for_it == seeds else "unclear" if seeds_for_it else "no"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
