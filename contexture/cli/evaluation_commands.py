"""`contexture evaluate`: argv → what is printed."""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from contexture.cli.output import Result, TwofoldResult, results_alone
from contexture.cli.parse import parse
from contexture.cli.query_commands import STOPPED, listening
from contexture.requests import EvaluationArgs
from contexture.train.run.console import console, print_table
from contexture.train.run_file import read

if TYPE_CHECKING:
    from contexture.train.evaluation.checkpoint_results import CheckpointResult

STOPPED_BETWEEN = "stopped; the same command evaluates the checkpoints that are missing"


def evaluate_command(argv: list[str]) -> Result | TwofoldResult | None:
    """Returns held-out metrics of a run; people see files instead of the split that they stand for, and checkpoints as
    a table on stderr."""
    request = parse(EvaluationArgs, argv, "evaluate")
    read(request.folder)
    from contexture.train.cpu_memory import tune_cpu_allocator
    from contexture.train.evaluation.evaluate import evaluate_run

    tune_cpu_allocator()
    stopped = STOPPED_BETWEEN if request.every_step else STOPPED
    with listening(stopped) as signals, results_alone() if request.mesh.distributed else contextlib.nullcontext():
        result = evaluate_run(request, signals)
    import jax

    if jax.process_index() > 0:
        return None
    shown = {name: x for name, x in result.items() if name != "split" or "files" not in result}
    if "checkpoints" in result:
        show_checkpoints(result["checkpoints"])
        del shown["checkpoints"]
    return TwofoldResult(result, shown)


def show_checkpoints(results: "Sequence[CheckpointResult]") -> None:
    """Prints a table on stderr, a row for each checkpoint."""
    from contexture.train.evaluation.checkpoint_results import numbers_of

    figures = [dict(numbers_of(result["metrics"])) for result in results]
    names = list(dict.fromkeys(name for each in figures for name in each))
    rows = [
        [f"{result['step']:,}", *(f"{each[name]:.4g}" if name in each else "–" for name in names)]
        for result, each in zip(results, figures, strict=True)
    ]
    print_table(console(), "", ["step", *names], rows)
