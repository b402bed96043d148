"""The documents of a source, with what its rows say of them beside the text."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from contexture.data.errors import DataError, did_you_mean
from contexture.data.plain_files import Seen
from contexture.data.text.row_facts import COUNTED, FIELDS, IDS, first_of
from contexture.data.text.sources import Source, TextFile, documents_of


class Document(NamedTuple):
    """A document as it is read."""

    text: str
    id: str | int | None = None
    """What a column of this name says (or `url`), and what WikiExtractor does."""
    language: str = ""
    """What the column of languages says, or one of a usual name."""
    subset: str = ""
    """Where it comes from, as a column of a usual name says."""


def documents(source: Source, how: str, language_column: str, seen: Seen) -> Iterator[Document]:
    """Yields the documents of a source that have any text.

    Args:
        source: a file, or a part of one, or a TFDS set.
        how: what a document of a *.txt is (`data.documents`).
        language_column: the column of a table that has the language; "": none.
        seen: gets all bytes as they are read.

    Raises: DataError as `documents_of`, and for a row without a language.
    """
    if not (isinstance(source, TextFile) and source.has_rows):
        if language_column:
            raise DataError(f"{source}: language-column={language_column} is for tables, like *.jsonl; leave it out")
        # Without the line end that the last document of a file may lack: it may be the same as another one.
        yield from (Document(text.rstrip("\r\n")) for text in documents_of([source], how, seen) if text.strip())
        return
    for number, text, row in source.rows(seen, (*FIELDS, language_column)):
        # A row without a language would stay or go by chance: it is an error.
        language = row.get(language_column) if language_column else ""
        if not isinstance(language, str) or (language_column and not language):
            near = did_you_mean(language_column, row) if language_column not in row else ""
            raise DataError(f'{source}:{number}: no "{language_column}" that is a string{near}; name another column')
        # White space alone is no text.
        if text.strip():
            others = (first_of(row, COUNTED[name], source.column) for name in ("language", "source"))
            usual, subset = others
            yield Document(text, _id(row, source.column), language or usual, subset)


def _id(row: Mapping[str, object], column: str) -> str | int | None:
    # A number stays one.
    for name in IDS:
        with contextlib.suppress(DataError):
            value = row.get(name) if name != column else None
            if isinstance(value, str | int) and not isinstance(value, bool):
                return value
    return None
