"""`contexture evaluate`: argv → the printed result."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from contexture.cli.output import Result, TwofoldResult, results_alone
from contexture.cli.parse import parse
from contexture.requests import EvaluationArgs
from contexture.table_files import Cell, check_table, plus_minus, shown, write_table
from contexture.train.evaluation.request import requests_of
from contexture.train.grid.folder import without_shared
from contexture.train.grid.results import spreads
from contexture.train.run.console import console, print_table
from contexture.train.run.signals import STOPPED, Signals
from contexture.train.settings.run_file import read

if TYPE_CHECKING:
    from contexture.train.evaluation.checkpoint_results import EvaluationResult

STOPPED_BETWEEN = "stopped; the same command evaluates the checkpoints that are missing"


def evaluate_command(argv: list[str]) -> TwofoldResult | None:
    """Returns held-out metrics of runs; people see the evaluated files in place of the split's name, and several runs
    or checkpoints as a table on stderr."""
    args = parse(EvaluationArgs, argv, "evaluate")
    requests = requests_of(without_shared(args.runs), args)
    if args.table:
        check_table(Path(args.table))  # before a folder that is no run is an error
    tasks = [read(request.folder).run.task for request in requests]
    if args.table:
        check_table(Path(args.table), *(file for task in tasks for file in (*task.train, *task.dev, *task.test)))
    from contexture.train.cpu_memory import tune_cpu_allocator
    from contexture.train.evaluation.evaluate import evaluate_run, evaluate_runs

    tune_cpu_allocator()
    stopped = STOPPED_BETWEEN if args.every_step else STOPPED
    with Signals(stopped) as signals, results_alone() if args.mesh.distributed else contextlib.nullcontext():
        if len(requests) > 1:
            return _several(evaluate_runs(requests, signals), args.table)
        result = evaluate_run(requests[0], signals)
    import jax

    # One process of a job prints; the others have the same result.
    if jax.process_index() > 0:
        return None
    if "checkpoints" in result:
        show_results([result])
    written = _write_table([result], args.table)
    return TwofoldResult({**result, **written}, {**_shown(result), **written})


def _several(results: "list[EvaluationResult]", table: str) -> TwofoldResult:
    if not any("submission" in each for each in results):
        show_results(results)
    # The table on stderr shows the metrics, so stdout need not repeat them.
    printed = [_shown({name: x for name, x in each.items() if name not in ("metrics", "labels")}) for each in results]
    written = _write_table(results, table)
    failed = any("error" in each for each in results)
    return TwofoldResult({"runs": results, **written}, {"runs": printed, **written}, code=int(failed))


def _shown(result: "EvaluationResult | Result") -> Result:
    """Returns the part of a result for people on stdout: the evaluated files in place of the split's name, and no rows
    that the table on stderr has."""
    hidden = {"checkpoints", *(["split"] if "files" in result else [])}
    return {name: x for name, x in result.items() if name not in hidden}


def _write_table(results: "Sequence[EvaluationResult]", file: str) -> dict[str, str]:
    if file:
        write_table(Path(file), table_rows(results))
    return {"table": file} if file else {}


def show_results(results: "Sequence[EvaluationResult]") -> None:
    """Prints a table on stderr: a row for each run and each of its checkpoints."""
    rows = table_rows(results)
    cells = [[f"{cell:,}" if isinstance(cell, int) else shown(cell) for cell in row.values()] for row in rows]
    print_table(console(), "", list(rows[0]), cells)


def table_rows(results: "Sequence[EvaluationResult]") -> list[dict[str, Cell]]:
    """Returns a row for each run and each of its checkpoints; for several runs a last row has the mean and deviation of
    each metric."""
    from contexture.train.evaluation.checkpoint_results import numbers_of

    rows = [
        (result["run"], row.get("step"), dict(numbers_of(row.get("metrics", {}))))
        for result in results
        for row in result.get("checkpoints", [result])
    ]
    names = list(dict.fromkeys(name for _, _, figures in rows for name in figures))
    several = len(results) > 1
    table: list[dict[str, Cell]] = [
        {**({"run": run} if several else {}), "step": step, **{name: figures.get(name) for name in names}}
        for run, step, figures in rows
    ]
    # Several runs are mostly seeds of one setting, whose mean and deviation are wanted.
    if several and len(rows) == len(results) and (spread := spreads(figures for _, _, figures in rows if figures)):
        means = {name: plus_minus(each["mean"], each["deviation"] or 0.0) for name, each in spread.items()}
        table.append({"run": "mean ± deviation", "step": None, **{name: means.get(name) for name in names}})
    return table
