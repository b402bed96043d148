"""Tagged words in columns: *.conll (white space between columns) and *.conllu (CoNLL-U, ten columns and tabs)."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from contexture.data.errors import DataError
from contexture.data.plain_files import inner_suffix
from contexture.data.tasks.read.tables import Row, Table, counted, usual_width
from contexture.data.text.lines import LONGEST_TEXT, decoded_lines

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_SPACES = re.compile(r"[ \t]+")
_NO_WORD = re.compile("[0-9]+[-.][0-9]+")
"""The id of a range of words (1-2) or of an empty node (1.1)."""
_NEWDOC = re.compile(r"#\s*newdoc(\s|$)")
"""The comment with which a document of CoNLL-U begins; a name may follow."""
_DOCSTART = "-DOCSTART-"
_COMMENT = "# "
"""How a comment of a *.conll begins, and a word # where spaces are between the columns."""
_MANY = 1 << 17
"""Lines of a *.conll in which its tags show."""
LONGEST_SENTENCE = 1 << 17
"""Words of a sentence: more of them are taken for a file without blank lines."""
_DOCUMENT = "a document begins"
"""In place of a line's columns."""


class Sentence(list[list[str]]):
    """The columns of a sentence, each with all of its words."""

    def __init__(self, words: Sequence[Sequence[str]], document: int, follows: bool) -> None:
        """Turns words with columns into columns with words.

        Args:
            words: the columns of each word.
            document: the number of the sentence's document within the file.
            follows: whether another sentence of that document precedes this one.
        """
        # Never uneven: `_sentences` has compared the width of every line.
        super().__init__(map(list, zip(*words, strict=True)))
        self.document, self.follows = document, follows


def conll(path: Path) -> Table:
    """Returns a table whose rows are sentences, each with the number of its document; a blank line ends one.

    Documents begin with a line -DOCSTART- (CoNLL-2003) or a comment # newdoc (CoNLL-U), which end a sentence too. A
    file without either is one document.

    A sentence with a line that is not UTF-8, or of another width than most of the first lines, comes as a DataError
    with file:line.
    """
    universal = inner_suffix(path) == ".conllu"
    width, expected = len(CONLLU), "CoNLL-U has 10; put tabs between them, _ where there is nothing"
    if not universal:
        lines = word_lines(path, universal)
        # The usual width of the first lines: a damaged first line is then left out like any other.
        number, width = usual_width((number, cells) for number, cells in lines if not isinstance(cells, str | None))
        expected = f"line {number} has {width}; give every word its tag"
    rows = _sentences(path, universal, width, expected)
    # A file without a sentence is an error at once.
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path}: no sentence in the file; give a word a line, and a blank line after each sentence")
    rows = chain([first], rows)
    # The word and its tag: by name in CoNLL-U; in CoNLL, whose columns differ from task to task, the first and the
    # last.
    if universal:
        return Table(str(path), f"{path}:{first[0]}", CONLLU, width, rows, ("form", "upos"))
    return Table(str(path), f"{path}:{first[0]}", None, width, rows, ("1", str(width)))


def word_lines(path: Path, universal: bool) -> Iterator[tuple[int, list[str] | DataError | str | None]]:
    """Yields (number, columns) of each line; a DataError instead where it is not UTF-8, None where it is blank,
    _DOCUMENT where a document begins. Comments are left out: in CoNLL-U all lines that begin with #, in CoNLL the ones
    that do not look like the file's other lines (`_tagged`)."""
    begins, known = True, None
    for number, line, odd in decoded_lines(path, most=LONGEST_TEXT):
        line = line.rstrip("\r\n")
        if not line.strip(" \t"):
            yield number, None
            begins = True
            continue
        cells = line.split("\t") if universal else _SPACES.split(line.strip(" \t"))
        # CoNLL-2003 marks the begin of a document by a line of its own; CoNLL-U has comments.
        if (universal and _NEWDOC.match(line)) or cells[0] == _DOCSTART:
            yield number, _DOCUMENT
        elif universal and line[0] == "#":
            continue
        elif begins and line.startswith(_COMMENT) and not universal:
            # `# id 7` before a sentence is a comment, and `# O` its first word: the file's other lines tell them apart.
            known = _tagged(path) if known is None else known
            if _shape(cells) in known:
                yield number, odd or cells
                begins = False
        else:
            yield number, odd or cells
            begins = False


def _tagged(path: Path) -> set[tuple[int, str]]:
    """Returns how many columns words of a *.conll have, and with which tag: of each line that cannot be a comment."""
    known: set[tuple[int, str]] = set()
    begins = True
    for _, line, _ in islice(decoded_lines(path, most=LONGEST_TEXT), _MANY):
        cells = _SPACES.split(line.strip(" \t\r\n"))
        if not (begins and line.startswith(_COMMENT)):
            known.add(_shape(cells))
            # A sentence begins after a blank line, or the mark of a document.
            begins = cells[0] in ("", _DOCSTART)
    return known


def _shape(cells: Sequence[str]) -> tuple[int, str]:
    return len(cells), cells[-1]


def _sentences(path: Path, universal: bool, width: int, expected: str) -> Iterator[tuple[int, Row | DataError]]:
    """Yields (line of the first word, its columns) of each sentence, or its first error instead.

    expected: what a message says of the width.
    """
    words: list[list[str]] = []
    wrong: DataError | None = None  # in the sentence that is being read
    begins = document = 0
    follows = False
    for number, cells in word_lines(path, universal):
        if isinstance(cells, str | None):
            if words or wrong:
                yield begins, wrong or Sentence(words, document, follows)
            # A blank line goes on with the document; where a document begins, no sentence precedes.
            follows = cells is None and (follows or bool(words))
            words, wrong = [], None
            document += cells is not None
            continue
        if not isinstance(cells, DataError):
            if len(cells) != width:
                cells = DataError(f"{path}:{number}: {counted(len(cells), 'column')} where {expected}")
            # Ranges and empty nodes have no word of their own: their words have lines, or none.
            elif universal and _NO_WORD.fullmatch(cells[0]):
                continue
        begins = begins if words or wrong else number
        if isinstance(cells, DataError):
            # The first error of a sentence is the one that is reported.
            wrong = wrong or cells
        else:
            words.append(cells)
        if len(words) > LONGEST_SENTENCE:
            raise DataError(
                f"{path}:{begins}: a sentence of more than {LONGEST_SENTENCE:,} words; put a blank line after each"
            )
    if words or wrong:
        # The last sentence needs no blank line after it.
        yield begins, wrong or Sentence(words, document, follows)
