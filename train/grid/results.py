"""The figures of a grid: of each run from its own files, of each setting over its seeds, the best by the held-out ones.

Needs no jax.
"""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NotRequired, TypeAlias, TypedDict

from contexture.data.errors import DataError
from contexture.data.plain_files import read_plain
from contexture.train import metric_directions as metrics
from contexture.train.checkpoints.meta import find_steps, read_meta
from contexture.train.errors import CheckpointError
from contexture.train.grid.settings import Grid, Setting, Value
from contexture.train.run.folder import steps
from contexture.train.run.report import Figure, Record, read_metrics
from contexture.train.settings.run_file import read, write_json


class Spread(TypedDict):
    """A metric over seeds: mean = Σ x/n, deviation = sqrt(Σ (x - mean)²/(n - 1)).

    mean is None where a seed's figure is not finite, deviation too where there is one seed.
    """

    mean: float | None
    deviation: float | None


Spreads: TypeAlias = dict[str, Spread]
"""Metrics over seeds, by their names."""


class RunResult(TypedDict):
    """One run: its figures on the held-out examples at `step`; or why it diverged."""

    run: str
    seed: int
    step: NotRequired[int]
    dev: NotRequired[dict[str, Figure]]
    diverged: NotRequired[str]


class SettingResult(TypedDict):
    """One setting. dev is of the runs that did not diverge."""

    setting: dict[str, Value]
    runs: list[RunResult]
    dev: Spreads


class GridResult(TypedDict):
    """A grid. best is the setting of the best mean of `metric`, or None; test are its figures on the test examples."""

    grid: str
    metric: str
    settings: list[SettingResult]
    best: SettingResult | None
    test: NotRequired[Spreads]


def deciding_step(folder: Path) -> int | None:
    """Returns the step of a complete run whose checkpoint answers for it (`find_steps`): the last one, or the best one
    of a run with evaluate.patience. None for a run that is still to be trained.

    So what counts does not depend on whether, or where, the run was stopped.
    """
    saved = steps(folder / "checkpoints")
    if not saved or not (folder / "run.json").exists():
        return None
    record = read(folder)
    if record.slimmed:
        return saved[-1]  # the one that answered for the run when the others were removed
    try:
        meta = read_meta(folder / "checkpoints" / str(saved[-1]))
    except CheckpointError:
        return None  # training warns of it, and resumes from the one before
    waited = meta.get("best", {}).get("evals_without_improvement", 0)
    stopped_early = 0 < record.run.evaluate.patience <= waited
    if meta.get("unevaluated") or (saved[-1] != record.total_steps and not stopped_early):
        return None
    return find_steps(folder, None)[0]


def deciding_record(folder: Path) -> Record | None:
    """Returns the held-out figures of a complete run at its deciding step; None where they are lost or to come."""
    step = deciding_step(folder)
    held = (each for each in read_metrics(folder / "metrics.jsonl") if each["split"] == "dev")
    return next((each for each in held if each["step"] == step), None)


def _rank(metric: str, value: Figure) -> float:
    return metrics.rank(metric, value) if isinstance(value, int | float) and metric in metrics.BETTER else math.nan


def results(grid: Grid, diverged: Mapping[str, str]) -> GridResult:
    """Returns the figures of a grid whose runs are all complete. diverged: the names of runs' folders → why."""
    metric = grid.base.evaluate.metric
    settings = [_setting_result(setting, diverged) for setting in grid.settings]
    result: GridResult = {"grid": str(grid.folder), "metric": metric, "settings": settings, "best": None}
    ranks = [_setting_rank(setting, metric) for setting in settings]
    if any(map(math.isfinite, ranks)):
        result["best"] = settings[min(range(len(ranks)), key=lambda n: (not math.isfinite(ranks[n]), ranks[n], n))]
    return result


def _setting_result(setting: Setting, diverged: Mapping[str, str]) -> SettingResult:
    runs: list[RunResult] = []
    for run in setting.runs:
        folder = Path(run.dir)
        each: RunResult = {"run": run.dir, "seed": run.seed}
        if folder.name in diverged:
            each["diverged"] = diverged[folder.name]
        elif record := deciding_record(folder):
            each["step"], each["dev"] = record["step"], figures_of(record)
        runs.append(each)
    return {"setting": dict(setting.values), "runs": runs, "dev": spreads(run["dev"] for run in runs if "dev" in run)}


def figures_of(record: Mapping[str, Figure]) -> dict[str, Figure]:
    """Returns the metrics of a record alone."""
    return {name: value for name, value in record.items() if name not in ("step", "split")}


def _setting_rank(setting: SettingResult, metric: str) -> float:
    """Returns the rank of a setting's mean, the lower the better; nan for one of which a run diverged."""
    if any("dev" not in run for run in setting["runs"]) or metric not in setting["dev"]:
        return math.nan
    return _rank(metric, setting["dev"][metric]["mean"])


def spreads(figures: Iterable[Mapping[str, Figure]]) -> Spreads:
    """Returns the metrics that all of these figures have, over them."""
    each = list(figures)
    return {
        name: _spread([one[name] for one in each])
        for name in (each[0] if each else ())
        if all(name in one for one in each)
    }


def _spread(values: Sequence[Figure]) -> Spread:
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) < len(values):
        return {"mean": None, "deviation": None}
    return {"mean": statistics.fmean(numbers), "deviation": statistics.stdev(numbers) if len(numbers) > 1 else None}


def _test_file(run: RunResult) -> Path:
    """Returns the file of a run's figures on the test examples."""
    return Path(run["run"]) / "evaluations" / f"test-{run.get('step')}" / "metrics.json"


def digests_of(files: Sequence[str]) -> list[str]:
    """Returns the digest of each file of examples: its sha256, of a TFDS set its name, "" of a file that is gone."""
    # Imported here: a grid without test examples needs no reader of examples.
    from contexture.data.tasks.store.example_store import sha256_of

    digests = []
    for file in files:
        try:
            digests.append(sha256_of(file) or file)
        except (OSError, DataError):
            digests.append("")
    return digests


def write_test_figures(run: RunResult, figures: Mapping[str, Figure], digests: Sequence[str]) -> None:
    """Keeps a run's figures on the test examples, and the digests of these."""
    write_json(_test_file(run), {"examples": [*digests], "metrics": dict(figures)})


def read_test_figures(run: RunResult, digests: Sequence[str]) -> dict[str, Figure] | None:
    """Returns a run's figures on the test examples of these digests, None where they are still to be measured."""
    try:
        tree = json.loads(read_plain(_test_file(run)))
    except (OSError, DataError, ValueError, RecursionError):
        return None
    if not isinstance(tree, dict) or not isinstance(tree.get("metrics"), dict):
        return None
    of = tree.get("examples")
    # A file that is gone is no longer needed.
    same = (
        isinstance(of, list)
        and len(of) == len(digests)
        and all(now in ("", then) for now, then in zip(digests, of, strict=True))
    )
    return tree["metrics"] if same else None
