"""Near-duplicates: MinHash signatures (Broder 1997) by rensa (extra [clean]), bands that two similar ones share, and
the Jaccard index of the sets of 5-grams of words itself.

    J(a, b) = |a ∩ b| / |a ∪ b|        P[two signatures agree at a place] = J

A signature of 128 places is cut into bands of r places. Two texts are compared where a band is equal, which happens
with 1 - (1 - J^r)^(128 // r); r is the largest for which that is at least 0.99 at the threshold.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contexture.data.cleaning.rules import words_of
from contexture.data.errors import DataError

PLACES = 128
SHINGLE = 5
"""Words of a shingle; a text of fewer is one shingle."""
_SEED = 1
_RECALL = 0.99
_MARGIN = 0.15
"""How far an estimate may be below the threshold for a pair to be compared: over three standard deviations."""
_BLOCK = 1 << 14
"""Signatures that are read at once, 8 MiB."""
_KEPT = 256
"""Sets of shingles that are kept for further comparisons."""
_CHAIN, _EXACT = 256, 64
"""Of each bucket the documents that are looked at, the newest ones; of all of them those that are compared word by
word, the ones with the highest estimates. Pages of one template share most buckets with each other: each would else be
compared with all before it."""
I64 = NDArray[np.int64]
U32 = NDArray[np.uint32]


class MinHash:
    """Makes signatures."""

    def __init__(self) -> None:
        try:
            import rensa
        except ImportError:
            raise DataError("duplicates=near needs rensa; pip install -e '.[clean]'") from None
        self._library: Any = rensa
        # Signatures of another algorithm cannot be compared.
        self.version = f"rensa {version('rensa')}"

    def signature(self, text: str) -> bytes:
        """Returns the signature of a text, u32 [PLACES]."""
        # Sorted: a set has another order in each process, and signatures must not.
        (digest,) = self._library.RMinHash.digests_from_token_sets([sorted(shingles(text))], PLACES, _SEED)
        return np.array(digest, "<u4").tobytes()


def shingles(text: str) -> frozenset[str]:
    """Returns the 5-grams of a text's words; of a text without words those of what white space parts."""
    # Else all texts of symbols alone would be the same.
    words = words_of(text) or text.split()
    # A set: how often a shingle occurs counts for nothing.
    return frozenset(" ".join(words[at : at + SHINGLE]) for at in range(max(len(words) - SHINGLE + 1, 1)))


def rows_of(threshold: float) -> int:
    """Returns the places of a band."""
    # The more places, the fewer pairs are compared, and the more are missed.
    return max((r for r in range(1, PLACES + 1) if _compared(threshold, r) >= _RECALL), default=1)


def _compared(jaccard: float, rows: int) -> float:
    return 1 - (1 - jaccard**rows) ** (PLACES // rows)


class Signatures:
    """The signatures of all parts, on disk, by the number of their document among all."""

    def __init__(self, files: Sequence[Path], counts: Sequence[int]) -> None:
        self._files, self._counts = files, counts
        self._starts = np.concatenate([[0], np.cumsum(counts)])
        # Pages that were read can be dropped again: they are no memory of this process.
        self._maps = [
            np.memmap(file, "<u4", "r", shape=(count, PLACES)) if count else np.zeros((0, PLACES), "<u4")
            for file, count in zip(files, counts, strict=True)
        ]

    def band(self, first: int, rows: int) -> NDArray[np.uint64]:
        """Returns a hash of places first … first+rows-1 of each signature, u64 [documents]."""
        # Read in blocks and not through the maps, whose pages would stay in memory while they are read.
        hashes = np.zeros(self._starts[-1], np.uint64)
        at = 0
        for file in self._files:
            with file.open("rb") as opened:
                while raw := opened.read(_BLOCK * PLACES * 4):
                    places = np.frombuffer(raw, "<u4").reshape(-1, PLACES)[:, first : first + rows]
                    each = hashes[at : at + len(places)]
                    for place in places.T:
                        each *= np.uint64(0x9E3779B97F4A7C15)
                        each += place
                        each ^= each >> np.uint64(29)
                    at += len(places)
        return hashes

    def of(self, documents: Sequence[int]) -> U32:
        """Returns the signatures of documents, u32 [documents, PLACES]."""
        # By bisection, the part that a document lies in.
        parts = (np.searchsorted(self._starts, documents, "right") - 1).tolist()
        rows = zip(parts, documents, strict=True)
        return np.array([self._maps[part][document - self._starts[part]] for part, document in rows], np.uint32)


def near_duplicates(
    signatures: Signatures,
    alive: NDArray[np.bool_],
    text: Callable[[int], str],
    threshold: float,
    check: Callable[[], object],
) -> dict[int, int]:
    """Returns each document that an earlier one, which stays, resembles: {its number: that one's}.

    Args:
        signatures: of all documents.
        alive: which documents are compared.
        text: gives a document.
        threshold: the least Jaccard index of two that resemble each other.
        check: called often.
    """
    documents, buckets, total = _shared_bands(signatures, alive, rows_of(threshold), check)
    # Of each bucket the last entry of a document that stays, and of each entry the one before it in its bucket.
    newest, before = np.full(total, -1, np.int64), np.full(len(documents), -1, np.int64)
    shingles_of = lru_cache(_KEPT)(lambda document: shingles(text(document)))
    doubles: dict[int, int] = {}
    # Entries of one document lie together: from one border to the next.
    borders = np.flatnonzero(np.diff(documents, prepend=-1)).tolist() + [len(documents)]
    for first, end in zip(borders[:-1], borders[1:], strict=True):
        check()
        document = int(documents[first])
        # All documents that stay and share a bucket: each bucket is a chain of them.
        candidates: set[int] = set()
        for entry in newest[buckets[first:end]].tolist():
            # -1 ends the chain.
            for _ in range(_CHAIN):
                if entry < 0:
                    break
                candidates.add(int(documents[entry]))
                entry = int(before[entry])
        # Signatures are 512 bytes, texts may be megabytes: few texts are read.
        similar = _similar(signatures, document, sorted(candidates), threshold - _MARGIN) if candidates else []
        ours = shingles(text(document)) if similar else frozenset()
        # The first in the order of the text is what it doubles.
        twin = next((each for each in similar if _jaccard(ours, shingles_of(each)) >= threshold), None)
        if twin is not None:
            doubles[document] = twin
            continue
        # It stays: later ones are compared with it.
        for entry in range(first, end):
            bucket = buckets[entry]
            before[entry], newest[bucket] = newest[bucket], entry
    return doubles


def _shared_bands(
    signatures: Signatures, alive: NDArray[np.bool_], rows: int, check: Callable[[], object]
) -> tuple[I64, I64, int]:
    """Returns the documents that share a band with another and the number of that band's bucket, by document; and how
    many buckets there are."""
    documents, buckets = [], []
    total = 0
    living = np.flatnonzero(alive)
    if len(living) < 2:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), 0
    # Band by band: 24 bytes a document at a time.
    for first in range(0, PLACES - rows + 1, rows):
        check()
        hashes = signatures.band(first, rows)[living]
        # Equal hashes become neighbours.
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        same = hashes[1:] == hashes[:-1]
        # An entry has a neighbour of the same hash, on one side or on both.
        shared = np.append(same, False) | np.append(False, same)
        numbers = np.cumsum(np.append(True, ~same))[shared]
        # Numbered by those that are shared alone.
        distinct, numbers = np.unique(numbers, return_inverse=True)
        documents.append(living[order[shared]])
        buckets.append(numbers + total)
        total += len(distinct)
    # By document: they are walked in the order of the text.
    all_documents, all_buckets = np.concatenate(documents), np.concatenate(buckets)
    order = np.argsort(all_documents, kind="stable")
    return all_documents[order], all_buckets[order], total


def _similar(signatures: Signatures, document: int, others: Sequence[int], least: float) -> list[int]:
    """Returns the documents whose estimated Jaccard index is high enough, the first ones first."""
    # The share of places that agree has the Jaccard index as its mean, and a deviation of sqrt(J (1 - J) / 128).
    agree = (signatures.of(others) == signatures.of([document])).mean(1)
    near = [(estimate, other) for other, estimate in zip(others, agree.tolist(), strict=True) if estimate >= least]
    # The highest first where there are too many; of equal ones the first in the text.
    chosen = sorted(near, key=lambda each: (-each[0], each[1]))[:_EXACT]
    return sorted(other for _, other in chosen)


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    # Of the sets themselves: no estimate decides what goes.
    both = len(one & other)
    return both / (len(one) + len(other) - both)
