"""Write trainer/config/hardware.yaml, and its table in docs/memory-plan.md: python docs/make_hardware.py [FAMILY ...]

Plans of the published bases decide. Takes minutes: each is run forward and backward without storage in many settings. With
names only those are made anew.
`--check [FAMILY ...]` changes nothing, and says whether the classes of the table still fit (exit code 1 if one does not).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from trainer.config import FAMILIES, load_config  # noqa: E402
from trainer.config.hardware import CLASSES, FREE_SHARE, TABLE, read_table  # noqa: E402
from trainer.config.table import show  # noqa: E402
from trainer.config.text import dump  # noqa: E402
from trainer.planning.advice import MEMORY_KEYS, search  # noqa: E402
from trainer.planning.plan import Plan, Planner  # noqa: E402
from trainer.planning.report import nested  # noqa: E402

HEAD = """\
# Settings by family and graphics memory, by `python docs/make_hardware.py`: the first that fit of those that the command
# `plan` would try, at 1024 x 1024 (sd15: 512 x 512), group size 8, with the family's preset and no reward that has a network.
# A plan counts on {share} of the class being free, and leaves a tenth of that.
"""
PAGE, MARK = ROOT / "docs" / "memory-plan.md", "<!-- hardware: {} -->"
GROUP = 8
PROMPT = "a photograph of a red fox that sits in fresh snow under old trees, the light of a low sun behind it"
# Where the search starts. Without checkpointing a row takes many times the memory, and larger batches make up for its time.
START = {
    "policy.gradient_checkpointing": True,
    "policy.offload": "none",
    "policy.quantization": "none",
    "policy.vae_tiling": "auto",
    "rollout.batch_size": 8,
    "surrogate.batch_size": 8,
}


def start_of(family: str, settings: dict | None = None):
    """The family's preset at the size and group size that the table is made for."""
    side = 512 if family == "sd15" else 1024
    overrides = [f"rollout.width={side}", f"rollout.height={side}", f"rollout.group_size={GROUP}"]
    source = {
        "preset": family,
        "prompts": {"train": [f"{PROMPT} {n}" for n in range(64)], "evaluate": [PROMPT]},
        "rewards": {"brightness": {}},
        "monitors": {},
    }
    if settings is None:
        overrides += [f"{key}={show(value)}" for key, value in START.items()]
        return load_config(source, overrides)
    return load_config({**source, **settings}, overrides)


def plan_of(planner: Planner, family: str, gib: int) -> Plan | None:
    planner.memory = int(FREE_SHARE * gib * 2**30)
    return search(planner, start_of(family), sizes=False)


def rows(family: str) -> dict[str, dict]:
    planner = Planner(torch.device("cuda"))
    planner.rough = True  # --check is exact
    out = {}
    for name, gib in CLASSES.items():
        plan = plan_of(planner, family, gib)
        if plan is None:
            print(f"{family} {name}: nothing fits", flush=True)
            continue
        chosen = {**START, **plan.changes}
        out[name] = nested({key: chosen[key] for key in MEMORY_KEYS if key in chosen})
        print(f"{family} {name}: {plan.peak.name} {plan.peak.peak / 2**30:.2f} GiB, {plan.changes}", flush=True)
    return out


def page_table() -> str:
    """The table as docs/memory-plan.md shows it."""
    lines = [
        "| family | memory | checkpointing | rollout batch | update batch | tiles | offload | quantization | optimiser |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for family, classes in read_table().items():
        for name, settings in classes.items():
            policy = settings["policy"]
            cells = (
                f"`{family}`",
                name,
                show(policy["gradient_checkpointing"]),
                show(settings["rollout"]["batch_size"]),
                show(settings["surrogate"]["batch_size"]),
                policy["vae_tiling"],
                policy["offload"],
                policy["quantization"],
                settings.get("optimizer", {}).get("name", "the preset's"),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_page() -> None:
    begin, end = MARK.format("begin"), MARK.format("end")
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(f"{page.split(begin)[0]}{begin}\n{page_table()}\n{end}{page.split(end)[1]}", encoding="utf-8")


def check(families: Iterable[str]) -> int:
    bad, table = 0, read_table()
    for family in families:
        planner = Planner(torch.device("cuda"))
        for name, settings in table[family].items():
            planner.memory = int(FREE_SHARE * CLASSES[name] * 2**30)
            plan = planner.plan(start_of(family, settings))
            bad += not plan.fits
            found = f"{plan.peak.name} {plan.peak.peak / 2**30:.2f} GiB"
            print(f"{family} {name}: {'fits' if plan.fits else 'does NOT fit'}, {found}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    wanted = [argument for argument in sys.argv[1:] if argument != "--check"] or list(FAMILIES)
    if unknown := [name for name in wanted if name not in FAMILIES]:
        sys.exit(f"error: no such family: {', '.join(unknown)}; allowed: {', '.join(FAMILIES)}")
    if "--check" in sys.argv:
        sys.exit(check(wanted))
    table = read_table() if TABLE.is_file() else {}
    for family in wanted:
        table[family] = rows(family)
        ordered = {name: table[name] for name in FAMILIES if name in table}
        TABLE.write_text(HEAD.format(share=f"{FREE_SHARE:.0%}") + dump(ordered), encoding="utf-8")
    write_page()
