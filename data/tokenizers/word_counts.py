"""Words counted in bounded memory, and given to learners as often as they were counted."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

LONGEST_CHUNK = 200
"""A vocabulary is learned on chunks of at most so many characters."""


MAX_WORDS = 1_000_000


def count(texts: Iterable[str], split: Callable[[str], Iterable[str]]) -> Counter[str]:
    """Counts what the texts are split into; the rarest are forgotten where there would be more than a million."""
    counts: Counter[str] = Counter()
    floor = 1
    for text in texts:
        counts.update(split(text))
        while len(counts) > MAX_WORDS:
            counts = Counter({word: times for word, times in counts.items() if times > floor})
            floor += 1
    return counts


def slices(chunks: Iterable[str]) -> Iterator[str]:
    """Chunks, those of more than LONGEST_CHUNK characters in slices."""
    for chunk in chunks:
        if len(chunk) <= LONGEST_CHUNK:
            yield chunk
        else:
            yield from (chunk[at : at + LONGEST_CHUNK] for at in range(0, len(chunk), LONGEST_CHUNK))


def repeated(counts: Counter[str]) -> Iterator[str]:
    """Each word in sorted order, as often as it was counted, with spaces between."""
    for word in sorted(counts):
        left = counts[word]
        while left > 0:
            yield " ".join([word] * min(left, 4096))
            left -= 4096
