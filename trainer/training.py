"""A whole run: iterations, evaluations, checkpoints, requests, and an end that leaves nothing half done."""

from __future__ import annotations

import logging
import math
import random
import shutil
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from . import runs
from .config import RunConfig, load_config
from .ending import finish
from .errors import UserError, one_line
from .evaluation import Evaluation, evaluate
from .journal import Journal
from .loop import IterationResult, run_iteration
from .memory import release_cached
from .requests import Interrupted, RequestDesk
from .rewards.scoring import FailureCount, load_rewards
from .runs import RunDir, RunState
from .runs.checkpoints import clean_aside, list_checkpoints, load_latest, prune, save_checkpoint
from .runs.claim import claim
from .samples import load_evaluation, save_evaluation
from .seeds import derive_seed
from .setup import Bench, build_bench
from .snapshot import learner_tensors, restore_learner

log = logging.getLogger("vgrpo")


class Progress(Protocol):
    """What a front end shows while a run goes on."""

    def begin(self, done: int, total: int) -> None: ...
    def iteration(self, done: int, total: int, metrics: dict[str, float]) -> None: ...
    def message(self, text: str) -> None: ...


@dataclass
class Position:
    """Where a run stands between two iterations; saved with every checkpoint."""

    iteration: int = 0  # iterations done
    wall_s: float = 0.0  # seconds spent so far, over all processes that worked on the run
    best: tuple[int, float] | None = None  # (iteration, held-out total reward) of the best checkpoint
    evaluated: dict[str, float] = field(default_factory=dict)  # the newest evaluation
    evaluated_at: int = -1


def start_run(config: RunConfig, root: Path, run_id: str | None = None) -> RunDir:
    """Make the run directory with its configuration; nothing is loaded yet. Raises UserError, and then leaves no run behind."""
    run = runs.create_run(root, run_id or runs.new_run_id(config.name))
    state = RunState(iterations=config.iterations, name=config.name, started=time.time(), **runs.own_process())
    try:
        runs.write_atomic(run.config_file, config.to_yaml())
        runs.write_state(run, state)
    except OSError as error:
        shutil.rmtree(run.path, ignore_errors=True)
        raise UserError(
            f"cannot write the run {run.path}: {one_line(error)}; free disk space, or choose another folder"
        ) from error
    return run


def train(
    run: RunDir,
    device: torch.device,
    progress: Progress,
    cache: Path | None = None,
    bench: Bench | None = None,
    desk: RequestDesk | None = None,
) -> dict[str, Any]:
    """Run or resume what `run`'s config.yaml says, to its end or until it is asked to stop; returns the summary.

    Raises UserError for what a user can mend, anything else as it comes; the state then says `failed` and why. A run that
    another process works on is refused and left alone. `bench` takes parts that are built already for this configuration,
    `desk` one that takes this process's requests already; without it those that are there were meant for the process before.
    """
    with claim(run, "trained here too"):
        if desk is None:
            runs.take_requests(run)
            desk = RequestDesk(run)
        trainer = _Trainer(run, device, progress, desk)
        try:
            return trainer.work(cache, bench)
        except BaseException as error:
            trainer.fail(error)
            raise
        finally:
            trainer.close()


class _Trainer:
    def __init__(self, run: RunDir, device: torch.device, progress: Progress, desk: RequestDesk):
        self.run, self.device, self.progress = run, device, progress
        self.config = load_config(run.config_file)
        self.journal = Journal(run, self.config, device)
        self.desk = desk
        self.desk.on_beat = self.journal.beat
        self.position = Position()
        self.failures = FailureCount(self.config.rewards)
        self.started = time.perf_counter()
        self.before: Evaluation | None = None
        self._saved: tuple | None = None  # what the newest checkpoint of this process held
        self._moved = False  # whether a gradient step of this process is known to have changed the LoRA
        self.bench: Bench

    def work(self, cache: Path | None, bench: Bench | None) -> dict[str, Any]:
        with self.desk.signals():
            clean_aside(self.run)
            self.bench = bench or build_bench(self.config, self.device, cache)
            for note in (*self.config.warnings(), *self.bench.notes):
                self.warn(note)
            self.bench.policy.batches.tell = self.warn
            self._restore()
            self.journal.status(runs.RUNNING, self.position.iteration, "")
            try:
                self._prepare_before()
                self.progress.begin(self.position.iteration, self.config.iterations)
                while self._turn():
                    pass
            except _Stop:
                return self._stop()
            return self._finish()

    # Beginning and end

    def _restore(self) -> None:
        complete, skipped = list_checkpoints(self.run)
        if not complete:
            if skipped:
                self.warn(f"no complete checkpoint, so the run starts at iteration 0; passed over: {_listed(skipped)}")
            if self.journal.continues:  # takes back the points of iterations that are done anew
                self.journal.event("resumed", iteration=0)
            return
        info, tensors, position, skipped = load_latest(self.run)
        for warning in restore_learner(self.bench.learner, tensors, position["learner"]):
            self.warn(warning)
        if skipped:
            self.warn(f"resuming from iteration {info.iteration}; passed over: {_listed(skipped)}")
        if position["config"] != self.config.digest():
            self.warn("config.yaml was changed since the checkpoint was saved; the run goes on with what it says now")
        best = position["best"]
        self.position = Position(
            iteration=info.iteration,
            wall_s=position["wall_s"],
            best=tuple(best) if best else None,
            evaluated=position["evaluated"],
            evaluated_at=position["evaluated_at"],
        )
        self.journal.event("resumed", iteration=info.iteration)
        self.progress.message(f"resuming after iteration {info.iteration}")

    def _prepare_before(self) -> None:
        """The pictures before the first iteration: made once, and read back by a resumed run."""
        self.before = load_evaluation(self.run, 0, self.bench.held_out)
        if self.before is None and self.position.iteration:
            self.warn("there are no pictures of iteration 0, so the end of this run shows no before/after grid")
            return
        while self.before is None:
            try:
                self.before = self._evaluation(0)
                return
            except Interrupted:
                self._obey()

    def _finish(self) -> dict[str, Any]:
        self._checkpoint()
        summary = finish(self.run, self.bench, self.before, self.position, self._wall(), self.warn)
        self.journal.event("finished", iteration=self.position.iteration, lora=summary["lora_path"], summary=summary)
        self.journal.status(runs.FINISHED, self.position.iteration, "", lora=summary["lora_path"])
        return summary

    def _stop(self) -> dict[str, Any]:
        self.journal.status(runs.STOPPING, self.position.iteration, "saving")
        iteration = self.position.iteration
        saved = not iteration or self._checkpoint()
        rest = "resume continues it" if saved else "but not saved, so resume repeats the iterations since the newest checkpoint"
        self.journal.status(runs.STOPPED, iteration, f"stopped on request; {rest}")
        return {"stopped": True, "saved": saved, "iteration": iteration, "iterations": self.config.iterations}

    def fail(self, error: BaseException) -> None:
        message = (
            one_line(error)
            if not isinstance(error, KeyboardInterrupt)
            else "interrupted twice, so the current iteration was dropped"
        )
        log.error("%s", "".join(traceback.format_exception(error)))
        self.journal.event("error", iteration=self.position.iteration, message=message, kind=type(error).__name__)
        self.journal.status(runs.FAILED, self.position.iteration, message)

    def close(self) -> None:
        self.journal.close()

    # Between iterations

    def _obey(self) -> None:
        """Do what was asked for; returns when training may go on. Raises _Stop."""
        paused = False
        while True:
            for action in self.desk.take():
                if action == "stop":
                    raise _Stop
                if action == "checkpoint":
                    self._checkpoint()
                elif action == "sample":
                    self._evaluate_now(parked=paused)
                elif action == "pause" and not paused:
                    paused = True
                    self._park(torch.device("cpu"))
                    self.journal.event("paused", iteration=self.position.iteration)
                    self.journal.status(runs.PAUSED, self.position.iteration, "paused on request")
                elif action == "resume" and paused:
                    paused = False
                    self._park(self.device)
                    self.journal.event("resumed", iteration=self.position.iteration)
                    self.journal.status(runs.RUNNING, self.position.iteration, "")
            if not paused:
                return
            self.desk.wait()

    def _park(self, device: torch.device) -> None:
        """Give the accelerator back while paused, or take it again."""
        self.bench.policy.to(device)
        self.bench.learner.to(device)
        for name, message in load_rewards(self.bench.rewards, device, None):
            self.warn(f"{name} could not be moved to {device}: {message}")
        release_cached()

    def _evaluate_now(self, parked: bool) -> None:
        if parked:
            self._park(self.device)
        try:
            self._evaluate()
        except Interrupted:
            pass  # a stop or pause came meanwhile and is taken up by the caller's next look
        finally:
            if parked:
                self._park(torch.device("cpu"))

    # One iteration

    def _turn(self) -> bool:
        """One evaluation or iteration, and the checkpoint that is due after it; False when the run is complete."""
        self._obey()
        try:
            if self._owes_evaluation():
                self._evaluate()
            elif self.position.iteration < self.config.iterations:
                self._iterate()
            else:
                return False
        except Interrupted:
            return True  # nothing was changed yet: it is done anew, with the same seeds, when the run goes on
        if self._due(self.config.checkpoint.every) and not self._owes_evaluation():
            self._checkpoint()
        return True

    def _due(self, every: int) -> bool:
        return bool(every) and self.position.iteration % every == 0

    def _owes_evaluation(self) -> bool:
        p = self.position
        last = p.iteration >= self.config.iterations
        return p.iteration > 0 and p.evaluated_at != p.iteration and (last or self._due(self.config.evaluation.every))

    def _iterate(self) -> None:
        bench, learner, number = self.bench, self.bench.learner, self.position.iteration + 1
        _seed_strangers(self.config.seed, "iteration", number)
        mark = None if self._moved else learner.adapter.snapshot().checksum()
        result = run_iteration(
            learner, self.config, number - 1, bench.train, bench.train_conditioning, bench.rewards, self.desk.check
        )
        if mark is not None and result.metrics["steps/taken"]:
            if learner.adapter.snapshot().checksum() == mark:
                raise UserError(
                    "the first gradient step did not change the LoRA; policy.lora.targets or optimizer.lr can't act"
                )
            self._moved = True
        self.position.iteration = number
        self._report(number, result)
        self.failures.update(result.scores)

    def _report(self, number: int, result: IterationResult) -> None:
        self.journal.event("iteration", iteration=number, metrics=result.metrics)
        for text in (
            *result.warnings,
            *(f"reward {name}: {text}" for name, text in (*result.scores.failures, *result.scores.warnings)),
        ):
            self.warn(text)
        self.journal.status(runs.RUNNING, number, "")
        self.progress.iteration(number, self.config.iterations, result.metrics)

    # Evaluation and checkpoints

    def _evaluate(self) -> None:
        """Held-out pictures under what would be exported now (EMA if there is one); the best so far is kept."""
        learner, p = self.bench.learner, self.position
        with learner.adapter.using(learner.average or learner.adapter.snapshot()):
            result = self._evaluation(p.iteration)
        p.evaluated, p.evaluated_at = (result.means if result else {}), p.iteration
        total = p.evaluated.get("eval/total/mean", math.nan)
        if p.iteration and math.isfinite(total) and (p.best is None or total > p.best[1]):
            p.best = (p.iteration, total)
            self._checkpoint()

    def _evaluation(self, number: int) -> Evaluation | None:
        """Evaluate and save the pictures; None if it failed, which is an event and not the end. Raises Interrupted."""
        bench = self.bench
        _seed_strangers(self.config.seed, "evaluation", number)
        try:
            with torch.no_grad():
                result = evaluate(
                    bench.policy, bench.held_out, bench.held_out_conditioning, bench.rewards, self.config, self.desk.check
                )
        except Interrupted:
            raise
        except Exception as error:
            self._trouble(number, "evaluation failed, training goes on", error)
            return None
        self.journal.event("evaluation", iteration=number, metrics=result.means)
        for name, text in result.troubles:
            self.warn(f"evaluation: reward {name}: {text}")
        try:
            files = save_evaluation(self.run, number, result)
            self.journal.event("grid", iteration=number, **files)
        except OSError as error:
            self.warn(f"the pictures of iteration {number} could not be saved: {one_line(error)}")
        shown = ", ".join(f"{name} {result.means[f'eval/{name}/mean']:.3f}" for name in self.config.rewards)
        self.progress.message(f"held-out prompts after iteration {number}: {shown}")
        return result

    def _checkpoint(self) -> bool:
        """Save everything and return whether it is safe; a full disk costs this checkpoint only, earlier ones stay."""
        p = self.position
        if self._saved == (p.iteration, p.best, p.evaluated_at):
            return True
        tensors, learner = learner_tensors(self.bench.learner)
        position = {
            "learner": learner,
            "iteration": p.iteration,
            "wall_s": self._wall(),
            "best": p.best,
            "evaluated": p.evaluated,
            "evaluated_at": p.evaluated_at,
            "config": self.config.digest(),
        }
        try:
            path = save_checkpoint(self.run, p.iteration, tensors, position)
        except OSError as error:
            self._trouble(p.iteration, "checkpoint not saved, earlier ones stay", error)
            return False
        self._saved = (p.iteration, p.best, p.evaluated_at)
        best = bool(p.best) and p.best[0] == p.iteration
        self.journal.event("checkpoint", iteration=p.iteration, path=path.relative_to(self.run.path).as_posix(), best=best)
        try:
            prune(self.run, self.config.checkpoint.keep, {p.best[0]} if p.best else set())
        except OSError as error:  # somebody holds it open; the next checkpoint tries again
            self.warn(f"an old checkpoint could not be deleted: {one_line(error)}")
        return True

    def _wall(self) -> float:
        return self.position.wall_s + time.perf_counter() - self.started

    def warn(self, text: str) -> None:
        if self.journal.warning(self.position.iteration, text):
            self.progress.message(f"warning: {text}")

    def _trouble(self, iteration: int, what: str, error: Exception) -> None:
        """An error that the run outlives."""
        log.error("%s", "".join(traceback.format_exception(error)))
        message = f"{what}: {one_line(error)}"
        self.journal.event("error", iteration=iteration, message=message, kind=type(error).__name__)
        self.progress.message(message)


class _Stop(Exception):
    """A stop was asked for."""


def _seed_strangers(*parts: int | str) -> None:
    """Seed the global generators. Nothing here draws from them, but a reward may; it then gives the same in a repeated run."""
    seed = derive_seed(*parts)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _listed(skipped: list[tuple[Path, str]]) -> str:
    return "; ".join(f"{path.name}: {reason}" for path, reason in skipped)
