"""One row of a table → an Example, by the columns that are read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from contexture.data.errors import DataError
from contexture.data.tasks.read.answers import read_answers
from contexture.data.tasks.read.conll import Sentence
from contexture.data.tasks.read.examples import ChoiceExample, Example, Pair, QuestionExample, Tagged, Text
from contexture.data.tasks.read.file_report import FileReport
from contexture.data.tasks.read.tables import LONGEST_FIELD, Row, counted
from contexture.data.text.written_lists import written_list


@dataclass(frozen=True)
class Column:
    """A column that is read."""

    role: str
    """What it is read for: "second text"."""
    key: str | int
    """Its name where rows are mappings, else its place from 0."""
    called: str
    """How messages name it: "column 'premise'"."""
    inner: tuple[str, ...] = ()
    """The names of the field within its objects: ("de",) of the column 'translation.de'."""

    def __str__(self) -> str:
        return f"the {self.role} ({self.called})"


@dataclass(frozen=True)
class Columns:
    """The columns of a task. tagged: `text` holds words, and `label` a tag for each. spans: `text` holds questions,
    `second` their contexts, and `label` their answers."""

    text: Column
    second: Column | None
    choices: tuple[Column, ...]
    label: Column | None
    tagged: bool
    start: Column | None = None
    id: Column | None = None
    spans: bool = False


def is_quoted(cell: object) -> bool:
    """Returns whether a field of a *.tsv looks quoted as in a *.csv: in double quotes, those within it doubled."""
    if not isinstance(cell, str):
        return False
    # Within quotes a quote is doubled; a single one ends the field.
    return len(cell) > 2 and cell[0] == cell[-1] == '"' and '"' not in cell[1:-1].replace('""', "")


@dataclass(frozen=True)
class RowReader:
    """Makes an Example of one row."""

    at: str
    """Its place, for an error: "data/train.tsv:7"."""
    origin: str
    """Its id: "train.tsv:7"."""
    report: FileReport | None

    def example(self, row: Row, columns: Columns) -> Example:
        label, at = columns.label, self.at
        if columns.tagged:
            # A list, or a string with spaces: both are usual in *.jsonl; CoNLL gives lists.
            words = self._sequence(row, columns.text, self._text)
            tags = self._sequence(row, label, lambda value, called: _label(value, called, at)) if label else None
            if tags is not None and len(words) != len(tags):
                raise DataError(
                    f"{at}: {counted(len(words), 'word')} and {counted(len(tags), 'tag')}; give every word one tag"
                )
            # Of all formats, CoNLL alone knows documents.
            if isinstance(row, Sentence):
                return Tagged(words, tags, self.origin, row.document, row.follows)
            return Tagged(words, tags, self.origin)
        # All other kinds begin with a text.
        text = self._text(self._cell(row, columns.text), str(columns.text))
        if columns.spans and columns.second is not None:
            return self._question(row, columns, text, self._text(self._cell(row, columns.second), str(columns.second)))
        label_text = _label(self._cell(row, label), str(label), at) if label else None
        if columns.choices:
            return ChoiceExample(text, self._alternatives(row, columns.choices), label_text, self.origin)
        if columns.second is None:
            return Text(text, label_text, self.origin)
        second = self._text(self._cell(row, columns.second), str(columns.second))
        return Pair(text, second, label_text, self.origin)

    def _question(self, row: Row, columns: Columns, question: str, context: str) -> QuestionExample:
        answers = None
        if columns.label is not None:
            start = self._cell(row, columns.start) if columns.start is not None else None
            answers = read_answers(self._cell(row, columns.label), start, context, self.at)
        given = self._cell(row, columns.id) if columns.id is not None else None
        # An id that is empty is none: the row's place names the question then.
        own = "" if given is None else str(given).strip()
        return QuestionExample(own or self.origin, question, context, answers, self.origin)

    def _cell(self, row: Row, column: Column, *, optional: bool = False) -> object:
        """Returns the content of a column. optional: None where the row lacks it. Raises: DataError if it does."""
        try:
            value: Any = row[column.key]  # pyright: ignore[reportArgumentType, reportCallIssue]  # the key fits its table
            for name in column.inner:
                value = value[name]
        # The row has no such column, or the field is looked for in what is no object.
        except (KeyError, TypeError):
            if optional:
                return None
            every = "row is to have that field" if column.inner else "line is to have the same keys"
            raise DataError(f"{self.at}: {column} is missing; every {every}") from None
        # As tokens a text takes many times its memory.
        if isinstance(value, str) and len(value) > LONGEST_FIELD:
            raise DataError(
                f"{self.at}: {column} has {len(value):,} characters, more than {LONGEST_FIELD:,}; break it up, or "
                "leave the row out"
            )
        return value

    def _sequence(self, row: Row, column: Column, read: Callable[[object, str], str]) -> tuple[str, ...]:
        """Returns words, or tags, from a list of them, also one written as text, or a string with single spaces between
        them."""
        # Tags may be numbers; a list of numbers is no words.
        value = self._listed(self._cell(row, column), column, numbers=column.role == "tags")
        if isinstance(value, str):
            # At single spaces: a double one gives an empty word, and does not move the tags after it.
            value = value.split(" ") if value.strip() else []
        if not isinstance(value, list):
            raise DataError(
                f"{self.at}: {column} are {_shown(value)}; give a list, or a string with spaces between them"
            )
        if not value:
            raise DataError(f"{self.at}: {column} are empty; give a row at least one word")
        # For messages: "word 3 (column 'tokens')".
        one = column.role.removesuffix("s")
        return tuple(read(each, f"{one} {place} ({column.called})") for place, each in enumerate(value, 1))

    def _listed(self, value: object, column: Column, *, numbers: bool = False) -> object:
        """Returns the list that a cell holds as text, as a *.csv has it; any other cell unchanged."""
        try:
            items = written_list(value, numbers=numbers) if isinstance(value, str) else None
        except ValueError as error:
            raise DataError(
                f"{self.at}: {column} are a list written as text that cannot be read ({error}); give *.jsonl or "
                "*.parquet, which have lists, or single spaces between words"
            ) from None
        return value if items is None else items

    def _alternatives(self, row: Row, columns: Sequence[Column]) -> tuple[str, ...]:
        """Returns alternatives from a list in one column, or from one column each, the last of which may be empty."""
        at = self.at
        if len(columns) > 1:
            # The first two alternatives must be there, the others may be missing.
            cells = [self._cell(row, column, optional=n > 1) for n, column in enumerate(columns)]
            # A question with fewer alternatives than there are columns leaves the last ones empty.
            while len(cells) > 2 and (cells[-1] is None or (isinstance(cells[-1], str) and not cells[-1].strip())):
                cells.pop()
            return tuple(self._text(cell, str(column)) for cell, column in zip(cells, columns, strict=False))
        # A list in one column.
        column = columns[0]
        value = self._listed(self._cell(row, column), column)
        if not isinstance(value, list):
            raise DataError(
                f"{at}: {column} are {_shown(value)}; give a list, or a column for each: --task.choices A B"
            )
        if len(value) < 2:
            raise DataError(f"{at}: {column} are {len(value)}; give at least two to choose from")
        return tuple(self._text(each, f"alternative {number} ({column.called})") for number, each in enumerate(value))

    def _text(self, value: object, called: str) -> str:
        if not isinstance(value, str):
            raise DataError(f"{self.at}: {called} is {_shown(value)}, no string; give a string")
        if not value.strip():
            # An empty text is a fact of many data sets and no reason to stop: it is counted and read as unknown.
            error = DataError(f"{self.at}: {called} is empty; fill it, or leave the row out")
            if self.report is None:
                raise error
            self.report.read_empty(error, self.origin)
            return ""
        return value


def _label(value: object, called: str, at: str) -> str:
    """Returns a label as a text file would spell it, without the white space around it."""
    if value is None:
        raise DataError(f"{at}: {called} is missing; give every example one, or leave the row out")
    # As JSON spells it; a bool is an int in Python, so it comes first.
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        raise DataError(f"{at}: {called} is {_shown(value)}; give a string, a number, true or false")
    if not (label := str(value).strip()):
        raise DataError(f"{at}: {called} is empty; fill it, or leave the row out")
    if label[0] == "[" and _is_list(label):
        raise DataError(f"{at}: {called} is {label[:40]!r}, a list written as text; give every example one label")
    return label


def _is_list(label: str) -> bool:
    """Returns whether a label is a list of strings written as text, or one of several numbers: as a list, it is no
    label in a *.jsonl either."""
    try:
        items = written_list(label, numbers=True)
    except ValueError:
        return True
    # `[5]` may be a label as it is written; quotes, or several items, make a list.
    return items is not None and (len(items) != 1 or "'" in label or '"' in label)


def _shown(value: object) -> str:
    kinds = {dict: "an object", list: "a list", bool: "true or false", str: "a string", type(None): "null"}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"the number {str(value)[:40]}"
    return kinds.get(type(value), f"of type {type(value).__name__}")
