"""What an iteration costs beyond the network passes and the scores that it can't do without.

    python benchmarks/overhead.py                                      the demo's settings
    python benchmarks/overhead.py --set algorithm=flow_grpo --iterations 5
    ... --write-results                                                into benchmarks/results/

The passes of the denoiser and the decoder are recorded as an iteration makes them, with their inputs, and made again bare: the
same batches, the same kind of attention, the LoRA merged where it was, backward from the mean square of the output. Rewards
score while further pictures are decoded, on the same cores, so both are one phase, and the same pictures scored alone count as
needed. The best of several rounds counts, so that another program's work is not measured. What is above the bare work is then
named: the seconds of each known part of it, measured inside those iterations.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from unittest.mock import patch

from harness import RESULTS, command_and_date, machine  # first: it sets up paths and threads

import torch  # isort: skip
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainer.config import RunConfig, load_config
from trainer.estimate import SurrogateEstimate
from trainer.loop import IterationResult, run_iteration
from trainer.lora import LoraAdapter
from trainer.optimization import GuardedStepper
from trainer.rewards.scoring import score_rewards
from trainer.setup import Bench, build_bench

# What an iteration does beside passes and scores: (its name in the table, class, method).
PARTS = (
    ("copies of theta", LoraAdapter, "snapshot"),
    ("rows: noise, levels, conditioning", SurrogateEstimate, "noised"),
    ("optimiser: finite?, norm, clipping, AdamW", GuardedStepper, "step"),
)


@dataclass(frozen=True)
class Pass:
    """One call of the denoiser or the decoder."""

    module: torch.nn.Module
    args: tuple
    kwargs: dict
    with_gradient: bool
    merged: bool  # the LoRA was in the weights, or off
    plain_attention: bool


@contextmanager
def recorded(policy, calls: list[Pass]) -> Iterator[None]:
    denoiser, decoder = policy.denoiser, policy._pipe.vae.decoder

    def before(module, args, kwargs):
        merged = any(getattr(part, "disable_adapters", None) is True for part in denoiser.modules())  # a method of the model's
        with_gradient = torch.is_grad_enabled() and module is denoiser
        calls.append(Pass(module, args, kwargs, with_gradient, merged, not torch.backends.cuda.flash_sdp_enabled()))

    with ExitStack() as hooks:
        for module in (denoiser, decoder):
            hooks.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
        yield


def replay(bench: Bench, calls: list[Pass]) -> dict[str, float]:
    """Seconds of the passes: `sampling`, `decoding`, and `update`."""
    seconds = dict.fromkeys(("sampling", "decoding", "update"), 0.0)
    denoiser, updating = bench.policy.denoiser, False
    for call in calls:
        updating |= call.with_gradient or (call.module is denoiser and not call.merged)
        phase = "update" if updating else "sampling" if call.module is denoiser else "decoding"
        with (
            bench.learner.adapter.for_sampling() if call.merged and call.module is denoiser else nullcontext(),
            sdpa_kernel(SDPBackend.MATH) if call.plain_attention else nullcontext(),
            torch.set_grad_enabled(call.with_gradient),
        ):
            begin = time.perf_counter()
            output = call.module(*call.args, **call.kwargs)
            if call.with_gradient:
                (output[0] if isinstance(output, tuple) else output).float().square().mean().backward()
            seconds[phase] += time.perf_counter() - begin
    bench.learner.stepper.optimizer.zero_grad(set_to_none=True)
    return seconds


def score_alone(bench: Bench, config: RunConfig, result: IterationResult) -> float:
    """Seconds of scoring the iteration's pictures in its batches, with nothing else going on."""
    rollout, size, begin = result.rollout, config.rollout.batch_size, time.perf_counter()
    for start in range(0, len(rollout), size):
        here = slice(start, start + size)
        images, prompts = torch.stack(rollout.images[here]), rollout.prompts[here]
        score_rewards(bench.rewards, images, [p.text for p in prompts], [p.metadata for p in prompts])
    return time.perf_counter() - begin


@contextmanager
def watched(seconds: dict[str, float]) -> Iterator[None]:
    """Adds up the seconds of PARTS."""

    def timed(name: str, method: Callable) -> Callable:
        def call(*args, **kwargs):
            begin = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                seconds[name] += time.perf_counter() - begin

        return call

    with ExitStack() as patches:
        for name, owner, method in PARTS:
            seconds[name] = 0.0
            patches.enter_context(patch.object(owner, method, timed(name, getattr(owner, method))))
        yield


def table(whole: dict[str, float], bare: dict[str, float], parts: dict[str, float]) -> str:
    """The least seconds of each, as Markdown."""
    phases = {
        "rollout and reward": (whole["rollout"] + whole["reward"], bare["sampling"] + bare["decoding"] + bare["reward"]),
        "update": (whole["update"], bare["update"]),
    }
    phases["iteration"] = tuple(map(sum, zip(*phases.values(), strict=True)))
    lines = ["| phase | iteration | bare | ratio |", "|---|---|---|---|"]
    lines += [f"| {name} | {took:.3f} s | {least:.3f} s | {took / least:.3f} |" for name, (took, least) in phases.items()]
    lines += ["", "| bare work | seconds |", "|---|---|"]
    names = {"sampling": "denoiser, rollout", "decoding": "decoder", "reward": "rewards alone", "update": "denoiser, update"}
    lines += [f"| {title} | {bare[name]:.3f} |" for name, title in names.items()]
    lines += ["", "| above it | seconds |", "|---|---|", *(f"| {name} | {took:.3f} |" for name, took in parts.items())]
    return "\n".join(lines)


def least(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: min(row[name] for row in rows) for name in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=3, help="rounds; the best counts")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--write-results", action="store_true", help=f"put the table into {RESULTS.name}/")
    args = parser.parse_args()
    config = load_config({"preset": "demo"}, args.set)
    bench = build_bench(config, torch.device("cpu"))

    def iterate(iteration: int) -> IterationResult:
        return run_iteration(bench.learner, config, iteration, bench.train, bench.train_conditioning, bench.rewards)

    calls: list[Pass] = []
    with recorded(bench.policy, calls):  # recording is not timed
        iterate(0)
    whole, bare, parts = [], [], []
    for iteration in range(1, args.iterations + 1):
        parts.append({})
        with watched(parts[-1]):
            result = iterate(iteration)
        whole.append({name: result.metrics[f"time/{name}"] for name in ("rollout", "reward", "update")})
        bare.append({**replay(bench, calls), "reward": score_alone(bench, config, result)})
    table_text = table(least(whole), least(bare), least(parts))
    text = f"{table_text}\n\n{command_and_date()} Best of {args.iterations} rounds. {machine()}\n"
    if args.write_results:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "overhead.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
