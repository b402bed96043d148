"""What the Python functions take as texts and examples: lists, columns and tables of other libraries. Needs no jax."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from contexture.data.errors import DataError
from contexture.data.task_kinds import KINDS

Record = dict[str, object]
Examples = Sequence[Any] | Mapping[str, Any] | Any
"""Rows (tuples or dicts), a mapping of columns, or a table of pandas, polars or Arrow."""


def is_paths(given: object) -> TypeGuard[str | Path | Sequence[str | Path]]:
    """Returns whether these are files: a path, or a list of paths."""
    if isinstance(given, list | tuple):
        return bool(given) and all(isinstance(each, str | Path) for each in given)
    return isinstance(given, str | Path)


def as_list(given: object, what: str) -> list[Any]:
    """Returns the items of a list, an iterator, an array, or a column of pandas, polars or Arrow; the rows of a table
    of these as dicts.

    Raises: DataError for anything else.
    """
    # By their methods: none of these libraries need be installed. Tables first, which have columns.
    if hasattr(given, "to_dicts"):  # polars.DataFrame
        rows = given.to_dicts()  # pyright: ignore[reportAttributeAccessIssue]
    elif hasattr(given, "to_dict") and hasattr(given, "columns"):  # pandas.DataFrame
        rows = given.to_dict("records")  # pyright: ignore[reportAttributeAccessIssue]
    elif isinstance(given, Mapping):
        return _rows_of_columns(given, what)
    else:
        method = next((name for name in ("to_pylist", "to_list", "tolist") if hasattr(given, name)), None)
        if method:
            rows = getattr(given, method)()  # Arrow, polars and pandas, NumPy
        elif isinstance(given, Iterable) and not isinstance(given, str | bytes):
            rows = list(given)
        else:
            raise DataError(f"{what}: {str(given)[:60]!r} is no list, column or table; give a list, also of one")
    return [plain(row) for row in rows]


def _rows_of_columns(columns: Mapping[str, Any], what: str) -> list[Any]:
    """{"text": [...], "label": [...]} → a dict for each row."""
    # A DatasetDict: its values are tables, and which one is meant is not known.
    if sets := [str(name) for name, column in columns.items() if hasattr(column, "column_names")]:
        raise DataError(f"{what}: a dict of data sets ({', '.join(sets)}); give one of them, as data[{sets[0]!r}]")
    # One example given as a dict would be read as columns of single characters.
    if any(isinstance(column, str) or not isinstance(column, Iterable) for column in columns.values()):
        raise DataError(f"{what}: a dict stands for columns, each a list; give one example as [{{…}}]")
    lists = {str(name): as_list(column, f"{what}, column {name!r}") for name, column in columns.items()}
    lengths = {name: len(column) for name, column in lists.items()}
    if len(set(lengths.values())) > 1:
        named = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise DataError(f"{what}: the columns differ in length: {named}; give each row a value in every column")
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def plain(value: Any) -> Any:
    """Returns a value with the numbers and arrays of NumPy in it as Python's own, and None for each missing one."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        # Named tuples become lists: their classes take each value by itself.
        return type(value)(map(plain, value)) if type(value) in (list, tuple) else list(map(plain, value))
    return None if _is_missing(value) else value


def _is_missing(value: object) -> bool:
    """Returns whether a value is how pandas or NumPy says that there is none: NaN, NaT, pandas.NA."""
    if isinstance(value, float):
        # Only NaN differs from itself.
        return value != value
    # By their names, since pandas need not be installed; pandas.NA even refuses to say whether it equals itself.
    return type(value).__name__ in ("NAType", "NaTType")


def records(given: Examples, kind: str, what: str) -> list[Record]:
    """Returns labelled examples as dicts of their columns. kind: of the task; what: the argument, for messages.

    A tuple is (text, label), (first, second, label), (words, tags), (text, choices, label) or (question,
    context, answers).

    Raises: DataError for rows of another shape, and for no row.
    """
    rows = as_list(given, what)
    if not rows:
        raise DataError(f"{what} holds no example; give a row for each")
    shapes = KINDS[kind].tuples
    made: list[Record] = []
    for number, row in enumerate(rows):
        if isinstance(row, Mapping):
            made.append(dict(row))
            continue
        # The length of a tuple says which columns it has.
        names = shapes.get(len(row)) if isinstance(row, list | tuple) else None
        if names is None:
            usual = " or ".join(f"({', '.join(names)})" for names in shapes.values())
            raise DataError(f"{what}:{number}: {str(row)[:60]!r} is not {usual}, and no dict of columns")
        made.append(dict(zip(names, row, strict=True)))
    return made


def as_jsonl(rows: Sequence[Record]) -> bytes:
    """Returns rows as the content of a *.jsonl file, the same bytes for the same rows.

    Raises: DataError for values that JSON does not have.
    """
    lines = []
    for number, row in enumerate(rows):
        try:
            # Half a character fails to encode, which is a ValueError too.
            lines.append(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        except (TypeError, ValueError) as error:
            raise DataError(f"row {number}: cannot be written as JSON ({error}); give strings and numbers") from None
    return b"".join(lines)
