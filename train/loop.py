"""The training loop of pretraining and fine-tuning, from top to bottom."""

import contextlib
import logging
from contextlib import ExitStack
from pathlib import Path

import jax
from jax.sharding import Mesh

from contexture.data import mirror
from contexture.data.batches import iterate
from contexture.data.storage import check_no_address
from contexture.models.heads.layer_mix import describe_mixes
from contexture.train import cpu_memory
from contexture.train import mesh as meshes
from contexture.train.checkpoints.manager import Checkpoints
from contexture.train.checkpoints.transfer import begin_from
from contexture.train.distributed import processes
from contexture.train.distributed.agreement import agree_on_folder, agree_on_run
from contexture.train.errors import CheckpointError, ConfigError
from contexture.train.evaluation.best import value_to_minimise
from contexture.train.evaluation.held_out import measured
from contexture.train.frozen.extraction import with_stored_features
from contexture.train.loggers.trackers import Trackers, check_trackers
from contexture.train.metric_directions import Best
from contexture.train.optim.lora import check_adapters
from contexture.train.programs import step_settings
from contexture.train.run import folder as directories
from contexture.train.run import lease, notice
from contexture.train.run.console import logged_to
from contexture.train.run.folder import steps
from contexture.train.run.goodput import Goodput
from contexture.train.run.limits import check_limits
from contexture.train.run.plots import LiveLossFigure
from contexture.train.run.report import Report
from contexture.train.run.signals import Signals
from contexture.train.run.throughput import activation_floats
from contexture.train.session import Session
from contexture.train.settings import run_file
from contexture.train.settings.run import Run
from contexture.train.setup import check_frozen, prepare, with_languages
from contexture.train.step import create, train_step
from contexture.train.summary import log_end, log_start
from contexture.train.text_checks import check_text

logger = logging.getLogger(__name__)


def train(run: Run, recipe: Run, signals: Signals, features: Path | None = None) -> Path:
    """Trains `run` in its folder, from its newest good checkpoint if there is one, and returns the folder.

    Args:
        run: the settings, with the user's options applied.
        recipe: the run before the user's options; their difference is logged.
        signals: listens for SIGTERM and Ctrl-C.
        features: the folder for the outputs of frozen backbones that the runs of a grid share (None: one in the run's
            own folder).

    Raises:
        ConfigError, DataError, CheckpointError: for options, the user's files, and checkpoints.
        MemoryError, OSError: when the system's limits are too low.
        Diverged: after optim.max_skipped steps in a row without finite numbers.
        Interrupted: on SIGTERM and Ctrl-C, with everything saved.
    """
    if not run.dir:
        raise ConfigError("dir is empty; say where the run shall live: --dir RUN")
    check_no_address(run.dir)
    folder, goodput = Path(run.dir), Goodput()
    run = run_file.with_absolute_paths(with_languages(run))
    # Cheap checks first: nothing is written yet, and native code would answer a low limit with an abort.
    signals.check()
    check_limits()
    # Before jax starts its threads: glibc gives each new thread an arena of its own by these settings.
    cpu_memory.tune_cpu_allocator(activation_floats(run))
    # All later work lies inside: an error in one process of a job ends all of them with the same line.
    with notice.listening(), processes.joined(run.mesh, lambda: steps(folder / "checkpoints", ask=False)):
        try:
            _train(run, recipe, folder, signals, features, goodput)
        # A full or unmounted disk. Files are written whole or not at all, so what is there can be resumed from.
        except OSError as error:
            raise CheckpointError(
                f"{error.filename or folder}: {error.strerror or error}; what was saved before is whole"
            ) from error
    return folder


def _train(run: Run, recipe: Run, folder: Path, signals: Signals, features: Path | None, goodput: Goodput) -> None:
    mesh = meshes.build(run.mesh)
    # A step is one program of all processes: other settings or versions in one of them would hang it in a collective.
    agree_on_run(run)
    # The stack closes in the reverse order, also after an error: figure, checkpoints, report, log file, lock, mesh.
    with ExitStack() as stack:
        stack.enter_context(meshes.use(mesh, run.model.dtype))
        run = _claim_folder(run, folder, mesh, stack)
        report = _open_report(run, folder, signals, goodput, stack)
        session = _begin(run, recipe, folder, mesh, report, signals, features, stack)
        stack.callback(session.profile.close)
        # Start-up ends here. Steps, data, evaluations and saves are counted within.
        stack.enter_context(goodput.part("other"))
        with session.watchdog:
            _run_steps(session)
            session.close()
        # The end, for people: what the batches left out, the learned mix of layers, the last loss figure, what to run
        # next.
        for note in (*session.parts.batches.notes(), *describe_mixes(session.state.params)):
            logger.info(note)
        report.complete()
        if report.speaks:
            session.figure.draw()
            report.record([goodput.record(session.done)], session.done)
            log_end(session.parts, folder, session.start, session.done, goodput, session.best)


def _claim_folder(run: Run, folder: Path, mesh: Mesh, stack: ExitStack) -> Run:
    """Checks all that can be checked before the folder is made, then locks it. Returns the run with pinned addresses.

    Process 0 owns the folder.
    """
    # Every batch of the run, or of a phase, divides evenly if the smallest does: data.ramp-from doubles its size.
    smallest = "data.ramp-from" if run.data.ramp_from else "data.phases" if run.data.phases else "data.batch"
    for phase in run.data.stretches:
        meshes.check_batch(mesh, run.data.batch_size_at(phase.first), run.optim.accumulate, smallest)
        meshes.check_context(run.mesh, run.model, phase.length)
    meshes.describe_attention(run.model, run.shares_rows)
    meshes.check_compiler_options(run.mesh, mesh)
    check_adapters(run)
    check_frozen(run)
    if jax.process_index() == 0:
        check_trackers(run.log.to)
        run = run_file.with_pinned_addresses(run, folder)
        # Text that does not exist, or is not UTF-8.
        check_text(run, folder)
        stack.enter_context(directories.lock_run_dir(folder))
    # The lock holds a random token, so that the others notice a folder of the same name on another disk.
    agree_on_folder(folder)
    return run


def _open_report(run: Run, folder: Path, signals: Signals, goodput: Goodput, stack: ExitStack) -> Report:
    speaks = jax.process_index() == 0
    # Trackers talk to the network: one process of a job does it, and only if the user named some.
    trackers = Trackers(run, folder, signals.check) if speaks and run.log.to else None
    report = Report(
        folder,
        steps=run.steps,
        speaks=speaks,
        tensorboard=run.log.tensorboard,
        trackers=trackers,
        metric=run.evaluate.metric,
        goodput=goodput,
    )
    # Logging to files begins only now: the folder is this run's alone since it was locked, and all processes see it.
    log = folder / directories.log_file(jax.process_index())
    if mirror.address_of(folder) and not speaks:  # process 0 writes what changes to a bucket, and the others this alone
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(lease.log_in_bucket(log))
    stack.enter_context(logged_to(report.console, dated=True, file=log))
    if jax.process_count() > 1:
        logger.info(processes.describe_process())
    # The line with which a process ends because another is gone comes from a thread, behind the back of the above.
    processes.keep_last_line(log)
    stack.callback(report.close)
    return report


def _begin(
    run: Run,
    recipe: Run,
    folder: Path,
    mesh: Mesh,
    report: Report,
    signals: Signals,
    features: Path | None,
    stack: ExitStack,
) -> Session:
    """Opens data and model, and restores the newest good checkpoint; without one initialises the state, from another
    run's parameters if init.run names one."""
    parts, fingerprint = prepare(run, folder, mesh, signals)
    given, run = run, parts.run
    report.steps = run.steps
    # Shapes and shardings alone: no array is made until it is known whether a checkpoint is restored.
    draw, shapes, shardings = create(parts.model, run, mesh)
    if run.evaluate.metric != "loss":
        # A misspelt metric is refused now, not at the first evaluation.
        names = measured(parts.model, parts.objective, run, shapes.params, parts.store)
        value_to_minimise(run.evaluate.metric, dict.fromkeys(names, 0.0))
    log_start(parts, given, recipe, report, shapes)

    # Restore, or start. A checkpoint of other settings, text or vocabulary is refused by its fingerprint.
    checkpoints = Checkpoints(folder, mesh, run.save, fingerprint, run.evaluate.metric)
    stack.callback(checkpoints.abandon)
    expected = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
    restored = checkpoints.restore_latest(expected)
    signals.check()
    state, kept = restored or (draw(run.seed), {})
    if not restored and run.init.run:
        state = begin_from(run, parts.labels, parts.tokenizer.size, state, mesh, report.table)
        signals.check()
    start, unevaluated = int(state.step), kept.get("unevaluated", False)
    logger.info(f"resuming from step {start}" if restored else "starting at step 0")
    # The progress outside the state: metrics.jsonl is cut back to this step, since later steps will be done again.
    report.start(start, run.save.every, evaluated=not unevaluated)
    signals.check()
    # From here on all processes work in step, so jax can make them agree on the step to stop at.
    if run.mesh.distributed:
        signals.share()
    # evaluate.metric may change between two starts: ranks of another metric cannot be compared.
    best = Best(**kept.get("best", {}))
    if best.metric != run.evaluate.metric:
        best = Best(run.evaluate.metric)
    title = f"{folder.name}: {run.family}, {run.task.kind if run.task.kind != 'off' else 'pretraining'}"
    figure = LiveLossFigure(folder, parts.baseline.get("unigram_loss"), title)
    stack.callback(figure.close)
    # A frozen backbone is run once over all examples; a run with nothing left to do needs no features.
    if start < run.steps or unevaluated:
        parts = with_stored_features(parts, state.params, folder, features, signals)
    return Session(parts, state, best, unevaluated, checkpoints, report, figure, signals)


def _run_steps(session: Session) -> None:
    """Trains up to the last step, or until patience ends."""
    run, mesh, batches = session.parts.run, session.parts.mesh, session.parts.batches
    # Seed and peak rate are arguments of the compiled step and no constants: the runs of a grid share one program.
    batch_size_at, settings = run.data.batch_size_at, step_settings(run)
    step = train_step(session.parts.model, session.parts.objective, run, mesh, batches.fields)
    # The evaluation that a signal cut short, or the first measure of a model that is trained further.
    session.begin()
    goodput = session.report.goodput
    # Batches are a function of the step number, so a resumed run reads on from `start` and replays nothing.
    reading = iterate(
        batches, session.start, session.end, lambda number: meshes.local_rows(mesh, batch_size_at(number))
    )
    with goodput.part("steps"), reading as stream:
        for number, local in session.meter.timed(stream, goodput):
            session.meter.counted(number, local)
            session.announce(number)
            batch = meshes.shard_batch(mesh, local, batches.fields, batch_size_at(number))
            # The call returns at once: the device works while the host reads on. Only for a batch of a new size or
            # length is it compiled first.
            session.profile.before(number + 1, session.state)
            with contextlib.nullcontext() if step.is_compiled_for(batch) else session.compiling():
                session.state, metrics = step(session.state, batch, settings)
            with goodput.part("other"):
                session.profile.after(number + 1, session.state)
            if session.after_step(metrics):
                break
