"""What the rows of a table say of their documents beside the text: ids, languages, where they come from."""

import contextlib
from collections import Counter, deque
from collections.abc import Mapping, Sequence

from contexture.data.errors import DataError

IDS = ("id", "url")
"""Fields that name a document; the first of them that a row has."""
COUNTED = {"language": ("language", "lang"), "source": ("subset", "source")}
"""What documents are counted by: the fields that may say it, the first of them that a row has."""
FIELDS = (*IDS, *(name for names in COUNTED.values() for name in names))
_MOST, _LONGEST = 1000, 200
"""The most distinct values that are counted, and the most letters of one; of an id five times as many."""


class RowFacts:
    """The facts of documents, taken down as they are read."""

    def __init__(self, column: str = "") -> None:
        """column: of the text, which says nothing else."""
        self._column = column
        self.ids: deque[str] = deque()
        """The id of each document that has ended and was not taken out yet; "" where it has none."""
        # Empty where no row says anything.
        self.counts: dict[str, Counter[str]] = {}
        """How many documents there are of each language and source."""

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


def add(counts: "Counter[str]", value: str, count: int) -> None:
    """Adds to a count. Where there are too many distinct values, all are counted together, as "", so that a
    sum of parts does not depend on what the parts are."""
    counts[value] += count
    if len(counts) > _MOST or ("" in counts and len(counts) > 1):
        total = counts.total()
        counts.clear()
        counts[""] = total
