"""Rows of a table → rows with other columns, one by one."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from contexture.data.errors import DataError
from contexture.data.tasks.read.tables import Row, Table, listed

Fields = Mapping[str, Any]
"""The cells of a row by the names of their columns, of any type that the file has."""


def converted(
    table: Table, needs: Iterable[str], names: tuple[str, ...], convert: Callable[[Fields], Fields | None]
) -> Table:
    """Returns a table with the columns `names`, which `convert` makes of the columns of each row; None leaves it out.

    A row that has not the form of its publisher comes as a DataError with file:line.

    Raises: DataError where the table lacks a column that it `needs`.
    """
    # Before any row is read: a wrong file is one error, and not one for each row.
    columns = table.names or ()
    if missing := [name for name in needs if name not in columns]:
        raise DataError(
            f"{table.head}: there is no column {missing[0]!r}; the columns are {listed(columns)}; give the file as its "
            "publisher ships it"
        )

    def rows() -> Iterator[tuple[int, Row | DataError]]:
        for number, row in table.rows:
            if isinstance(row, DataError):
                yield number, row
                continue
            # Never an error: `separated` has made a DataError of every row whose width is not the header's.
            fields = row if isinstance(row, Mapping) else dict(zip(columns, row, strict=True))
            try:
                new = convert(fields)
            # Whatever is missing or of another type, such a row is not the publisher's.
            except (KeyError, TypeError, ValueError, AttributeError):
                yield number, DataError(f"{table.where}:{number}: not in the form of its publisher; leave the row out")
                continue
            if new is not None:
                yield number, new

    # Width 0: the new rows are mappings.
    return Table(table.where, table.head, names, 0, rows())
