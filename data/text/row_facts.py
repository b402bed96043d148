"""What the rows of a table say of their documents beside the text: ids, languages, where they come from."""

import contextlib
from collections import Counter, deque
from collections.abc import Mapping

from contexture.data.errors import DataError

IDS = ("id", "url")
"""Fields that name a document; the first of them that a row has."""
COUNTED = {"language": ("language", "lang"), "source": ("source", "subset")}
"""What documents are counted by: the fields that may say it, the first of them that a row has."""
FIELDS = (*IDS, *(name for names in COUNTED.values() for name in names))
_MOST = 1000
"""Values that are counted by themselves; all others together."""
OTHERS = "others"


class RowFacts:
    """The facts of documents, taken down as they are read."""

    def __init__(self) -> None:
        self.ids: deque[str] = deque()
        """The id of each document that has ended and was not taken out yet; "" where it has none."""
        # Empty where no row says anything.
        self.counts: dict[str, Counter[str]] = {}
        """How many documents there are of each language and source."""

    def end(self, record: Mapping[str, object]) -> None:
        """Takes down the facts of a document that ends here."""
        # On one line, since a file has a line for each.
        self.ids.append(" ".join(_first(record, IDS).split()))
        # A row that does not say is not counted: it may be of any.
        for name, fields in COUNTED.items():
            if value := _first(record, fields):
                add(self.counts.setdefault(name, Counter()), value, 1)


def add(counts: "Counter[str]", value: str, count: int) -> None:
    """Adds to a count; where there are too many values, to that of all others."""
    # Ids in the wrong field would fill the memory.
    counts[value if value in counts or len(counts) < _MOST else OTHERS] += count


def _first(record: Mapping[str, object], names: tuple[str, ...]) -> str:
    # A binary table may have a column that cannot be read; nobody has asked for it.
    for name in names:
        value = None
        with contextlib.suppress(DataError):
            value = record[name] if name in record else None
        # A truth value is a number to Python, and no name.
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    return ""
