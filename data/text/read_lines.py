"""Texts that a command reads: the lines of a file, or the documents of several."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from contexture.data.errors import DataError
from contexture.data.plain_files import check_plain
from contexture.data.text import hub

if TYPE_CHECKING:
    from contexture.data.text.sources import Source


def lines_of(file: Path, what: str) -> Iterator[str]:
    """Yields the lines of a file, each `what`, without their ends.

    Raises: DataError for a file that cannot be read as text.
    """
    from contexture.data.text.lines import LONGEST_TEXT, lines

    check_lines(file, what)
    file = hub.local_file(file)
    for _, line in lines(file, most=LONGEST_TEXT):
        yield line.rstrip("\r\n")


def check_lines(file: Path, what: str) -> None:
    """Raises: DataError for a file that is missing, or whose content is no text."""
    from contexture.data.text.sources import check_plain_text

    file = hub.local_file(file)
    check_plain(file)
    if not file.is_file():
        raise DataError(f"{file}: no such file; give one with {what} in each line")
    check_plain_text(file, what)


def documents_of(sources: "Sequence[Source]", documents: str) -> Iterator[str]:
    """Yields the documents of sources, each whole. documents: what a document of a *.txt is, as in `Source.chunks`.

    Raises: DataError for a document that is too long.
    """
    from contexture.data.text.lines import LONGEST_DOCUMENT

    for source in sources:
        parts: list[str] = []
        size = 0
        for chunk in source.chunks(documents):
            size += len(chunk)
            if size > LONGEST_DOCUMENT:
                raise DataError(
                    f"{source}: a document of more than {LONGEST_DOCUMENT:,} characters; put blank lines between "
                    "documents, with --documents blank_lines, or give several files"
                )
            if chunk:
                parts.append(chunk)
            elif parts:  # an empty chunk ends a document
                yield "".join(parts)
                parts, size = [], 0
        if parts:
            yield "".join(parts)
