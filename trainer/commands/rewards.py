"""`rewards`: every reward, what it measures, what it needs, and what of that is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..config.table import key_rows
from ..errors import UserError
from ..rewards import registry
from .score import with_overrides

if TYPE_CHECKING:
    from ..rewards.base import Reward
    from ..rewards.weights import Weights


def run(args) -> int:
    names = args.names or list(registry.names())
    entries = with_overrides({name: {} for name in names}, args.overrides)
    wrong = []
    for name in names:
        try:
            reward = registry.create_entry(name, entries[name])
        except UserError as error:
            if args.names:
                raise
            print(f"{name}\n  {error}")  # somebody's broken package must not hide the others
            continue
        lines, bad = _describe(name, reward, bool(args.names), args.verify)
        print("\n".join(lines))
        wrong += bad
    if wrong:
        count = f"{len(wrong)} files differ" if len(wrong) > 1 else "1 file differs"
        raise UserError(f"{count} from what was published: {'; '.join(wrong)}")
    return 0


def _describe(name: str, reward: Reward, fully: bool, verify: bool) -> tuple[list[str], list[str]]:
    """Lines about one reward, and those of its files that are not the published ones."""
    lines = [f"{name}: {'ready' if reward.missing() is None else 'something is missing'}", f"  {reward.description}"]
    lines.append(f"  score: {reward.range}")
    if reward.needs_metadata:
        lines.append("  needs prompts with metadata")
    if reward.penalty:
        lines.append("  a penalty: its weight is negative")
    if reward.licence:
        lines.append(f"  licence: {reward.licence}")
    needed: Sequence[Weights] = reward.weights()
    if (lacking := reward.missing()) and not needed:
        lines.append(f"  {lacking}")
    wrong = []
    for weights in needed:
        more, bad = _describe_file(weights, verify)
        lines += more
        wrong += bad
    if fully:
        rows = key_rows(reward.Options)
        width = max((len(row.key) for row in rows), default=0)
        for row in rows:
            takes = " ".join(filter(None, (row.type, row.range)))
            lines.append(f"  {row.key:<{width}}  {row.description} ({takes}; default {' '.join(row.default.split())})")
    return lines, wrong


def _describe_file(weights: Weights, verify: bool) -> tuple[list[str], list[str]]:
    from ..rewards.weights import human_size, status
    from ..rewards.weights import verify as check

    facts = ", ".join(filter(None, (human_size(weights.size), weights.licence, weights.address)))
    lines = [f"  {weights.title} ({facts})", f"    {status(weights)}"]
    if weights.sha256:
        lines.append(f"    SHA-256 {weights.sha256}")
    wrong = check(weights) if verify else None
    if wrong:
        lines.append(f"    {wrong}")
    return lines, [wrong] if wrong else []
