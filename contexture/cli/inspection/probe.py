"""`contexture probe`: argv → the printed result."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contexture.analysis.options import layer_numbers
from contexture.cli.output import Result, TwofoldResult
from contexture.cli.parse import parse
from contexture.data.errors import DataError
from contexture.data.plain_files import check_plain, inner_suffix
from contexture.requests import ProbeRequest, several
from contexture.table_files import PlusMinus, check_table, plus_minus, shown, write_table
from contexture.train.evaluation.request import Strings
from contexture.train.grid.folder import without_shared
from contexture.train.run.signals import Signals
from contexture.train.settings.run_file import read

if TYPE_CHECKING:
    from contexture.analysis.probing.probe_rows import ProbeRow
    from contexture.analysis.probing.target_types import Sentence

_SHOWN = ("run", "step", "task", "f1", "lexical_f1", "centre_of_gravity", "expected_layer", "best_layer", "selectivity")


def probe_command(argv: list[str]) -> TwofoldResult:
    """Trains probes on the layers of runs, and writes their figures; people see the main ones of each task."""
    request = parse(ProbeRequest, argv, "probe")
    folder = Path(request.to)
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: is a file; give --to a folder")
    if request.table:
        check_table(Path(request.table))
    files = {name: _files(getattr(request, name), name) for name in ("train", "dev", "test")}
    # Runs and their steps first, which are quickly read.
    records = {run: read(Path(run)).run for run in without_shared(request.runs)}
    from contexture.analysis.probing.probe_rows import FILE, read_rows
    from contexture.analysis.probing.targets import check_task, read_sentences
    from contexture.train.evaluation.steps import steps_named

    for run in records.values():
        layer_numbers(request.layers, run.model.layers, ("all", "each"))
    steps = {name: steps_named(Path(name), request.step, run.evaluate.metric) for name, run in records.items()}
    # A damaged file of earlier results is an error before hours of training, not after.
    read_rows(folder)
    tasks = several(request.task) or _name_of(files["train"])
    # All names are checked before the first file is read, which may take long.
    every = [path for paths in files.values() for path in paths]
    for task in tasks:
        check_task(task, every)
    sets: dict[str, dict[str, list[Sentence]]] = {
        name: {task: [each for path in paths for each in read_sentences(path, task)] for task in tasks}
        for name, paths in files.items()
    }
    new, figures = _train_probes(request, sets, steps)
    result: Result = {
        "to": str(folder / FILE),
        "figures": [str(file) for file in figures],
        **({"table": request.table} if request.table else {}),
        "probes": new,
    }
    rows = _table_rows(new)
    if request.table:
        write_table(Path(request.table), rows)
    printed = [{name: shown(x) if isinstance(x, PlusMinus) else x for name, x in row.items()} for row in rows]
    return TwofoldResult(result, {**result, "probes": printed})


def _train_probes(
    request: ProbeRequest, sets: "dict[str, dict[str, list[Sentence]]]", steps: Mapping[str, Sequence[int | None]]
) -> "tuple[list[ProbeRow], list[Path]]":
    """Trains the probes of each run and each of its steps, and draws all rows of the folder.

    Returns:
        The new rows, and the files of the figures.
    """
    from contexture.analysis.probing.probe import probe
    from contexture.analysis.probing.probe_figure import draw_probes
    from contexture.analysis.probing.probe_rows import FILE, write_rows

    folder = Path(request.to)
    new: list[ProbeRow] = []
    rows: list[ProbeRow] = []
    folder.mkdir(parents=True, exist_ok=True)
    with Signals(f"stopped; {folder / FILE} has the runs and steps that were done") as signals:
        for run, step in [(name, step) for name in steps for step in steps[name]]:
            new += probe(
                run,
                sets["train"],
                sets["dev"],
                sets["test"] if request.test else None,
                folder=folder,
                step=step,
                how=request,
                cancel=signals,
            )
            # Written after each run and step, so that a stop loses only the one at work.
            rows = write_rows(folder, new)
        return new, draw_probes(rows, folder, request.theme)


def _files(given: Strings, name: str) -> list[Path]:
    files = [Path(path) for path in several(given)]
    for file in files:
        check_plain(file)
        if not file.is_file():
            raise DataError(f"{file}: --{name} names no such file; check the path")
    return files


def _name_of(files: Sequence[Path]) -> tuple[str]:
    """Returns the name of a task without --task: its file of spans' name. Files that are no *.jsonl are a DataError."""
    for file in files:
        if inner_suffix(file) != ".jsonl":
            raise DataError(f"{file}: which of its labels to probe is not given; give --task pos, for example")
    return (files[0].name.partition(".")[0],)


def _table_rows(rows: "Sequence[ProbeRow]") -> list[dict[str, Any]]:
    """Returns the main figures of each row, over its seeds; the run and its step only where they differ."""
    names = [name for name in _SHOWN if any(name in row for row in rows)]
    names = [n for n in names if n not in ("run", "step") or len({row.get(n) for row in rows}) > 1]
    return [{name: _cell(row, name) for name in names} for row in rows]


def _cell(row: "ProbeRow", name: str) -> Any:
    spread = row.get("over_seeds", {}).get(name)
    return row.get(name) if spread is None else plus_minus(spread["mean"], spread["deviation"])
