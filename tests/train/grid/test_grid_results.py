"""The figures of a grid: which record of a run counts, what a mean is, which setting is the best."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contexture.grid_search import make_grid
from contexture.overrides import with_options
from contexture.train.evaluation.best import value_to_minimise
from contexture.train.grid.results import deciding_record, deciding_step, results, spreads
from contexture.train.metric_directions import Best
from contexture.train.settings.run_file import RunRecord, write
from tests.train.checkpoints.json_checkpoints import write_meta
from tests.train.grid.test_grid_folder import BASE


def write_run(folder: Path, dev: dict[int, float | None], saved: list[int], total: int = 8, patience: int = 0,
              metric: str = "accuracy") -> None:  # fmt: skip
    """What a training leaves of a run: held-out figures by step, the steps of checkpoints."""
    run = with_options(BASE, {"dir": str(folder), "evaluate.patience": patience, "evaluate.metric": metric})
    write(folder, RunRecord(run=run, total_steps=total))
    lines = [{"step": step, "split": "dev", metric: value, "loss": 1.0} for step, value in dev.items()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    best = Best(metric)
    for step in sorted(dev.keys() | {*saved}):
        if step in dev:
            value = dev[step]
            best.update(step, value_to_minimise(metric, {metric: math.nan if value is None else value}))
        if step in saved:
            value = dev.get(step)
            rank = None if value is None else value_to_minimise(metric, {metric: value})
            kept = {"rank": rank, "metric": metric} if step in dev else {"unevaluated": True}
            write_meta(folder, step, best=dataclasses.asdict(best), **kept)


@pytest.mark.parametrize(
    ("dev", "saved", "patience", "step"),
    [
        ({4: 0.9, 8: 0.5}, [4, 8], 0, 8),
        ({4: 0.9, 8: 0.5}, [4], 0, None),
        ({4: 0.9}, [8], 0, None),
        ({2: 0.9, 4: 0.8}, [2, 4], 2, None),
        ({4: 0.9, 8: 0.5}, [], 0, None),
        ({2: 0.1, 4: 0.9, 6: 0.9, 8: 0.5}, [4, 8], 3, 4),
        ({2: 0.9, 4: 0.8, 6: 0.7}, [2, 6], 2, 2),
        ({2: 0.8, 4: 0.9, 6: 0.7}, [4, 6], 2, None),
        ({2: None, 8: None}, [2, 8], 5, 8),
    ],
    ids=str,
)
def test_the_last_figures_count_and_with_patience_the_best_ones(tmp_path, dev, saved, patience, step):
    """Only of a run that is complete: its last step was saved and measured, or its patience is at an end."""
    write_run(tmp_path, dev, saved, patience=patience)
    record = deciding_record(tmp_path)
    assert (record and record["step"]) == step and (not record or record["accuracy"] == dev[step])
    assert deciding_record(tmp_path / "nothing") is None


def test_figures_that_are_lost_leave_the_step_that_counts(tmp_path):
    write_run(tmp_path, {4: 0.9, 8: 0.5}, [4, 8])
    (tmp_path / "metrics.jsonl").write_text('{"step": 4, "split": "dev", "loss": 1.0}\n{"step": 8, "spl\n')
    assert deciding_step(tmp_path) == 8 and deciding_record(tmp_path) is None


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=5))
def test_a_spread_is_the_mean_and_the_deviation_of_a_sample(values):
    spread = spreads({"loss": value} for value in values)["loss"]
    assert spread["mean"] == pytest.approx(np.mean(values), abs=1e-12)
    if len(values) == 1:
        assert spread["deviation"] is None
    else:
        assert spread["deviation"] == pytest.approx(np.std(values, ddof=1), abs=1e-12)
    assert spreads([{"loss": 1.0}, {"loss": None}]) == {"loss": {"mean": None, "deviation": None}}
    assert spreads([]) == {} and list(spreads([{"a": 1, "b": 2}, {"b": 3}])) == ["b"]


def best_of(folder: Path, dev: dict[float, list[float | None]], metric: str, diverged: dict[str, str] | None = None):
    base = with_options(BASE, {"dir": str(folder), "evaluate.metric": metric})
    grid = make_grid(base, {"optim.peak_lr": list(dev)}, len(next(iter(dev.values()))))
    for rate, values in dev.items():
        for seed, value in enumerate(values):
            write_run(folder / f"peak-lr={rate}-seed{seed}", {8: value}, [8], metric=metric)
    best = results(grid, diverged or {})["best"]
    return best and best["setting"]["optim.peak_lr"]


def test_the_best_has_the_best_mean_in_the_metrics_own_direction(tmp_path):
    dev: dict[float, list[float | None]] = {0.1: [0.5, 0.6], 0.2: [0.9, 0.3], 0.3: [0.4, 0.9], 0.4: [0.35, 0.95]}
    assert best_of(tmp_path / "accuracy", dev, "accuracy") == 0.3  # of equals the first
    assert best_of(tmp_path / "mse", dev, "mse") == 0.1
    assert best_of(tmp_path / "gap", {**dev, 0.3: [0.9, None]}, "accuracy") == 0.4
    noted = {"peak-lr=0.3-seed1": "not finite", "peak-lr=0.4-seed0": "not finite"}
    assert best_of(tmp_path / "diverged", dev, "accuracy", noted) == 0.2
    assert best_of(tmp_path / "none", {0.1: [None, None]}, "accuracy") is None
