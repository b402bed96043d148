"""The training loop, from top to bottom, of pretraining and fine-tuning alike."""

import contextlib
import dataclasses
import logging
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn, TypedDict

import jax

from contexture.data.batches import iterate
from contexture.data.storage import is_bucket
from contexture.data.tasks.batches import TaskBatches
from contexture.models.heads.layer_mix import describe_mixes
from contexture.models.layers.stacked import unstack_layers
from contexture.train import cpu_memory, run_file
from contexture.train import mesh as meshes
from contexture.train.checkpoints.manager import Checkpoints
from contexture.train.checkpoints.transfer import begin_from
from contexture.train.compilation.ahead import CompilesAhead
from contexture.train.compilation.programs import shapes_of
from contexture.train.config import Run
from contexture.train.distributed import processes
from contexture.train.distributed.agreement import agree_on_folder, agree_on_run
from contexture.train.errors import CheckpointError, ConfigError, Diverged
from contexture.train.evaluation.best import Best, value_to_minimise
from contexture.train.evaluation.evaluate import evaluate, measured
from contexture.train.features.extraction import store_features
from contexture.train.loggers.trackers import Trackers, check_trackers
from contexture.train.metrics import saved_rank
from contexture.train.objectives import batch_fields
from contexture.train.optim.lora import check_adapters, merged
from contexture.train.run import data
from contexture.train.run import folder as directories
from contexture.train.run.console import logged_to
from contexture.train.run.folder import steps
from contexture.train.run.limits import check_limits
from contexture.train.run.plots import LiveLossFigure
from contexture.train.run.report import Report
from contexture.train.run.signals import Interrupted, Signals
from contexture.train.run.throughput import ThroughputMeter, activation_floats
from contexture.train.setup import TrainingSetup, check_frozen, prepare
from contexture.train.step import EvaluationStep, State, TrainStep, create, evaluation_step, train_step
from contexture.train.summary import log_end, log_start

logger = logging.getLogger(__name__)


class Evaluated(TypedDict, total=False):
    """What a checkpoint keeps of the evaluation after its step; `unevaluated` if that was put off by a signal."""

    held_out_loss: float
    rank: float
    metric: str
    unevaluated: bool


def train(run: Run, recipe: Run, signals: Signals, features: Path | None = None) -> Path:
    """Trains `run` in its folder, from its newest good checkpoint if there is one, and returns the folder.

    recipe: the run before the user's options. features: the folder for what the frozen backbones of a grid compute
    (None: one in the run's own). Raises ConfigError, DataError, CheckpointError; MemoryError or OSError if the system's
    limits are too low; Diverged after optim.max_skipped steps in a row without finite numbers; Interrupted on SIGTERM
    and Ctrl-C, with everything saved.
    """
    if not run.dir:
        raise ConfigError("dir is empty; say where the run shall live: --dir RUN")
    if is_bucket(run.dir):
        raise ConfigError(f"dir={run.dir}: buckets are not supported yet; give a folder on a disk of this machine")
    folder = Path(run.dir)
    run = run_file.with_settings_of_the_start(run_file.with_absolute_paths(run), recipe, folder)
    signals.check()
    check_limits()
    # Before jax starts its threads.
    cpu_memory.tune_cpu_allocator(activation_floats(run))
    with processes.joined(run.mesh, lambda: steps(folder / "checkpoints")):
        try:
            _train(run, recipe, folder, signals, features)
        except OSError as error:
            raise CheckpointError(
                f"{error.filename or folder}: {error.strerror or error}; what was saved before is whole"
            ) from error
    return folder


def _train(run: Run, recipe: Run, folder: Path, signals: Signals, features: Path | None) -> None:
    start_time = time.monotonic()
    mesh = meshes.build(run.mesh)
    agree_on_run(run)
    meshes.check_batch(
        mesh, run.data.batch_size_at(0), run.optim.accumulate, "data.ramp-from" if run.data.ramp_from else "data.batch"
    )

    with ExitStack() as stack:
        stack.enter_context(meshes.use(mesh, run.model.dtype))
        # Refused before the folder is made.
        meshes.describe_attention(run.model, run.data.packed)
        meshes.check_compiler_options(run.mesh, mesh)
        check_adapters(run)
        check_frozen(run)
        first = jax.process_index() == 0
        # Process 0 owns the folder. Text that does not exist, or is no UTF-8, is refused before the folder is made.
        if first:
            check_trackers(run.log.to)
            run = run_file.with_pinned_addresses(run, folder)
            data.check_text(run, folder)
            stack.enter_context(directories.lock_run_dir(folder))
        agree_on_folder(folder)
        trackers = Trackers(run, folder, signals.check) if first and run.log.to else None
        report = Report(
            folder,
            steps=run.steps,
            speaks=first,
            tensorboard=run.log.tensorboard,
            trackers=trackers,
            metric=run.evaluate.metric,
        )
        stack.enter_context(logged_to(report.console, dated=True, file=folder / directories.LOG if first else None))
        stack.callback(report.close)
        # Data and model.
        parts, fingerprint = prepare(run, folder, mesh, signals)
        given, run = run, parts.run
        report.steps = run.steps
        make, shapes, shardings = create(parts.model, run, mesh)
        if run.evaluate.metric != "loss":
            # A metric that is not measured is refused now, not at the first evaluation.
            names = measured(parts.model, parts.objective, run, shapes.params, parts.store)
            value_to_minimise(run.evaluate.metric, dict.fromkeys(names, 0.0))
        log_start(parts, given, recipe, report, shapes)

        # The state: of the newest good checkpoint, else initialised, by another run's parameters if the user says so.
        checkpoints = Checkpoints(folder, mesh, run.save, fingerprint, run.evaluate.metric)
        stack.callback(checkpoints.abandon)
        expected = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
        # Earlier versions kept moments for a frozen backbone, too.
        restored = checkpoints.restore_latest(expected, part=run.optim.freezes_backbone)
        signals.check()
        state = restored[0] if restored else make()
        if not restored and run.init.run:
            state = begin_from(run, parts.labels, parts.tokenizer.size, state, mesh, report.table)
            signals.check()
        start = int(state.step)
        logger.info(f"resuming from step {start}" if restored else "starting at step 0")
        # The progress beside the state: metrics.jsonl up to this step, and the best evaluation.
        unevaluated = restored is not None and restored[1].get("unevaluated", False)
        report.start(start, run.save.every, evaluated=not unevaluated)
        signals.check()
        if run.mesh.distributed:
            signals.share()
        best = Best.stored(restored[1].get("best", {}) if restored else {})
        if best.metric != run.evaluate.metric:
            best = Best(run.evaluate.metric)
        best.rank = saved_rank(best.metric, best.rank)
        title = f"{folder.name}: {run.family}, {run.task.kind if run.task.kind != 'off' else 'pretraining'}"
        figure = LiveLossFigure(folder, parts.baseline.get("unigram_loss"), title)
        stack.callback(figure.close)
        step_function = train_step(parts.model, parts.objective, run, shardings)
        evaluation = evaluation_step(parts.model, parts.objective, mesh, run)
        if start < run.steps:
            store_features(parts, state.params, step_function.encoder, folder, features, signals)
        ahead = _compiles_ahead(parts, step_function, expected)
        stack.callback(ahead.stop) if ahead is not None else None
        functions = step_function, evaluation, ahead
        done = _run_steps(parts, state, start, unevaluated, best, functions, checkpoints, report, figure, signals)
        report.complete()
        if first:
            figure.draw()
            log_end(parts, folder, start, done, start_time, best)


def _run_steps(
    parts: TrainingSetup,
    state: State,
    start: int,
    unevaluated: bool,
    best: Best,
    functions: tuple[TrainStep, EvaluationStep, CompilesAhead | None],
    checkpoints: Checkpoints,
    report: Report,
    figure: LiveLossFigure,
    signals: Signals,
) -> int:
    """Trains from step `start` to the last one, or until patience ends, and returns that step.

    unevaluated: the run was stopped in the evaluation that belongs to step `start`, which is done first.
    """
    run, mesh, held_out = parts.run, parts.mesh, parts.held_out
    step_function, evaluation, ahead = functions
    batch_size_at, examples_before = run.data.batch_size_at, run.data.examples_before
    fields = _fields(run, step_function)
    kind, batches = mesh.devices.flat[0].device_kind, parts.batches
    length_at = batches.length_at if isinstance(batches, TaskBatches) else lambda step: run.data.length
    meter = ThroughputMeter(run, mesh.devices.size, kind, start, length_at)
    pending: list[tuple[int, dict[str, jax.Array]]] = []  # metrics of steps, still on the device

    def _log(ready: list[tuple[int, dict[str, jax.Array]]]) -> None:
        """Fetches the metrics of steps and records them. Raises Diverged."""
        records = meter.records([n for n, _ in ready], jax.device_get([metrics for _, metrics in ready]))
        del pending[: len(ready)]
        in_row = [record.pop("skipped_in_row") for record in records]
        report.record(records, checkpoints.finished)
        for record, skipped in zip(records, in_row, strict=True):
            if skipped >= run.optim.max_skipped:
                raise Diverged(_diverged(record["step"], run, checkpoints))

    def _measure(step: int) -> dict[str, float] | None:
        """Returns the held-out metrics after a step, recorded; None if a signal came before they were complete."""
        assert held_out is not None
        cancel = signals.while_training
        try:
            with report.evaluating(), meter.pausing("evaluation"):
                params = unstack_layers(merged(state.params, run.optim), run.model)
                metrics, _ = evaluate(evaluation, parts.objective, params, held_out, mesh, cancel=cancel)
        except Interrupted:
            return None
        report.record([{"step": step, "split": "dev", **metrics, **parts.baseline}], checkpoints.finished)
        return metrics

    def _evaluate(step: int) -> Evaluated | None:
        """Measures, updates the best so far, and returns what the checkpoint keeps of it; None as `_measure`."""
        if (metrics := _measure(step)) is None:
            return None
        rank = value_to_minimise(run.evaluate.metric, metrics)
        best.update(step, rank)
        return {"held_out_loss": metrics["loss"], "rank": rank, "metric": run.evaluate.metric}

    def _save(step: int, evaluated: Evaluated, last: bool) -> None:
        meta = {"seed": run.seed, "lines_read": examples_before(step), "best": dataclasses.asdict(best), **evaluated}
        held_out_loss = evaluated.get("held_out_loss")
        meta.pop("held_out_loss", None)
        # The checkpoint before is on disk now: its records may be written, and none is held for two intervals.
        with meter.pausing("save"):
            checkpoints.wait()
            report.release(checkpoints.finished)
            checkpoints.save(step, state, meta, held_out_loss, last)
            if report.speaks:
                figure.update()

    def _leave(state: str) -> NoReturn:
        stopped = Interrupted(signals.stop(), state)
        processes.finished(stopped.code)  # all processes leave here, so none is missed
        raise stopped

    def _patience_ended() -> bool:
        return 0 < run.evaluate.patience <= best.evals_without_improvement

    # An evaluation that a signal cut short is done first. A model that is trained further is measured before.
    if held_out and unevaluated:
        if (result := _evaluate(start)) is None:
            _leave(signals.state)
        checkpoints.add_evaluation(start, {"best": dataclasses.asdict(best), **result})
    if held_out and not start and run.task.kind == "off" and run.init.run and not run.init.random:
        if _measure(0) is None:
            _leave(signals.state)

    done, end = start, start if _patience_ended() else run.steps
    if ahead is not None:
        ahead.start(start, end)
    with iterate(parts.batches, start, end, lambda step: meshes.local_rows(mesh, batch_size_at(step))) as stream:
        for number, local in meter.timed(stream):
            # Update. The call returns at once: the device works while the host reads on. Only for a batch of a new
            # size or length is it compiled first.
            size = batch_size_at(number)
            batch = meshes.shard_batch(mesh, local, fields, size)
            batch = step_function.with_features(state, batch)
            shapes = shapes_of(batch)
            if ahead is not None:
                ahead.provide(shapes, step_function.compiled)
            with contextlib.nullcontext() if shapes in step_function.compiled else report.compiling():
                state, metrics = step_function(state, batch)
            done = number + 1
            pending.append((done, metrics))

            # What is due after this step.
            stop, last = signals.stop(), done == run.steps
            evaluates = held_out is not None and (last or done % run.evaluate.every == 0)
            saves = last or bool(stop) or done % run.save.every == 0 or (evaluates and run.evaluate.patience > 0)

            # Log, one step late unless the device is to be waited for anyway.
            if saves or evaluates:
                _log(pending[:])
            elif done % run.log.every == 0:
                _log(pending[:-1])

            # Evaluate. A signal before or in it leaves the evaluation to the next start.
            evaluated: Evaluated = {}
            if evaluates:
                if not stop and (result := _evaluate(done)) is not None:
                    evaluated = result
                else:
                    evaluated["unevaluated"], stop = True, signals.stop()
                last = last or _patience_ended()

            # Save, and leave where a signal or patience says so.
            if saves or stop:
                _save(done, evaluated, last)
            if stop:
                checkpoints.wait()
                report.release(done)
                _leave(f"saved step {done} in {run.dir}; the same command resumes from there")
            if last:
                break
    # The last checkpoint is on disk before the last records: a kill in between repeats steps and loses none.
    checkpoints.wait()
    report.release(run.steps)
    checkpoints.close()
    for note in (*parts.batches.notes(), *describe_mixes(state.params)):
        logger.info(note)
    if jax.process_count() > 1:
        count = examples_before(run.steps) - examples_before(start)
        who = f"process {jax.process_index()} of {jax.process_count()}"
        print(f"{who} read {parts.batches.rows_read} of {count} sequences", file=sys.stderr)
    return done


def _fields(run: Run, step_function: TrainStep) -> dict[str, str]:
    return batch_fields(run) | (step_function.encoder.fields if step_function.encoder is not None else {})


def _compiles_ahead(parts: TrainingSetup, step_function: TrainStep, state: State) -> CompilesAhead | None:
    """Returns what compiles the step for further lengths of batches; None if there are none. state: its shapes.

    Several processes would have to compile in the same order, and do so when a batch comes.
    """
    run, mesh, batches = parts.run, parts.mesh, parts.batches
    if not isinstance(batches, TaskBatches) or len(batches.lengths) == 1 or jax.process_count() > 1:
        return None
    fields, size_at = _fields(run, step_function), run.data.batch_size_at
    return CompilesAhead(
        lambda batch: step_function.lower(state, batch).compile(),
        batches,
        lambda step: step_function.with_features(
            state, meshes.shard_batch(mesh, batches.read(step), fields, size_at(step))
        ),
        lambda: meshes.use(mesh, run.model.dtype),
    )


def _diverged(step: int, run: Run, checkpoints: Checkpoints) -> str:
    checkpoints.wait()
    good = checkpoints.finished
    where = f"the last checkpoint is of step {good}" if good else "there is no checkpoint yet"
    return (
        f"loss or gradient were not finite in the {run.optim.max_skipped} steps up to step {step}, all skipped; "
        f"{where}; try a lower --optim.peak-lr or a longer --optim.warmup in another --dir"
    )
