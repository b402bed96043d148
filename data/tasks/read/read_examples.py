"""Labelled examples from files and TFDS sets: every format gives rows, and one function makes Examples of rows."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from contexture.data.config import Context, TaskConfig
from contexture.data.errors import DataError, did_you_mean
from contexture.data.inputs import plain
from contexture.data.plain_files import COLUMNAR, check_content, check_plain, inner_suffix
from contexture.data.tasks.read.columns import RowReader, find_columns
from contexture.data.tasks.read.conll import conll
from contexture.data.tasks.read.examples import Example, QuestionExample
from contexture.data.tasks.read.file_report import FileReport, is_quoted
from contexture.data.tasks.read.published.publishers import is_published, open_published, table_of, table_reader
from contexture.data.tasks.read.squad_file import questions_of_json
from contexture.data.tasks.read.tables import Table, columnar, objects, separated, table_of_records
from contexture.data.text import hub, tfds
from contexture.data.text.columnar import files_of, is_saved
from contexture.data.text.sources import Source, TextFile, shared

FORMATS = (".tsv", ".csv", ".jsonl", ".json", ".conll", ".conllu", *COLUMNAR)
_OTHER_SUFFIXES = {
    **dict.fromkeys((".bio", ".iob", ".iob2", ".bioes", ".bilou", ".bmes", ".conll03", ".col"), ".conll"),
    **dict.fromkeys((".ndjson", ".jsonlines"), ".jsonl"),
    ".tab": ".tsv",
}
"""What others call files of these formats."""
_FILES = (
    f"{', '.join(f'*{suffix}' for suffix in FORMATS[: -len(COLUMNAR)])} (also with .gz, .bz2, .xz or .zst), "
    f"{', '.join(f'*{suffix}' for suffix in COLUMNAR)}, the folder of a saved data set, or tfds:NAME"
)


def check_sources(paths: Iterable[str], what: str) -> None:
    """Raises: DataError for a file that is missing, empty, of no known format or named twice, and for a TFDS set that
    is not on disk."""
    sources: list[Source] = []
    for path in hub.with_local_files(paths):
        if not path.startswith(tfds.PREFIX) and not is_published(path):
            _check_file(path, what)
        sources.append(open_source(path))
        if not sources[-1].size:
            raise DataError(f"{path}: the file is empty; {what} wants a row for each example")
    if twice := shared(sources):
        raise DataError(f"{twice}: {what} names this {twice.kind} twice; give every {twice.kind} once")


def check_documents(paths: Iterable[str]) -> None:
    """Raises: DataError for a file whose format has no documents, which data.context=document reads around each
    sentence."""
    for path in hub.with_local_files(paths):
        # A published file may have any name: its reader says what it is.
        if table_reader(path) is not conll if is_published(path) else inner_suffix(path) not in (".conll", ".conllu"):
            raise DataError(
                f"{path}: holds no borders of documents, and data.context=document reads the document around each "
                "sentence; give *.conll (-DOCSTART- begins a document) or *.conllu (# newdoc), or leave "
                "data.context out"
            )


def check_examples(task: TaskConfig, context: Context = "sentence") -> None:
    """Looks at the files of a task before any work. Raises: DataError as `check_sources`, `check_documents`, and for
    missing columns."""
    task = _with_local_files(task)
    if context == "document":
        check_documents((*task.train, *task.dev, *task.test))
    for what, paths in (("task.train", task.train), ("task.dev", task.dev), ("task.test", task.test)):
        check_sources(paths, what)
        for path in paths:
            # Columns alone: rows are read when they are encoded.
            find_columns(open_table(path, task), task, labelled=True, speaks=False)


def checked_files(task: TaskConfig) -> TaskConfig:
    """Returns a task with the files on disk in place of addresses of the hub. Raises: as `check_sources`, for train and
    dev."""
    task = _with_local_files(task)
    check_sources(task.train, "task.train")
    check_sources(task.dev, "task.dev")
    return task


def _with_local_files(task: TaskConfig) -> TaskConfig:
    # Addresses of the hub become files here, so that no later check meets one.
    return replace(task, **{name: hub.with_local_files(getattr(task, name)) for name in ("train", "dev", "test")})


def _check_file(path: str, what: str) -> None:
    if os.path.isdir(path):
        if not is_saved(path):
            raise DataError(f"{path}: {what} names a folder; name the files in it")
        files_of(Path(path))  # says what is wrong with it
        return
    check_plain(path)
    if not os.path.isfile(path):
        raise DataError(f"{path}: {what} names no such file; check the path")
    check_content(path)
    if (suffix := inner_suffix(path)) not in FORMATS:
        usual = f"; name it *{_OTHER_SUFFIXES[suffix]}" if suffix in _OTHER_SUFFIXES else ""
        raise DataError(f"{path}: {what} wants {_FILES}{usual or did_you_mean(suffix, FORMATS)}")


class NameAndSize(TypedDict):
    name: str
    size: int
    """Bytes."""


def source_of(path: str) -> NameAndSize:
    """Returns what index.json says of a source: {"name": "train.tsv", "size": its bytes}."""
    source = open_source(path)
    return {"name": source.name, "size": source.size}


def examples(
    path: str,
    task: TaskConfig,
    *,
    labelled: bool,
    report: FileReport | None = None,
) -> Iterator[Example]:
    """Yields the rows of a file or a TFDS set as examples, in their order, in memory bounded by a row.

    classify and regress give Text, or Pair where there is a second column; tag gives Tagged, choice gives
    ChoiceExample, span gives QuestionExample. The columns that are read are logged where not all were given.

    Args:
        path: the file, or the set's name.
        task: the task.
        labelled: whether labels, tags and answers are read; else they are None and need no column.
        report: counts invalid rows, which are left out, and empty texts, which are kept.

    Raises:
        DataError: with file:line for an invalid row where no report counts it, and for missing columns.
    """
    table = open_table(path, task)
    columns = find_columns(table, task, labelled)
    # Examples are named by their file without its folder, as index.json names it.
    name = table.where if path.startswith(tfds.PREFIX) else open_source(path).name
    empty, ids = True, dict[str, str]()
    # Quotes mean something in a *.csv, and nothing in a *.tsv.
    tabs = report is not None and inner_suffix(path) == ".tsv"
    for number, row in table.rows:
        empty = False
        # Errors name the path, ids the file's name alone.
        reader = RowReader(f"{table.where}:{number}", f"{name}:{number}", report)
        if report is not None:
            report.rows += 1
        # CSV saved as *.tsv shows by its quotes, which stay in the text: worth a warning.
        if tabs and report is not None and not isinstance(row, DataError):
            report.quoted += sum(map(is_quoted, row))
        try:
            if isinstance(row, DataError):
                raise row
            example = reader.example(row, columns)
            # Answers are handed in by the ids of questions, so that two with one id could not be told apart.
            if isinstance(example, QuestionExample):
                first = ids.setdefault(example.id, example.origin)
                if first != example.origin:
                    raise DataError(f"{reader.at}: the id {example.id!r} is that of {first} too; give each its own")
        except DataError as error:
            # With a report, a row that cannot be read does not end the work.
            if report is None:
                raise
            report.leave_out(error)
        else:
            yield example
    # A file of wrong rows is not empty: what is wrong with them was said.
    if empty:
        raise DataError(f"{path}: no row in the file but its header; give a row for each example")


def examples_of(records: Sequence[Mapping[str, object]], task: TaskConfig) -> list[Example]:
    """Returns records by column as examples without labels, in their order.

    Raises: DataError for an invalid record, and for missing columns.
    """
    # NumPy's and pandas' values as a file would have them.
    rows = [plain(record) for record in records]
    table = table_of_records("text", lambda: enumerate(rows), "every text is a dict of columns")
    columns = find_columns(table, task, labelled=False)
    # Dicts have columns by name, whatever the training set's file had.
    return [
        RowReader(f"text:{number}", f"text:{number}", None).example(row, columns) for number, row in enumerate(rows)
    ]


def open_source(path: str) -> Source:
    """Returns a file or a TFDS set by its name. Raises: DataError for a set that is not on disk."""
    if is_published(path):
        return open_published(path)
    return tfds.open_split(path) if path.startswith(tfds.PREFIX) else TextFile(Path(hub.local_file(path)))


def open_table(path: str, task: TaskConfig) -> Table:
    """Returns the rows of a file or a TFDS set. Raises: DataError for one of no known format."""
    if path.startswith(tfds.PREFIX):
        split = tfds.open_split(path)
        # Width 0: its rows are mappings.
        return Table(split.name, split.name, tuple(split.features), 0, split.rows())
    if is_published(path):
        return table_of(path)
    file = Path(hub.local_file(path))
    if file.is_dir():
        return columnar(file)
    match inner_suffix(file):
        case ".tsv" | ".csv":
            return separated(file, _has_header(task))
        # SQuAD's own files are objects; for other tasks a *.json is an array of rows.
        case ".json" if task.kind == "span":
            return questions_of_json(file)
        case ".jsonl" | ".json":
            return objects(file)
        case ".parquet" | ".arrow" | ".feather":
            return columnar(file)
        case ".conll" | ".conllu" if task.kind == "tag":
            return conll(file)
        case ".conll" | ".conllu":
            raise DataError(f"{path}: holds words with tags; give it to --task.kind tag, not {task.kind}")
    raise DataError(f"{path}: examples lie in {_FILES}")


def _has_header(task: TaskConfig) -> bool:
    given = [column for column in (task.text, task.second, *task.choices, task.label, task.answer_start) if column]
    # Columns that are all given by position suggest that they have no names.
    by_position = bool(task.text and task.label) and all(map(str.isdecimal, given))
    return task.header == "yes" or (task.header == "auto" and not by_position)
