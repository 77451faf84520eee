"""`plan`: what a run will need, before anything is loaded."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ..config import load_config, preset_names
from ..device import choose_device, free_memory
from ..errors import UserError, one_line

_GIB = 2**30
_PROMPT = (
    "a photograph of a red fox that sits in fresh snow under old trees, the light of a low sun behind it"  # a usual length
)


def run(args) -> int:
    """0: it fits, or nobody knows how much is free; 1: it does not; bad input raises UserError (2)."""
    if args.memory is not None and not (math.isfinite(args.memory) and args.memory > 0):
        raise UserError(f"--memory {args.memory:g}: allowed: GiB of free memory, a number above 0, such as 16")
    device = choose_device(args.device)
    config = load_config(_source(args.config), args.overrides, device=args.device)
    memory = int(args.memory * _GIB) if args.memory is not None else free_memory(device)
    from ..planning.advice import advise
    from ..planning.plan import Planner
    from ..planning.report import json_text, text

    planner = Planner(device, memory)
    plan = planner.plan(config)
    advice = None if plan.fits else advise(planner, config)
    if args.measure:
        from ..planning.speed import measured

        try:
            plan = measured(plan, planner.probe(config), config, device)
        except RuntimeError as error:
            raise UserError(f"--measure: {device} could not compute one block: {one_line(error)[:200]}") from error
    print(json_text(plan, advice) if args.json else text(plan, advice, advised=True))
    return 0 if plan.fits else 1


def _source(name: str) -> Any:
    """A file, or a preset by name with prompts and a reward put in where it has none."""
    path = Path(name)
    if path.exists() or name not in preset_names():
        return path
    from ..config import load_preset

    preset = load_preset(name)
    source: dict[str, Any] = {"preset": name}
    if "prompts" not in preset:
        count = preset.get("rollout", {}).get("prompts_per_iteration", 1)
        source["prompts"] = {"train": [f"{_PROMPT} {n}" for n in range(count)], "evaluate": [_PROMPT]}
    if "rewards" not in preset:
        source["rewards"] = {"brightness": {}}
    return source
