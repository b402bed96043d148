"""Words counted in bounded memory, exactly, and repeated for learners as often as they were counted.

Counts that pass MAX_WORDS distinct words go to sorted files, which are merged: how a text is cut into parts, and in how
many tables it is counted, changes nothing. A file has a line `word TAB count` for each word, in the order of Unicode.
"""

import contextlib
import heapq
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

LONGEST_CHUNK = 200
"""Characters of the chunks that a vocabulary is learned on, at most."""
MAX_WORDS = 1_000_000
"""Distinct words that are in memory at once, and that a vocabulary is learned on: the most frequent ones."""
_MOST_FILES = 256
"""Files that are merged at once."""
_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
_UNESCAPED = {escaped: character for character, escaped in _ESCAPED.items()}
_ESCAPE = re.compile(r"[\\\n\r]")
_UNESCAPE = re.compile(r"\\.")
WordCount = tuple[str, int]


class CountTable:
    """Counts of words. Memory holds MAX_WORDS of them; all others are in files of a temporary folder, until `close`."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._files: list[Path] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def add(self, words: Iterable[str]) -> None:
        self._counts.update(words)
        # Checked once for a text: it may add as many words as it has.
        if len(self._counts) > MAX_WORDS:
            # Made when it is needed: few texts have so many words.
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="contexture-counts-")
            self._files.append(Path(self._folder.name) / str(len(self._files)))
            write(self._files[-1], sorted(self._counts.items()))
            # Frequent words come again, and their counts are added up in the end.
            self._counts.clear()

    def items(self) -> Iterator[WordCount]:
        """Yields all words with their counts, sorted."""
        # What is in memory is one more sorted list.
        yield from merged([merged_files(self._files, read), iter(sorted(self._counts.items()))])


def count(texts: Iterable[str], split: Callable[[str], Iterable[str]]) -> Iterator[WordCount]:
    """Yields the words of texts with their counts, sorted, after all texts were read."""
    with contextlib.closing(CountTable()) as table:
        for text in texts:
            table.add(split(text))
        yield from table.items()


def most_frequent(counts: Iterable[WordCount], most: int | None = None) -> Counter[str]:
    """Returns the words that were counted most, MAX_WORDS unless told otherwise; of equals those that come first in
    the order of Unicode."""
    # A heap of so many, whatever the number of words: they are never all in memory.
    return Counter(dict(heapq.nsmallest(most or MAX_WORDS, counts, key=lambda each: (-each[1], each[0]))))


def merged(sorted_counts: list[Iterator[WordCount]]) -> Iterator[WordCount]:
    """Yields each word of several sorted lists once, with the sum of its counts, sorted."""
    # Equal words follow each other.
    word, total = None, 0
    for each, times in heapq.merge(*sorted_counts):
        if each != word:
            if word is not None:
                yield word, total
            word, total = each, 0
        total += times
    if word is not None:
        yield word, total


def weighted(sources: Sequence[tuple[Iterable[WordCount], float]]) -> Iterator[WordCount]:
    """As `merged`, of sorted counts with weights: each source has its share of the sum, however long it is.

    Counts are rounded, to 1 at least: no word is lost.
    """
    # The total of a source is known after it was read: its counts wait in a file.
    with tempfile.TemporaryDirectory(prefix="contexture-counts-") as folder:
        totals: list[int] = []
        for number, (counts, _) in enumerate(sources):
            total = 0

            def added(counts: Iterable[WordCount] = counts) -> Iterator[WordCount]:
                nonlocal total
                for word, times in counts:
                    total += times
                    yield word, times

            write(Path(folder) / str(number), added())
            totals.append(total)
        weights = sum(weight for _, weight in sources)

        def scaled(number: int) -> Iterator[WordCount]:
            factor = sources[number][1] / weights * sum(totals) / max(totals[number], 1)
            return ((word, max(1, round(times * factor))) for word, times in read(Path(folder) / str(number)))

        yield from merged([scaled(number) for number in range(len(sources))])


def merged_files(files: list[Path], opened: Callable[[Path], Iterator[WordCount]]) -> Iterator[WordCount]:
    """As `merged`, of any number of files, which `opened` reads: so many are merged into one that the rest can be open
    at once."""
    # A process may have a thousand files open, or fewer.
    with contextlib.ExitStack() as stack:
        later: list[Path] = []
        # Each file goes through one such merge at most.
        while len(files) > _MOST_FILES:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="contexture-counts-")))
            write(folder / "merged", merged([opened(file) for file in files[:_MOST_FILES]]))
            later.append(folder / "merged")
            files = files[_MOST_FILES:]
        yield from merged([*map(opened, files), *map(read, later)])


def write(file: Path, counts: Iterable[WordCount]) -> None:
    """Writes words with their counts, which come sorted."""
    # Text of a *.jsonl may hold half a character ("\\ud800"), which UTF-8 alone refuses.
    with open(file, "w", encoding="utf-8", errors="surrogatepass", newline="\n") as out:
        out.writelines(lines(counts))


def lines(counts: Iterable[WordCount]) -> Iterator[str]:
    """Yields the lines of a file of counts."""
    for word, times in counts:
        # Few words hold a line end, and a file has a line for each.
        if _ESCAPE.search(word):
            word = _ESCAPE.sub(lambda match: _ESCAPED[match[0]], word)
        yield f"{word}\t{times}\n"


def read(file: Path) -> Iterator[WordCount]:
    """Yields what `write` has written."""
    with open(file, encoding="utf-8", errors="surrogatepass", newline="\n") as lines_of_file:
        yield from parsed(lines_of_file)


def parsed(lines_of_file: Iterable[str]) -> Iterator[WordCount]:
    """Yields the words and counts of a file's lines."""
    for line in lines_of_file:
        # A tab may stand in the word too: the last one counts.
        word, _, times = line.rpartition("\t")
        # The escapes of `lines`, back.
        if "\\" in word:
            word = _UNESCAPE.sub(lambda match: _UNESCAPED[match[0]], word)
        yield word, int(times)


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
