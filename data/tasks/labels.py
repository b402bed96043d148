"""The meaning of labels: labels ↔ numbers, and the right alternative of a choice."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from contexture.data.errors import DataError, did_you_mean
from contexture.data.tasks.examples import ChoiceExample, Example, Pair, Text
from contexture.data.tasks.tables import FIRST_ROWS, counted

_LARGEST = 1e18
"""Largest number of a regression, of either sign: in float32 a sum of squares of larger ones is not finite."""


class Labels:
    """Labels ↔ numbers. Open while the training set is read (a new label gets the next number), closed after it."""

    def __init__(self, known: Sequence[str] = (), named: bool = False) -> None:
        """named: whether the user named them, so that a label is never the text of an alternative of the same name."""
        self.numbers = {label: number for number, label in enumerate(known)}
        self.closed, self.named = bool(known), named

    def number(self, label: str, origin: str) -> int:
        """Returns a label's number. Raises: DataError for a label that the training set does not have."""
        number = self.numbers.get(label)
        if number is None and self.closed:
            names = list(self.numbers)
            shown = ", ".join(names[:12]) + (f", … ({len(names)} in all)" if len(names) > 12 else "")
            raise DataError(f"{origin}: label {label!r} is not one of {shown}{did_you_mean(label, names)}")
        return self.numbers.setdefault(label, len(self.numbers)) if number is None else number

    def close(self) -> NDArray[np.int64]:
        """Sorts the labels (numbers by their value) and closes. Returns the new number of each old one."""
        order = sorted(self.numbers, key=_sort_key)
        # Labels were numbered as they came; the files hold these numbers until they are rewritten.
        renumbered = np.empty(len(order), np.int64)
        for new, label in enumerate(order):
            renumbered[self.numbers[label]] = new
        self.numbers = {label: number for number, label in enumerate(order)}
        self.closed = True
        return renumbered

    def number_alternatives(self, count: int) -> None:
        """Closes; `count` alternatives without names are called 0, 1, …"""
        if not self.closed or not self.numbers:  # an imported run does not say how many it has
            self.numbers = {str(number): number for number in range(count)}
            self.closed = True


def _sort_key(label: str) -> tuple[float, str]:
    """Numbers by their value, then all other labels (NaN among them) by their text."""
    try:
        value = float(label)
    except ValueError:
        return float("inf"), label
    return (value, label) if value == value else (float("inf"), label)


def usual_alternatives(examples: Sequence[Example]) -> int:
    """Returns how many alternatives most of the first examples have."""
    counts = Counter(len(x.choices) if isinstance(x, ChoiceExample) else 0 for x in examples[:FIRST_ROWS])
    return counts.most_common(1)[0][0]


def alternatives(examples: Sequence[Example], labels: Labels) -> int:
    """Returns how many alternatives each example has. Raises: DataError for one that has more or fewer."""
    labels.number_alternatives(usual_alternatives(examples))
    for example in examples:
        count = len(example.choices) if isinstance(example, ChoiceExample) else 0
        if count != len(labels.numbers):
            raise DataError(
                f"{example.origin}: {counted(count, 'alternative')} where {len(labels.numbers)} are wanted, one for "
                f"each of the labels {', '.join(labels.numbers)}; give every example as many"
            )
    return len(labels.numbers)


def answer(example: Text | Pair | ChoiceExample, kind: str, labels: Labels) -> int:
    """Returns the answer as it is stored: a label's number, the bits of a regression's number, or -1 for none.

    Raises: DataError with file:line for an unknown label, a number that is none, a label that names no alternative.
    """
    label, origin = example.label, example.origin
    if label is None:
        return -1
    if isinstance(example, ChoiceExample):
        return _right(example, label, labels)
    if kind == "classify":
        return labels.number(label, origin)
    try:
        value = float(label)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise DataError(f"{origin}: {label!r} is not a number, which task.kind=regress wants")
    if abs(value) > _LARGEST:
        raise DataError(f"{origin}: {label!r} is beyond ±{_LARGEST:g}, whose square no float32 sums; scale the numbers")
    # As an i64 it fits into the same column as the number of a label. Its bits are -1 for a NaN alone.
    return int(np.float64(value).view(np.int64))


def _right(example: ChoiceExample, label: str, labels: Labels) -> int:
    """Returns the alternative that a label means, by its name (or number) or by its own text."""
    matches = {labels.numbers[label]} if label in labels.numbers else set()
    # A label that is a name given by the user is that name alone. A number from 0 may also be an alternative's own text
    # ("2" among sums): if the two differ, nobody can tell which was meant.
    if not matches or not labels.named:
        matches |= {number for number, choice in enumerate(example.choices) if choice.strip() == label}
    names = list(labels.numbers)
    if not matches:
        raise DataError(
            f"{example.origin}: label {label[:40]!r} is neither one of {', '.join(names)} nor an alternative's own text"
            f"{did_you_mean(label, [*names, *example.choices])}; count the alternatives from 0, or name them in their "
            "order: --task.labels 1 2"
        )
    if len(matches) > 1:
        which = " or ".join(map(str, sorted(matches)))
        raise DataError(
            f"{example.origin}: label {label[:40]!r} may mean alternative {which}, by number or by text; give numbers, "
            f"and say so: --task.labels {' '.join(names)}"
        )
    return matches.pop()
