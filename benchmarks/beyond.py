"""Options that the paper does not have, each against the same configuration without it, on the embedded model.

    python benchmarks/beyond.py --output /tmp/beyond                          hours; a second call goes on there
    python benchmarks/beyond.py --output /tmp/beyond --only refill            some of them
    python benchmarks/beyond.py --output /tmp/beyond --try warm vgrpo_demo optimizer.warmup=4   one of your own
    ... --write-results                                                       into benchmarks/results/

Both sides of a comparison have the same seeds, the same budget of network evaluations and the same learning rate: the one that
is best for the side without the option, from tuning seeds. "Area" is the mean held-out reward over the points of a run. The
verdict goes by it, since it varies less than the last point alone: `gain` where the whole 95 % interval over resampled seeds
lies above 0, `loss` where it lies below, else `no gain`. Five seeds are few: such an interval is too narrow rather than too
wide, and of many options one or another lies outside of 0 by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from ablations import COARSE, dotted
from harness import Curve, Method, arguments, gain_interval, publish, study
from sample_efficiency import JUDGED
from sample_efficiency import METHODS as PEERS


@dataclass(frozen=True)
class Option:
    """`method` is the base with the option switched on; `base` names the base."""

    base: str
    method: Method


BASES = {
    **{method.name: method for method in PEERS if method.name in ("vgrpo", "vgrpo_demo")},
    "coarse_demo": Method("coarse_demo", "the demo's settings, coarse reward", {**JUDGED, **dotted(COARSE)}),
}


def option(base: str, name: str, title: str, **changes) -> Option:
    """The base's changes and these."""
    return Option(base, Method(name, title, {**BASES[base].changes, **dotted(changes)}))


# 26 iterations are 60,000 evaluations of the demo's settings: a schedule runs over them.
OPTIONS = (
    option("vgrpo_demo", "noise", "pairs at noisy levels weigh more", surrogate__timestep_weight__start=2.0),
    option("vgrpo_demo", "noise_more", "much more", surrogate__timestep_weight__start=4.0),
    option(
        "vgrpo_demo",
        "noise_to_clean",
        "from noisy to clean levels",
        surrogate__timestep_weight__start=2.0,
        surrogate__timestep_weight__end=-2.0,
        iterations=26,
    ),
    option("vgrpo_demo", "simplex", "advantages on a simplex, 1", objective__advantage__simplex=1.0),
    option("vgrpo_demo", "simplex_half", "advantages on a simplex, 0.5", objective__advantage__simplex=0.5),
    option("vgrpo_demo", "guard", "norm guard, weight 1", objective__norm_guard__weight=1.0),
    option("vgrpo_demo", "guard_weak", "norm guard, weight 0.1", objective__norm_guard__weight=0.1),
    option("vgrpo_demo", "rvm", "RVM, KL 0.01", algorithm="rvm", objective__clip_eps=None, objective__kl_coef=0.01),
    option("vgrpo_demo", "rvm_no_kl", "RVM, no KL", algorithm="rvm", objective__clip_eps=None, objective__kl_coef=0.0),
    option("vgrpo_demo", "keep_half", "down-sampling, half kept", objective__advantage__keep=0.5),
    option("vgrpo_demo", "keep_quarter", "down-sampling, a quarter kept", objective__advantage__keep=0.25),
    option("vgrpo", "keep_half_one", "down-sampling, half kept", objective__advantage__keep=0.5),
    option("coarse_demo", "refill", "flat groups replaced, 4 rounds at most", rollout__refill=4),
    option("coarse_demo", "refill_rest", "and their prompts rested", rollout__refill=4, rollout__rest_flat=True),
)


def tried(words: Sequence[str]) -> Option:
    """NAME BASE KEY=VALUE ... of the command line."""
    name, base, *changes = [*words, "", ""][: max(2, len(words))]
    if base not in BASES or not changes or not all("=" in change for change in changes):
        raise SystemExit(f"--try {' '.join(words)}: give NAME BASE KEY=VALUE ...; bases: {', '.join(BASES)}")
    return Option(base, replace(BASES[base], name=name, title=f"{name} ({', '.join(changes)})", more=tuple(changes)))


def asked_for(args) -> list[Option]:
    """Those of `--only` and `--try`, or all. Exits with one line for an unknown name."""
    known = {option.method.name: option for option in OPTIONS}
    if unknown := [name for name in args.only or () if name not in known]:
        raise SystemExit(f"unknown option {unknown[0]!r}; allowed: {', '.join(known)}")
    names = known if args.only is None and not args.try_ else args.only or ()
    found = [*(known[name] for name in names), *(tried(words) for words in args.try_)]
    return [replace(one, method=replace(one.method, more=(*one.method.more, *args.set))) for one in found]


def row(one: Option, curves: dict[str, list[Curve]]) -> str:
    mine, base = curves[one.method.name], curves[one.base]
    areas, before = [c.area() for c in mine], [c.area() for c in base]
    gain, low, high = gain_interval(areas, before)
    end, end_low, end_high = gain_interval([c.rows[-1][2] for c in mine], [c.rows[-1][2] for c in base])
    verdict = "**gain**" if low > 0 else "loss" if high < 0 else "no gain"
    better = sum(a > b for a, b in zip(areas, before, strict=True))
    cells = [
        one.method.title,
        f"{fmean(before):.3f} -> {fmean(areas):.3f}",
        f"{gain:+.3f} ({low:+.3f} to {high:+.3f})",
        f"{better} of {len(mine)}",
        f"{end:+.3f} ({end_low:+.3f} to {end_high:+.3f})",
        f"{fmean([c.rows[-1][1] for c in mine]) / fmean([c.rows[-1][1] for c in base]):.2f}",
        verdict,
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--try", dest="try_", nargs="+", action="append", default=[], metavar="WORD", help="NAME BASE KEY=VALUE ..."
    )
    args = parser.parse_args()
    options = asked_for(args)
    bases = [replace(BASES[name], more=tuple(args.set)) for name in dict.fromkeys(one.base for one in options)]
    methods = [*bases, *(one.method for one in options)]
    if not options or len({method.name for method in methods}) < len(methods):
        raise SystemExit("nothing to compare" if not options else "two options, or an option and a base, have one name")
    curves, rates = study(methods, args, {one.method.name: one.base for one in options})
    lines = []
    for base in bases:
        ends = [curve.rows[-1][2] for curve in curves[base.name]]
        lines += [
            f"\n**Against {base.title}** (learning rate {rates[base.name]:g}, held-out reward at the end {fmean(ends):.3f})\n",
            "| option | area without -> with | gain in area | seeds better | gain at the end | CPU time, ratio | verdict |",
            "|---|---|---|---|---|---|---|",
            *(row(one, curves) for one in options if one.base == base.name),
        ]
    publish("beyond", "\n".join(lines).strip(), methods, curves, args)


if __name__ == "__main__":
    main()
