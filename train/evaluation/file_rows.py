"""The metrics of each file, where several are evaluated: languages, domains."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from contexture.train.run.report import Figure, plain

FileRow: TypeAlias = dict[str, Figure]
"""{"file": its name, "examples": 97, "accuracy": …}."""


def rows_by_file(
    sources: Sequence[str], files: NDArray[np.int64], figures: Callable[[int], dict[str, float]]
) -> list[FileRow]:
    """Returns a row for each source, in their order, where there are several. files: the source of each example;
    figures: the metrics of a source's examples."""
    numbers, counts = np.unique(files, return_counts=True)
    if len(numbers) < 2:
        return []
    rows: list[FileRow] = []
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        row: FileRow = {"file": str(sources[number]), "examples": int(count)}
        row.update({name: plain(value) for name, value in figures(number).items()})
        rows.append(row)
    return rows
