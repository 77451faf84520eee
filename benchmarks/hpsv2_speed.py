"""HPSv2.1 on pictures of two prompts: this program's scorer against `hpsv2.score` of the authors' package, speed and scores.

    pip install --no-deps hpsv2x clint args requests               the authors' code; what it requires would pin old versions
    python benchmarks/hpsv2_speed.py --weights HPS_v2.1_compressed.pt
    python benchmarks/hpsv2_speed.py                               random weights of the true architecture: the same work

Each side runs in a process of its own, one after the other, and is timed from the first picture to the last score with its
model in memory; then the same again, as a training scores the same prompts again and again (`--rounds`). What the authors' code
does once and ours never, fetching 3.9 GB and building a model from them, is left out; what it does at every call, reading the
checkpoint again, is not. `--calls prompt` is its best use, a call with a list for each prompt; `--calls picture` is what
scripts do that score as they sample. On a machine that does other work too, compare the time of the CPU, summed over all
threads.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from trainer.device import choose_threads  # noqa: E402

choose_threads()

PROMPTS = ("a red fox asleep in the snow, photograph", "an old harbour at dawn, oil painting, thick strokes")
FILE = "HPS_v2.1_compressed.pt"


def main() -> int:
    args = _arguments()
    if args.side:
        return _side(args)
    if importlib.util.find_spec("hpsv2") is None:
        print("the authors' code is not installed: pip install --no-deps hpsv2x clint args requests", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch:
        weights = args.weights or _random_weights(Path(scratch) / FILE)
        common = [
            sys.executable,
            __file__,
            "--weights",
            str(weights),
            "--pictures",
            str(args.pictures),
            "--size",
            str(args.size),
        ]
        common += ["--calls", args.calls, "--batch-size", str(args.batch_size), "--rounds", str(args.rounds)]
        found = {side: _run([*common, "--side", side]) for side in ("authors", "ours")}
    _table(found, args)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, help=f"{FILE}; without it random weights of the same architecture are made")
    parser.add_argument("--pictures", type=int, default=16, help="how many, half of them for each prompt")
    parser.add_argument("--size", type=int, default=1024, help="their width and height")
    parser.add_argument(
        "--calls", choices=("prompt", "picture"), default="prompt", help="how often the authors' code is called"
    )
    parser.add_argument("--batch-size", type=int, default=16, help="of this program's scorer")
    parser.add_argument("--rounds", type=int, default=2, help="how often the pictures are scored in one process")
    parser.add_argument(
        "--scratch", type=Path, help="where the random weights are written (2 GB); default: the system's folder"
    )
    parser.add_argument("--side", choices=("authors", "ours"), help=argparse.SUPPRESS)
    return parser.parse_args()


def _run(command: list[str]) -> list[dict]:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads(done.stdout.splitlines()[-1])


def _side(args: argparse.Namespace) -> int:
    pictures = _pictures(args.pictures, args.size)
    prompts = [PROMPTS[2 * number // args.pictures] for number in range(args.pictures)]
    score = _authors(args, pictures, prompts) if args.side == "authors" else _ours(args, pictures, prompts)
    rounds = []
    for _ in range(args.rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        scores = score()
        rounds.append({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "scores": scores})
    print(json.dumps(rounds))
    return 0


def _authors(args: argparse.Namespace, pictures, prompts):
    import warnings

    warnings.simplefilter("ignore")
    from hpsv2 import img_score
    from hpsv2.src.open_clip import factory

    make = factory.create_model
    # Without the base that would be fetched only to be overwritten.
    factory.create_model = lambda name, _, **options: make(name, None, **options)
    img_score.initialize_model()

    def score() -> list[float]:
        if args.calls == "picture":
            calls = [([picture], prompt) for picture, prompt in zip(pictures, prompts, strict=True)]
        else:
            calls = [([p for p, of in zip(pictures, prompts, strict=True) if of == prompt], prompt) for prompt in PROMPTS]
        return [float(value) for part, prompt in calls for value in img_score.score(part, prompt, cp=str(args.weights))]

    return score


def _ours(args: argparse.Namespace, pictures, prompts):
    import numpy as np
    import torch

    from trainer.rewards import create

    reward = create("hpsv2", {"model": str(args.weights.absolute()), "device": "cpu", "batch_size": args.batch_size})
    reward.load("cpu")
    images = torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures]))
    return lambda: reward.score(images, prompts, [{}] * len(prompts)).tolist()


def _pictures(count: int, size: int) -> list:
    import numpy as np
    from PIL import Image

    y, x = np.mgrid[0:size, 0:size] / size
    made = []
    for number in range(count):
        random = np.random.default_rng(number)
        waves = [np.sin(random.uniform(5, 60) * x + random.uniform(5, 60) * y + random.uniform(0, 6)) for _ in range(3)]
        pixels = 127 + 100 * np.stack(waves, -1) + random.normal(0, 10, (size, size, 3))
        made.append(Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)))
    return made


def _random_weights(path: Path) -> Path:
    """A checkpoint like the published one: half precision, open_clip's names."""
    code = (
        "import sys, torch\n"
        "from hpsv2.src.open_clip import factory\n"
        "torch.manual_seed(0)\n"
        "state = factory.create_model('ViT-H-14').state_dict()\n"
        "torch.save({'state_dict': {name: value.half() for name, value in state.items()}}, sys.argv[1])\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    return path


def _table(found: dict[str, list[dict]], args: argparse.Namespace) -> None:
    kind = args.weights.name if args.weights else "random weights of the true architecture"
    print(f"{args.pictures} pictures of {args.size} x {args.size}, {len(PROMPTS)} prompts, {kind}; CPU, {_machine()}")
    print(f"{'':<54}{'seconds':>9}{'of CPU':>9}{'pictures/s':>12}")
    names = {"authors": f"hpsv2.score, a call for each {args.calls}", "ours": f"rewards: hpsv2, batches of {args.batch_size}"}
    rounds = {"first round": slice(0, 1), "every later round": slice(1, None)}
    for title, part in rounds.items():
        means = {side: _means(found[side][part]) for side in names}
        if not all(means.values()):
            continue
        for side, name in names.items():
            wall, cpu = means[side]
            print(f"{f'{title}: {name}':<54}{wall:>9.1f}{cpu:>9.1f}{args.pictures / wall:>12.3f}")
        wall, cpu = (a / b for a, b in zip(means["authors"], means["ours"], strict=True))
        print(f"{'':<{len(title)}}  {wall:.1f} times as fast ({cpu:.1f} by the CPU's time)")
    pairs = zip(*(found[side][-1]["scores"] for side in names), strict=True)
    print(f"scores differ by at most {max(abs(a - b) for a, b in pairs):.1e}")


def _means(rounds: list[dict]) -> tuple[float, float] | None:
    """Mean seconds by the clock and of the CPU; None without a round."""
    if not rounds:
        return None
    return tuple(sum(one[kind] for one in rounds) / len(rounds) for kind in ("wall", "cpu"))


def _machine() -> str:
    return f"{os.environ['OMP_NUM_THREADS']} threads on {platform.machine()}"


if __name__ == "__main__":
    sys.exit(main())
