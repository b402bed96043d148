"""Words counted in bounded memory, and repeated for learners as often as they were counted."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

LONGEST_CHUNK = 200
"""Characters of the chunks that a vocabulary is learned on, at most."""
MAX_WORDS = 1_000_000
"""Distinct words that are counted at once."""


def count(texts: Iterable[str], split: Callable[[str], Iterable[str]]) -> Counter[str]:
    """Counts the words of texts; the rarest are forgotten where there would be more than MAX_WORDS."""
    counts: Counter[str] = Counter()
    floor = 1
    for text in texts:
        counts.update(split(text))
        # Lossy counting: words seen once go first, then those seen twice, …: none that is frequent enough for a
        # vocabulary.
        while len(counts) > MAX_WORDS:
            counts = Counter({word: times for word, times in counts.items() if times > floor})
            # One count more is forgotten in each turn, so that the loop ends.
            floor += 1
    return counts


def slices(chunks: Iterable[str]) -> Iterator[str]:
    """Yields the chunks; a chunk of more than LONGEST_CHUNK characters comes in slices."""
    for chunk in chunks:
        if len(chunk) <= LONGEST_CHUNK:
            yield chunk
        else:
            yield from (chunk[at : at + LONGEST_CHUNK] for at in range(0, len(chunk), LONGEST_CHUNK))


def repeated(counts: Counter[str]) -> Iterator[str]:
    """Yields each word in sorted order, as often as it was counted, with spaces between."""
    # The libraries learn from text, not from counts; texts of 4096 words bound the memory.
    for word in sorted(counts):
        left = counts[word]
        while left > 0:
            yield " ".join([word] * min(left, 4096))
            left -= 4096
