"""The lengths that batches of a task's examples are padded to: a few, so that few programs are compiled."""

import numpy as np

from contexture.data.binary_files import I64
from contexture.data.tasks.store.example_store import ExampleSplit

MAX_LENGTHS = 6
"""Lengths at most: a program is compiled for each."""
MIN_SAVING = 3
"""Whole batches, of the greatest length, that a further length must save in one pass over the examples, so that three
passes make up for its compilation on a CPU; a third of it where no gradient is computed. Small sets have one length."""
STEP = 4
"""Lengths beside the greatest are multiples of this."""


def padded(tokens: I64 | np.int64, limit: int) -> I64 | np.int64:
    """Returns the least length, a multiple of 8, that holds sequences of so many tokens and the special ones at
    their two ends; at most `limit`."""
    return np.minimum(-(-(tokens + 2) // 8) * 8, limit)


def batch_lengths(split: ExampleSplit, limit: int, batch: int, *, shuffled: bool) -> tuple[int, ...]:
    """Returns the lengths for a split, ascending: those that leave the least padding (`choose_lengths`).

    limit: the greatest. shuffled: batches are drawn at random, else they are sorted by length.
    """
    if split.examples < batch * MIN_SAVING:
        return (limit,)  # fewer batches than a length must save
    counts = np.zeros(limit // STEP + 2, np.int64)
    for numbers in split.parts():
        needed = np.minimum(split.tokens_of(numbers) + 2, limit)
        counts += np.bincount(-(-needed // STEP), minlength=len(counts))
    places = np.flatnonzero(counts)
    lengths = np.minimum(places * STEP, limit)
    return choose_lengths(lengths, counts[places], limit, batch, shuffled=shuffled)


def choose_lengths(lengths: I64, counts: I64, limit: int, batch: int, *, shuffled: bool) -> tuple[int, ...]:
    """Returns at most MAX_LENGTHS lengths, ending with `limit`, with which a pass computes the least: whole batches of
    the greatest length, and MIN_SAVING for each length.

    lengths, counts: how many examples need each length, ascending. A shuffled batch is as long as the longest of its
    examples: P(length ≤ x) of a batch is that of an example to the power of `batch`. A sorted one is as long as they
    all are.
    """
    batches = -(-int(counts.sum()) // batch)
    reached = np.cumsum(counts) / counts.sum()
    if shuffled:
        reached = reached**batch
    lengths, reached = np.append(lengths[:-1], limit), np.concatenate([[0.0], reached])
    saving = MIN_SAVING if shuffled else MIN_SAVING / 3
    # cost[i, j]: of the batches that are longer than lengths[i - 1] and at most lengths[j], all padded to lengths[j].
    cost = np.maximum(reached[None, 1:] - reached[:-1, None], 0.0) * lengths[None, :] / limit * batches + saving
    cost = np.where(np.arange(len(lengths))[:, None] <= np.arange(len(lengths)), cost, np.inf)
    # best[j]: the least cost of all batches up to lengths[j], which is one of the lengths chosen.
    best, before = cost[0], [np.zeros(len(lengths), np.int64)]
    ways = [best]
    for _ in range(min(MAX_LENGTHS, len(lengths)) - 1):
        longer = np.concatenate([[np.inf], best[:-1]])[:, None] + cost
        before.append(longer.argmin(0))
        best = longer.min(0)
        ways.append(best)
    used = int(np.argmin([way[-1] for way in ways]))
    chosen, last = [limit], len(lengths) - 1
    for step in range(used, 0, -1):
        last = int(before[step][last]) - 1
        chosen.append(int(lengths[last]))
    return tuple(reversed(chosen))


def length_for(lengths: tuple[int, ...], tokens: I64) -> int:
    """Returns the least of the lengths that holds the longest of sequences of so many tokens; if none does, which cut
    it, the greatest."""
    return lengths[places_for(lengths, tokens).max(initial=0)]


def places_for(lengths: tuple[int, ...], tokens: I64) -> I64:
    """Returns the place among the lengths of the one that holds each sequence."""
    return np.minimum(np.searchsorted(lengths, tokens + 2), len(lengths) - 1)


def one_of(lengths: tuple[int, ...]) -> str:
    """Returns the lengths for people: "16, 32 or 96"."""
    *others, last = map(str, lengths)
    return f"{', '.join(others)} or {last}" if others else last
