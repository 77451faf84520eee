"""One iteration of large models in little graphics memory: peaks against the plan, time against the passes that it needs.

    python benchmarks/gpu_goals.py                       SDXL in 8 GB, SD 3.5 M in 12, FLUX.1 dev in 16, Qwen-Image in 24
    python benchmarks/gpu_goals.py --only flux:16gb      one of them; --steps 4 for fewer solver steps
    python benchmarks/gpu_goals.py --tiny FOLDER --only sd3:8gb        the same code on the CPU: it shows that it runs

Needs CUDA. The bases have their published sizes and random weights: memory and time do not depend on the values. What torch may
take is capped at the class (torch.cuda.set_per_process_memory_fraction), so a setting that needs more fails here as it would on
the smaller card, but for what no tensor takes. 1024 x 1024, group size 8, one prompt; the reward is arithmetic. The table goes
to standard output: what was planned and what torch's allocator had at most in each phase, and the iteration's time as a ratio
to the bare forward and backward passes (`overhead.py` tells how these are taken).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import overhead  # first: it sets up paths and threads
import torch

from trainer import setup
from trainer.config import RunConfig, load_config
from trainer.loop import run_iteration
from trainer.planning.blueprint import Blueprint, blueprint_of
from trainer.planning.plan import DECODE, ENCODE, ROLLOUT, UPDATE, Planner
from trainer.policies import load_policy

GOALS = ("sdxl:8gb", "sd3:12gb", "flux:16gb", "qwen_image:24gb")
GIB = 2**30
SPREAD = 0.02  # of the random weights: small enough that no activation overflows


class RandomBase(Blueprint):
    """A base of true sizes with random weights in the CPU's memory, where a policy takes its own from."""

    def _part(self, name: str, library: str, kind: str, dtype: torch.dtype) -> Any:
        part = super()._part(name, library, kind, dtype)
        if isinstance(part, torch.nn.Module):
            for inner in part.modules():
                for parameter_name, parameter in inner._parameters.items():
                    if parameter is not None and parameter.is_meta:
                        value = torch.empty_like(parameter, device="cpu").uniform_(-SPREAD, SPREAD)
                        inner._parameters[parameter_name] = torch.nn.Parameter(value, requires_grad=False)
        return part


class Peaks:
    """The most that torch's allocator had in each phase; nothing on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.found = device, {}

    def begin(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)

    def end(self, phase: str) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            self.found[phase] = max(self.found.get(phase, 0), torch.cuda.max_memory_allocated(self.device))
        self.begin()

    def around(self, phase: str, work: Callable) -> Callable:
        def measured(*args, **kw):
            self.begin()
            try:
                return work(*args, **kw)
            finally:
                self.end(phase)

        return measured


def configuration(family: str, hardware: str, steps: int | None, more: list[str], model: str | None = None) -> RunConfig:
    changes: dict[str, Any] = {
        "preset": family,
        "hardware": hardware,
        "iterations": 1,
        "prompts": {"train": ["a cat on a chair"], "evaluate": ["a cat on a chair"]},
        "rollout": {"group_size": 8, "prompts_per_iteration": 1, "width": 1024, "height": 1024},
        "rewards": {"brightness": {}},
        "monitors": {},
    }
    if steps:
        changes["rollout"]["steps"] = steps
    if model:
        changes["policy"] = {"model": model}
    return load_config(changes, more)


@contextmanager
def capped(device: torch.device, limit: int) -> Iterator[None]:
    """Torch may take at most `limit` bytes of the device."""
    if device.type != "cuda":
        yield
        return
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        torch.cuda.empty_cache()


def measure(config: RunConfig, device: torch.device, cache: Path, source: Any) -> tuple[dict[str, int], float, float]:
    """(peak bytes of each phase, seconds of an iteration's rollout and update, seconds of its bare passes)."""
    peaks = Peaks(device)
    with mock.patch.object(setup, "load_policy", partial(load_policy, source=source)):
        bench = setup.build_bench(config, device, cache)
    peaks.end(ENCODE)
    policy = bench.policy
    policy.sample, policy.decode = peaks.around(ROLLOUT, policy.sample), peaks.around(DECODE, policy.decode)
    run = partial(run_iteration, bench.learner, config)
    parts = (bench.train, bench.train_conditioning, bench.rewards)
    calls: overhead.Passes = []
    with overhead.recorded(policy, calls):
        run(0, *parts)  # recorded, and with the first call's compilations: not timed
    peaks.end(UPDATE)
    metrics = run(1, *parts).metrics
    peaks.end(UPDATE)
    bare = overhead.replay(bench, calls)
    return peaks.found, metrics["time/rollout"] + metrics["time/update"], sum(bare.values())


def rows(name: str, config: RunConfig, device: torch.device, limit: int, found: dict[str, int]) -> list[str]:
    planned = {phase.name: phase.peak for phase in Planner(device, limit).plan(config).phases}
    lines = []
    for phase in (ENCODE, ROLLOUT, DECODE, UPDATE):
        have, plan = found.get(phase), planned[phase]
        measured = "not measured | " if have is None else f"{have / GIB:.2f} | {have / plan - 1:+.1%}"
        lines.append(f"| {name} | {phase} | {plan / GIB:.2f} | {measured} |")
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="FAMILY:CLASS", help=f"default: {', '.join(GOALS)}")
    parser.add_argument("--steps", type=int, help="solver steps (default: the preset's)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--tiny", metavar="FOLDER", type=Path, help="a small diffusers folder of the family in --only, on the CPU"
    )
    args = parser.parse_args(argv)
    if not args.tiny and not torch.cuda.is_available():
        print("error: this needs a CUDA device; --tiny FOLDER runs the same code on the CPU", file=sys.stderr)
        return 2
    device = torch.device("cpu" if args.tiny else "cuda")
    memory, times = [], []
    for goal in args.only or GOALS:
        family, _, hardware = goal.partition(":")
        limit = int(hardware.removesuffix("gb")) * GIB
        config = configuration(family, hardware, args.steps, args.set, str(args.tiny) if args.tiny else None)
        source = RandomBase(**vars(blueprint_of(config.policy)))
        begin = time.perf_counter()
        try:
            with tempfile.TemporaryDirectory() as cache, capped(device, limit):
                found, whole, bare = measure(config, device, Path(cache), source)
        except Exception as error:  # the others are still worth measuring
            memory.append(
                f"| {goal} | failed after {time.perf_counter() - begin:.0f} s: {type(error).__name__}: {error} | | | |"
            )
            continue
        memory += rows(goal, config, device, limit, found)
        times.append(f"| {goal} | {whole:.2f} s | {bare:.2f} s | {whole / bare:.3f} |")
    print("| goal | phase | planned GiB | measured GiB | difference |\n|---|---|---|---|---|")
    print("\n".join(memory))
    print("\n| goal | rollout and update | bare passes | ratio |\n|---|---|---|---|")
    print("\n".join(times))
    name = "CPU" if args.tiny else torch.cuda.get_device_name(device)
    print(f"\n{name}, torch {torch.__version__}.")
    return 1 if any("failed after" in line for line in memory) else 0


if __name__ == "__main__":
    sys.exit(main())
