"""`train`: a new run from a configuration."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .. import runs
from ..config import RunConfig, load_config, preset_names
from ..curriculum import continued
from ..device import choose_device
from ..errors import UserError, one_line
from ..progress import TerminalProgress
from ..runs import RunDir, check_new_run
from .common import at_device, program, run_of


def run(args) -> int:
    source: Any = Path(args.config)
    if not source.exists() and args.config in preset_names():
        source = {"preset": args.config}
    config = load_config(source, args.overrides)
    if args.after is not None:
        config = continued(config, run_of(args.after))
    return start(config, args.output, args.device, args.run_id)


def start(config: RunConfig, root: Path, device_name: str, run_id: str | None = None) -> int:
    """Build all parts first, so that bad input leaves nothing behind; then make the run and train."""
    if root.exists() and not root.is_dir():
        raise UserError(f"--output {root} is a file; give a folder for runs, which is made if need be")
    device = choose_device(device_name)
    if run_id is not None:
        check_new_run(root, run_id)
    from ..setup import build_bench
    from ..training import start_run

    run_id = run_id or runs.new_run_id(config.name)
    with at_device(RunDir(root / run_id), device):
        bench = build_bench(config, device)
        return work(start_run(config, root, run_id), device, bench)


def work(run_dir: RunDir, device, bench=None) -> int:
    """Train or resume in the foreground: progress, and at the end what came out. Returns the exit code."""
    from ..training import train

    progress = TerminalProgress()
    print(f"run {run_dir.id} on {device}, in {run_dir.path}")
    with logging_to(run_dir):
        try:
            summary = train(run_dir, device, progress, bench=bench)
        except UserError:
            raise
        except KeyboardInterrupt:
            progress.close()
            print(f"the current iteration was dropped. Go on with:\n{_resume_line(run_dir)}")
            raise
        except Exception as error:
            progress.close()
            raise UserError(f"the run failed: {type(error).__name__}: {one_line(error)}; see {run_dir.log_file}") from error
        finally:
            progress.close()
    if summary.get("stopped"):
        saved = "saved" if summary["saved"] else "NOT saved (the reason stands above)"
        print(f"stopped after iteration {summary['iteration']} of {summary['iterations']}, {saved}. Go on with:")
        print(_resume_line(run_dir))
        return 0 if summary["saved"] else 2
    print_summary(run_dir, summary)
    return 0


def _resume_line(run_dir: RunDir) -> str:
    return f'  {program()} resume "{run_dir.path.absolute()}"'


def print_summary(run_dir: RunDir, summary: dict[str, Any]) -> None:
    name = summary["reward"]
    print(f"\nLoRA          {summary['lora_path']}")
    print(f"held-out {name}: {_number(summary['eval_reward_before'])} -> {_number(summary['eval_reward_after'])}")
    if summary["eval_accuracy_after"] is not None:
        print(f"strictly correct: {_number(summary['eval_accuracy_before'])} -> {_number(summary['eval_accuracy_after'])}")
    if summary["best_iteration"] not in (None, summary["iterations"]):
        print(f"best held-out reward at iteration {summary['best_iteration']}: export it with --checkpoint best")
    for title, file in (("curve", "curve.png"), ("before/after", "before-after.png")):
        if (run_dir.path / file).is_file():
            print(f"{title:<13} {run_dir.path / file}")
    print(f"time          {summary['wall_s']:.0f} s for {summary['iterations']} iterations")


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


class _LogFile(logging.FileHandler):
    """A full disk costs lines of the log, never the run, and prints nothing."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        pass

    def close(self) -> None:
        with suppress(OSError):  # it flushes what the disk had no room for
            super().close()


@contextmanager
def logging_to(run_dir: RunDir) -> Iterator[None]:
    """The trainer's log goes to the run's train.log, and to nowhere else afterwards."""
    handler = _LogFile(run_dir.log_file, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("vgrpo")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
