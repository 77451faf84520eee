"""How fast the server answers the panel, on a generated run of 10,000 iterations, 8 rewards and 500 grids.

    python benchmarks/panel.py                                            prints the table
    python benchmarks/panel.py --output /tmp/panel --keep                 leaves the runs, for a look at them:
    python trainer/cli.py serve /tmp/panel

Real HTTP on the loopback address, measured at the client, each row in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import math
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from aiohttp import ClientSession, web  # noqa: E402
from PIL import Image  # noqa: E402

from trainer import runs  # noqa: E402
from trainer.config import load_config  # noqa: E402
from trainer.runs import EventWriter, RunDir, RunState  # noqa: E402
from trainer.runs.http import routes  # noqa: E402

NAMES = ("scene", "aesthetics", "legibility", "colorfulness", "saturation", "brightness", "jpeg_size", "high_frequency")
PROMPTS = ("three red squares", "a blue circle above a green star", "two yellow triangles", "a <b>bold</b> square & a circle")
SEEDS = 2


def generate(root: Path, run_id: str = "long", iterations: int = 10_000, rewards: int = 8, grids: int = 500) -> RunDir:
    """A finished run as the trainer would have left it, but for checkpoints: configuration, events, pictures, log, state."""
    run = runs.create_run(root, run_id)
    names = [NAMES[k] if k < len(NAMES) else f"reward{k}" for k in range(rewards)]
    runs.write_atomic(run.config_file, _config(iterations))
    pictures, grid = _pictures(), _grid()
    every = max(1, iterations // max(1, grids - 1))
    chance = random.Random(0)
    with EventWriter(run.events_file) as events:
        for number in range(iterations + 1):
            if number:
                events.write("iteration", iteration=number, metrics=_metrics(number, iterations, names, chance))
            if number % every == 0 and number // every < grids:
                _evaluate(run, events, number, iterations, names, chance, pictures, grid)
            if number and number % (iterations // 20 or 1) == 0:
                events.write("checkpoint", iteration=number, path=f"checkpoints/{number:06d}", best=False)
            if number in (iterations // 3, iterations // 2):
                events.write("warning", iteration=number, message="the reward has not risen for 20 iterations")
        events.write("finished", iteration=iterations, lora="none", summary={})
    lines = (f"2026-11-30 12:00:00,000 INFO iteration {number} of {iterations}\n" for number in range(1, iterations + 1))
    run.log_file.write_text("".join(lines), encoding="utf-8")
    state = RunState("finished", iteration=iterations, iterations=iterations, name=run_id, device="cpu", started=time.time())
    runs.write_state(run, state)
    return run


@cache
def _config(iterations: int) -> str:
    return load_config({"preset": "demo", "name": "generated", "iterations": iterations}).to_yaml()


def _metrics(number: int, iterations: int, names: list[str], chance: random.Random) -> dict[str, float]:
    done = number / iterations
    found: dict[str, float] = {}
    for k, name in enumerate(names):
        rise = 0.3 + 0.5 * (1 - math.exp(-3 * done * (1 + k / 4)))
        found[f"reward/{name}/mean"] = rise + chance.gauss(0, 0.03)
        found[f"reward/{name}/std"] = 0.2 - 0.1 * done + chance.gauss(0, 0.01)
    found["reward/total/mean"] = sum(found[f"reward/{name}/mean"] for name in names) / len(names)
    found["reward/nan_outputs"] = float(chance.random() < 0.001)
    found["advantage/frac_zero_std"] = max(0.0, 0.6 * done + chance.gauss(0, 0.05))
    found["advantage/max_abs"] = 2.5 + chance.gauss(0, 0.2)
    found["surrogate/mean"] = 0.4 + chance.gauss(0, 0.02)
    found["surrogate/cv"] = 0.5 + chance.gauss(0, 0.02)
    found["surrogate/cv_group"] = 0.2 + chance.gauss(0, 0.02)
    found["ratio/max_abs_dev"] = 5.0 if number == 7 * iterations // 10 else abs(chance.gauss(0, 0.01))
    found["ratio/noise"] = abs(chance.gauss(0, 1e-4))
    found["ratio/clip_frac"] = max(0.0, chance.gauss(0.05, 0.02))
    found["kl"] = 1e-4 * done + abs(chance.gauss(0, 1e-5))
    found["grad_norm"] = math.nan if number % 997 == 0 else abs(chance.gauss(1, 0.3))
    found["lr"] = 1e-3
    found["steps/taken"], found["steps/skipped"] = 8.0, float(number % 997 == 0)
    found["time/rollout"], found["time/reward"], found["time/update"] = (
        abs(chance.gauss(mean, mean / 10)) for mean in (3.0, 0.5, 4.0)
    )
    found["nfe/behaviour"], found["nfe/policy"] = 8.0, 4.0
    return found


def _evaluate(
    run: RunDir,
    events: EventWriter,
    number: int,
    iterations: int,
    names: list[str],
    chance: random.Random,
    pictures: list[bytes],
    grid: bytes,
) -> None:
    folder = run.samples / f"{number:06d}"
    folder.mkdir()
    count = len(PROMPTS) * SEEDS
    files = [f"p{k // SEEDS:03d}-s{k % SEEDS}.png" for k in range(count)]
    for k, name in enumerate(files):
        (folder / name).write_bytes(pictures[(k + number) % len(pictures)])
    (folder / "grid.png").write_bytes(grid)
    scores = {name: [0.3 + 0.5 * number / iterations + chance.gauss(0, 0.05) for _ in range(count)] for name in names}
    means = {f"eval/{name}/mean": sum(values) / count for name, values in scores.items()}
    means["eval/total/mean"] = sum(means.values()) / len(names)
    index = {"iteration": number, "prompts": PROMPTS, "seeds": [2**62 + k for k in range(count)], "seeds_per_prompt": SEEDS}
    runs.write_json(folder / "index.json", {**index, "files": files, "scores": scores, "means": means})
    events.write("evaluation", iteration=number, metrics=means)
    path = f"samples/{folder.name}"
    events.write("grid", iteration=number, grid=f"{path}/grid.png", index=f"{path}/index.json", pictures=count)


def _pictures() -> list[bytes]:
    return [_png(64, 64, (37 * k % 256, 91 * k % 256, 53 * k % 256)) for k in range(24)]


def _grid() -> bytes:
    return _png(64 * SEEDS, 64 * len(PROMPTS), (90, 120, 150))


def _png(width: int, height: int, colour: tuple[int, int, int]) -> bytes:
    image = Image.linear_gradient("L").resize((width, height)).convert("RGB")
    data = io.BytesIO()
    Image.blend(image, Image.new("RGB", (width, height), colour), 0.6).save(data, "PNG")
    return data.getvalue()


async def measure(root: Path, run: RunDir, windows: int, others: int) -> list[tuple[str, list[float]]]:
    """(what, milliseconds of each question) for every route that the panel asks."""
    app = web.Application()
    app.add_routes(routes(lambda: root, pictures=True))
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    base = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/vgrpo/runs"
    chance = random.Random(1)
    last = runs.EventReader(run.events_file).last_seq()
    rows: list[tuple[str, list[float]]] = []
    async with ClientSession() as session:

        async def ask(path: str) -> float:
            start = time.perf_counter()
            async with session.get(base + path) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()
            return 1000 * (time.perf_counter() - start)

        async def row(what: str, questions: list[Callable[[], Awaitable[float]]]) -> None:
            rows.append((what, [await question() for question in questions]))

        async def same(what: str, path: str, times: int = 5) -> None:
            await row(what, [lambda: ask(path)] * times)

        places = [chance.randrange(last) for _ in range(windows)]
        one = f"/{run.id}"
        await row(
            f"events, {windows} random windows of up to 1000",
            [lambda place=place: ask(f"{one}/events?after={place}") for place in places],
        )
        await row(
            f"events, {windows} random windows of one kind",
            [lambda place=place: ask(f"{one}/events?after={place}&types=grid") for place in places],
        )
        await same("events, the newest 200 that are no iterations", f"{one}/events?before={2**53}&limit=200&types=grid,warning")
        await same("series of the whole run, first time", f"{one}/series?points=2000", 1)
        await same("series of the whole run, again", f"{one}/series?points=2000")
        await same("series, 500 iterations of it", f"{one}/series?points=2000&from=5000&to=5499")
        await same("the run's description, first time", one, 1)
        await same("the run's description, again", one)
        await same(f"list of {others + 1} runs, first time", "", 1)
        await same(f"list of {others + 1} runs, again", "")
    await runner.cleanup()
    return rows


def table(rows: list[tuple[str, list[float]]]) -> str:
    lines = ["| question | median ms | longest ms |", "|---|---|---|"]
    lines += [f"| {what} | {median(times):.1f} | {max(times):.1f} |" for what, times in rows]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for the generated runs (default: a temporary one)")
    parser.add_argument("--keep", action="store_true", help="leave the runs there")
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--rewards", type=int, default=8)
    parser.add_argument("--grids", type=int, default=500)
    parser.add_argument("--windows", type=int, default=100, help="random windows to ask for (default 100)")
    parser.add_argument("--others", type=int, default=499, help="further short runs in the list (default 499)")
    args = parser.parse_args()
    if args.keep and args.output is None:
        parser.error("--keep needs --output")
    root = args.output or Path(tempfile.mkdtemp(prefix="vgrpo-panel-"))
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        parser.error(f"{root} is not empty; choose a new folder")
    try:
        run = generate(root, "long", args.iterations, args.rewards, args.grids)
        for number in range(args.others):
            generate(root, f"short-{number:04d}", 60, 2, 2)
        rows = asyncio.run(measure(root, run, args.windows, args.others))
    finally:
        if not args.keep:
            shutil.rmtree(root, ignore_errors=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(table(rows))
    size = f"{args.iterations} iterations, {args.rewards} rewards, {args.grids} grids"
    print(f"\n{size}, on {cores} CPU cores ({platform.machine()}).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
