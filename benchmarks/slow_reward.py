"""What `objective.deferred` saves when a reward is slow: seconds of an iteration with it and without, on the embedded model.

    python benchmarks/slow_reward.py
    python benchmarks/slow_reward.py --waits 0 0.1 0.5 --set rollout.group_size=8

The reward is the demo's own, which then waits so many seconds a picture, as one that asks a server would; waiting takes no
CPU time. "Needed" is the longer of the two things that have to happen: all waits, or everything else without the option. One
gradient step an iteration.
"""

from __future__ import annotations

import argparse
import json
import time

from harness import machine  # first: it sets up paths and threads

import torch  # isort: skip

from trainer.config import load_config
from trainer.loop import run_iteration
from trainer.rewards.scene import SceneReward
from trainer.setup import build_bench

ONE_STEP = ["objective.gradient_steps=1", "objective.clip_eps=null", "objective.kl_coef=0"]


class Waiting(SceneReward):
    """Waits `seconds` for each picture after it has scored it."""

    seconds = 0.0

    def score(self, images, prompts, metadata):
        found = super().score(images, prompts, metadata)
        time.sleep(self.seconds * len(images))
        return found


def measured(deferred: int, seconds: float, iterations: int, changes: list[str]) -> tuple[float, float, float]:
    """(seconds of the quickest iteration, those of its rollout and update, sum of the factors' changes)."""
    config = load_config({"preset": "demo", "monitors": {}}, [*ONE_STEP, f"objective.deferred={deferred}", *changes])
    bench = build_bench(config, torch.device("cpu"))
    bench.rewards["scene"] = Waiting()
    bench.rewards["scene"].seconds = seconds
    start = bench.learner.adapter.snapshot()
    times = []
    for iteration in range(iterations):
        began = time.perf_counter()
        result = run_iteration(bench.learner, config, iteration, bench.train, bench.train_conditioning, bench.rewards)
        work = result.metrics["time/rollout"] + result.metrics["time/update"]
        times.append((time.perf_counter() - began, work))
    moved = bench.learner.adapter.snapshot()
    before, after = start.tensors(), moved.tensors()
    change = sum(float((after[name] - before[name]).abs().sum()) for name in before)
    return *min(times), change


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waits", type=float, nargs="+", default=[0, 0.01, 0.025, 0.05, 0.1], help="seconds a picture")
    parser.add_argument("--iterations", type=int, default=3, help="of each; the quickest counts")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    rollout = load_config({"preset": "demo"}, args.set).rollout
    outputs = rollout.prompts_per_iteration * rollout.group_size
    print(f"| wait a picture | all {outputs} waits | without | deferred | ratio | deferred over needed |")
    print("|---|---|---|---|---|---|")
    for seconds in args.waits:
        plain, work, change = measured(0, seconds, args.iterations, args.set)
        ahead, _, same = measured(outputs, seconds, args.iterations, args.set)
        if abs(same - change) > 0.01 * change:
            raise SystemExit(f"the two trained differently: {change:g} and {same:g}")
        waits = seconds * outputs
        print(
            f"| {seconds:g} s | {waits:.1f} s | {plain:.2f} s | {ahead:.2f} s | {ahead / plain:.2f} | "
            f"{ahead / max(waits, work):.2f} |",
            flush=True,
        )
    print(f"\n{json.dumps(args.set)}, best of {args.iterations}. {machine()}")


if __name__ == "__main__":
    main()
