"""The standard error of a mean over examples: the standard deviation it would have over other samples of this size."""

import math
from collections.abc import Iterable, Mapping, Sequence


def standard_error(values: Iterable[float]) -> float | None:
    """s / √n, where s² = Σ (x - mean)² / (n - 1); of an accuracy p this is √(p (1 - p) / (n - 1)). None of one value.

    The examples are assumed to be independent.
    """
    numbers = [float(value) for value in values]
    count = len(numbers)
    if count < 2:
        return None
    mean = math.fsum(numbers) / count
    return math.sqrt(math.fsum((x - mean) ** 2 for x in numbers) / (count - 1) / count)


def standard_errors(values: Mapping[str, Iterable[float]]) -> dict[str, float | None]:
    """Returns the standard error of the mean of each list, by its name."""
    return {name: standard_error(own) for name, own in values.items()}


def of_sum(errors: Sequence[float | None]) -> float | None:
    """√(Σ error²), the standard error of a sum or a difference of independent means; None if one of them is unknown."""
    known = [error for error in errors if error is not None]
    return math.sqrt(math.fsum(error**2 for error in known)) if known and len(known) == len(errors) else None
