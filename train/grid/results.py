"""The figures of a grid: each run's from its own files, each setting's over its seeds, and the best on held-out data.

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

    mean is None if a seed's figure is not finite; deviation also if there is only one seed.
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
    """One setting. dev is over the runs that did not diverge."""

    setting: dict[str, Value]
    runs: list[RunResult]
    dev: Spreads


class GridResult(TypedDict):
    """A grid. best is the setting with the best mean of `metric`, or None; test: its figures on the test examples."""

    grid: str
    metric: str
    settings: list[SettingResult]
    best: SettingResult | None
    test: NotRequired[Spreads]


def deciding_step(folder: Path) -> int | None:
    """Returns the step that counts for a complete run: the last one, or with evaluate.patience the best one
    (`find_steps`). None for a run that still has to be trained.

    So the result does not depend on whether, or where, the run was stopped.
    """
    saved = steps(folder / "checkpoints")
    if not saved or not (folder / "run.json").exists():
        return None
    # By the run's own files, in the order in which they say more: slimmed, checkpoint, best.
    record = read(folder)
    if record.slimmed:
        return saved[-1]  # the one that answered for the run when the others were removed
    try:
        meta = read_meta(folder / "checkpoints" / str(saved[-1]))
    except CheckpointError:
        return None  # training warns of it, and resumes from the one before
    # Complete is the last step, or an earlier one at which patience ended.
    waited = meta.get("best", {}).get("evals_without_improvement", 0)
    stopped_early = 0 < record.run.evaluate.patience <= waited
    # Stopped before its last evaluation, or before its last step: training goes on with it.
    if meta.get("unevaluated") or (saved[-1] != record.total_steps and not stopped_early):
        return None
    return find_steps(folder, None)[0]


def deciding_record(folder: Path) -> Record | None:
    """Returns the held-out figures of a complete run at its deciding step; None if they are lost or still to come."""
    step = deciding_step(folder)
    held = (each for each in read_metrics(folder / "metrics.jsonl") if each["split"] == "dev")
    return next((each for each in held if each["step"] == step), None)


def _rank(metric: str, value: Figure) -> float:
    # nan for a figure that is not finite: it never becomes the best.
    return metrics.rank(metric, value) if isinstance(value, int | float) and metric in metrics.BETTER else math.nan


def results(grid: Grid, diverged: Mapping[str, str]) -> GridResult:
    """Returns the figures of a grid whose runs are all complete. diverged: folder name of a run → reason."""
    metric = grid.base.evaluate.metric
    settings = [_setting_result(setting, diverged) for setting in grid.settings]
    result: GridResult = {"grid": str(grid.folder), "metric": metric, "settings": settings, "best": None}
    ranks = [_setting_rank(setting, metric) for setting in settings]
    if any(map(math.isfinite, ranks)):
        # Ties go to the first setting; nan compares with nothing, hence the first key.
        result["best"] = settings[min(range(len(ranks)), key=lambda n: (not math.isfinite(ranks[n]), ranks[n], n))]
    return result


def _setting_result(setting: Setting, diverged: Mapping[str, str]) -> SettingResult:
    runs: list[RunResult] = []
    for run in setting.runs:
        folder = Path(run.dir)
        # A run that diverged has a reason instead of figures.
        each: RunResult = {"run": run.dir, "seed": run.seed}
        if folder.name in diverged:
            each["diverged"] = diverged[folder.name]
        # A run without a record has lost its figures; it is measured again before this is called.
        elif record := deciding_record(folder):
            each["step"], each["dev"] = record["step"], figures_of(record)
        runs.append(each)
    return {"setting": dict(setting.values), "runs": runs, "dev": spreads(run["dev"] for run in runs if "dev" in run)}


def figures_of(record: Mapping[str, Figure]) -> dict[str, Figure]:
    """Returns the metrics of a record, without step and split."""
    return {name: value for name, value in record.items() if name not in ("step", "split")}


def _setting_rank(setting: SettingResult, metric: str) -> float:
    """Returns the rank of a setting's mean, the lower the better; nan if one of its runs diverged."""
    # A mean over the seeds that survived would flatter a rate that is too high.
    if any("dev" not in run for run in setting["runs"]) or metric not in setting["dev"]:
        return math.nan
    return _rank(metric, setting["dev"][metric]["mean"])


def spreads(figures: Iterable[Mapping[str, Figure]]) -> Spreads:
    """Returns the spread of each metric that all of these figures have."""
    # A metric that one run lacks (its dev set had no such question, say) has no mean.
    each = list(figures)
    return {
        name: _spread([one[name] for one in each])
        for name in (each[0] if each else ())
        if all(name in one for one in each)
    }


def _spread(values: Sequence[Figure]) -> Spread:
    # One figure that is not finite makes the mean unknown: leaving it out would flatter the setting.
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) < len(values):
        return {"mean": None, "deviation": None}
    return {"mean": statistics.fmean(numbers), "deviation": statistics.stdev(numbers) if len(numbers) > 1 else None}


def _test_file(run: RunResult) -> Path:
    """Returns the file of a run's figures on the test examples."""
    # In the run's own folder, by step: another grid or another best step does not mix with it.
    return Path(run["run"]) / "evaluations" / f"test-{run.get('step')}" / "metrics.json"


def digests_of(files: Sequence[str]) -> list[str]:
    """Returns the digest of each file of examples: its sha256, the name of a TFDS set, or "" if the file is gone."""
    # Imported here: a grid without test examples needs no reader of examples.
    from contexture.data.tasks.store.example_store import sha256_of

    # Content and not names: the same examples at another path need no second measurement.
    digests = []
    for file in files:
        try:
            digests.append(sha256_of(file) or file)
        except (OSError, DataError):
            digests.append("")
    return digests


def write_test_figures(run: RunResult, figures: Mapping[str, Figure], digests: Sequence[str]) -> None:
    """Stores a run's figures on the test examples, with the digests of the files."""
    write_json(_test_file(run), {"examples": [*digests], "metrics": dict(figures)})


def read_test_figures(run: RunResult, digests: Sequence[str]) -> dict[str, Figure] | None:
    """Returns a run's figures on the test examples with these digests; None if they are still to be measured."""
    # Figures that are missing, damaged or of other examples are measured again.
    try:
        tree = json.loads(read_plain(_test_file(run)))
    except (OSError, DataError, ValueError, RecursionError):
        return None
    if not isinstance(tree, dict) or not isinstance(tree.get("metrics"), dict):
        return None
    of = tree.get("examples")
    # A file that is gone is not needed any more: the figures were measured while it was there.
    same = (
        isinstance(of, list)
        and len(of) == len(digests)
        and all(now in ("", then) for now, then in zip(digests, of, strict=True))
    )
    return tree["metrics"] if same else None
