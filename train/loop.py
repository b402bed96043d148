"""The training loop, from top to bottom, of pretraining and fine-tuning alike."""

import dataclasses
import logging
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypedDict

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from contexture.data.batches import Batches, HeldOut, check_fields, iterate, open_batches, open_held_out
from contexture.data.describe import describe as describe_row
from contexture.data.pretraining.shards import Shards
from contexture.data.storage import is_bucket
from contexture.data.tasks.example_store import ExampleStore
from contexture.data.tokenizers.base import Tokenizer
from contexture.models.heads.layer_mix import describe_mixes
from contexture.models.model import Model
from contexture.models.shapes import by_path, dims_of
from contexture.train import cpu_memory, run_file
from contexture.train import mesh as meshes
from contexture.train.checkpoints.manager import Checkpoints
from contexture.train.checkpoints.transfer import begin_from, model_of
from contexture.train.config import Run
from contexture.train.distributed import processes
from contexture.train.distributed.agreement import agree_on_content, agree_on_folder, agree_on_run
from contexture.train.errors import CheckpointError, ConfigError, Diverged
from contexture.train.evaluation.best import Best, value_to_minimise
from contexture.train.evaluation.evaluate import baseline, evaluate, measured, report_truncated
from contexture.train.metrics import saved_rank
from contexture.train.objectives import Objective, batch_fields, batch_sizes, objective_of
from contexture.train.optim.lora import check_adapters, describe_parameters, merged
from contexture.train.run import data
from contexture.train.run import folder as directories
from contexture.train.run.console import logged_to
from contexture.train.run.folder import steps
from contexture.train.run.limits import check_limits
from contexture.train.run.plots import draw_loss
from contexture.train.run.report import Report, read_metrics
from contexture.train.run.signals import Interrupted, Signals
from contexture.train.run.throughput import ThroughputMeter, activation_floats, unknown_peak
from contexture.train.run_file import difference
from contexture.train.step import State, create, evaluation_step, train_step

logger = logging.getLogger(__name__)


class Evaluated(TypedDict, total=False):
    """What a checkpoint keeps of the evaluation after its step; `unevaluated` if that was put off by a signal."""

    held_out_loss: float
    rank: float
    metric: str
    unevaluated: bool


@dataclass(frozen=True)
class TrainingSetup:
    """All that a run trains with, once its folder, devices and data are known."""

    run: Run
    mesh: Mesh
    model: Model
    objective: Objective
    tokenizer: Tokenizer
    store: Shards | ExampleStore
    batches: Batches
    held_out: HeldOut | None
    baseline: dict[str, float]
    """The held-out metrics of a guess."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the task, or ()."""
        return self.store.labels


def train(run: Run, recipe: Run, signals: Signals) -> Path:
    """Trains `run` in its folder, from its newest good checkpoint if there is one, and returns the folder.

    recipe: the run before the user's options. Raises ConfigError, DataError, CheckpointError; MemoryError or OSError if
    the system's limits are too low; Diverged after optim.max_skipped steps in a row without finite numbers; Interrupted
    on SIGTERM and Ctrl-C, with everything saved.
    """
    if not run.dir:
        raise ConfigError("dir is empty; say where the run shall live: --dir RUN")
    if is_bucket(run.dir):
        raise ConfigError(f"dir={run.dir}: buckets are not supported yet; give a folder on a disk of this machine")
    folder = Path(run.dir)
    run = run_file.with_absolute_paths(run)
    signals.check()
    check_limits()
    # Before jax starts its threads.
    cpu_memory.tune_cpu_allocator(activation_floats(run))
    with processes.joined(run.mesh, lambda: steps(folder / "checkpoints")):
        try:
            _train(run, recipe, folder, signals)
        except OSError as error:
            raise CheckpointError(
                f"{error.filename or folder}: {error.strerror or error}; what was saved before is whole"
            ) from error
    return folder


def _train(run: Run, recipe: Run, folder: Path, signals: Signals) -> None:
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
        first = jax.process_index() == 0
        # Process 0 owns the folder. Text that does not exist is refused before the folder is made.
        if first:
            data.check_text(run, folder)
            stack.enter_context(directories.lock_run_dir(folder))
        agree_on_folder(folder)
        report = Report(folder, steps=run.steps, speaks=first, tensorboard=run.log.tensorboard)
        stack.enter_context(logged_to(report.console))
        stack.callback(report.close)
        # Data and model.
        parts, fingerprint = _prepare(run, folder, mesh, report, signals)
        given, run = run, parts.run
        report.steps = run.steps
        make, shapes, shardings = create(parts.model, run, mesh)
        if run.evaluate.metric != "loss":
            # A metric that is not measured is refused now, not at the first evaluation.
            names = measured(parts.model, parts.objective, run, shapes.params, parts.store)
            value_to_minimise(run.evaluate.metric, dict.fromkeys(names, 0.0))
        _log_summary(parts, given, recipe, report, shapes)
        parts.batches.rows_read = 0  # the summary has read one

        # The state: of the newest good checkpoint, else initialised, by another run's parameters if the user says so.
        checkpoints = Checkpoints(folder, mesh, run.save, fingerprint, run.evaluate.metric)
        stack.callback(checkpoints.abandon)
        expected = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
        restored = checkpoints.restore_latest(expected)
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
        done = _run_steps(parts, state, start, unevaluated, best, shardings, checkpoints, report, signals)
        if first:
            records = read_metrics(folder / "metrics.jsonl")
            draw_loss(records, folder / "loss.png", parts.baseline.get("unigram_loss"))
        early = f", stopped early: no better {run.evaluate.metric} since step {best.step}" if done < run.steps else ""
        logger.info(f"done: {done} steps in {folder}{early}")


def _prepare(run: Run, folder: Path, mesh: Mesh, report: Report, signals: Signals) -> tuple[TrainingSetup, str]:
    """Returns (folder, tokenizer, data and model; the run's fingerprint).

    Process 0 makes what does not exist yet. The others wait for it, and fail with it.
    """
    if jax.process_index() == 0:
        old = directories.open_or_create(run, folder)
        tokenizer, store = data.open_data(run, folder, signals)
        store.verify(signals)
        examples = open_batches(store, tokenizer, run.data, run.task, run.family, run.seed, signals).examples_per_epoch
        directories.check_not_shortened(run, folder, old, examples)
        directories.write_run_json(folder, run, tokenizer, store, old)
        processes.publish("prepared", "")
    else:
        processes.wait_for("prepared")
        tokenizer, store = data.open_data(run, folder, signals)
        if not Path(os.path.realpath(store.folder)).is_relative_to(os.path.realpath(folder)):
            store.verify(signals)  # data outside the run's folder may be a copy of this machine's own
    agree_on_content(folder, run, tokenizer, store)
    lanes = run.evaluate.batch or run.data.batch
    fingerprint = run_file.fingerprint(run, tokenizer.fingerprint, store.fingerprint)
    batches = open_batches(store, tokenizer, run.data, run.task, run.family, run.seed, signals)
    batch = meshes.round_up_to_devices(mesh, lanes)
    held_out = open_held_out(store, tokenizer, run.data, run.task, run.family, batch, lanes, signals)
    if held_out is None and (run.evaluate.patience or run.evaluate.metric != "loss"):
        name = "patience" if run.evaluate.patience else "metric"
        raise ConfigError(f"evaluate.{name} wants held-out examples; give --task.dev or --data.dev, or a fraction")
    guess = baseline(held_out, store, signals) if held_out else {}
    # The run as it is trained: epochs become steps, and what was left to the data is filled in.
    run = run_file.resolve_schedule(run, batches.examples_per_epoch)
    run = run_file.with_data_facts(run, words=tokenizer.size, pair=isinstance(store, ExampleStore) and store.pair)
    run = dataclasses.replace(run, data=dataclasses.replace(run.data, length=batches.length))
    model = model_of(run, store.labels)
    parts = TrainingSetup(run, mesh, model, objective_of(run), tokenizer, store, batches, held_out, guess)
    return parts, fingerprint


def _log_summary(parts: TrainingSetup, given: Run, recipe: Run, report: Report, shapes: State) -> None:
    """Logs what a user may want to check before a long training: options, parameters, data, the first sequence."""
    run = parts.run
    changed = [f"--{name.replace('_', '-')} {new}" for name, (new, _) in difference(given, recipe).items()]
    logger.info("differs from its recipe: " + (" ".join(changed) or "nothing"))
    logger.info(f"{meshes.describe(parts.mesh)}; {describe_parameters(shapes.params)}; {run.model.dtype}")
    if attention := meshes.describe_attention(run.model, run.data.packed):
        remat = meshes.describe_remat(run.model, batch_sizes(run, run.data.batch // run.optim.accumulate))
        logger.info(f"attention: {attention}; remat: {remat}")
    if options := meshes.compiler_options(run.mesh, parts.mesh):
        logger.info("compiler options: " + " ".join(f"{name}={value}" for name, value in options.items()))
    if note := run_file.warmup_note(given, run):
        logger.warning(note)
    if unknown := unknown_peak(parts.mesh.devices.flat[0]):
        logger.warning(unknown)
    shardings = jax.tree.leaves(meshes.parameter_shardings(parts.mesh, shapes.params))
    rows = []
    for (path, x), sharding in zip(by_path(shapes.params).items(), shardings, strict=True):
        rows.append((path, dims_of(path), "×".join(map(str, x.shape)), _axes(sharding.spec)))
    report.table("parameters", ("path", "dims", "shape", "cut over"), rows)
    epochs = run.data.examples_before(run.steps) / parts.batches.examples_per_epoch
    held = f"{parts.held_out.count:,} {parts.held_out.unit}" if parts.held_out else "nothing"
    logger.info(f"{parts.batches.describe()}; {run.steps:,} steps are {epochs:.2f} epochs; {held} held out")
    if parts.held_out:
        report_truncated(parts.held_out)
    if parts.labels:
        named = [(name, f"{count:,}") for name, count in zip(parts.labels, parts.store.counts, strict=True)]
        report.table("labels", ("label", "in train"), named)
    if report.speaks:
        batch = parts.batches.read(0, np.array([0]))
        check_fields(batch, batch_fields(run))
        logger.info("the first sequence:\n" + describe_row(batch, 0, parts.tokenizer, parts.labels, run.task.kind))


def _axes(spec: PartitionSpec) -> str:
    """Returns the mesh axes of each dim: 'fsdp, tensor', '–, data·fsdp'."""
    return ", ".join("–" if axis is None else "·".join((axis,) if isinstance(axis, str) else axis) for axis in spec)


def _run_steps(
    parts: TrainingSetup,
    state: State,
    start: int,
    unevaluated: bool,
    best: Best,
    shardings: State,
    checkpoints: Checkpoints,
    report: Report,
    signals: Signals,
) -> int:
    """Trains from step `start` to the last one, or until patience ends, and returns that step.

    unevaluated: the run was stopped in the evaluation that belongs to step `start`, which is done first.
    """
    run, mesh, held_out = parts.run, parts.mesh, parts.held_out
    step_function = train_step(parts.model, parts.objective, run, shardings)
    evaluation = evaluation_step(parts.model, parts.objective, mesh)
    batch_size_at, examples_before = run.data.batch_size_at, run.data.examples_before
    fields = batch_fields(run)
    meter = ThroughputMeter(run, mesh.devices.size, mesh.devices.flat[0].device_kind, start)
    pending: list[tuple[int, dict[str, jax.Array]]] = []  # metrics of steps, still on the device

    def _log(ready: list[tuple[int, dict[str, jax.Array]]]) -> None:
        """Fetches the metrics of steps and records them. Raises Diverged."""
        records = meter.records([n for n, _ in ready], jax.device_get([metrics for _, metrics in ready]))
        del pending[: len(ready)]
        in_row = [record.pop("skipped_in_row") for record in records]
        report.record(records, _safe(checkpoints, run))
        for record, skipped in zip(records, in_row, strict=True):
            if skipped >= run.optim.max_skipped:
                raise Diverged(_diverged(record["step"], run, checkpoints))

    def _measure(step: int) -> dict[str, float] | None:
        """Returns the held-out metrics after a step, recorded; None if a signal came before they were complete."""
        assert held_out is not None
        cancel = signals.while_training
        try:
            params = merged(state.params, run.optim)
            metrics, _ = evaluate(evaluation, parts.objective, params, held_out, mesh, cancel=cancel)
        except Interrupted:
            return None
        report.record([{"step": step, "split": "dev", **metrics, **parts.baseline}], _safe(checkpoints, run))
        meter.reset()
        return metrics

    def _evaluate(step: int) -> Evaluated | None:
        """Measures, updates the best so far, and returns what the checkpoint keeps of it; None as `_measure`."""
        if (metrics := _measure(step)) is None:
            return None
        rank = value_to_minimise(run.evaluate.metric, metrics)
        best.update(step, rank)
        return {"held_out_loss": metrics["loss"], "rank": rank, "metric": run.evaluate.metric}

    def _save(step: int, evaluated: Evaluated) -> None:
        meta = {"seed": run.seed, "lines_read": examples_before(step), "best": dataclasses.asdict(best), **evaluated}
        held_out_loss = evaluated.get("held_out_loss")
        meta.pop("held_out_loss", None)
        # The checkpoint before is on disk now: its records may be written, and none is held for two intervals.
        checkpoints.wait()
        report.release(_safe(checkpoints, run))
        checkpoints.save(step, state, meta, held_out_loss)

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
    with iterate(parts.batches, start, end, lambda step: meshes.local_rows(mesh, batch_size_at(step))) as stream:
        for number, local in stream:
            # Update. The call returns at once: the device works while the host reads on.
            batch = meshes.shard_batch(mesh, local, fields, batch_size_at(number))
            state, metrics = step_function(state, batch)
            done = number + 1
            pending.append((done, metrics))

            # What is due after this step.
            stop, last = signals.stop(), done == run.steps
            evaluates = held_out is not None and (last or (run.evaluate.every > 0 and done % run.evaluate.every == 0))
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
                _save(done, evaluated)
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


def _safe(checkpoints: Checkpoints, run: Run) -> int:
    """Returns the last step whose records may be written: one interval beyond the newest checkpoint on disk.

    A killed run repeats the steps after its checkpoint. Their records are cut off then; these are at most so many.
    """
    return checkpoints.finished + run.save.every


def _diverged(step: int, run: Run, checkpoints: Checkpoints) -> str:
    checkpoints.wait()
    good = checkpoints.finished
    where = f"the last checkpoint is of step {good}" if good else "there is no checkpoint yet"
    return (
        f"loss or gradient were not finite in the {run.optim.max_skipped} steps up to step {step}, all skipped; "
        f"{where}; try a lower --optim.peak-lr or a longer --optim.warmup in another --dir"
    )
