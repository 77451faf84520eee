"""Runs that lie ready before a page opens: a small finished one, and one whose every text tries to be markup."""

from __future__ import annotations

from pathlib import Path

from tests.small_run import Watcher, go, new_run, small_config, stop_after
from trainer import runs
from trainer.runs import RunDir, RunState

SCRIPT = "<script>window.pwned = 1</script>"
IMAGE = '<img src="x" onerror="window.pwned = 2">'
PROMPTS = [f"a red square {SCRIPT}", f"two blue circles {IMAGE}"]
NAME = f"run {IMAGE}"
ERROR = f"it broke {SCRIPT} {IMAGE}"
WARNING = f"careful <b>bold</b> {IMAGE}"


def finished_run(root: Path, model: Path, run_id: str, iterations: int = 6, **changes: object) -> RunDir:
    """A tiny model's real training, named as its id; with the default, evaluated at iterations 0, 2, 4 and 6."""
    run = new_run(root, small_config(model, iterations=iterations, name=run_id, **changes), run_id)
    watcher = Watcher()
    go(run, watcher)
    run.log_file.write_text("".join(f"{message}\n" for message in watcher.messages), encoding="utf-8")  # a command does that
    return run


def stopped_run(root: Path, model: Path, run_id: str) -> RunDir:
    """A tiny model's training that was stopped soon; resumed, it goes on as long as a test wants it."""
    config = small_config(model, iterations=100_000, name=run_id, evaluation={"every": 50}, checkpoint={"every": 1000})
    run = new_run(root, config, run_id)
    go(run, stop_after(run, 2))
    return run


def hostile_run(root: Path, model: Path, run_id: str = "hostile") -> RunDir:
    """A real run of such prompts and name; its end is made to look like a failure with such a message."""
    config = small_config(model, iterations=2, name=NAME, prompts={"train": PROMPTS, "evaluate": PROMPTS})
    run = new_run(root, config, run_id)
    go(run, Watcher())
    with runs.EventWriter(run.events_file) as events:
        events.write("warning", iteration=2, message=WARNING)
        events.write("error", iteration=2, message=ERROR, kind="UserError")
    with open(run.log_file, "a", encoding="utf-8") as log:
        log.write(f"2026-01-01 12:00:00 ERROR {ERROR}\n")
    runs.write_state(run, RunState(runs.FAILED, iteration=2, iterations=2, name=NAME, message=ERROR))
    return run
