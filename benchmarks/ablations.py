"""V-GRPO without its parts, on the embedded model: the list of figures 4 to 6 of arXiv 2604.23380.

    python benchmarks/ablations.py --output /tmp/ablations                         hours; a second call goes on
    python benchmarks/ablations.py --output /tmp/ablations --figure parts pairs     some of the comparisons
    ... --write-results                                                             into benchmarks/results/

One step an iteration with the soft clip unless a row says otherwise; each row's learning rate is tuned as in
sample_efficiency.py. "cv" is the surrogate's coefficient of variation over all outputs of an iteration, then inside a group;
R^2 tells how much of the gradient norm a line in the surrogate's size explains, over a run's iterations. All three are means
over the reported runs.
"""

from __future__ import annotations

import math

from harness import Method, arguments, chosen, publish, r_squared, study

ONE = {"gradient_steps": 1, "clip_eps": None, "kl_coef": 0.0, "soft_clip_eta": 3.0}
FOUR = {"gradient_steps": 4, "clip_eps": None, "kl_coef": 0.0, "soft_clip_eta": None}


def variant(name: str, title: str, under: dict, changes: dict) -> Method:
    """`under` and those of `changes` without a section are keys of `objective`."""
    return Method(name, title, {key if "." in key else f"objective.{key}": v for key, v in {**under, **changes}.items()})


def dotted(changes: dict) -> dict:
    """Keys with `__` for a dot, as keyword arguments have it."""
    return {key.replace("__", "."): value for key, value in changes.items()}


def one(name: str, title: str, **changes) -> Method:
    return variant(name, title, ONE, dotted(changes))


def four(name: str, title: str, **changes) -> Method:
    return variant(name, title, FOUR, changes)


NEITHER = {"surrogate__share": "none", "surrogate__stratified": False, "surrogate__weighting": "v"}
COARSE = {"rewards__scene__transform": {"threshold": 1.0}}  # 1 where the picture is all that was asked for, else 0
FULL = one("full", "V-GRPO")
FIGURES = {
    "parts": (
        FULL,
        one("no_share", "without group sharing", surrogate__share="none"),
        one("no_strata", "without stratification", surrogate__stratified=False),
        one("no_adaptive", "without adaptive weighting (v)", surrogate__weighting="v"),
        one("none", "none of the three", **NEITHER),
    ),
    "pairs": (FULL, *(one(f"pairs_{n}", f"{n} pair{'s' if n > 1 else ''}", surrogate__pairs=n) for n in (1, 2, 8))),
    "weighting": (FULL, *(one(f"weighting_{w}", f"weighting {w}", surrogate__weighting=w) for w in ("x", "v", "eps"))),
    "control": (
        FULL,
        one("one_no_soft", "one step, no soft clip", soft_clip_eta=None),
        four("four", "four steps, no control"),
        four("four_clip", "four steps, clip 0.01", clip_eps=0.01),
        four("four_kl", "four steps, KL 0.3", kl_coef=0.3),
        four("four_soft", "four steps, soft clip 3", soft_clip_eta=3.0),
        four("four_clip_soft", "four steps, clip and soft clip", clip_eps=0.01, soft_clip_eta=3.0),
    ),
    "coarse": (
        FULL,
        one("coarse_soft", "coarse reward, soft clip 3", **COARSE),
        one("coarse", "coarse reward, no soft clip", soft_clip_eta=None, **COARSE),
    ),
    "rollout": (
        FULL,
        *(one(f"sampler_{s.rstrip('+')}", f"rollout with {s}", rollout__sampler=s) for s in ("heun", "dpmsolver++", "unipc")),
        *(one(f"steps_{n}", f"rollout of {n} steps", rollout__steps=n) for n in (2, 8, 16)),
    ),
}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--figure", nargs="+", choices=list(FIGURES), default=list(FIGURES))
    args = parser.parse_args()
    known = {method.name: method for figure in args.figure for method in FIGURES[figure]}
    methods = {method.name: method for method in chosen(list(known.values()), args)}
    curves, rates = study(list(methods.values()), args)
    lines = []
    for figure in args.figure:
        lines += [
            f"\n**{figure}**\n",
            "| | lr | held-out reward | area | cv | cv in the group | R^2 |",
            "|---|---|---|---|---|---|---|",
        ]
        for method in (methods[m.name] for m in FIGURES[figure] if m.name in methods):
            mine = curves[method.name]
            ends = [curve.rows[-1][2] for curve in mine]
            spreads = [_mean([_mean(c.metrics[key]) for c in mine]) for key in ("surrogate/cv", "surrogate/cv_group")]
            explained = _mean([r_squared(c.metrics["surrogate/mean"], c.metrics["grad_norm"]) for c in mine])
            lines.append(
                f"| {method.title} | {rates[method.name]:g} | {_mean(ends):.3f} ({min(ends):.3f} to {max(ends):.3f}) | "
                f"{_mean([c.area() for c in mine]):.3f} | {spreads[0]:.3f} | {spreads[1]:.3f} | {explained:.3f} |"
            )
    publish("ablations", "\n".join(lines).strip(), list(methods.values()), curves, args)


def _mean(values: list[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


if __name__ == "__main__":
    main()
