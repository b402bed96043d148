"""Columnar files (*.parquet, *.arrow, *.feather) and data sets that Hugging Face's `datasets` saved to disk → rows,
read by pyarrow, a record batch at a time.

Rows are numbered from 0, as `datasets` and pandas do. An *.arrow file may be of either IPC format. pyarrow takes half a
second to import, so it is imported where a file is opened.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from contexture.data.errors import DataError, did_you_mean
from contexture.data.plain_files import check_unchanged, inner_suffix, open_plain, read_plain, state_of
from contexture.data.text.lines import LONGEST_ROW

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
"""Files in the folder of a saved data set, and in the folder of its splits."""
TEXT = "text"
"""The column of the text."""
_AT_ONCE = 1024
"""Rows that are made Python objects together."""
_FILE, _CONTINUED = b"ARROW1", b"\xff\xff\xff\xff"
"""How an IPC file begins, and each message of an IPC stream."""
_AGAIN = "write it again"

Convert: TypeAlias = Callable[[Any], object]


def is_saved(path: str | Path) -> bool:
    """Returns whether a folder is a data set that `save_to_disk` wrote, or holds the splits of one."""
    return any(os.path.isfile(os.path.join(path, name)) for name in (STATE, SPLITS))


def files_of(path: Path) -> tuple[Path, ...]:
    """Returns the files of a data set in their order; a file itself.

    Raises: DataError for a folder of splits, and for a data set with a file missing or with rows chosen by an index.
    """
    if not path.is_dir():
        return (path,)
    # A folder of splits, which is not data itself.
    if not (path / STATE).is_file():
        listed = _json(path / SPLITS).get("splits")
        splits = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
        each = splits[0] if splits else "train"
        raise DataError(
            f"{path}: a data set with the splits {', '.join(splits) or '…'}; name the folder of one: {path / each}"
        )
    state = _json(path / STATE)
    # After select(), shuffle() or filter() the files still hold all rows.
    if state.get("_indices_data_files"):
        raise DataError(
            f"{path}: rows chosen by an index, which is not read; save dataset.flatten_indices() with save_to_disk"
        )
    # The files of the set, in its own order.
    entries = state.get("_data_files")
    names = [each.get("filename") if isinstance(each, dict) else None for each in entries or ()]
    # A name and nothing more: a path could lead out of the folder.
    if not isinstance(entries, list) or not all(isinstance(name, str) and name == Path(name).name for name in names):
        raise DataError(f"{path / STATE}: not the state of a saved data set; save it again with save_to_disk")
    files = tuple(path / str(name) for name in names)
    for file in files:
        if not file.is_file():
            raise DataError(f"{file}: missing, a file of the data set; save it again with save_to_disk")
    return files


@dataclass(frozen=True)
class Columnar:
    """The rows of a columnar file, or of a saved data set."""

    path: Path

    def names(self) -> tuple[str, ...]:
        """Returns the names of the columns. Raises: DataError for a damaged file."""
        return tuple(self._schema().names)

    def rows(
        self, columns: Sequence[str] | None = None, optional: Sequence[str] = ()
    ) -> Iterator[tuple[int, Mapping[str, object]]]:
        """Yields (number, {column: value}). A class label of `datasets` is its name, None for class -1, which marks an
        unknown label. Cells are converted as they are asked for.

        Args:
            columns: the columns to read; None: all.
            optional: of these, the ones that are missing where their values are damaged.

        Raises:
            DataError: for a damaged file, and files whose columns differ; from a row, for a value that is no string,
                number, boolean, or list of them.
        """
        schema = self._schema()
        columns = tuple(schema.names) if columns is None else columns
        # The names of classes, where `datasets` wrote them.
        features = self._features(schema)
        number = 0
        for file in files_of(self.path):
            for batch in _batches(file, schema.names, columns, optional):
                readers = {name: _Cells(batch.column(name), features.get(name)) for name in columns}
                for place in range(batch.num_rows):
                    yield number, _Row(f"{self.path}:{number}", readers, place)
                    number += 1

    def texts(
        self, seen: Callable[[bytes], object] = len, column: str = TEXT, others: Sequence[str] = ()
    ) -> Iterator[tuple[int, str, Mapping[str, object]]]:
        """Yields a column as (number, text, row); each text goes through `seen`, with a line's end.

        others: further columns that a row has, where the table has them.

        Raises: as `rows`; DataError where there is no such column, or a row has no string in it.
        """
        names = self.names()
        if column not in names:
            columns = ", ".join(map(repr, names[:16]))
            near = did_you_mean(column, names)
            near = near or next((f" (did you mean {name}?)" for name in names if name.lower() == column.lower()), "")
            mend = "rename the text's, or name it (--data.text-column)"
            raise DataError(f"{self.path}: no column {column!r}{near}; the columns are {columns}; {mend}")
        # Of a data set of several files, what all of them have.
        everywhere = set(names).intersection(*(_names_of(file) for file in files_of(self.path)[1:]))
        optional = [name for name in dict.fromkeys(others) if name in everywhere and name != column]
        for number, row in self.rows((column, *optional), optional):
            text = row[column]
            if not isinstance(text, str):
                raise DataError(f"{self.path}:{number}: no string in column {column!r}; leave such rows out")
            # Counted and hashed as a line of a text file would be.
            seen(f"{text}\n".encode())
            yield number, text, row

    def _schema(self) -> Any:
        files = files_of(self.path)
        if not files:
            raise DataError(f"{self.path}: the data set has no file, and so no row; give another")
        # The first file's columns are the data set's; the others are compared with them as they are read.
        with _opened(files[0]) as reader:
            schema = _schema_of(reader)
        # A row is a mapping by name, in which one of two would hide the other.
        twice = [name for name in schema.names if schema.names.count(name) > 1]
        if twice:
            raise DataError(f"{files[0]}: two columns are called {twice[0]!r}; rename one")
        return schema

    def _features(self, schema: Any) -> Mapping[str, object]:
        """Returns what `datasets` says of the columns, in its own file next to the data, or else in the schema."""
        if self.path.is_dir() and (self.path / INFO).is_file():
            features = _json(self.path / INFO).get("features")
            return features if isinstance(features, dict) else {}
        try:
            features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        except (KeyError, TypeError, ValueError, RecursionError):
            return {}
        return features if isinstance(features, dict) else {}


class _Cells:
    """A column of a batch, made Python objects when a cell of it is first asked for. A cell of objects is a mapping of
    the fields that can be read."""

    def __init__(self, column: Any, feature: object) -> None:
        self._column, self._values = column, None
        self._fields: dict[str, _Cells] = {}
        self._convert, self.readable = _converter(column.type, feature)
        names = [field.name for field in column.type] if str(column.type).startswith("struct<") else []
        if names:
            import pyarrow.compute as compute

            described: Mapping[str, object] = feature if isinstance(feature, dict) else {}
            # Fields go by their place, since a name may occur twice.
            for place, name in enumerate(names):
                within = compute.struct_field(column, [place])  # pyright: ignore[reportAttributeAccessIssue]
                field = _Cells(within, described.get(name))
                # What cannot be read, or has no name of its own, is left out.
                if field.readable and names.count(name) == 1:
                    self._fields[name] = field
            self.readable = bool(self._fields)

    @property
    def type(self) -> str:
        return str(self._column.type)

    def value(self, place: int) -> object:
        if self._fields:
            # An object may be missing as a whole, or some of its fields.
            valid = self._column[place].is_valid
            return {name: field.value(place) for name, field in self._fields.items()} if valid else None
        if self._values is None:
            # Before the strings are made Python's: a cell may have gigabytes.
            if (longest := _longest(self._column)) > LONGEST_ROW:
                raise _BadCell(
                    f"holds {longest:,} bytes in a cell near here, more than {LONGEST_ROW:,}; break the text up"
                )
            self._values = self._column.to_pylist()
        value = self._values[place]
        return value if self._convert is None or value is None else self._convert(value)


class _Row(Mapping[str, object]):
    """A row of a batch."""

    def __init__(self, at: str, cells: Mapping[str, _Cells], place: int) -> None:
        self._at, self._cells, self._place = at, cells, place

    def __getitem__(self, name: str) -> object:
        cells = self._cells[name]
        # An error only where it is asked for: columns that nobody reads may be of any type.
        if not cells.readable:
            raise DataError(
                f"{self._at}: column {name!r} is of type {cells.type[:60]}; give strings, numbers, or lists of them"
            )
        try:
            return cells.value(self._place)
        except _BadCell as error:
            raise DataError(f"{self._at}: column {name!r} {error}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)


class _BadCell(Exception):
    """What is wrong with a cell, and how to mend it."""


def _longest(column: Any) -> int:
    """Returns the bytes of the longest string of a column; its strings are not made Python's for that."""
    import pyarrow.compute as compute
    import pyarrow.types as types

    # Of a dictionary column each string is in the dictionary once.
    column = column.dictionary if types.is_dictionary(column.type) else column
    if not (types.is_string(column.type) or types.is_large_string(column.type)):
        return 0
    lengths: Any = compute.binary_length(column)  # pyright: ignore[reportAttributeAccessIssue]
    # None where the whole column is missing.
    return compute.max(lengths).as_py() or 0  # pyright: ignore[reportAttributeAccessIssue]


def _converter(type: Any, feature: object) -> tuple[Convert | None, bool]:
    """Returns how a value of a type becomes a cell (None: it is one), and whether it can.

    Args:
        type: Arrow's type.
        feature: what `datasets` says of it: {"_type": "ClassLabel", "names": […]}, {"_type": "List", "feature": …} or
            […].
    """
    import pyarrow.types as types

    described: Mapping[str, Any] = feature if isinstance(feature, dict) else {}
    if types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type):
        # `datasets` writes a list as [feature], or in newer versions as an object with a "feature".
        inner = feature[0] if isinstance(feature, list) and feature else described.get("feature")
        convert, readable = _converter(type.value_type, inner)
        if convert is None:
            return None, readable
        return lambda values: [each if each is None else convert(each) for each in values], readable
    # Class labels are numbers with names.
    names = described.get("names")
    if described.get("_type") == "ClassLabel" and isinstance(names, list) and types.is_integer(type):
        return lambda value: _class_name(value, names), True
    if types.is_dictionary(type):
        return _converter(type.value_type, None)
    if types.is_floating(type):
        # NaN is how pandas writes that there is no number.
        if types.is_float64(type):
            return lambda value: None if value != value else value, True
        # A float32 has its own shortest decimals: 3.8, and not 3.799999952316284, the same number as a float64.
        kind = np.float16 if types.is_float16(type) else np.float32
        return lambda value: None if value != value else float(str(kind(value))), True
    if types.is_decimal(type):
        # Without an exponent, whatever its size.
        return lambda value: format(Decimal(value), "f"), True
    # Everything else is a cell without conversion, or cannot be read.
    strings = types.is_string(type) or types.is_large_string(type) or types.is_string_view(type)
    return None, strings or types.is_integer(type) or types.is_boolean(type) or types.is_null(type)


def _class_name(value: int, names: list[object]) -> str | None:
    if value == -1:  # how `datasets` marks a label that is not known
        return None
    if not 0 <= value < len(names):
        raise _BadCell(f"is class {value}, and has the names of {len(names)} classes; save the data set again")
    return str(names[value])


def _batches(file: Path, names: Sequence[str], columns: Sequence[str], optional: Sequence[str]) -> Iterator[Any]:
    """Yields record batches of at most _AT_ONCE rows, checked as a whole: a damaged file would else crash pyarrow."""
    import pyarrow as pa

    with _opened(file, columns) as reader:
        # Parquet's reader has the one name, the readers of IPC the other.
        schema = reader.schema_arrow if hasattr(reader, "schema_arrow") else None
        if schema is None:
            schema, batches = reader.schema, _messages(reader)
        else:
            batches = reader.iter_batches(_AT_ONCE, columns=list(columns), use_threads=False)
        if missing := [name for name in columns if name not in schema.names]:
            raise DataError(f"{file}: no column {missing[0]!r}, which another file of the data set has; {_AGAIN}")
        while True:
            with _damage(file):
                batch = next(batches, None)
                if batch is None:
                    return
                for name in optional:
                    try:
                        batch.column(name).validate(full=True)
                    except pa.ArrowInvalid:
                        # Nobody has asked for them: the text beside them is sound.
                        nothing = pa.nulls(batch.num_rows, batch.column(name).type)
                        batch = batch.set_column(batch.schema.get_field_index(name), name, nothing)
                batch.validate(full=True)
            # A batch of IPC is as large as it was written.
            for first in range(0, batch.num_rows, _AT_ONCE):
                yield batch.slice(first, _AT_ONCE)


def _names_of(file: Path) -> list[str]:
    with _opened(file) as reader:
        return _schema_of(reader).names


def _messages(reader: Any) -> Iterator[Any]:
    # A file knows how many batches it has, a stream does not.
    if hasattr(reader, "num_record_batches"):
        yield from (reader.get_batch(place) for place in range(reader.num_record_batches))
    else:
        yield from reader


@contextmanager
def _opened(file: Path, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Gives pyarrow's reader of a file: of Parquet, an IPC file, or an IPC stream. columns: those that are read of IPC.

    Raises: DataError for a damaged file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open_plain(file) as opened:
        at_opening = state_of(opened)
        source = pa.PythonFile(opened, mode="r")
        with _damage(file):
            if inner_suffix(file) == ".parquet":
                # In pieces of 1 MiB, instead of a whole column chunk at once.
                reader: Any = pq.ParquetFile(source, buffer_size=1 << 20, pre_buffer=False)
            else:
                begin = opened.read(len(_FILE))
                if begin.startswith(b"FEA1"):
                    raise DataError(f"{file}: Feather of version 1, which is not read; write it again with version 2")
                # What does not begin as a file is taken for a stream.
                stream = begin != _FILE
                if stream:
                    _check_ends(file, opened)
                opened.seek(0)
                reader = _ipc(pa, source, stream, None)
                # Opened once more with these columns alone: the others are then never decoded.
                if columns is not None:
                    numbers = [number for number, name in enumerate(reader.schema.names) if name in columns]
                    opened.seek(0)
                    reader = _ipc(pa, source, stream, pa.ipc.IpcReadOptions(included_fields=numbers))
            _schema_of(reader).names  # noqa: B018  # decodes them: damaged ones are no UTF-8
        yield reader
        # A file that was written to meanwhile may have given rows of both states.
        check_unchanged(file, opened, at_opening)


def _schema_of(reader: Any) -> Any:
    return reader.schema_arrow if hasattr(reader, "schema_arrow") else reader.schema


def _ipc(pa: Any, source: Any, stream: bool, options: Any) -> Any:
    return (pa.ipc.open_stream if stream else pa.ipc.open_file)(source, options=options)


def _check_ends(file: Path, opened: Any) -> None:
    """Raises: DataError for an IPC stream without its mark of the end: it may be cut off between two batches."""
    size = opened.seek(0, os.SEEK_END)
    opened.seek(max(0, size - 8))
    # The end mark is a message of length 0.
    if opened.read() != _CONTINUED + bytes(4):
        raise DataError(f"{file}: an Arrow stream without an end mark, cut off or never closed; {_AGAIN}, and close it")


@contextmanager
def _damage(file: Path) -> Iterator[None]:
    """Makes an error of pyarrow one line."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        # pyarrow's own OSErrors have no number.
        if isinstance(error, OSError) and error.errno is not None:  # of the disk
            raise
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise DataError(f"{file}: damaged, cut off, or not what its name says ({reason}); {_AGAIN}") from None


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_plain(file))
    except (ValueError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        content = None
    if not isinstance(content, dict):
        raise DataError(f"{file}: no JSON object; save the data set again with save_to_disk")
    return content
