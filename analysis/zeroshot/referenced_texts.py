"""Texts with references: articles with their summaries, sentences with their translations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from contexture.data.config import TaskConfig
from contexture.data.errors import DataError, did_you_mean
from contexture.data.tasks.read.read_examples import check_sources, open_table
from contexture.data.tasks.read.tables import Row, Table, listed

Header = Literal["auto", "yes", "no"]
_USUAL = {
    "summarize": (("text", "article", "document", "dialogue"), ("summary", "highlights", "abstract")),
    "translate": (("text", "source", "sentence", "src"), ("reference", "references", "translation", "target", "ref")),
}
"""The usual names of columns, of the text and of its reference."""


@dataclass
class ReferencedTexts:
    """Texts, and for each its references: one or more."""

    texts: list[str] = field(default_factory=list)
    references: list[tuple[str, ...]] = field(default_factory=list)


@dataclass(frozen=True)
class Shots:
    """Answered examples; `count` of them are drawn at random, by the seed, for each question."""

    examples: ReferencedTexts = field(default_factory=ReferencedTexts)
    count: int = 0
    seed: int = 0


NO_SHOTS = Shots()


def read_referenced_texts(
    files: Sequence[str],
    task: Literal["summarize", "translate"],
    *,
    text: str = "",
    references: Sequence[str] = (),
    header: Header = "auto",
    option: str = "--input",
) -> ReferencedTexts:
    """Returns the texts and references of *.tsv, *.csv, *.jsonl, *.json and columnar files, or TFDS sets.

    Args:
        files: the files.
        task: decides the usual names of columns.
        text: the column of texts, by name or by position from 1; empty: the first one with a usual name.
        references: the columns of references, likewise. A cell holds one, or in a *.jsonl a list; of several columns
            some may be empty in a row.
        header: whether files begin with the names of their columns.
        option: the command's option that names the files, for errors.

    Raises:
        DataError: with file:line, when a row has no text or no reference, or a column is missing.
    """
    check_sources(files, option)
    read = ReferencedTexts()
    for file in files:
        # Columns that are all given by position suggest a file without a header, as in labelled tasks.
        first = references[0] if references else ""
        table = open_table(file, TaskConfig(kind="classify", text=text, label=first, header=header))
        usual_text, usual_reference = _USUAL[task]
        own = _column(table, text, usual_text, "text", "text")
        others = [_column(table, name, (), "reference", "references") for name in references]
        others = others or [_column(table, "", usual_reference, "reference", "references")]
        if own in others or len(set(others)) < len(others):
            raise DataError(f"{table.head}: one column is read for two things; give --text and --references others")
        for number, row in table.rows:
            if isinstance(row, DataError):
                raise row
            at = f"{table.where}:{number}"
            texts = [*_texts(row, own, at)]
            if len(texts) != 1:
                raise DataError(f"{at}: the text is empty, or a list; give one text")
            right = [each for column in others for each in _texts(row, column, at)]
            if not right:
                raise DataError(f"{at}: the row has no reference; fill it, or leave the row out")
            read.texts.append(texts[0])
            read.references.append(tuple(right))
    return read


def _texts(row: Row, column: str | int, at: str) -> Iterator[str]:
    """Yields the texts of a cell, which may be a list of some; nothing of an empty one."""
    cell = row.get(str(column)) if isinstance(row, Mapping) else row[int(column)]
    for text in cell if isinstance(cell, list) else [cell]:
        if not isinstance(text, str | None):
            raise DataError(f"{at}: {str(text)[:40]!r} is no text; give strings")
        if text and text.strip():
            yield text.strip()


def _column(table: Table, asked: str, usual: Sequence[str], role: str, option: str) -> str | int:
    """Returns a column: its name where rows are mappings, else its place from 0."""
    names = table.names or ()
    for name in (asked,) if asked else usual:
        same = [place for place, each in enumerate(names) if each == name]
        # Exact names first, then names in any case.
        same = same or [place for place, each in enumerate(names) if each.lower() == name.lower()]
        if len(same) > 1:
            places = " or ".join(str(place + 1) for place in same)
            raise DataError(f"{table.head}: several columns are called {name!r}; give the position, {places}")
        if same:
            return same[0] if table.width else names[same[0]]
    if asked.isdecimal() and 1 <= int(asked) <= table.width:
        return int(asked) - 1
    has = f"the columns are {listed(names)}" if names else f"there are columns 1 to {table.width}, without names"
    if asked:
        near = did_you_mean(repr(asked), map(repr, names))
        raise DataError(f"{table.head}: there is no column {asked!r}{near}; {has}; name it with --{option}")
    raise DataError(
        f"{table.head}: no column has a usual name of the {role} ({', '.join(usual[:3])}, …); {has}; name it with "
        f"--{option}"
    )
