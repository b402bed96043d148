"""Digests that occur twice, in an order: the first one stays. A digest is two numbers of 64 bits."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MOST = 1 << 24
"""Paragraphs that are compared at once, by their digests: 1 GB."""
_BLOCK = 1 << 18
I64 = NDArray[np.int64]
Digests = NDArray[np.uint64]
"""u64 [digests, 2]"""


def first_equal(digests: Digests) -> I64:
    """Returns, for each digest, the place of the first one that equals it, itself where there is none before."""
    if not len(digests):
        return np.zeros(0, np.int64)
    # Stable: of equal ones the first in the order of the text comes first.
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    # Groups of equal digests lie together now.
    ordered = digests[order]
    # A group begins where a digest is not the one in front of it.
    begins = np.append(True, (ordered[1:] != ordered[:-1]).any(1))
    firsts = np.empty(len(digests), np.int64)
    # Each takes over the place that its group begins with.
    firsts[order] = order[np.flatnonzero(begins)][np.cumsum(begins) - 1]
    return firsts


class Paragraphs:
    """The digests of the paragraphs of all parts, on disk."""

    def __init__(self, files: Sequence[Path], stays: NDArray[np.bool_]) -> None:
        """stays: for each paragraph, whether its document stays."""
        self._files, self._stays = files, stays

    def repeated(self) -> NDArray[np.bool_]:
        """Returns which paragraphs of documents that stay equal an earlier one of such a document."""
        repeated = np.zeros(len(self._stays), np.bool_)
        # Digests are even: those of one remainder are as many as those of another.
        turns = max(-(-len(self._stays) // MOST), 1)
        for turn in range(turns):
            # A part of all digests at a time, with the places that they have among all.
            digests, places = [], []
            for at, block in self._blocks():
                chosen = np.flatnonzero((block[:, 0] % np.uint64(turns) == turn) & self._stays[at : at + len(block)])
                digests.append(block[chosen])
                places.append(chosen + at)
            # Places are in the order of the text, and stay so: the first of equal ones is found by it.
            if places:
                place = np.concatenate(places)
                firsts = first_equal(np.concatenate(digests))
                repeated[place[firsts != np.arange(len(firsts))]] = True
        return repeated

    def firsts(self, repeated: Sequence[int]) -> dict[int, int]:
        """Returns the first paragraph of a document that stays that equals each of a few others."""
        # A few examples alone: all digests are read twice for them, and none is kept.
        wanted: dict[tuple[int, int], list[int]] = {}
        for at, block in self._blocks():
            for place in repeated:
                if at <= place < at + len(block):
                    wanted.setdefault(tuple(block[place - at].tolist()), []).append(place)
        firsts: dict[int, int] = {}
        for at, block in self._blocks():
            for digest, places in wanted.items():
                # Only paragraphs of documents that stay: others are no first ones.
                equal = (block == np.array(digest, np.uint64)).all(1) & self._stays[at : at + len(block)]
                if equal.any() and places[0] not in firsts:
                    firsts |= dict.fromkeys(places, at + int(equal.argmax()))
        return firsts

    def _blocks(self) -> Iterator[tuple[int, Digests]]:
        """Yields the digests in blocks, each with the place of its first."""
        at = 0
        for file in self._files:
            with file.open("rb") as opened:
                while raw := opened.read(_BLOCK * 16):
                    block = np.frombuffer(raw, "<u8").reshape(-1, 2)
                    yield at, block
                    at += len(block)
