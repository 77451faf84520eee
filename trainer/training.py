"""A whole run: iterations, evaluations, checkpoints, requests, and an end that leaves nothing half done."""

from __future__ import annotations

import logging
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from . import runs
from .config import RunConfig, load_config
from .ending import finish
from .errors import UserError, one_line
from .evaluation import Evaluation, evaluate
from .journal import Journal
from .loop import IterationResult, run_iteration
from .requests import Interrupted, RequestDesk
from .rewards.scoring import FailureCount
from .runs import RunDir, RunState
from .runs.checkpoints import clean_aside, list_checkpoints, load_latest, prune, save_checkpoint
from .samples import load_evaluation, save_evaluation
from .setup import Bench, build_bench
from .snapshot import learner_tensors, restore_learner

log = logging.getLogger("vgrpo")


class Progress(Protocol):
    """What a front end shows while a run goes on."""

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
    """Make the run directory with its configuration; nothing is loaded yet. Raises UserError."""
    run = runs.create_run(root, run_id or runs.new_run_id(config.name))
    runs.write_atomic(run.config_file, config.to_yaml().encode())
    runs.write_state(
        run,
        RunState(
            status=runs.STARTING, iterations=config.iterations, name=config.name, started=time.time(), **runs.own_process()
        ),
    )
    return run


def train(
    run: RunDir, device: torch.device, progress: Progress, cache: Path | None = None, bench: Bench | None = None
) -> dict[str, Any]:
    """Run or resume what `run`'s config.yaml says, to its end or until it is asked to stop; returns the summary.

    Raises UserError for what a user can mend, anything else as it comes; the state then says `failed` and why. `bench` takes
    parts that are built already for this configuration.
    """
    trainer = _Trainer(run, device, progress)
    try:
        return trainer.work(cache, bench)
    except BaseException as error:
        trainer.fail(error)
        raise
    finally:
        trainer.close()


class _Trainer:
    def __init__(self, run: RunDir, device: torch.device, progress: Progress):
        self.run, self.device, self.progress = run, device, progress
        self.config = load_config(run.config_file)
        self.journal = Journal(run, self.config, device)
        self.desk = RequestDesk(run, on_beat=self.journal.beat)
        self.position = Position()
        self.failures = FailureCount(self.config.rewards)
        self.started = time.perf_counter()
        self.before: Evaluation | None = None
        self._saved: tuple | None = None  # what the newest checkpoint of this process held
        self.bench: Bench

    def work(self, cache: Path | None, bench: Bench | None) -> dict[str, Any]:
        with self.desk.signals():
            runs.take_requests(self.run)  # what the process before this one was asked
            clean_aside(self.run)
            self.bench = bench or build_bench(self.config, self.device, cache)
            for note in (*self.config.warnings(), *self.bench.notes):
                self.warn(note)
            self._restore()
            self.journal.status(runs.RUNNING, self.position.iteration, "")
            try:
                self._prepare_before()
                while self.position.iteration < self.config.iterations:
                    self._obey()
                    self._iterate()
            except _Stop:
                return self._stop()
            return self._finish()

    # Beginning and end

    def _restore(self) -> None:
        complete, skipped = list_checkpoints(self.run)
        if not complete:
            if skipped:
                self.warn(f"no complete checkpoint, so the run starts at iteration 0; passed over: {_listed(skipped)}")
            return
        info, tensors, position, skipped = load_latest(self.run)
        for warning in restore_learner(self.bench.learner, tensors, position["learner"]):
            self.warn(warning)
        if skipped:
            self.warn(f"resuming from iteration {info.iteration}; passed over: {_listed(skipped)}")
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
            self.warn("the pictures of iteration 0 are gone, so the end of this run shows no before/after grid")
            return
        while self.before is None:
            try:
                with torch.no_grad():
                    self.before = self._evaluated(0)
            except Interrupted:
                self._obey()

    def _finish(self) -> dict[str, Any]:
        while self.position.evaluated_at != self.position.iteration:
            try:
                self._evaluate()
            except Interrupted:
                try:
                    self._obey()
                except _Stop:
                    return self._stop()
        self._checkpoint()
        summary = finish(self.run, self.bench, self.before, self.position, self._wall())
        self.journal.event("finished", iteration=self.position.iteration, lora=summary["lora_path"], summary=summary)
        self.journal.status(runs.FINISHED, self.position.iteration, "", lora=summary["lora_path"])
        return summary

    def _stop(self) -> dict[str, Any]:
        self.journal.status(runs.STOPPING, self.position.iteration, "saving")
        if self.position.iteration:
            self._checkpoint()
        self.journal.status(runs.STOPPED, self.position.iteration, "stopped on request; resume continues it")
        return {"stopped": True, "iteration": self.position.iteration, "iterations": self.config.iterations}

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
                    self._evaluate_now()
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
        if self.bench.learner.average is not None:
            self.bench.learner.average = self.bench.learner.average.to(device=device)
        for reward in self.bench.rewards.values():
            reward.load(device, None)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _evaluate_now(self) -> None:
        try:
            self._evaluate()
        except Interrupted:
            return  # a stop or pause came meanwhile and is taken up by the caller's next look

    # One iteration

    def _iterate(self) -> None:
        learner, number = self.bench.learner, self.position.iteration + 1
        mark = learner.adapter.snapshot().checksum() if number == 1 else None
        try:
            result = run_iteration(
                learner,
                self.config,
                number - 1,
                self.bench.train,
                self.bench.train_conditioning,
                self.bench.rewards,
                self.desk.check,
            )
        except Interrupted:
            return  # nothing was changed yet: the iteration is done anew, with the same seeds, when the run goes on
        if mark is not None and result.metrics["steps/taken"] and learner.adapter.snapshot().checksum() == mark:
            raise UserError("the first gradient step did not change the LoRA; policy.lora.targets or optimizer.lr can't act")
        self.position.iteration = number
        self._report(number, result)
        self.failures.update(result.scores)
        if self._due(self.config.evaluation.every):
            self._evaluate_now()
        if self._due(self.config.checkpoint.every):
            self._checkpoint()

    def _due(self, every: int) -> bool:
        return bool(every) and self.position.iteration % every == 0

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
        """Held-out pictures under what would be exported now (EMA if there is one); a failure is an event, not the end."""
        learner, number = self.bench.learner, self.position.iteration
        factors = learner.average or learner.adapter.snapshot()
        try:
            with learner.adapter.using(factors):
                result = self._evaluated(number)
        except (RuntimeError, OSError) as error:
            if isinstance(error, Interrupted):
                raise
            log.error("%s", "".join(traceback.format_exception(error)))
            self.journal.event(
                "error",
                iteration=number,
                message=f"evaluation failed, training goes on: {one_line(error)}",
                kind=type(error).__name__,
            )
            self.position.evaluated_at = number
            return
        self.position.evaluated, self.position.evaluated_at = result.means, number
        total = result.means["eval/total/mean"]
        if number and (self.position.best is None or total > self.position.best[1]):
            self.position.best = (number, total)
            self._checkpoint()

    def _evaluated(self, number: int) -> Evaluation:
        bench = self.bench
        result = evaluate(
            bench.policy, bench.held_out, bench.held_out_conditioning, bench.rewards, self.config, self.desk.check
        )
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

    def _checkpoint(self) -> None:
        """Save everything; a full disk costs this checkpoint only, earlier ones stay."""
        p = self.position
        if self._saved == (p.iteration, p.best, p.evaluated_at):
            return
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
            prune(self.run, self.config.checkpoint.keep, {p.best[0]} if p.best else set())
        except OSError as error:
            self.journal.event(
                "error",
                iteration=p.iteration,
                message=f"checkpoint not saved: {one_line(error)}; free disk space",
                kind="OSError",
            )
            self.progress.message(f"checkpoint not saved: {one_line(error)}")
            return
        self._saved = (p.iteration, p.best, p.evaluated_at)
        best = bool(p.best) and p.best[0] == p.iteration
        self.journal.event("checkpoint", iteration=p.iteration, path=path.relative_to(self.run.path).as_posix(), best=best)

    def _wall(self) -> float:
        return self.position.wall_s + time.perf_counter() - self.started

    def warn(self, text: str) -> None:
        self.journal.warning(self.position.iteration, text)
        self.progress.message(f"warning: {text}")


class _Stop(Exception):
    """A stop was asked for."""


def _listed(skipped: list[tuple[Path, str]]) -> str:
    return "; ".join(f"{path.name}: {reason}" for path, reason in skipped)
