"""A plan as text for people and as data for programs."""

from __future__ import annotations

import json
from typing import Any

from ..config.table import show
from ..config.text import Row, dump
from .plan import RESERVE, Phase, Plan

GIB = 2**30
_UNKNOWN = "?"


def text(plan: Plan, advice: Plan | None, advised: bool) -> str:
    """advised: whether advice was looked for, and so None means that nothing helps."""
    lines = [f"plan of {plan.title} on {plan.device}", *(f"note: {note}" for note in plan.notes), "", *_table(plan), ""]
    lines.append(_evaluations(plan))
    lines.append(f"time an iteration: {_time(plan)}")
    lines.append(f"most memory: {_gib(plan.peak.peak)} GiB, in: {plan.peak.name}")
    if plan.memory is None:
        lines.append("free memory: unknown; say it with --memory GIB")
        return "\n".join(lines)
    lines.append(f"free memory: {_gib(plan.memory)} GiB, of which a plan uses {1 - RESERVE:.0%}: {_gib(plan.usable)} GiB")
    too_large = plan.too_large()
    if too_large is None:
        lines.append("it fits")
        return "\n".join(lines)
    lines.append(f"it does NOT fit: {too_large.name} needs {_gib(too_large.peak)} GiB")
    if advice is not None:
        lines += ["", f"the smallest change that fits (most memory then: {_gib(advice.peak.peak)} GiB), to paste:", ""]
        lines.append(dump(nested(advice.changes)).rstrip())
    elif advised:
        lines.append(
            "nothing that was tried makes it fit: checkpointing, batches, tiles, offloading, quantisation, smaller pictures"
        )
    return "\n".join(lines)


def data(plan: Plan, advice: Plan | None) -> dict[str, Any]:
    """Plain data; bytes, seconds and FLOPs as numbers, null where unknown."""
    too_large = plan.too_large()
    return {
        "title": plan.title,
        "device": plan.device,
        "notes": list(plan.notes),
        "phases": [
            {
                "name": phase.name,
                "weights": phase.weights,
                "trained": phase.trained,
                "tensors": phase.tensors,
                "peak": phase.peak,
                "evaluations": phase.evaluations,
                "flops": phase.flops,
                "seconds": phase.seconds,
            }
            for phase in plan.phases
        ],
        "peak": plan.peak.peak,
        "evaluations": plan.evaluations,
        "flops": plan.flops,
        "seconds": plan.seconds,
        "memory": plan.memory,
        "usable": plan.usable,
        "fits": plan.fits if plan.memory is not None else None,
        "too_large": too_large.name if too_large else None,
        "change": nested(advice.changes) if advice else None,
    }


def json_text(plan: Plan, advice: Plan | None) -> str:
    return json.dumps(data(plan, advice), indent=2)


def nested(changes: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys -> sections, each written on one line."""
    out: dict[str, Any] = {}
    for key, value in changes.items():
        section, _, last = key.rpartition(".")
        out.setdefault(section, Row())[last] = value
    return out


def _table(plan: Plan) -> list[str]:
    head = ("phase", "weights", "trained", "tensors", "peak GiB", "evaluations", "TFLOP", "seconds")
    rows = [head, *(_row(phase) for phase in plan.phases)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _row(phase: Phase) -> tuple[str, ...]:
    flops = _UNKNOWN if phase.flops is None else "-" if not phase.flops else f"{phase.flops / 1e12:.3g}"
    seconds = "-" if not phase.flops and phase.flops is not None else _UNKNOWN
    if phase.seconds is not None:
        seconds = f"{phase.seconds:.1f}"
    sizes = map(_gib, (phase.weights, phase.trained, phase.tensors, phase.peak))
    return (phase.name, *sizes, str(phase.evaluations or "-"), flops, seconds)


def _evaluations(plan: Plan) -> str:
    return f"network evaluations an iteration: {plan.evaluations}, {plan.flops / 1e12:.3g} TFLOP (scoring not counted)"


def _time(plan: Plan) -> str:
    if plan.seconds is None:
        return "unknown until measured (plan --measure)"
    return f"{plan.seconds:.1f} s, by the speed measured here, without scoring"


def _gib(size: float) -> str:
    return f"{size / GIB:.2f}"


def one_line_change(changes: dict[str, Any]) -> str:
    """`policy.offload = model, surrogate.batch_size = 2`."""
    return ", ".join(f"{key} = {show(value)}" for key, value in changes.items())
