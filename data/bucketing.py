"""The lengths that batches are padded to, and how sequences are put together in batches: few shapes, so that few
programs are compiled, and little padding.

A single batch takes the smallest fitting length of a fixed ladder (`bucket`). For many batches the lengths are chosen
by what they hold (`choose_lengths`), and sequences are sorted by length within a window of batches.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol, TypeVar

import numpy as np

from contexture.data.binary_files import I64
from contexture.data.errors import DataError

T = TypeVar("T")
Sized = TypeVar("Sized", bound=Sequence[object])
MAX_BATCH = 1 << 14
"""The most sequences that may be asked for at a time."""
MAX_LENGTHS = 6
"""Maximum number of lengths; each costs a compilation."""
MIN_SAVING = 3
"""Batches of the greatest length that a further length must save in one pass over the examples, so that three passes
make up for its compilation on a CPU; a third of it where no gradient is computed. So small sets keep one length."""
STEP = 4
"""All lengths but the greatest are multiples of this."""


class Lengths(Protocol):
    """Sequences whose lengths are known (`data.tasks.store.ExampleSplit`)."""

    @property
    def examples(self) -> int: ...
    def parts(self) -> Iterable[I64]:
        """Returns the numbers of all sequences, in parts."""
        ...

    def tokens_of(self, numbers: I64) -> I64:
        """Returns the tokens of sequences, without special ones at their two ends."""
        ...


def power_of_two(number: int) -> int:
    """Returns the smallest power of two that is not below a number."""
    return 1 << max(number - 1, 0).bit_length()


def bucket(longest: int, limit: int | None = None) -> int:
    """Returns the length for a batch whose longest sequence is this: the least of 8, 16, 24, 32, 48, 64, 96, 128, …
    that holds it, at most `limit`."""
    whole = max(power_of_two(longest), 8)
    # Three quarters of a power of two as well: at most a third of a length from 24 on is padding, not half.
    length = whole // 4 * 3 if whole >= 32 and longest <= whole // 4 * 3 else whole
    return length if limit is None else min(length, limit)


def check_batch(batch: int, unit: str = "sentences") -> None:
    """Raises: DataError for an empty batch, or one of more than MAX_BATCH."""
    if batch < 1:
        raise DataError(f"batch={batch} is not a positive number of {unit}")
    if batch > MAX_BATCH:
        raise DataError(f"batch={batch} is more than {MAX_BATCH} {unit} at a time; give fewer")


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yields lists of at most `size` items."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def padded(tokens: I64 | np.int64, limit: int) -> I64 | np.int64:
    """Returns the least length, a multiple of 8, that holds sequences of so many tokens and the special ones at
    their two ends; at most `limit`."""
    return np.minimum(-(-(tokens + 2) // 8) * 8, limit)


def batch_lengths(split: Lengths, limit: int, batch: int, *, shuffled: bool) -> tuple[int, ...]:
    """Returns the lengths for a split, ascending: the ones that leave the least padding (`choose_lengths`).

    Args:
        split: the sequences.
        limit: the greatest length.
        batch: sequences of a batch.
        shuffled: whether batches are drawn at random; else they are sorted by length.
    """
    if split.examples < batch * MIN_SAVING:
        return (limit,)  # fewer batches than a length must save
    # A histogram in units of STEP: what follows takes the same time for any number of examples.
    counts = np.zeros(limit // STEP + 2, np.int64)
    for numbers in split.parts():
        needed = np.minimum(split.tokens_of(numbers) + 2, limit)
        counts += np.bincount(-(-needed // STEP), minlength=len(counts))
    places = np.flatnonzero(counts)
    # The last unit may reach past the limit.
    lengths = np.minimum(places * STEP, limit)
    return choose_lengths(lengths, counts[places], limit, batch, shuffled=shuffled)


def choose_lengths(lengths: I64, counts: I64, limit: int, batch: int, *, shuffled: bool) -> tuple[int, ...]:
    """Returns at most MAX_LENGTHS lengths, ending with `limit`, with which a pass computes the least: whole batches of
    the greatest length, and MIN_SAVING for each length.

    A shuffled batch is as long as the longest of its examples: its P(length ≤ x) is an example's to the power of
    `batch`. The examples of a sorted batch are all about as long.

    Args:
        lengths: lengths that examples need, ascending.
        counts: how many examples need each.
        limit: the greatest length.
        batch: sequences of a batch.
        shuffled: as in `batch_lengths`.
    """
    # How many batches a pass has, and how many of them each length holds.
    batches = -(-int(counts.sum()) // batch)
    reached = np.cumsum(counts) / counts.sum()
    if shuffled:
        reached = reached**batch
    # The last length is the limit itself, whether or not an example is as long.
    lengths, reached = np.append(lengths[:-1], limit), np.concatenate([[0.0], reached])
    saving = MIN_SAVING if shuffled else MIN_SAVING / 3
    # cost[i, j]: of the batches that are longer than lengths[i - 1] and at most lengths[j], all padded to lengths[j].
    cost = np.maximum(reached[None, 1:] - reached[:-1, None], 0.0) * lengths[None, :] / limit * batches + saving
    cost = np.where(np.arange(len(lengths))[:, None] <= np.arange(len(lengths)), cost, np.inf)
    # best[j]: the least cost of all batches up to lengths[j], which is one of the lengths chosen.
    # before[n][j]: with n + 1 lengths, where the examples of the last of them, lengths[j], begin.
    best, before = cost[0], [np.zeros(len(lengths), np.int64)]
    ways = [best]
    # Dynamic programming: one length more in each turn.
    for _ in range(min(MAX_LENGTHS, len(lengths)) - 1):
        # The batches up to the length before, with one length fewer, and the rest with this one.
        longer = np.concatenate([[np.inf], best[:-1]])[:, None] + cost
        before.append(longer.argmin(0))
        best = longer.min(0)
        ways.append(best)
    # Of equally good numbers of lengths, the smallest.
    used = int(np.argmin([way[-1] for way in ways]))
    chosen, last = [limit], len(lengths) - 1
    # From the limit back: each length's examples begin behind the next shorter length.
    for step in range(used, 0, -1):
        last = int(before[step][last]) - 1
        chosen.append(int(lengths[last]))
    return tuple(reversed(chosen))


def length_for(lengths: tuple[int, ...], tokens: I64) -> int:
    """Returns the smallest length that holds the longest of sequences of so many tokens; the greatest if none does, and
    sequences are cut."""
    return lengths[places_for(lengths, tokens).max(initial=0)]


def places_for(lengths: tuple[int, ...], tokens: I64) -> I64:
    """Returns the place among the lengths of the one that holds each sequence."""
    # With two special tokens. What is longer than all of them is cut to the last.
    return np.minimum(np.searchsorted(lengths, tokens + 2), len(lengths) - 1)


def one_of(lengths: tuple[int, ...]) -> str:
    """Returns the lengths for people: "16, 32 or 96"."""
    *others, last = map(str, lengths)
    return f"{', '.join(others)} or {last}" if others else last


WINDOW, MOST_FLOATS = 64, 1 << 26
"""The sort window: at most so many batches, and so many elements of their vectors."""


def windows(sentences: Iterable[Sized], batch: int, floats: Callable[[Sized], int]) -> Iterator[list[Sized]]:
    """Yields sentences in lists: whole batches, WINDOW of them, or fewer whose vectors would be too large together."""
    window, size = list[Sized](), 0
    # Whole batches only: a window never ends within one, but for the last.
    for group in chunks(sentences, batch):
        own = sum(map(floats, group))
        if window and (size + own > MOST_FLOATS or len(window) == WINDOW * batch):
            yield window
            window, size = [], 0
        window += group
        size += own
    if window:
        yield window
