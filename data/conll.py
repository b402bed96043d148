"""Tagged words in columns: *.conll (white space between columns) and *.conllu (CoNLL-U, ten columns and tabs)."""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from data.errors import DataError
from data.sources import decoded_lines
from data.tables import Row, Table, counted

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_SPACES = re.compile(r"[ \t]+")
_NO_WORD = re.compile(r"\d+[-.]\d+")
"""The id of a range of words (1-2) or of an empty node (1.1)."""


def conll(path: Path) -> Table:
    """A row is a sentence; a blank line ends it. One with a line of another width, or that is not UTF-8, comes as a
    DataError with file:line."""
    rows = _sentences(path, path.suffix.lower() == ".conllu")
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path}: no sentence in the file; give a word a line, and a blank line after each sentence")
    if isinstance(first[1], DataError):
        raise first[1]
    width, rows = len(first[1]), chain([first], rows)
    if path.suffix.lower() == ".conllu":
        return Table(str(path), f"{path}:{first[0]}", CONLLU, width, rows, ("form", "upos"))
    return Table(str(path), f"{path}:{first[0]}", None, width, rows, ("1", str(width)))


def _sentences(path: Path, universal: bool) -> Iterator[tuple[int, Row | DataError]]:
    """(line of the first word, a list of each column)."""
    words: list[list[str]] = []
    wrong: DataError | None = None  # in the sentence that is being read
    begins, width, wanted = 0, 0, ""
    if universal:
        width, wanted = len(CONLLU), "CoNLL-U has 10; put tabs between them, _ where there is nothing"
    for number, line, odd in decoded_lines(path):
        line = line.rstrip("\r\n")
        if not line.strip(" \t"):
            if words or wrong:
                yield begins, wrong or list(map(list, zip(*words, strict=True)))
            words, wrong = [], None
            continue
        cells = line.split("\t") if universal else _SPACES.split(line.strip(" \t"))
        if cells[0] == "-DOCSTART-" or (universal and line[0] == "#"):
            continue
        if odd:
            begins = begins if words or wrong else number
            wrong = wrong or odd
            continue
        if not width:
            width, wanted = len(cells), f"line {number} has {len(cells)}; give every word its tag"
        if len(cells) != width:
            begins = begins if words or wrong else number
            wrong = wrong or DataError(f"{path}:{number}: {counted(len(cells), 'column')} where {wanted}")
            continue
        if universal and _NO_WORD.fullmatch(cells[0]):
            continue
        begins = begins if words or wrong else number
        words.append(cells)
    if words or wrong:
        yield begins, wrong or list(map(list, zip(*words, strict=True)))
