"""What a LoRA forgets of what it was not trained on, with and without the KL, on the embedded model.

    python benchmarks/forgetting.py --output /tmp/forgetting                     minutes; a second call goes on there
    python benchmarks/forgetting.py --output /tmp/f --only colour --seeds 0      a part of it
    ... --write-results                                                          into benchmarks/results/

Two lessons. `objects`: prompts with one kind of object are trained on by the `scene` reward, held-out prompts with two kinds
are watched. `colour`: the `colorfulness` reward alone is trained on, and `scene` is watched on all held-out prompts, which
nothing asks to keep. Each with the demo's settings but smaller iterations, without the KL to theta_old and with it. Judged
every second iteration, which counts for nothing. A KL also slows the learning, so the last column compares at one gain:
the most that every weight reaches, read off the mean over seeds where it is first reached.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import RESULTS, command_and_date, machine  # first: it sets up paths and threads

import numpy as np  # isort: skip
import torch
from levels import kept_at

from trainer.config import RunConfig, load_config
from trainer.evaluation import Evaluation, evaluate
from trainer.loop import run_iteration
from trainer.prompts import Prompt, load_prompts
from trainer.runs import write_atomic
from trainer.setup import build_bench

KL = (0.0, 0.3)
SMALL = {"rollout.prompts_per_iteration": 6, "monitors": {}, "evaluation.seeds": 2, "evaluation.prompts": 64}


@dataclass(frozen=True)
class Lesson:
    """learnt, kept: (reward, kinds of object in the prompt or 0 for any) that are held-out figures of either sort."""

    name: str
    title: str
    learnt: tuple[str, int]
    kept: tuple[str, int]
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Course:
    """One run: rows of (network evaluations, learnt, kept), from the untrained model on."""

    kl: float
    seed: int
    rows: tuple[tuple[float, float, float], ...]


def kinds(prompt: Prompt) -> int:
    return len(prompt.metadata["objects"])


def one_kind_prompts() -> list[dict[str, Any]]:
    prompts = load_prompts("demo", "prompts.train")
    return [{"text": p.text, "metadata": p.metadata} for p in prompts if kinds(p) == 1]


LESSONS = (
    Lesson(
        "objects",
        "trained on one kind of object",
        ("scene", 1),
        ("scene", 2),
        {"prompts": {"train": one_kind_prompts(), "evaluate": "demo"}},
    ),
    Lesson(
        "colour",
        "trained on colorfulness",
        ("colorfulness", 0),
        ("scene", 0),
        {"rewards": {"colorfulness": {}}, "monitors": {"scene": {}}},
    ),
)


def configuration(lesson: Lesson, kl: float, lr: float, seed: int, overrides: Sequence[str] = ()) -> RunConfig:
    own = {"seed": seed, "iterations": 1_000_000, "optimizer.lr": lr, "objective.kl_coef": kl}
    flat = {key: value for key, value in {**SMALL, **lesson.changes, **own}.items() if key not in ("prompts", "rewards")}
    source = {"preset": "demo", **{key: lesson.changes[key] for key in ("prompts", "rewards") if key in lesson.changes}}
    return load_config(source, [*(f"{key}={json.dumps(value)}" for key, value in flat.items()), *overrides])


def figure(found: Evaluation, asked: tuple[str, int]) -> float:
    """Mean score of one reward over the held-out pictures whose prompts have so many kinds of object."""
    reward, count = asked
    prompts = [p for p in found.prompts for _ in range(found.seeds_per_prompt)]
    chosen = torch.tensor([count in (0, kinds(p)) for p in prompts])
    return float(found.scores[reward][chosen].nanmean())


def train(lesson: Lesson, config: RunConfig, budget: float, every: int) -> list[tuple[float, float, float]]:
    """Rows of (network evaluations, learnt, kept), one every so many iterations and one at the end."""
    bench = build_bench(config, torch.device("cpu"))
    learner, rows, spent, iteration = bench.learner, [], 0.0, 0
    while True:
        if iteration % every == 0 or spent >= budget:
            with learner.adapter.using(learner.average or learner.adapter.snapshot()):
                found = evaluate(bench.policy, bench.held_out, bench.held_out_conditioning, bench.rewards, config)
            rows.append((spent, figure(found, lesson.learnt), figure(found, lesson.kept)))
        if spent >= budget:
            return rows
        result = run_iteration(learner, config, iteration, bench.train, bench.train_conditioning, bench.rewards)
        spent += len(result.rollout) * (result.metrics["nfe/behaviour"] + result.metrics["nfe/policy"])
        iteration += 1


def course(lesson: Lesson, kl: float, seed: int, args: argparse.Namespace) -> Course:
    """The run from its file, or trained now and kept."""
    config = configuration(lesson, kl, args.lr, seed, args.set)
    path = args.output / f"{config.digest()}-{args.budget:g}-{args.every}.json"
    if not path.exists():
        write_atomic(path, json.dumps(train(lesson, config, args.budget, args.every)))
    rows = tuple(map(tuple, json.loads(path.read_text(encoding="utf-8"))))
    print(f"{lesson.name}, KL {kl:g}, seed {seed}: learnt {rows[0][1]:.3f} -> {rows[-1][1]:.3f}, ", end="")
    print(f"kept {rows[0][2]:.3f} -> {rows[-1][2]:.3f}", flush=True)
    return Course(kl, seed, rows)


def mean_rows(courses: Sequence[Course]) -> np.ndarray:
    """[points, 3]: the mean over seeds, up to the shortest run."""
    shortest = min(len(one.rows) for one in courses)
    return np.mean([one.rows[:shortest] for one in courses], axis=0)


def table(lesson: Lesson, courses: Sequence[Course]) -> str:
    by_kl = {kl: [one for one in courses if one.kl == kl] for kl in dict.fromkeys(one.kl for one in courses)}
    means = {kl: mean_rows(some) for kl, some in by_kl.items()}
    level = min(rows[:, 1].max() for rows in means.values())
    lines = [
        f"**{lesson.title}**: learnt = {_asked(lesson.learnt)}, kept = {_asked(lesson.kept)}",
        "",
        f"| KL | learnt | kept, before -> after | change of each seed | kept where learnt is {level:.3f} |",
        "|---|---|---|---|---|",
    ]
    for kl, rows in means.items():
        changes = ", ".join(f"{one.rows[-1][2] - one.rows[0][2]:+.3f}" for one in by_kl[kl])
        lines.append(
            f"| {kl:g} | {rows[0, 1]:.3f} -> {rows[-1, 1]:.3f} | {rows[0, 2]:.3f} -> {rows[-1, 2]:.3f} | {changes} | "
            f"{kept_at(rows, level):.3f} |"
        )
    return "\n".join(lines)


def _asked(figure: tuple[str, int]) -> str:
    reward, count = figure
    return f"`{reward}`" + {0: "", 1: " on prompts with one kind of object", 2: " on prompts with two"}[count]


def write_csv(path: Path, found: Mapping[str, Sequence[Course]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["lesson", "kl", "seed", "evaluations", "learnt", "kept"])
        for lesson, courses in found.items():
            for one in courses:
                for spent, learnt, kept in one.rows:
                    writer.writerow([lesson, one.kl, one.seed, f"{spent:g}", f"{learnt:.4f}", f"{kept:.4f}"])


def picture(path: Path, lessons: Sequence[Lesson], found: Mapping[str, Sequence[Course]]) -> None:
    """A row a lesson: what is kept against evaluations, and against what is learnt; the mean over seeds, and the range."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(len(lessons), 2, figsize=(12, 4 * len(lessons)), layout="constrained", squeeze=False)
    for lesson, (left, right) in zip(lessons, grid, strict=True):
        for kl in dict.fromkeys(one.kl for one in found[lesson.name]):
            courses = [one for one in found[lesson.name] if one.kl == kl]
            rows = mean_rows(courses)
            each = np.array([one.rows[: len(rows)] for one in courses])[:, :, 2]
            (drawn,) = left.plot(rows[:, 0], rows[:, 2], label=f"KL {kl:g}")
            left.fill_between(rows[:, 0], each.min(0), each.max(0), alpha=0.15, color=drawn.get_color(), linewidth=0)
            right.plot(rows[:, 1], rows[:, 2], color=drawn.get_color(), marker=".")
        left.set(xlabel="network evaluations", ylabel=f"kept: {lesson.kept[0]}", title=lesson.title)
        right.set(xlabel=f"learnt: {lesson.learnt[0]}")
        left.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of the finished runs; a second call goes on there")
    parser.add_argument("--budget", type=float, default=12_000, help="network evaluations of a run")
    parser.add_argument("--every", type=int, default=2, help="iterations from one judgement to the next")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kl", type=float, nargs="+", default=list(KL))
    parser.add_argument("--lr", type=float, default=1e-3, help="the same for all")
    parser.add_argument("--only", nargs="+", choices=[lesson.name for lesson in LESSONS])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a change to all runs")
    parser.add_argument("--write-results", action="store_true", help=f"put table, CSV and picture into {RESULTS.name}/")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    lessons = [lesson for lesson in LESSONS if lesson.name in (args.only or [lesson.name])]
    found = {lesson.name: [course(lesson, kl, seed, args) for kl in args.kl for seed in args.seeds] for lesson in lessons}
    folder = RESULTS if args.write_results else args.output
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(table(lesson, found[lesson.name]) for lesson in lessons)
    text += f"\n\n{command_and_date()} Seeds {args.seeds}, {args.budget:g} network evaluations each, "
    text += f"learning rate {args.lr:g}. {machine()}\n"
    (folder / "forgetting.md").write_text(text, encoding="utf-8")
    write_csv(folder / "forgetting.csv", found)
    picture(folder / "forgetting.png", lessons, found)
    print(f"\n{text}\n{folder / 'forgetting.md'}, .csv, .png")


if __name__ == "__main__":
    main()
