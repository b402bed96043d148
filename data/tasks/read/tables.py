"""Tables in files (*.tsv, *.csv, *.jsonl, *.json, columnar): their columns' names and their rows, in memory bounded by
a row, or by a record batch."""

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from contexture.data.errors import DataError
from contexture.data.plain_files import inner_suffix
from contexture.data.text.columnar import Columnar
from contexture.data.text.json_rows import JsonObject, json_records
from contexture.data.text.lines import LONGEST_ROW, decoded_lines

LONGEST_FIELD = 1 << 24
"""Characters of a cell. A longer field of a *.csv is taken for a quote that is never closed."""
FIRST_ROWS = 100
"""Rows from which the columns are detected, so that an odd first row is left out like any other."""
_EXPECTED = {
    ".jsonl": 'every line of a *.jsonl is an object like {"text": "…", "label": "…"}',
    ".json": 'a *.json is an array of objects like {"text": "…", "label": "…"}',
}

Cell: TypeAlias = object
"""A string; in a *.jsonl any JSON value."""
Row = Sequence[Cell] | Mapping[str, Cell]


@dataclass(frozen=True)
class Table:
    """The rows of a file or a TFDS set, whatever its format."""

    where: str
    """The file's path, or the set's name."""
    head: str
    """The place of the columns' names: "data/train.tsv:1"."""
    names: tuple[str, ...] | None
    """The columns' names; None where they have only positions."""
    width: int
    """Columns of a row. 0: a row is a mapping, by the names of the columns."""
    rows: Iterator[tuple[int, Row | DataError]]
    """(number of its first line, or in its split; its cells, or its error). A cell of CoNLL is a list, of all words of
    a sentence."""
    usual: tuple[str, str] = ("", "")
    """The columns of texts and labels, where the format itself fixes them."""
    headed: bool = False
    """Whether the names come from a first line, which may be no header."""
    rare: tuple[str, ...] = ()
    """Of objects, the keys that fewer than half of the first ones have."""
    lone: str = ""
    """Of a table with one column, its first cell: a file with other separators shows there."""


def separated(path: Path, header: bool) -> Table:
    """Returns the table of a *.tsv (no quotes, a line a row, as GLUE's) or a *.csv (RFC 4180).

    A quote in a *.tsv is a character like others, so that no text is changed in silence.

    Without a header there are as many columns as in most of the first rows. A row of another width, or that is not
    UTF-8, comes as a DataError with file:line.

    Raises: DataError for an error that affects the whole file.
    """
    read = _commas if inner_suffix(path) == ".csv" else _tabs
    rows = read(path)
    names = None
    if header:
        # An empty file has a header without columns, which is refused below.
        number, cells = next(rows, (0, []))
        # Without the names no row can be read: an error of the header is an error of the file.
        if isinstance(cells, DataError):
            raise cells
        names, width = tuple(name.strip() for name in cells), len(cells)
        lone = "".join(cells[:1])
    else:
        # A second pass from the beginning: `rows` is still at its first row.
        number, width = usual_width(read(path))
        lone = next((row[0] for line, row in read(path) if line == number and not isinstance(row, DataError)), "")
    if not width:
        raise DataError(f"{path}: no row in the file; give a row for each example")
    whose = f"the header has {width} ({listed(names)})" if names else f"line {number} has {width}"

    def checked() -> Iterator[tuple[int, Row | DataError]]:
        mend = "put a tab" if inner_suffix(path) == ".tsv" else "put a comma"
        # An error belongs to its row: the caller decides whether it ends the work.
        for line, row in rows:
            if isinstance(row, DataError):
                yield line, row
            elif len(row) != width:
                wrong = f"{counted(len(row), 'column')} where {whose}; {mend} between columns"
                yield line, DataError(f"{path}:{line}: {wrong}")
            else:
                yield line, row

    return Table(str(path), f"{path}:{number}", names, width, checked(), headed=header, lone=lone if width == 1 else "")


def usual_width(rows: Iterable[tuple[int, Sequence[str] | DataError]]) -> tuple[int, int]:
    """Returns the first line of the usual width, and that width: the columns of most of the first rows. Zeros without
    rows.

    Raises: DataError, the first one, where no row is without an error.
    """
    widths: Counter[int] = Counter()
    lines: dict[int, int] = {}
    odd: DataError | None = None
    for number, row in islice(rows, FIRST_ROWS):
        if isinstance(row, DataError):
            odd = odd or row
        else:
            widths[len(row)] += 1
            # The first line of each width, for messages.
            lines.setdefault(len(row), number)
    if odd and not widths:
        raise odd
    width = widths.most_common(1)[0][0] if widths else 0
    return lines.get(width, 0), width


def objects(path: Path) -> Table:
    """Returns the table of a *.jsonl, an object a line, or of a *.json, an array of objects. What is no object comes as
    a DataError with file:number."""
    expected = _EXPECTED[inner_suffix(path)]
    return table_of_records(str(path), lambda: json_records(path, expected), expected)


def table_of_records(
    where: str, records: Callable[[], Iterator[tuple[int, JsonObject | DataError]]], expected: str
) -> Table:
    """Returns the table of (number, record). The columns are the keys that half of the first records have.

    Raises: DataError without a record, with what is `expected`.
    """
    keys: Counter[str] = Counter()
    lines: list[int] = []
    odd: DataError | None = None
    for number, record in islice(records(), FIRST_ROWS):
        if isinstance(record, DataError):
            odd = odd or record
        else:
            keys.update(record.keys())
            lines.append(number)
    if not lines:
        raise odd or DataError(f"{where}: no row in the file; {expected}")
    # Not the first object's keys alone: one odd object would then make all others odd.
    names = tuple(key for key, count in keys.items() if 2 * count >= len(lines))
    rare = tuple(key for key in keys if key not in names)
    # Read from the beginning again: the first rows belong to the table.
    return Table(where, f"{where}:{lines[0]}", names, 0, records(), rare=rare)


def columnar(path: Path) -> Table:
    """Returns the table of a columnar file, or of a saved data set. Raises: DataError for a damaged file."""
    table = Columnar(path)
    return Table(str(path), str(path), table.names(), 0, table.rows())


def listed(names: Sequence[str]) -> str:
    """Returns names of columns for a message: 'premise', 'hypothesis', …"""
    shown = [repr(name if len(name) <= 40 else f"{name[:39]}…") for name in names[:16]]
    return ", ".join([*shown, "…"] if len(names) > 16 else shown)


def counted(number: int, noun: str) -> str:
    """Returns "1 column", "2 columns"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _tabs(path: Path) -> Iterator[tuple[int, list[str] | DataError]]:
    for number, line, wrong in decoded_lines(path):
        # Nothing else is stripped: an empty cell at the end is a cell.
        line = line.removesuffix("\n").removesuffix("\r")
        # A blank line is no row; one of tabs has empty cells.
        if line.strip() or "\t" in line:
            yield number, wrong or line.split("\t")


def _commas(path: Path) -> Iterator[tuple[int, list[str] | DataError]]:
    # The csv module allows 128 KiB unless told otherwise.
    csv.field_size_limit(LONGEST_FIELD)
    # The csv module takes lines and gives rows. A quoted field may hold line ends, so the lines of the row that is
    # being read are held, with their errors, to say where it begins and what is wrong with it.
    held: list[str] = []
    odd: list[DataError] = []
    size = 0

    # The lines for the csv module, noted as they pass.
    def fed() -> Iterator[str]:
        nonlocal size
        for _, line, wrong in decoded_lines(path):
            held.append(line)
            size += len(line)
            # csv's own limit is for a field: a row of many fields, or of many lines within quotes, has this one.
            if size > LONGEST_ROW:
                raise DataError(
                    f"{path}:{first}: a row of more than {LONGEST_ROW:,} characters begins here; check its quotes"
                )
            if wrong:
                odd.append(wrong)
            yield line

    reader = csv.reader(fed(), strict=True)
    while True:
        # Lines read so far, so that the next one begins the row.
        first = reader.line_num + 1
        held.clear()
        odd.clear()
        size = 0
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise _broken(path, first, held, str(error)) from None
        # Blank lines are no rows.
        if cells and not (len(cells) == 1 and cells[0].isspace()):
            # A row with a line that is not UTF-8 is that line's error.
            yield first, odd[0] if odd else cells


def _broken(path: Path, first: int, held: list[str], reason: str) -> DataError:
    """Returns the error of csv's reader, in the row of these lines, with its line and how to mend it."""
    # Errors within a line keep csv's words; a quote that is never closed is looked for.
    if "end of data" not in reason and "field limit" not in reason:
        if "expected after" in reason:
            reason = 'text after a closing quote; write a quote within a quoted field twice: ""'
        return DataError(f"{path}:{first + len(held) - 1}: {reason}")
    # A quote was opened and not closed: the line where it begins helps more than the line where the file ends.
    begins, inside = first, False
    for number, line in enumerate(held, first):
        # A doubled quote is text; a single one opens or closes a field.
        for quote in re.finditer('""|"', line):
            if quote[0] == '"':
                inside = not inside
                begins = number if inside else begins
    reason = "is never closed" if "end of data" in reason else f"has more than {LONGEST_FIELD} characters"
    return DataError(f'{path}:{begins}: the quoted field that begins here {reason}; close it with "')
