"""Labels ↔ numbers, the names of alternatives, and the weights of classes."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from contexture.data.config import TaskConfig
from contexture.data.errors import DataError, did_you_mean
from contexture.data.tasks.read.examples import ChoiceExample, Example
from contexture.data.tasks.read.tables import counted
from contexture.data.text.written_numbers import written_number

MAX_ALTERNATIVES = 256
"""The most alternatives of a question. All questions of a batch have rows for as many as the longest list has, so that
one damaged row would take the memory of all others."""
_WHOLE = re.compile("(0|-?[1-9][0-9]*)[.]0+")


class Labels:
    """Labels ↔ numbers. Open while the training set is read (a new label gets the next number), closed after it."""

    def __init__(self, known: Sequence[str] = (), named: bool = False) -> None:
        """named: whether the user named them, so that a label is never the text of an alternative of the same name."""
        self.numbers = {label: number for number, label in enumerate(known)}
        # Labels that were given are all that there are.
        self.closed, self.named = bool(known), named
        self._spellings: dict[str, str] = {}
        """Of labels that are whole numbers, the label that counts, by its value: {"1": "1.0"}."""
        # Of two labels of one value the first counts.
        for label in known:
            self._spellings.setdefault(whole_number(label), label)

    def number(self, label: str, origin: str) -> int:
        """Returns a label's number. Raises: DataError for a label that the training set does not have.

        `1` and `1.0` are one label: a table in which some labels are missing is often written with 1.0 for 1.
        """
        # The label exactly as written comes first, then a whole number in its other spelling.
        number = self.numbers.get(label)
        other = self._spellings.get(whole_number(label)) if number is None else None
        if other is not None:
            number = self.numbers[other]
            # The shorter spelling is the label's name from now on: 1 instead of 1.0.
            if not self.closed and len(label) < len(other):
                self._spellings[whole_number(label)] = label
                self.numbers = {label if known == other else known: n for known, n in self.numbers.items()}
        if number is None and self.closed:
            names = list(self.numbers)
            shown = ", ".join(names[:12]) + (f", … ({len(names)} in all)" if len(names) > 12 else "")
            mend = did_you_mean(label, names)
            # The names that a published classifier has where its makers gave none.
            if all(name == f"LABEL_{n}" for n, name in enumerate(names)):
                mend = "; name the classes, in their order, where the model is imported: --labels"
            raise DataError(f"{origin}: label {label!r} is not one of {shown}{mend}")
        if number is None:
            number = self.numbers[label] = len(self.numbers)
            self._spellings[whole_number(label)] = label
        return number

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

    def alternatives(self, count: int, origin: str) -> list[str]:
        """Returns the names of a question's alternatives: those that the user gave, or 0, 1, …

        Raises: DataError for fewer than two, and for more than have names.
        """
        if count < 2:
            raise DataError(f"{origin}: {counted(count, 'alternative')}; give at least two to choose from")
        if self.named and count > len(self.numbers):
            names = ", ".join(self.numbers)
            raise DataError(
                f"{origin}: {counted(count, 'alternative')} where task.labels names {len(self.numbers)} ({names}); "
                "give a name for each"
            )
        if count > MAX_ALTERNATIVES:
            raise DataError(f"{origin}: {count:,} alternatives; at most {MAX_ALTERNATIVES} can be chosen from")
        # Names that the user gave come first; alternatives beyond them are called by their numbers.
        known = list(self.numbers)[:count]
        return [*known, *map(str, range(len(known), count))]

    def add_alternatives(self, names: Sequence[str]) -> None:
        """Closes, with the names of a question's alternatives among the labels."""
        for name in names:
            self.numbers.setdefault(name, len(self.numbers))
        self.closed = True


def whole_number(label: str) -> str:
    """Returns a whole number without the zeros after its point, `1` for `1.0`; any other label unchanged."""
    return match[1] if (match := _WHOLE.fullmatch(label)) else label


def _sort_key(label: str) -> tuple[float, str]:
    """Numbers by their value, then all other labels (NaN among them) by their text."""
    value = written_number(label)
    # 2 before 10.
    return (value, label) if value is not None and value == value else (float("inf"), label)


def alternatives(examples: Sequence[Example], labels: Labels) -> NDArray[np.int64]:
    """Returns how many alternatives each example has, and has `labels` name them all.

    Raises: DataError with file:line for an example that has too few or too many.
    """
    counts = [len(x.choices) if isinstance(x, ChoiceExample) else 0 for x in examples]
    # The longest list names all alternatives; shorter ones use the first names.
    for example, count in zip(examples, counts, strict=True):
        labels.add_alternatives(labels.alternatives(count, example.origin))
    return np.array(counts, np.int64)


def class_weights(task: TaskConfig, labels: tuple[str, ...], counts: tuple[int, ...]) -> NDArray[np.float32]:
    """Returns the weight of each label's examples in the loss. `balanced`: examples / (labels · the label's examples),
    as in scikit-learn. Raises: DataError for an unknown label, or a weight that is no number above 0."""
    # Labels that nobody weighs count once.
    weights_C = np.ones(max(len(labels), 1), np.float32)
    if task.class_weights == ("balanced",):
        # A label without examples would divide by zero; the last of many alternatives may have none.
        counted = np.maximum(np.array(counts, np.float64), 1.0)
        balanced_C = (sum(counts) / (len(labels) * counted)).astype(np.float32)
        return np.where(np.array(counts) > 0, balanced_C, np.float32(1.0))
    for entry in task.class_weights:
        # A label may hold = itself.
        label, _, weight = entry.rpartition("=")
        if label not in labels:
            raise DataError(
                f"task.class-weights={entry}: {label!r} is not one of {', '.join(labels[:12])}"
                f"{did_you_mean(label, labels)}; give `balanced`, or LABEL=WEIGHT"
            )
        try:
            weights_C[labels.index(label)] = float(weight)
        except ValueError:
            raise DataError(f"task.class-weights={entry}: {weight!r} is not a number") from None
    if not (np.isfinite(weights_C) & (weights_C > 0)).all():
        raise DataError(f"task.class-weights={' '.join(task.class_weights)}: weights must be above 0")
    return weights_C
