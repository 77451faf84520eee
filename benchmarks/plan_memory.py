"""What `plan` says a phase's tensors take, against what they take: python benchmarks/plan_memory.py [--write-docs]

Random models of the real classes, small enough for a CPU and large enough that tensors matter; on CUDA by torch's own
statistics, on a CPU by the profiler's record of every allocation.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from tests.allocations import peak_of  # noqa: E402
from tests.real_phases import phases_config, real_phases  # noqa: E402
from tests.tiny_families import make_folder  # noqa: E402
from trainer.device import choose_device  # noqa: E402
from trainer.planning.plan import Planner  # noqa: E402

DOCS = ROOT / "docs" / "memory-plan.md"
MARK = "<!-- plan-memory: {} -->"
# Name -> (family, pixels, changes to the tests' small denoiser).
MODELS = {
    "UNet, SDXL's kind": ("sdxl", 256, {"block_out_channels": (64, 128), "transformer_layers_per_block": (1, 2)}),
    "UNet, SD 1.5's kind": ("sd15", 256, {"block_out_channels": (64, 128), "layers_per_block": 2}),
    "SD 3": ("sd3", 128, {}),
    "FLUX.1": ("flux", 256, {"num_layers": 2, "num_single_layers": 3, "num_attention_heads": 8}),
    "Qwen-Image": ("qwen_image", 256, {"num_layers": 4, "num_attention_heads": 8}),
}


def compare(name: str, device: torch.device) -> list[tuple[str, str, str, int, int]]:
    """(model, checkpointing, phase, planned bytes, measured bytes)"""
    family, pixels, changes = MODELS[name]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = make_folder(family, Path(folder) / "model", **changes)
        for checkpointing in (False, True):
            config = phases_config(
                model,
                family,
                pixels,
                policy={"lora": {"rank": 8}, "gradient_checkpointing": checkpointing},
                rollout={"steps": 8},
                evaluation={"steps": 2},
            )
            planned = {phase.name: phase.tensors for phase in Planner(device).plan(config).phases}
            for phase, run in real_phases(config, device, Path(folder) / "cache"):
                run()  # what is made once and kept is no part of it
                rows.append((name, "yes" if checkpointing else "no", phase, planned[phase], peak_of(run, device)))
    return rows


def table(rows: list[tuple[str, str, str, int, int]]) -> str:
    lines = [
        "| model | gradient checkpointing | phase | planned MiB | measured MiB | difference |",
        "|---|---|---|---|---|---|",
    ]
    for name, checkpointing, phase, planned, measured in rows:
        difference = f"{planned / measured - 1:+.1%}"
        sizes = (f"{size / 2**20:.1f}" for size in (planned, measured))
        lines.append(f"| {name} | {checkpointing} | {phase} | {' | '.join(sizes)} | {difference} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--write-docs", action="store_true", help=f"put the table into {DOCS.relative_to(ROOT)}")
    parser.add_argument("models", nargs="*", help=f"some of: {', '.join(MODELS)}")
    args = parser.parse_args()
    device = choose_device(args.device)
    rows = []
    for name in args.models or MODELS:
        rows += compare(name, device)
        print(table(rows[-10:]), flush=True)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"a CPU ({platform.machine()})"
    text = f"{table(rows)}\n\nOn {where}, torch {torch.__version__}."
    if args.write_docs:
        page = DOCS.read_text(encoding="utf-8")
        begin, end = MARK.format("begin"), MARK.format("end")
        head, tail = page.split(begin)[0], page.split(end)[1]
        DOCS.write_text(f"{head}{begin}\n{text}\n{end}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
