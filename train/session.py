"""A training in progress: logging, evaluating, saving and stopping between its steps."""

import contextlib
import dataclasses
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypedDict

import jax

from contexture.data.phases import phase_number
from contexture.data.pretraining.mixture import MixedBatches
from contexture.data.pretraining.phased_batches import PhasedBatches
from contexture.data.tasks.batch.training_batches import TaskBatches
from contexture.models.layers.stacked import unstack_layers
from contexture.train.checkpoints.manager import Checkpoints
from contexture.train.distributed import processes
from contexture.train.errors import Diverged
from contexture.train.evaluation.best import value_to_minimise
from contexture.train.evaluation.evaluate import evaluate
from contexture.train.metric_directions import Best
from contexture.train.optim.lora import merged
from contexture.train.run.plots import LiveLossFigure
from contexture.train.run.profile import Profile
from contexture.train.run.report import Report
from contexture.train.run.signals import Interrupted, Signals
from contexture.train.run.throughput import ThroughputMeter
from contexture.train.run.watchdog import Watchdog, stalled_file
from contexture.train.setup import TrainingSetup
from contexture.train.step import Metrics, State, evaluation_step

logger = logging.getLogger(__name__)


class Evaluated(TypedDict, total=False):
    """The evaluation of a step as its checkpoint keeps it; `unevaluated` if a signal put it off to the next start."""

    held_out_loss: float
    rank: float
    metric: str
    unevaluated: bool


@dataclass
class Session:
    """The state of one training, and the work between its steps: log, measure, evaluate, save, leave.

    Attributes:
        start: the step that it begins with
        unevaluated: whether the run was stopped before or in the evaluation of that step
        done: the steps that are complete
        logged: the newest step whose figures are recorded
    """

    parts: TrainingSetup
    state: State
    best: Best
    unevaluated: bool
    checkpoints: Checkpoints
    report: Report
    figure: LiveLossFigure
    signals: Signals
    pending: list[tuple[int, Metrics]] = field(default_factory=list)
    """(step, metrics) not fetched yet: the metrics are still on the device."""

    def __post_init__(self) -> None:
        run, mesh, batches = self.parts.run, self.parts.mesh, self.parts.batches
        self.start = self.done = self.logged = int(self.state.step)
        self.evaluation = evaluation_step(self.parts.model, self.parts.objective, mesh)
        # A task's batches know their size beforehand; those of a pretraining are counted as they come.
        size_at = batches.size_at if isinstance(batches, TaskBatches) else None
        number = jax.process_index()
        self.watchdog = Watchdog(run.mesh.stall_minutes, Path(run.dir) / stalled_file(number), self._saved())
        # One process of a job is enough: all compute the same program.
        self.profile = Profile("" if number else run.log.profile, Path(run.dir))
        self.meter = ThroughputMeter(run, mesh.devices.size, mesh.devices.flat[0].device_kind, self.start, size_at)

    @property
    def end(self) -> int:
        """The step to end with; the first one if patience has already ended."""
        return self.start if self._patience_ended() else self.parts.run.steps

    def begin(self) -> None:
        """Before the first step: repeats an evaluation that a signal cut short, or measures a model that is trained
        further."""
        run = self.parts.run
        self.profile.check(self.start, self.end)
        if self.parts.held_out is None:
            return
        if self.unevaluated:
            # Stopped again: the checkpoint still says `unevaluated`, so there is nothing to save.
            if (result := self._evaluate()) is None:
                self._leave(self.signals.state)
            # Into a file of its own: the checkpoint is never written a second time, so a kill cannot lose it.
            self.checkpoints.add_evaluation(self.start, {"best": dataclasses.asdict(self.best), **result})
        # How good the other run's parameters are on this text before any update; step 0 has no checkpoint of its own.
        if not self.start and run.task.kind == "off" and run.init.run and not run.init.random:
            if self._measure() is None:
                self._leave(self.signals.state)

    def announce(self, number: int) -> None:
        """Logs the first step of a phase."""
        phases = self.parts.run.data.stretches
        # Also the first step of a start, within a phase.
        if len(phases) > 1 and (number == self.start or number in [phase.first for phase in phases]):
            at = phase_number(phases, number)
            logger.info(
                f"phase {at + 1} of {len(phases)}, from step {phases[at].first:,} on: {phases[at].length} tokens, "
                f"{phases[at].batch:,} sequences a step"
            )

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Within this block the training step is compiled."""
        with self.report.compiling(), self.report.goodput.part("compiling"):
            yield
        self.meter.compiled()
        # A process that is killed before its first figures has compiled all the same.
        self._record_goodput()

    def after_step(self, metrics: Metrics) -> bool:
        """Logs, evaluates and saves as the step requires, and returns whether training is over.

        Raises:
            Diverged: when too many steps in a row had no finite numbers.
            Interrupted: for a signal, with everything saved.
        """
        run = self.parts.run
        self.watchdog.moved()
        self.done += 1
        self.pending.append((self.done, metrics))
        # `stop` is the same in all processes of a job, so all of them take the same branches below.
        stop, last = self.signals.stop(), self.done == run.steps
        evaluates = self.parts.held_out is not None and (last or self.done % run.evaluate.every == 0)
        # With patience every evaluation is followed by a save: the best step must have a checkpoint to go back to.
        saves = last or bool(stop) or self.done % run.save.every == 0 or (evaluates and run.evaluate.patience > 0)
        # One step late, so that the device does not wait for the host, unless it is to be waited for anyway.
        if saves or evaluates:
            self._log(self.pending[:])
        elif self.done % run.log.every == 0:
            self._log(self.pending[:-1])
        # A signal before or in an evaluation leaves it to the next start.
        evaluated: Evaluated = {}
        if evaluates:
            # A second look at the signal: it may have come during the evaluation, which is then void.
            if not stop and (result := self._evaluate()) is not None:
                evaluated = result
            else:
                evaluated["unevaluated"], stop = True, self.signals.stop()
            # Patience may end with this evaluation: the step is then the last one, and read back whole.
            last = last or self._patience_ended()
        if saves or stop:
            self._save(evaluated, last)
        if stop:
            # The write goes on in the background; only when it is on disk may the message below promise the step.
            with self.report.goodput.part("saving"):
                self.checkpoints.wait()
            self.report.release(self.done)
            self._leave(f"saved step {self.done} in {run.dir}; the same command resumes from there")
        return last

    def close(self) -> None:
        """Waits until all is on disk."""
        # The last checkpoint before the last records: a kill in between repeats steps and loses none.
        with self.report.goodput.part("saving"):
            self.checkpoints.wait()
            self.report.release(self.parts.run.steps)
            self.checkpoints.close()
        # Shows that each process reads its own share of the data and no more.
        if jax.process_count() > 1:
            examples_before = self.parts.run.data.examples_before
            count = examples_before(self.parts.run.steps) - examples_before(self.start)
            who = f"process {jax.process_index()} of {jax.process_count()}"
            print(f"{who} read {self.parts.batches.rows_read} of {count} sequences", file=sys.stderr)

    def _log(self, ready: list[tuple[int, Metrics]]) -> None:
        """Fetches the metrics of steps and records them. Raises Diverged."""
        records = self.meter.records([step for step, _ in ready], jax.device_get([metrics for _, metrics in ready]))
        # Sources of a mixture are read at paces of their own.
        if isinstance(self.parts.batches, MixedBatches | PhasedBatches):
            records = [{**record, **self.parts.batches.passes(record["step"])} for record in records]
        data = self.parts.run.data
        if data.phases:
            records = [{**record, "length": data.at(record["step"] - 1).length} for record in records]
        del self.pending[: len(ready)]
        # It decides on divergence only; metrics.jsonl keeps `skipped`, the sum.
        in_row = [record.pop("skipped_in_row") for record in records]
        # The totals of the clock follow the steps that they include.
        self.logged = records[-1]["step"] if records else self.logged
        totals = [self.report.goodput.record(self.logged)] if records else []
        self.report.record([*records, *totals], self.checkpoints.finished)
        for record, skipped in zip(records, in_row, strict=True):
            if skipped >= self.parts.run.optim.max_skipped:
                raise Diverged(self._diverged(record["step"]))

    def _diverged(self, step: int) -> str:
        self.checkpoints.wait()
        return (
            f"loss or gradient were not finite in the {self.parts.run.optim.max_skipped} steps up to step {step}, all "
            f"skipped; {self._saved()}; try a lower --optim.peak-lr or a longer --optim.warmup in another --dir"
        )

    def _saved(self) -> str:
        good = self.checkpoints.finished
        return f"the last checkpoint is of step {good}" if good else "there is no checkpoint yet"

    def _measure(self) -> dict[str, float] | None:
        """Measures and records the held-out metrics, and returns them; None if a signal came before the end."""
        parts = self.parts
        assert parts.held_out is not None
        try:
            # Once for all batches: adapters are merged and, on one CPU, each layer gets arrays of its own, which its
            # program would otherwise copy out of the stack for every batch.
            pausing = self.meter.pausing("evaluation")
            with self.report.evaluating(), pausing, self.report.goodput.part("evaluating"):
                params = unstack_layers(merged(self.state.params, parts.run.optim), parts.run.model)
                metrics, _ = evaluate(
                    self.evaluation,
                    parts.objective,
                    params,
                    parts.held_out,
                    parts.mesh,
                    cancel=self.watchdog.moves(self.signals.while_training),
                )
        except Interrupted:
            return None
        record = {"step": self.done, "split": "dev", **metrics, **parts.baseline}
        self.report.record([record, self.report.goodput.record(self.logged)], self.checkpoints.finished)
        return metrics

    def _evaluate(self) -> Evaluated | None:
        """Measures, updates the best so far, and returns the checkpoint's note of it; None as `_measure`."""
        if (metrics := self._measure()) is None:
            return None
        # The lower the rank the better: accuracies and the like count negative.
        metric = self.parts.run.evaluate.metric
        rank = value_to_minimise(metric, metrics)
        self.best.update(self.done, rank)
        return {"held_out_loss": metrics["loss"], "rank": rank, "metric": metric}

    def _save(self, evaluated: Evaluated, last: bool) -> None:
        run = self.parts.run
        # held_out_loss has an argument of its own in `save`; all other fields go into the meta as they are.
        kept = {name: value for name, value in evaluated.items() if name != "held_out_loss"}
        best, lines = dataclasses.asdict(self.best), run.data.examples_before(self.done)
        # After `wait` the previous checkpoint is on disk: its records are written, and none is held for two intervals.
        with self.meter.pausing("save"), self.report.goodput.part("saving"):
            self.checkpoints.wait()
            self.watchdog.moved()
            self.watchdog.state = self._saved()
            self.report.release(self.checkpoints.finished)
            meta = {"seed": run.seed, "lines_read": lines, "best": best, **kept}
            self.checkpoints.save(self.done, self.state, meta, evaluated.get("held_out_loss"), last)
            if self.report.speaks:
                self.figure.update()

    def _record_goodput(self) -> None:
        self.report.record([self.report.goodput.record(self.logged)], self.checkpoints.finished)

    def _leave(self, state: str) -> NoReturn:
        self._record_goodput()
        stopped = Interrupted(self.signals.stop(), state)
        processes.finished(stopped.code)  # all processes leave here, so none is missed
        raise stopped

    def _patience_ended(self) -> bool:
        # patience = 0 is off.
        return 0 < self.parts.run.evaluate.patience <= self.best.evals_without_improvement
