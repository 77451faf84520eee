"""`sample`: pictures from a run's LoRA, with prompt and seed inside each PNG, and a grid."""

from __future__ import annotations

import math
from dataclasses import replace

from ..config import load_config
from ..device import choose_device
from ..errors import UserError
from ..prompts import Prompt
from ..seeds import derive_seed
from ..sizes import Size, parse_size
from .common import factors_of, run_of


def run(args) -> int:
    run_dir = run_of(args.run)
    config = load_config(run_dir.config_file, check_files=False)  # the LoRA that it continued from may be gone
    if args.images < 1:
        raise UserError(f"--images is {args.images}; at least 1 picture a prompt")
    if args.guidance is not None and not (math.isfinite(args.guidance) and args.guidance >= 1):
        raise UserError(f"--guidance is {args.guidance}; 1 (off) or more")
    if any(not prompt.strip() for prompt in args.prompt or ()):
        raise UserError("--prompt is blank; leave it out to use the run's held-out prompts")
    from contextlib import nullcontext

    from ..evaluation import evaluation_prompts, evaluation_sampling, evaluation_sizes
    from ..lora import attach
    from ..pictures import grid, save_outputs, save_png, to_pil
    from ..policies import load_policy
    from ..rollout import decode_in_batches, sample_by_size

    asked = [Prompt(text) for text in args.prompt or ()] or evaluation_prompts(config)
    prompts = [p.text for p in asked]
    sizes = [_size(args.size)] * len(asked) if args.size else evaluation_sizes(config, asked)
    device = choose_device(args.device)
    factors = None if args.checkpoint == "base" else factors_of(run_dir, args.checkpoint)[0]
    policy = load_policy(config.policy, device)
    policy.batches.tell = lambda text: print(f"note: {text}")
    sampling = evaluation_sampling(config)
    if args.size:
        policy.check_size(*sizes[0], "--size")
    conditioning = policy.encode(prompts, config.rollout.negative_prompt)
    if args.steps is not None:
        sampling = replace(sampling, steps=_at_least_one(args.steps, "--steps"))
    if args.guidance is not None:
        sampling = replace(sampling, guidance=args.guidance)
    lora = config.policy.lora
    adapter = (
        attach(policy.denoiser, lora.rank, lora.alpha, lora.targets, config.seed, policy.family, device) if factors else None
    )
    owners = [i for i in range(len(prompts)) for _ in range(args.images)]
    seeds = [derive_seed(args.seed, "sample", i, member) for i in range(len(prompts)) for member in range(args.images)]
    with adapter.using(factors) if adapter else nullcontext():
        latents = sample_by_size(policy, conditioning.rows(owners), seeds, [sizes[o] for o in owners], sampling)
        images = decode_in_batches(policy, latents, [asked[o] for o in owners], sampling.batch_size)
    args.output.mkdir(parents=True, exist_ok=True)
    names = save_outputs(args.output, images, prompts, seeds, args.images, {})
    rows = [[to_pil(images[p * args.images + k]) for k in range(args.images)] for p in range(len(prompts))]
    save_png(grid(rows, prompts), args.output / "grid.png")
    print(f"{len(names)} pictures and grid.png in {args.output.resolve()}")
    return 0


def _at_least_one(value: int, name: str) -> int:
    if value < 1:
        raise UserError(f"{name} is {value}; at least 1")
    return value


def _size(text: str) -> Size:
    try:
        return parse_size(text)
    except ValueError as error:
        raise UserError(f"--size: {error}") from error
