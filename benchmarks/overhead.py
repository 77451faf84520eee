"""What an iteration costs beyond the network passes that it can't do without.

    python benchmarks/overhead.py                                      the demo's settings
    python benchmarks/overhead.py --set algorithm=flow_grpo --iterations 5

The passes of the denoiser and the decoder are recorded as an iteration makes them, with their inputs, and made again bare: the
same batches, the LoRA merged where it was, backward from the mean square of the output. Rewards are timed by themselves; they
are the user's. The best of several rounds counts, so that another program's work is not measured.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from contextlib import ExitStack, contextmanager, nullcontext

from harness import ROOT  # first: it sets up paths and threads

import torch  # isort: skip

from trainer.config import load_config
from trainer.loop import run_iteration
from trainer.setup import build_bench

Passes = list[tuple[torch.nn.Module, tuple, dict, bool, bool]]


@contextmanager
def recorded(policy, calls: Passes):
    """Every pass of the denoiser and the decoder: module, inputs, with gradient?, LoRA merged or off?"""
    denoiser, decoder = policy.denoiser, policy._pipe.vae.decoder

    def before(module, args, kwargs):
        plain = any(getattr(part, "disable_adapters", None) is True for part in denoiser.modules())  # a method of the model's
        calls.append((module, args, kwargs, torch.is_grad_enabled() and module is denoiser, plain))

    with ExitStack() as hooks:
        for module in (denoiser, decoder):
            hooks.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
        yield


def replay(bench, calls: Passes) -> dict[str, float]:
    """Seconds of the passes: those of the rollout (plain, no gradient), of the decoder, and of the update."""
    seconds = dict.fromkeys(("rollout", "update"), 0.0)
    denoiser, adapter, started_update = bench.policy.denoiser, bench.learner.adapter, False
    attention = getattr(bench.policy, "attention", lambda tokens: nullcontext())
    for module, args, kwargs, with_gradient, plain in calls:
        started_update |= with_gradient or (module is denoiser and not plain)
        with adapter.for_sampling() if plain and module is denoiser else nullcontext():
            begin = time.perf_counter()
            with torch.set_grad_enabled(with_gradient), attention(0):
                output = module(*args, **kwargs)
                if with_gradient:
                    (output[0] if isinstance(output, tuple) else output).float().square().mean().backward()
            seconds["update" if started_update else "rollout"] += time.perf_counter() - begin
    bench.learner.stepper.optimizer.zero_grad(set_to_none=True)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=3, help="rounds; the best counts")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    config = load_config({"preset": "demo"}, args.set)
    bench = build_bench(config, torch.device("cpu"))
    whole, bare = [], []
    for iteration in range(args.iterations + 1):
        calls: Passes = []
        watching = recorded(bench.policy, calls) if iteration == 0 else nullcontext()  # recording is not timed
        with watching:
            result = run_iteration(bench.learner, config, iteration, bench.train, bench.train_conditioning, bench.rewards)
        if iteration == 0:
            kept = calls
            continue
        whole.append({name: result.metrics[f"time/{name}"] for name in ("rollout", "reward", "update")})
        bare.append(replay(bench, kept))
    best = {name: min(row[name] for row in whole) for name in whole[0]}
    least = {name: min(row[name] for row in bare) for name in bare[0]}
    print("| phase | iteration | bare passes | ratio |\n|---|---|---|---|")
    for name in ("rollout", "update"):
        print(f"| {name} | {best[name]:.2f} s | {least[name]:.2f} s | {best[name] / least[name]:.3f} |")
    total, passes = best["rollout"] + best["update"], sum(least.values())
    print(f"| both | {total:.2f} s | {passes:.2f} s | {total / passes:.3f} |")
    print(f"| reward, beyond the decoding | {best['reward']:.2f} s | | |")
    print(
        f"\n{json.dumps(args.set)}, best of {args.iterations}, {torch.get_num_threads()} threads ({platform.machine()}), torch "
        f"{torch.__version__}, {ROOT.name}."
    )


if __name__ == "__main__":
    main()
