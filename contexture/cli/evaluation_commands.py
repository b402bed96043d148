"""`contexture evaluate`: argv → what is printed."""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from contexture.cli.output import Result, TwofoldResult, results_alone
from contexture.cli.parse import parse
from contexture.requests import EvaluationArgs
from contexture.train.evaluation.request import requests_of
from contexture.train.grid.folder import without_shared
from contexture.train.grid.results import spreads
from contexture.train.run.console import console, print_table
from contexture.train.run.signals import STOPPED, Signals
from contexture.train.run_file import read

if TYPE_CHECKING:
    from contexture.train.evaluation.evaluate import EvaluationResult

STOPPED_BETWEEN = "stopped; the same command evaluates the checkpoints that are missing"


def evaluate_command(argv: list[str]) -> TwofoldResult | None:
    """Returns held-out metrics of runs; people see files instead of the split that they stand for, and several runs or
    checkpoints as a table on stderr."""
    args = parse(EvaluationArgs, argv, "evaluate")
    requests = requests_of(without_shared(args.runs), args)
    for request in requests:
        read(request.folder)
    from contexture.train.cpu_memory import tune_cpu_allocator
    from contexture.train.evaluation.evaluate import evaluate_run, evaluate_runs

    tune_cpu_allocator()
    stopped = STOPPED_BETWEEN if args.every_step else STOPPED
    with Signals(stopped) as signals, results_alone() if args.mesh.distributed else contextlib.nullcontext():
        if len(requests) > 1:
            return _several(evaluate_runs(requests, signals))
        result = evaluate_run(requests[0], signals)
    import jax

    if jax.process_index() > 0:
        return None
    if "checkpoints" in result:
        show_results([result])
    return TwofoldResult(result, _shown(result))


def _several(results: "list[EvaluationResult]") -> TwofoldResult:
    if not any("submission" in each for each in results):
        show_results(results)
    shown = [_shown({name: x for name, x in each.items() if name not in ("metrics", "labels")}) for each in results]
    return TwofoldResult({"runs": results}, {"runs": shown}, code=int(any("error" in each for each in results)))


def _shown(result: "EvaluationResult | Result") -> Result:
    """Returns what people see of a result on stdout: files instead of the split that they stand for, and no rows that
    the table on stderr has."""
    hidden = {"checkpoints", *(["split"] if "files" in result else [])}
    return {name: x for name, x in result.items() if name not in hidden}


def show_results(results: "Sequence[EvaluationResult]") -> None:
    """Prints a table on stderr: a row for each run and each of its checkpoints."""
    from contexture.train.evaluation.checkpoint_results import numbers_of

    rows = [
        (result["run"], f"{row['step']:,}" if "step" in row else "–", dict(numbers_of(row.get("metrics", {}))))
        for result in results
        for row in result.get("checkpoints", [result])
    ]
    names = list(dict.fromkeys(name for _, _, figures in rows for name in figures))
    several = len(results) > 1
    cells = [
        [*([run] if several else []), step, *(f"{figures[name]:.4g}" if name in figures else "–" for name in names)]
        for run, step, figures in rows
    ]
    # Seeds of one setting are what several runs mostly are.
    if several and len(rows) == len(results) and (spread := spreads(figures for _, _, figures in rows if figures)):
        means = {name: f"{each['mean']:.4g} ± {each['deviation'] or 0:.2g}" for name, each in spread.items()}
        cells.append(["mean ± deviation", "–", *(means.get(name, "–") for name in names)])
    print_table(console(), "", [*(["run"] if several else []), "step", *names], cells)
