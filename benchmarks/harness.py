"""What the comparisons of training methods share: runs on the embedded model to a budget of network evaluations, each kept as a
file the moment it is done; learning rates tuned on seeds of their own; levels, ratios and their bootstrap intervals.

A network evaluation is one picture through the denoiser once, with or without gradient: rollouts, theta_old, the base and the
update all count. Seconds are the process's CPU seconds (on one thread: OMP_NUM_THREADS=1), so that several runs may share a
machine, and those of training alone; judging on held-out prompts stands outside of both.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from trainer.device import choose_threads  # noqa: E402

choose_threads()

import numpy as np  # noqa: E402
import torch  # noqa: E402

from trainer.config import RunConfig, load_config  # noqa: E402
from trainer.evaluation import evaluate  # noqa: E402
from trainer.loop import run_iteration  # noqa: E402
from trainer.runs import write_atomic  # noqa: E402
from trainer.setup import build_bench  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
GRID = (1e-3, 2e-3, 4e-3)
KEPT = ("surrogate/mean", "surrogate/cv", "surrogate/cv_group", "grad_norm", "ratio/max_abs_dev", "ratio/clip_frac", "kl")


@dataclass(frozen=True)
class Method:
    """Something to compare: the demo's configuration with changes, by dotted key."""

    name: str
    title: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    more: tuple[str, ...] = ()
    """Further changes, `key=value` as on the command line."""


@dataclass(frozen=True)
class Budget:
    """evaluations: a run's end; points: how often it is judged on the way, evenly; prompts: held-out ones, a seed each."""

    evaluations: float
    points: int
    prompts: int


@dataclass(frozen=True)
class Curve:
    """One run: rows of (network evaluations, CPU seconds, held-out reward), from the untrained model on."""

    method: str
    lr: float
    seed: int
    rows: tuple[tuple[float, float, float], ...]
    metrics: dict[str, list[float]]

    def area(self) -> float:
        """Mean held-out reward over the points, the first left out: what tuning goes by."""
        return sum(reward for _, _, reward in self.rows[1:]) / max(1, len(self.rows) - 1)

    def reach(self, level: float, column: int = 0) -> float:
        """Evaluations (column 1: seconds) at which the reward first is at `level`, between two points by a line; inf: never."""
        for before, after in zip(self.rows, self.rows[1:], strict=False):
            if after[2] >= level:
                if before[2] >= level:
                    return before[column]
                share = (level - before[2]) / (after[2] - before[2])
                return before[column] + share * (after[column] - before[column])
        return math.inf


def configuration(method: Method, lr: float, seed: int, budget: Budget) -> RunConfig:
    """The demo with the method's changes; what is compared is the method, so the learning rate is constant."""
    changes = {
        "name": method.name,
        "seed": seed,
        "iterations": 1_000_000,
        "optimizer.lr": lr,
        "evaluation.prompts": budget.prompts,
        "evaluation.seeds": 2,
        **method.changes,
    }
    overrides = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    return load_config({"preset": "demo", "monitors": {}}, [*overrides, *method.more])


def train_to(config: RunConfig, method: Method, budget: Budget, device: torch.device) -> Curve:
    """One run to its budget."""
    bench = build_bench(config, device)
    learner = bench.learner

    def judged() -> float:
        with learner.adapter.using(learner.average or learner.adapter.snapshot()), torch.no_grad():
            found = evaluate(bench.policy, bench.held_out, bench.held_out_conditioning, bench.rewards, config)
        return float(found.means["eval/scene/mean"])

    spent, seconds, iteration = 0.0, 0.0, 0
    rows, metrics = [(0.0, 0.0, judged())], {name: [] for name in KEPT}
    outputs = config.rollout.prompts_per_iteration * config.rollout.group_size
    while spent < budget.evaluations:
        started = time.process_time()
        result = run_iteration(learner, config, iteration, bench.train, bench.train_conditioning, bench.rewards)
        seconds += time.process_time() - started
        found = result.metrics
        spent += outputs * (found["nfe/behaviour"] + found["nfe/policy"])
        iteration += 1
        for name in KEPT:
            if name in found:
                metrics[name].append(found[name])
        if spent >= len(rows) * budget.evaluations / budget.points:
            rows.append((spent, seconds, judged()))
    return Curve(method.name, config.optimizer.lr, config.seed, tuple(rows), metrics)


class Store:
    """Finished runs, a JSON file each, found again by everything that a run depends on."""

    def __init__(self, folder: Path, device: torch.device, say: Callable[[str], None] = print) -> None:
        self.folder, self.device, self.say = folder, device, say
        folder.mkdir(parents=True, exist_ok=True)

    def curve(self, method: Method, lr: float, seed: int, budget: Budget) -> Curve:
        """The run from its file, or trained now and kept."""
        config = configuration(method, lr, seed, budget)
        path = self.folder / f"{config.digest()}-{budget.evaluations:g}-{budget.points}.json"
        if path.exists():
            data = json.loads(path.read_text(encoding="utf-8"))
            return Curve(method.name, lr, seed, tuple(map(tuple, data["rows"])), data["metrics"])
        curve = train_to(config, method, budget, self.device)
        write_atomic(path, json.dumps({"lr": lr, "seed": seed, "rows": curve.rows, "metrics": curve.metrics}))
        self.say(f"{method.title}: lr {lr:g}, seed {seed}: {curve.rows[0][2]:.3f} -> {curve.rows[-1][2]:.3f}")
        return curve

    def tuned(
        self, method: Method, grid: Sequence[float], seeds: Sequence[int], budget: Budget, widen: int = 0
    ) -> tuple[float, dict]:
        """(best learning rate, mean area of each) over runs of their own seeds.

        widen: how often the grid goes on by its own last step where an end of it is best, so that no method is cut short.
        """

        def area(lr: float) -> float:
            return float(np.mean([self.curve(method, lr, seed, budget).area() for seed in seeds]))

        areas = {lr: area(lr) for lr in sorted(grid)}
        for _ in range(widen):
            low, *_, high = rates = sorted(areas)
            best = max(areas, key=areas.get)
            if best not in (low, high):
                break
            further = high * (high / rates[-2]) if best == high else low * (low / rates[1])
            areas[further] = area(further)
        return max(areas, key=areas.get), areas


def ratio_interval(
    ours: Sequence[float], theirs: Sequence[float], resamples: int = 10_000, seed: int = 0
) -> tuple[float, float, float]:
    """(ratio, low, high): mean(ours) / mean(theirs) and its 95 % percentile interval over resampled runs of both sides."""
    generator = np.random.default_rng(seed)
    one, two = np.asarray(ours, float), np.asarray(theirs, float)
    first = one[generator.integers(0, len(one), (resamples, len(one)))].mean(1)
    second = two[generator.integers(0, len(two), (resamples, len(two)))].mean(1)
    low, high = np.percentile(first / second, (2.5, 97.5))
    return float(one.mean() / two.mean()), float(low), float(high)


def gain_interval(
    with_it: Sequence[float], without: Sequence[float], resamples: int = 10_000, seed: int = 0
) -> tuple[float, float, float]:
    """(gain, low, high): the mean of the seeds' differences and its 95 % percentile interval over resampled seeds.

    Both sides have the same seeds in the same order: a seed's prompts, first noise and held-out pictures are the same then.
    """
    generator = np.random.default_rng(seed)
    gains = np.asarray(with_it, float) - np.asarray(without, float)
    means = gains[generator.integers(0, len(gains), (resamples, len(gains)))].mean(1)
    low, high = np.percentile(means, (2.5, 97.5))
    return float(gains.mean()), float(low), float(high)


def reach_text(ours: Sequence[Curve], theirs: Sequence[Curve], level: float, budget: Budget) -> str:
    """`0.41 (0.35 to 0.48)`; a run that never reached the level counts with its whole budget, and the text says so."""
    reached = [[curve.reach(level) for curve in side] for side in (ours, theirs)]
    if 0 in (*reached[0], *reached[1]):
        return "untrained"  # a seed begins there: no level to compare at
    if not any(math.isfinite(value) for value in reached[0]):
        return "not reached"
    capped = [[min(value, budget.evaluations) for value in side] for side in reached]
    ratio, low, high = ratio_interval(*capped)
    missing = [sum(not math.isfinite(value) for value in side) for side in reached]
    sign = "" if not any(missing) else "<= " if missing[1] and not missing[0] else ">= " if not missing[1] else "~ "
    note = "" if not any(missing) else f"; missed by {missing[0]} of {len(ours)} and {missing[1]} of {len(theirs)}"
    return f"{sign}{ratio:.2f} ({low:.2f} to {high:.2f}{note})"


def r_squared(x: Sequence[float], y: Sequence[float]) -> float:
    """Share of y's variance that a line in x explains; nan where there is none to explain."""
    if len(x) < 3 or np.std(x) == 0 or np.std(y) == 0:
        return math.nan
    return float(np.corrcoef(x, y)[0, 1] ** 2)


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of the finished runs; a second call goes on there")
    parser.add_argument("--budget", type=float, default=60_000, help="network evaluations of a reported run")
    parser.add_argument("--tuning-budget", type=float, default=60_000, help="network evaluations of a tuning run")
    parser.add_argument("--points", type=int, default=8, help="held-out evaluations on the way")
    parser.add_argument("--prompts", type=int, default=64, help="held-out prompts")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--tuning-seeds", type=int, nargs="+", default=[1000, 1001])
    parser.add_argument("--grid", type=float, nargs="+", default=list(GRID), help="learning rates, the same for every method")
    parser.add_argument("--widen", type=int, default=2, help="how often the grid goes on where an end of it is best")
    parser.add_argument("--only", nargs="+", metavar="METHOD", help="of the methods")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a change to all methods, to try things"
    )
    parser.add_argument("--write-results", action="store_true", help=f"put table, CSV and picture into {RESULTS.name}/")
    return parser


def chosen(methods: Sequence[Method], args: argparse.Namespace) -> list[Method]:
    """The methods asked for, with the changes asked for. Exits with one line for an unknown name."""
    known = {method.name: method for method in methods}
    if unknown := [name for name in args.only or () if name not in known]:
        raise SystemExit(f"unknown method {unknown[0]!r}; allowed: {', '.join(known)}")
    return [replace(known[name], more=tuple(args.set)) for name in args.only or known]


def study(
    methods: Sequence[Method], args: argparse.Namespace, rate_of: Mapping[str, str] = MappingProxyType({})
) -> tuple[dict[str, list[Curve]], dict[str, float]]:
    """(reported runs, chosen learning rate) of each method, in the order given.

    rate_of: method -> an earlier one whose learning rate it takes; all others are tuned.
    """
    device = torch.device("cpu")
    store = Store(args.output, device, lambda text: print(text, flush=True))
    tuning = Budget(args.tuning_budget, max(2, args.points // 2), args.prompts)
    budget = Budget(args.budget, args.points, args.prompts)
    curves, rates = {}, {}
    for method in methods:
        if method.name in rate_of:
            rate = rates[rate_of[method.name]]
        elif len(args.grid) == 1:
            rate = args.grid[0]
        else:
            rate = store.tuned(method, args.grid, args.tuning_seeds, tuning, args.widen)[0]
        rates[method.name] = rate
        curves[method.name] = [store.curve(method, rate, seed, budget) for seed in args.seeds]
    return curves, rates


def write_csv(path: Path, methods: Sequence[Method], curves: Mapping[str, Sequence[Curve]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "lr", "seed", "evaluations", "cpu_seconds", "held_out_reward"])
        for method in methods:
            for curve in curves[method.name]:
                for evaluations, seconds, reward in curve.rows:
                    writer.writerow([method.name, curve.lr, curve.seed, f"{evaluations:g}", f"{seconds:.2f}", f"{reward:.4f}"])


def picture(path: Path, methods: Sequence[Method], curves: Mapping[str, Sequence[Curve]], title: str) -> None:
    """Held-out reward against evaluations and against seconds: the mean over seeds, and the range."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(12, 4.5), sharey=True, layout="constrained")
    for method in methods:
        for axis, column in zip(axes, (0, 1), strict=True):
            last = min(curve.rows[-1][column] for curve in curves[method.name])
            at = np.linspace(0, last, 50)
            lines = np.array(
                [np.interp(at, *zip(*[(r[column], r[2]) for r in c.rows], strict=True)) for c in curves[method.name]]
            )
            (drawn,) = axis.plot(at, lines.mean(0), label=method.title)
            axis.fill_between(at, lines.min(0), lines.max(0), alpha=0.15, color=drawn.get_color(), linewidth=0)
    axes[0].set(xlabel="network evaluations", ylabel="held-out reward", title=title)
    axes[1].set(xlabel="CPU seconds of training")
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def footing(args: argparse.Namespace) -> str:
    """Command, seeds, budget, machine and date: what a table says of itself."""
    wider = f" (widened up to {args.widen} times where an end is best)" if args.widen else ""
    rate = f"of each from {args.grid}{wider} on seeds {args.tuning_seeds} with {args.tuning_budget:g} evaluations"
    if len(args.grid) == 1:
        rate = f"{args.grid[0]:g} for all, not tuned"
    return (
        f"{command_and_date()} Seeds {args.seeds}, {args.budget:g} network evaluations each; learning rate {rate}. {machine()}"
    )


def command_and_date() -> str:
    return f"`python {' '.join(sys.argv)}`, {time.strftime('%Y-%m-%d')}."


def machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = torch.get_num_threads()
    return f"{threads} of {cores} CPU cores ({platform.machine()}), torch {torch.__version__}."


def publish(
    name: str, text: str, methods: Sequence[Method], curves: Mapping[str, Sequence[Curve]], args: argparse.Namespace
) -> None:
    """Print the table; write it with CSV and picture beside the runs, or into the repository's results."""
    folder = RESULTS if args.write_results else args.output
    folder.mkdir(parents=True, exist_ok=True)
    text = f"{text}\n\n{footing(args)}\n"
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    write_csv(folder / f"{name}.csv", methods, curves)
    picture(folder / f"{name}.png", methods, curves, name.replace("_", " "))
    print(f"\n{text}\n{folder / name}.md, .csv, .png")
