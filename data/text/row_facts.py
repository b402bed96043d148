"""What the rows of a table say of their documents beside the text: ids, languages, where they come from."""

import contextlib
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from contexture.data.errors import DataError

IDS = ("id", "url")
"""Fields that name a document; the first of them that a row has."""
COUNTED = {"language": ("language", "lang"), "source": ("subset", "source")}
"""What documents are counted by: the fields that may say it, the first of them that a row has."""
FIELDS = (*IDS, *(name for names in COUNTED.values() for name in names))
_MOST, _LONGEST = 1000, 200
"""The most distinct values that are counted, and the most letters of one; of an id five times as many."""


class RowSpans(NamedTuple):
    """Where words and entities are in a text: the first character of each, and that behind its last."""

    text: str
    words: list[tuple[int, int]]
    entities: list[tuple[int, int]]

    def within(self, first: int, last: int) -> "RowSpans":
        """Returns those of a part of the text, counted from its beginning; what reaches beyond it is cut off."""
        words, entities = (
            [(max(a - first, 0), min(b, last) - first) for a, b in spans if a < last and b > first]
            for spans in (self.words, self.entities)
        )
        return RowSpans(self.text[first:last], words, entities)


class RowFacts:
    """The facts of documents, taken down as they are read."""

    def __init__(self, column: str = "", spans: bool = False) -> None:
        """column: of the text, which says nothing else; spans: whether rows say where words and entities are."""
        self._column, self._wants_spans = column, spans
        self.spans: deque[RowSpans] = deque()
        """Of each document that has begun and was not taken out yet, where spans are wanted."""
        self.ids: deque[str] = deque()
        """The id of each document that has ended and was not taken out yet; "" where it has none."""
        # Empty where no row says anything.
        self.counts: dict[str, Counter[str]] = {}
        """How many documents there are of each language and source."""

    def begin(self, record: Mapping[str, object], text: str) -> None:
        """Takes down where words and entities are in a document that begins. Raises: DataError where its row says it
        wrongly."""
        if self._wants_spans:
            if not {"words", "entities"} & record.keys():
                raise DataError('neither "words" nor "entities", which data.units=spans reads; give [[first, last], …]')
            self.spans.append(RowSpans(text, *(_spans(record, name, len(text)) for name in ("words", "entities"))))

    def end(self, record: Mapping[str, object]) -> None:
        """Takes down the facts of a document that ends here."""
        # On one line, since a file has a line for each.
        self.ids.append(" ".join(first_of(record, IDS, self._column)[: 5 * _LONGEST].split()))
        # A row that does not say is not counted: it may be of any.
        for name, fields in COUNTED.items():
            if value := first_of(record, fields, self._column):
                add(self.counts.setdefault(name, Counter()), value[:_LONGEST], 1)


def first_of(record: Mapping[str, object], names: Sequence[str], column: str = "") -> str:
    """Returns the first of some fields that a row has a text or a number in, or "". column: of the text, left out."""
    for name in names:
        # A binary table may have a column that cannot be read; nobody has asked for it.
        value = None
        with contextlib.suppress(DataError):
            value = record[name] if name in record and name != column else None
        # A truth value is a number to Python, and no name.
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    return ""


def _spans(record: Mapping[str, object], name: str, length: int) -> list[tuple[int, int]]:
    """Returns the spans of a field: a list of [first, last, …], whose third value is left out. Raises: DataError."""
    # A row may have one of both alone.
    value = record.get(name, [])
    fits = isinstance(value, list) and all(
        isinstance(each, list) and len(each) >= 2 and all(type(place) is int for place in each[:2]) for each in value
    )
    spans = [(each[0], each[1]) for each in value] if isinstance(value, list) and fits else [(-1, 0)]
    if not all(0 <= first < last <= length for first, last in spans):
        raise DataError(
            f"{name!r} of a row is {str(value)[:40]!r}; give [[first, last], …], places in its text that has {length} "
            "characters"
        )
    return spans


def add(counts: "Counter[str]", value: str, count: int) -> None:
    """Adds to a count. Where there are too many distinct values, all are counted together, as "", so that a
    sum of parts does not depend on what the parts are."""
    counts[value] += count
    if len(counts) > _MOST or ("" in counts and len(counts) > 1):
        total = counts.total()
        counts.clear()
        counts[""] = total
