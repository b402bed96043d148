"""Trains the missing runs of a grid one after the other in one process, and tests the best setting.

Runs that differ only in seed and learning rate share their compiled step (train/step.py). Each run is, to the bit, what
the same settings give when they are trained alone.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from contexture.data.storage import check_run_path
from contexture.train.errors import CheckpointError, ConfigError, Diverged
from contexture.train.evaluation.request import EvaluationRequest
from contexture.train.grid import folder as folders
from contexture.train.grid.results import (
    GridResult,
    deciding_record,
    deciding_step,
    digests_of,
    read_test_figures,
    results,
    spreads,
    write_test_figures,
)
from contexture.train.grid.settings import Grid
from contexture.train.run.folder import lock_folder, steps
from contexture.train.run.report import add_record
from contexture.train.run.signals import Signals
from contexture.train.settings import run_file
from contexture.train.settings.run import Run

logger = logging.getLogger(__name__)


def check_grid(grid: Grid) -> None:
    """Raises ConfigError for a grid that cannot be trained, before anything is written."""
    base = grid.base
    # A grid trains for days: everything that can be refused is refused first.
    for folder in (grid.folder, *(Path(run.dir) for run in grid.runs)):
        check_run_path(folder)
    folders.check_folder(grid.folder)
    if base.mesh.distributed:
        raise ConfigError("mesh.distributed contradicts a grid, which one process trains; leave one of them out")
    if base.task.kind == "off" or not (base.task.dev or base.task.dev_fraction):
        raise ConfigError(
            "a grid chooses by held-out examples, and there are none; give --task.dev FILE, or --task.dev-fraction 0.1"
        )


def train_grid(grid: Grid, recipe: Run, signals: Signals) -> GridResult:
    """Trains the missing runs, and returns the figures of all; results.json in the folder holds them too.

    A run that diverges is noted, and the next one is trained.

    Args:
        grid: the runs and their folder.
        recipe: the run before the user's options.
        signals: listens for SIGTERM and Ctrl-C.

    Raises:
        ConfigError, DataError, CheckpointError: as `train`.
        Interrupted: on SIGTERM and Ctrl-C, with everything saved; the next start resumes.
    """
    check_grid(grid)
    folders.check_runs(grid)
    with lock_folder(grid.folder):
        # Where the grid is: what diverged, what is complete, what is missing. A start with nothing missing only
        # reports.
        diverged = folders.diverged_runs(grid)
        trained = [run for run in grid.runs if Path(run.dir).name not in diverged]
        missing = [run for run in trained if deciding_step(Path(run.dir)) is None]
        if missing:
            # Before grid.json holds values or seeds that cannot be trained.
            _check_examples([run for run in trained if run not in missing])
        start = folders.first_checkpoint(grid.folder)
        folders.write(grid, diverged, start)
        if missing:
            _train(grid, missing, recipe, diverged, start, signals)
        # Then the figures: of all runs on the held-out examples, of the best setting on the test examples.
        _measure_lost([run for run in trained if Path(run.dir).name not in diverged], signals)
        result = results(grid, diverged)
        _check_metric(result)
        # Test figures are of the best setting alone, and only if the user gave test examples.
        if grid.base.task.test and result["best"]:
            _measure_test(result, grid.base.task.test, signals)
        folders.write_if_changed(grid.folder / folders.RESULTS, result)
    return result


def _train(
    grid: Grid,
    missing: list[Run],
    recipe: Run,
    diverged: dict[str, str],
    start: folders.Checkpoint | None,
    signals: Signals,
) -> None:
    # Imported here: a grid that is complete needs no jax.
    from contexture.train.loop import train

    runs = grid.runs
    logger.info(f"{len(missing)} of {len(runs)} runs are to be trained")
    for run in missing:
        signals.check()
        logger.info(f"run {runs.index(run) + 1} of {len(runs)}: {run.dir}")
        # A resumed run has its starting point; a new run must start from the same checkpoint as the others.
        if not steps(Path(run.dir) / "checkpoints"):
            start = _checked_start(run, start)
            folders.write(grid, diverged, start)
        try:
            train(run, recipe, signals, grid.folder / folders.FEATURES)
        # A rate that is too high is a result: noted at once, so that the next start does not try again.
        except Diverged as error:
            logger.warning(f"{run.dir} diverged: {error}")
            diverged[Path(run.dir).name] = str(error)
            folders.write(grid, diverged, start)


def _measure_lost(runs: Sequence[Run], signals: Signals) -> None:
    """Measures again the held-out figures that metrics.jsonl has lost, and adds them to it: a mean without them could
    choose another setting."""
    # After a full disk, for example, or an edit of the file.
    lost = [
        (folder, step)
        for folder in (Path(run.dir) for run in runs)
        if not deciding_record(folder) and (step := deciding_step(folder)) is not None
    ]
    if not lost:
        return
    from contexture.train.evaluation.evaluate import evaluate_run

    for folder, step in lost:
        signals.check()
        logger.warning(f"{folder}/metrics.jsonl has lost the held-out figures of step {step}; measuring them again")
        figures = evaluate_run(EvaluationRequest(str(folder), step=step), signals).get("metrics", {})
        # metrics.jsonl belongs to whoever holds the run's lock.
        with lock_folder(folder):
            add_record(folder / "metrics.jsonl", {"step": step, "split": "dev", **figures})


def _checked_start(run: Run, before: folders.Checkpoint | None) -> folders.Checkpoint | None:
    """Returns the checkpoint that a run will begin from, or the one that others began from if it begins from none.

    Raises ConfigError if it differs from the one that others began from.
    """
    from contexture.train.checkpoints.meta import digest_of, find_steps

    if not run.init.run or run.init.random or run.init.step:
        return before
    folder = Path(run.init.run) / "checkpoints"
    # In the order in which training tries them: the best one first, of a run that was trained with patience.
    for step in find_steps(folder.parent, None) if steps(folder) else ():
        try:
            now: folders.Checkpoint = {"step": step, "digest": digest_of(folder / str(step))}
        except CheckpointError:  # damaged: the one before it is taken
            continue
        # The digest covers all arrays. A slimmed run has another one, but the same parameters.
        same = before is None or now["digest"] == before["digest"]
        if (
            before is not None
            and not same
            and not (now["step"] == before["step"] and run_file.read(folder.parent).slimmed)
        ):
            raise ConfigError(
                f"{run.init.run} is not what it was when runs of this grid began from its step {before['step']} (now "
                f"step {step}), so that further runs could not be compared; put it back, or give another --dir"
            )
        return now
    return before


def _check_examples(complete: Sequence[Run]) -> None:
    """Raises ConfigError if the files of examples differ from those that the complete runs were trained on: figures on
    other examples cannot be compared with theirs."""
    from contexture.data.tasks.store.example_store import ExampleStore

    stored = [Path(run.dir) / "data" for run in complete if (Path(run.dir) / "data").is_dir()]
    # One run is enough: none was added to the grid after another without this check.
    for folder in stored[:1]:
        if changed := ExampleStore.open(folder).sources_changed(complete[0].task):
            raise ConfigError(
                f"{changed}, so that further runs could not be compared; put it back, or give another --dir"
            )


def _check_metric(result: GridResult) -> None:
    """Raises ConfigError if the best setting is to be chosen by a metric that no run has."""
    names = list(dict.fromkeys(name for setting in result["settings"] for name in setting["dev"]))
    # Found only now: which metrics there are depends on the data.
    if names and result["metric"] not in names:
        raise ConfigError(f"evaluate.metric={result['metric']} is not measured; there are {', '.join(names)}")


def _measure_test(result: GridResult, files: tuple[str, ...], signals: Signals) -> None:
    """Adds the test figures of the best setting, measuring those that are unknown; no other setting is tested."""
    best, digests = result["best"], digests_of(files)
    assert best is not None
    # Only the best: choosing by test figures would make them held-out figures.
    unmeasured = [run for run in best["runs"] if read_test_figures(run, digests) is None]
    if unmeasured:
        from contexture.train.evaluation.evaluate import evaluate_run

        for run in unmeasured:
            signals.check()
            logger.info(f"measuring {run['run']} on the test examples")
            # These files, and not those that the run was started with: others may be given by now.
            request = EvaluationRequest(run["run"], split="test", dev=files, step=run.get("step", ()))
            write_test_figures(run, evaluate_run(request, signals).get("metrics", {}), digests)
    result["test"] = spreads(read_test_figures(run, digests) or {} for run in best["runs"])
