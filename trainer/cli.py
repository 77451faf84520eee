"""The command line: `python trainer/cli.py`, `python -m trainer.cli` from the root, and `vgrpo` are the same program."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

if __package__ in (None, ""):  # started as a file: make `trainer` the package, and keep its modules from shadowing others
    _here = Path(__file__).resolve().parent
    sys.path[:] = [str(_here.parent), *(p for p in sys.path if Path(p or ".").resolve() != _here)]
    __package__ = "trainer"

import importlib

_PACKAGE = __package__

DESCRIPTION = """\
V-GRPO: train a LoRA for an image model with online RL.

  demo        train the embedded model, no download, no GPU: minutes to a LoRA and a before/after grid
  train       train what a configuration file says
  plan        tell what memory and work a run will need, without loading its base
  resume      go on with a run that was stopped, killed or lost
  curriculum  train the stages of one file, each from the LoRA of the stage before
  sample      make pictures with a run's LoRA
  score       score pictures with rewards
  rewards     list the rewards, and which of their files are there
  export      write a run's LoRA for ComfyUI, diffusers or kohya tools
  runs        list runs
  serve       show a folder of runs over HTTP
"""


def _environment() -> None:
    """What must be set before torch and its friends are imported; a user's own settings win."""
    from .device import choose_threads, keep_freed_memory

    choose_threads()
    keep_freed_memory()
    for name, value in {
        "TRANSFORMERS_VERBOSITY": "error",
        "DIFFUSERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }.items():
        os.environ.setdefault(name, value)


class _Parser(argparse.ArgumentParser):
    """A wrong command line is said in one line, like every other wrong input."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see: {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="vgrpo", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands, each with --help")

    def add(name: str, summary: str, example: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=summary,
            description=summary + ".",
            epilog="example:\n  " + example.replace("\n", "\n  "),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    demo = add("demo", "train the embedded model", "python trainer/cli.py demo --output runs --seed 1 --iterations 25")
    demo.add_argument("--iterations", type=int, help="iterations (default: the preset's)")
    demo.add_argument("--seed", type=int, default=0, help="run seed (default 0)")
    _add_run_options(demo)

    train = add(
        "train",
        "train what a configuration file, or a preset by name, says",
        "python trainer/cli.py train my.yaml --set optimizer.lr=1e-4 --set rollout.group_size=12\n"
        "python trainer/cli.py train runs/demo-20260101-120000-abcd/config.yaml       (reproduces that run)",
    )
    train.add_argument("config", help="a YAML file, or the name of a preset")
    train.add_argument(
        "--run-id", help="name of the new run folder: a-z, 0-9 and '-' (default: from the configuration's name and the time)"
    )
    train.add_argument(
        "--after", metavar="RUN", help="continue from the LoRA of this finished run (its folder, or its id in ./runs)"
    )
    _add_run_options(train)

    plan = add(
        "plan",
        "tell what memory, network evaluations and time a run will need, without loading its base. Exit code 0 if it fits, "
        "1 if it does not, 2 for bad input",
        "python trainer/cli.py plan my.yaml --memory 16\n"
        "python trainer/cli.py plan flux --set rollout.width=1024 --set rollout.height=1024 --set hardware=24gb --json",
    )
    plan.add_argument("config", help="a YAML file, or the name of a preset")
    plan.add_argument("--memory", type=float, metavar="GIB", help="free memory to plan for (default: what the device has now)")
    plan.add_argument("--measure", action="store_true", help="measure this device's speed on one block, to tell the time")
    plan.add_argument("--json", action="store_true", help="print data: bytes, seconds, FLOPs")
    plan.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="change a key, e.g. hardware=16gb"
    )
    plan.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps, xpu")

    curriculum = add(
        "curriculum",
        "train the stages of one file, each from the LoRA of the stage before; called again it goes on where it was",
        "python trainer/cli.py curriculum docs/examples/sd3-curriculum.yaml --output runs",
    )
    curriculum.add_argument("file", type=Path, help="a YAML file with name, common and stages")
    curriculum.add_argument(
        "--output", type=Path, default=Path("runs"), help="folder that the runs are made in (default ./runs)"
    )
    curriculum.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps, xpu")

    resume = add(
        "resume",
        "go on with a run",
        "python trainer/cli.py resume runs/demo-20260101-120000-abcd\n"
        "python trainer/cli.py resume runs/demo-20260101-120000-abcd --iterations 96     (further than it was to go)",
    )
    _add_run_argument(resume)
    resume.add_argument(
        "--iterations",
        type=int,
        metavar="N",
        help="to how many iterations it goes from now on, those that are done included; a finished run goes on then",
    )
    resume.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps, xpu")
    resume.add_argument(
        "--in-line",
        action="store_true",
        help="wait while another run that was started so has the device",
    )

    sample = add(
        "sample",
        "make pictures with a run's LoRA",
        'python trainer/cli.py sample runs/demo-20260101-120000-abcd --prompt "three blue squares" --checkpoint best',
    )
    _add_run_argument(sample)
    sample.add_argument(
        "--prompt", action="append", help="a prompt; may be given several times (default: the run's held-out prompts)"
    )
    sample.add_argument("--images", type=int, default=4, help="pictures a prompt (default 4)")
    sample.add_argument("--size", help="pixels, such as 832x1216 (default: the size of the run's evaluations)")
    sample.add_argument("--seed", type=int, default=0, help="seed (default 0)")
    sample.add_argument("--checkpoint", default="latest", help="latest, best, base or an iteration number (default latest)")
    sample.add_argument("--steps", type=int, help="solver steps (default: the run's evaluation.steps)")
    sample.add_argument(
        "--guidance", type=float, help="classifier-free guidance, 1 = off (default: the run's evaluation.guidance)"
    )
    sample.add_argument("--output", type=Path, default=Path("samples"), help="folder for the pictures (default ./samples)")
    sample.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps, xpu")

    score = add(
        "score",
        "score pictures with rewards",
        "python trainer/cli.py score samples --rewards scene,brightness --prompts demo --csv scores.csv\n"
        "python trainer/cli.py score pictures --rewards hpsv2 --set hpsv2.version=v2.0 --prompt 'a cat on a chair'\n"
        "python trainer/cli.py score ComfyUI/output --config runs/demo-20260101-120000-abcd",
    )
    score.add_argument("pictures", nargs="+", type=Path, help="pictures, or folders of them")
    score.add_argument("--rewards", help="reward names, separated by commas (default: those and the monitors of --config)")
    score.add_argument("--config", help="a configuration or a run's folder, whose rewards and options are used")
    score.add_argument(
        "--set", action="append", default=[], metavar="NAME.OPTION=VALUE", dest="overrides", help="an option of a reward"
    )
    score.add_argument(
        "--prompt",
        help="the prompt of all pictures (default: the one that ComfyUI, a web UI or this program wrote into the picture, or a "
        ".txt beside it)",
    )
    score.add_argument("--prompts", help="a .jsonl file whose metadata belongs to the prompts, or 'demo'")
    score.add_argument("--csv", type=Path, help="also write the table here")
    score.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps, xpu")

    rewards = add(
        "rewards",
        "list the rewards: what they measure, the files they need, and which of those are there",
        "python trainer/cli.py rewards\npython trainer/cli.py rewards ocr --set ocr.language=german",
    )
    rewards.add_argument("names", nargs="*", help="only these, with their options (default: all)")
    rewards.add_argument(
        "--set", action="append", default=[], metavar="NAME.OPTION=VALUE", dest="overrides", help="an option of a reward"
    )
    rewards.add_argument("--verify", action="store_true", help="compare files with published checksums; reads all of them")

    export = add(
        "export",
        "write a run's LoRA to a file",
        "python trainer/cli.py export runs/demo-20260101-120000-abcd --checkpoint best --output my-lora.safetensors",
    )
    _add_run_argument(export)
    export.add_argument("--checkpoint", default="latest", help="latest, best or an iteration number (default latest)")
    export.add_argument(
        "--format", default="comfyui", help="comfyui (diffusers reads it too), diffusers or kohya (default comfyui)"
    )
    export.add_argument("--raw", action="store_true", help="the raw factors instead of their moving average")
    export.add_argument("--output", type=Path, required=True, help="the .safetensors file")

    listing = add("runs", "list runs", "python trainer/cli.py runs runs")
    listing.add_argument("root", nargs="?", type=Path, default=Path("runs"), help="folder that holds runs (default ./runs)")

    serve = add(
        "serve",
        "show a folder of runs over HTTP",
        "python trainer/cli.py serve runs --port 8765\n"
        "python trainer/cli.py serve runs --control --token SECRET       (pause, resume, stop and delete too)",
    )
    serve.add_argument("root", nargs="?", type=Path, default=Path("runs"), help="folder that holds runs (default ./runs)")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine only)")
    serve.add_argument("--port", type=int, default=8765, help="port, 0 = any that is free (default 8765)")
    serve.add_argument("--control", action="store_true", help="accept requests that change runs, with the token")
    serve.add_argument("--token", help="the secret that such a request must carry (default: $VGRPO_TOKEN, else one is made up)")
    serve.add_argument("--device", default="auto", help="where a run is resumed: auto, cpu, cuda, cuda:1, mps, xpu")
    return parser


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", type=Path, default=Path("runs"), help="folder that the run's folder is made in (default ./runs)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="change a key, e.g. optimizer.lr=1e-4"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps, xpu")


def _add_run_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run's folder, or its id in ./runs")


def main(argv: list[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a console that can't show a path's letters gets substitutes, not an error
            stream.reconfigure(errors="backslashreplace")
    args = build_parser().parse_args(argv)
    _environment()
    from .errors import UserError, one_line

    try:
        command = importlib.import_module(f".commands.{args.command}", _PACKAGE)
        return command.run(args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("trainer", "vgrpo"):
            raise
        print(
            f"error: the package {error.name} is missing; install it with: {sys.executable} -m pip install -r requirements.txt",
            file=sys.stderr,
        )
        return 2


if __name__ == "__main__":
    sys.exit(main())
