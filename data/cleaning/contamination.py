"""Documents that hold texts of a benchmark: they have an n-gram of words in common with its files (as Brown et al.
2020, appendix C: 13 words, lower-cased, without punctuation).

Differs: a document with such an n-gram goes as a whole (GPT-3: 200 characters around it, and documents in more than ten
pieces), and n-grams that occur in many documents count too (GPT-3: not those in more than ten).
"""

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from contexture.data.cleaning.rules import words_of
from contexture.data.config import TaskConfig
from contexture.data.errors import DataError
from contexture.data.plain_files import inner_suffix
from contexture.data.tasks.read.published.publishers import is_published
from contexture.data.tasks.read.read_examples import FORMATS, check_sources, open_table
from contexture.data.text import hub, tfds
from contexture.data.text.columnar import is_saved
from contexture.data.text.sources import expand, texts

SHORTEST = 8
"""Words of a text that is shorter than n and still looked for, as a whole."""
_BASE = np.uint64(0x9E3779B97F4A7C15)
"""An odd number, whose powers mix the words of an n-gram."""
I64 = NDArray[np.int64]


class Benchmarks:
    """The n-grams of files. Memory: about 24 bytes for each of their words."""

    def __init__(self, files: Sequence[str], n: int) -> None:
        """Raises: DataError for a file that cannot be read, and for one without a text that is long enough."""
        self._numbers: dict[str, int] = {}
        self._names = [Path(file).name for file in files]
        ids = array("i")
        # By the length of their n-grams, which is n but for texts that are shorter: where each begins in `ids`.
        starts: dict[int, array[int]] = {}
        self._ends: list[int] = []
        digest, seen, shortest = hashlib.sha256(), set[bytes](), min(SHORTEST, n)
        for file in files:
            longest = 0
            for text in texts_of(file):
                words = words_of(text)
                longest = max(longest, len(words))
                spelling = " ".join(words).encode()
                # A context of SQuAD comes with each of its questions.
                key = hashlib.blake2b(spelling, digest_size=16).digest()
                if len(words) >= shortest and key not in seen:
                    seen.add(key)
                    digest.update(spelling + b"\n")
                    length = min(n, len(words))
                    starts.setdefault(length, array("q")).extend(range(len(ids), len(ids) + len(words) - length + 1))
                    ids.extend(self._numbers.setdefault(word, len(self._numbers) + 1) for word in words)
            if longest < shortest:
                raise DataError(f"{file}: decontaminate= finds no text of {shortest} words in it; give its texts")
            # Which file an n-gram is of shows by its place.
            self._ends.append(len(ids))
        self.fingerprint = digest.hexdigest()
        self._ids = np.array(ids, np.int32)
        # Of each length, the longest first: the hashes, sorted, and where the first n-gram of each begins.
        self._grams: list[tuple[int, NDArray[np.uint64], I64]] = []
        # The longest first: what is found then is the most of a text.
        for length in sorted(starts, reverse=True):
            each = np.array(starts[length], np.int64)
            hashes, firsts = np.unique(_hashes(self._ids, length)[each], return_index=True)
            self._grams.append((length, hashes, each[firsts]))

    def found_in(self, text: str) -> tuple[str, str] | None:
        """Returns an n-gram of a benchmark in a text, and the file that has it; None where there is none."""
        # As the texts of the benchmarks were: without case and punctuation.
        words = words_of(text)
        # A word that no benchmark has is 0, and in none of its n-grams.
        ids = np.array([self._numbers.get(word, 0) for word in words], np.int32)
        for length, known, starts in self._grams:
            if len(ids) < length:
                continue
            # One look-up for each place, in the compiled loop of a bisection.
            hashes = _hashes(ids, length)
            places = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            # Hashes are a sieve, and what passes is compared: no document goes by chance.
            for at in np.flatnonzero(known[places] == hashes).tolist():
                start = int(starts[places[at]])
                if (ids[at : at + length] == self._ids[start : start + length]).all():
                    return " ".join(words[at : at + length]), self._names[bisect_right(self._ends, start)]
        return None


def _hashes(ids: NDArray[np.int32], length: int) -> NDArray[np.uint64]:
    """Returns a hash of the n-gram that begins at each word."""
    unsigned = ids.astype(np.uint64)
    count = len(ids) - length + 1
    hashes = np.zeros(count, np.uint64)
    # A polynomial in _BASE, modulo 2^64; shifts bring the high bits down.
    for place in range(length):
        hashes = hashes * _BASE + unsigned[place : place + count]
        hashes ^= hashes >> np.uint64(29)
    return hashes


def texts_of(file: str) -> Iterator[str]:
    """Yields all texts of a file of a task, whatever its columns are called; of plain text its lines.

    Raises: DataError for what cannot be read.
    """
    for path in hub.with_local_files([file]):
        # Sets and published files have names of their own, and readers of their own.
        named = path.startswith(tfds.PREFIX) or is_published(path) or is_saved(path)
        if not named and inner_suffix(path) not in FORMATS:
            yield from texts(expand(path, "decontaminate"))
            continue
        check_sources([path], "decontaminate")
        # A reader for words with tags, and one for SQuAD's form, which reads arrays of rows as well.
        kind = "tag" if "conll" in inner_suffix(path) else "span"
        table = open_table(path, TaskConfig(kind=kind))
        # The first line of a file without names of columns was taken for them.
        yield from table.names or ()
        for _, row in table.rows:
            # A row that cannot be read would let its text pass: that is an error here.
            if isinstance(row, DataError):
                raise row
            yield from _strings(row)


def _strings(value: object) -> Iterator[str]:
    """Yields the texts of a cell, or a row; words in a list are one text."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name in value:
            try:
                cell = value[name]
            except DataError:
                continue  # a column of another type than text
            yield from _strings(cell)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        # Words with tags are one text; alternatives are several.
        words = all(isinstance(each, str) and " " not in each for each in value)
        for each in (" ".join(value),) if words else value:
            yield from _strings(each)
