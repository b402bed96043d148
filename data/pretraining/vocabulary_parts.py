"""The words of a text, counted in parts for a vocabulary: their counts, added up, are those of the whole text, so the
vocabulary is the same, byte for byte, however many parts there are.

A part is a folder:

    counts.txt     its distinct words with their counts (`data.tokenizers.word_counts`)
    part.json      the text and the options that it belongs to, size and sha256 of counts.txt
"""

import contextlib
import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from contexture.data import mirror
from contexture.data.binary_files import HashingWriter
from contexture.data.plain_files import open_plain
from contexture.data.pretraining import text_parts
from contexture.data.pretraining.part_folder import (
    PartError,
    new_part,
    part_name,
    parts_in,
    read_index,
    with_parts,
    write_index,
)
from contexture.data.pretraining.part_workers import Report, Tally, make_in_workers
from contexture.data.pretraining.text_parts import digest_of_ends, part_count, sampled, shared_out
from contexture.data.text.sources import Source, expand, texts, whole_texts
from contexture.data.tokenizers import word_counts
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.registry import counted_words, learn_from_counts
from contexture.data.tokenizers.unknown_tokens import LostMarks
from contexture.data.tokenizers.word_counts import CountTable, WordCount
from contexture.data.tokenizers.word_level import Words
from contexture.data.tokenizers.wordpiece import WordPiece

COUNTS = "counts.txt"
_TOLD = 1 << 19
"""Characters between two reports."""
_TOGETHER = 1 << 12
"""Lines that are written at once."""
_MARKS = {"characters": int, "marked": dict}
_JOB = {
    "kind": str,
    "text_column": str,
    "lowercase": bool,
    "word_splitter": str,
    "sample_gb": float,
    "piece": int,
    "sources": [{"name": str, "size": int, "ends": str}],
}
_INDEX = {"job": _JOB, "part": int, "of": int, "marks": _MARKS, "files": dict}
"""The type of everything in part.json."""


def _read(folder: Path, job: Mapping[str, object] | None) -> dict[str, Any]:
    return read_index(folder, _INDEX, job)


def texts_of(kind: str, sources: Sequence[Source], documents: str) -> Iterator[str]:
    """Yields the text that a vocabulary of a kind is learned on: lines for WordPiece and words, else whole documents,
    whose line ends are tokens too. documents: what a document is (`data.documents`)."""
    return texts(sources) if kind in (WordPiece.kind, Words.kind) else whole_texts(sources, documents)


@dataclass(frozen=True, kw_only=True)
class Counting:
    """Counts the words of a text for a vocabulary: what all of its parts have in common, and how a worker makes one.

    folder and count: where parts lie, and how many there are, for `open`.
    """

    kind: str
    input: tuple[str, ...]
    text_column: str
    sample_gb: float
    lowercase: bool
    word_splitter: str
    folder: str = ""
    count: int = 0
    piece: int = dataclasses.field(default_factory=lambda: text_parts.PIECE)

    @cached_property
    def pieces(self) -> list[Source]:
        """The text to learn from, in pieces of whole lines."""
        # Pieces, also for one process: a byte pair's counts see where the text is cut.
        return sampled(self._sources(), self.sample_gb * 1e9 or math.inf)

    @cached_property
    def facts(self) -> dict[str, object]:
        """Everything that the counts depend on, as JSON."""
        # Whole sources, also where a sample is taken of them, which follows from their sizes.
        sources = [
            {"name": source.name, "size": source.size, "ends": digest_of_ends(source)} for source in self._sources()
        ]
        return {
            "kind": self.kind,
            "text_column": self.text_column,
            "lowercase": self.lowercase,
            "word_splitter": self.word_splitter,
            "sample_gb": float(self.sample_gb),
            "piece": self.piece,
            "sources": sources,
        }

    def _sources(self) -> list[Source]:
        return expand(self.input, "input", self.text_column)

    def of_part(self, part: int, count: int) -> list[Source]:
        """Returns the pieces of a part."""
        return shared_out(self.pieces, [size_of(piece) for piece in self.pieces], part, count)

    def open(self) -> Callable[[int, Report], None]:
        # As in the process that started this one.
        text_parts.PIECE = self.piece
        return lambda part, report: count_part(self, Path(self.folder), part, self.count, report)


def size_of(piece: Source) -> int:
    """Returns the bytes of a piece: of a source that is not cut, all."""
    # Of a whole file, the end is that of any file.
    first, end = getattr(piece, "span", (0, 0))
    return min(end, piece.size) - first if end else piece.size


def count_part(counting: Counting, folder: Path, part: int, count: int, report: Report) -> None:
    """Counts the words of a part into a folder of its own below `folder`, unless it is there already.

    Args:
        counting: the text, and what for.
        folder: where its parts lie.
        part: the number of the part, from 0.
        count: how many parts there are.
        report: called at least every half megabyte.

    Raises:
        DataError: for text that cannot be read, and where a part of other counts is there.
    """
    place = folder / part_name(part, count)
    # In a bucket, one part is looked for, and not all that are there.
    mirror.fetched(place)
    if place.is_dir():
        _read(place, counting.facts)
        return
    # A part appears when it is whole: whoever sees it need not make it.
    with new_part(place, lambda: _read(place, counting.facts)) as partial, contextlib.closing(CountTable()) as table:
        # One table for all pieces: most words are in each of them.
        marks = LostMarks()
        for piece in counting.of_part(part, count):
            _count(counting, piece, table, marks, report)
        # Sorted, so that parts are merged as they are read.
        out = HashingWriter(partial / COUNTS)
        try:
            lines = word_counts.lines(table.items())
            while held := "".join(islice(lines, _TOGETHER)):
                report(0, 0, 0)
                out.write(held.encode("utf-8", "surrogatepass"))
        finally:
            out.file.close()
        index: dict[str, object] = {
            "job": counting.facts,
            "part": part,
            "of": count,
            "marks": {"characters": marks.characters, "marked": dict(sorted(marks.marked.items()))},
            "files": {COUNTS: out.entry()},
        }
        write_index(partial, index)


def _count(counting: Counting, piece: Source, table: CountTable, marks: LostMarks, report: Report) -> None:
    split = counted_words(counting.kind, counting.lowercase, counting.word_splitter)
    # Other kinds keep text as it is.
    strips = counting.kind == WordPiece.kind and counting.lowercase
    # Of a sample, each piece has the bytes that its span has.
    left, held = size_of(piece), 0
    # Which documents a text has does not matter for counts, but where line ends are.
    for text in texts_of(counting.kind, [piece], "files"):
        table.add(split(text))
        # What the command warns of, at the join.
        if strips:
            marks.add(text)
        held += len(text)
        if held >= _TOLD:
            # Characters in place of bytes, never more of them; the rest at the end.
            report(min(held, left), 0, 0)
            left, held = left - min(held, left), 0
    report(left, 0, 0)


def learn_in_workers(
    counting: Counting, to: Path, size: int, workers: int, check: Callable[[], None]
) -> tuple[Tokenizer, LostMarks | None]:
    """Counts the words of a text in so many processes, and learns a vocabulary from them.

    Parts lie next to `to` meanwhile, and stay there where the work is stopped. Returns and raises: as
    `learn_from_parts`.
    """
    count = part_count([size_of(piece) for piece in counting.pieces])

    # What is done is found by the same call, as parts of shards are.
    def make(parts: Path) -> tuple[Tokenizer, LostMarks | None]:
        # Without the pieces, which a worker finds itself: readers of TFDS sets cannot be sent.
        maker = dataclasses.replace(counting, folder=str(parts), count=count)
        make_in_workers(maker, parts, count, min(workers, count), lambda *_: check(), Tally(0))
        return learn_from_parts(parts, counting.kind, size, check)

    return with_parts(to, counting.facts, make)


def learn_from_parts(
    folder: Path, kind: str, size: int, check: Callable[[], object]
) -> tuple[Tokenizer, LostMarks | None]:
    """Learns a vocabulary of at most `size` tokens from the counts in a folder of parts, as from the text itself.

    Args:
        folder: holds the parts.
        kind: the kind that they were counted for.
        size: maximum number of tokens.
        check: called between two pieces of the work, which it may stop by an exception.

    Returns:
        The tokenizer; and for a WordPiece that lower-cases, what it strips of the text.

    Raises:
        DataError: for a part that is missing, damaged or of other counts, and as `learn` of the kind.
    """
    # All of one text, as the first one names it.
    parts = parts_in(folder, _read)
    job = parts[0][1]["job"]
    if job["kind"] != kind:
        raise PartError(f"{folder}: counts for {job['kind']}, not for {kind}; give that kind, or count again")
    # Before anything is learned: digests take a small part of the time.
    marks = LostMarks()
    for place, index in parts:
        check()
        _check_digest(place, index["files"][COUNTS]["sha256"])
        marks.characters += index["marks"]["characters"]
        marks.marked += Counter(index["marks"]["marked"])
    # From here on one word at a time, whatever the size of the files.
    counts = _checked(word_counts.merged_files([place / COUNTS for place, _ in parts], word_counts.read), check)
    tokenizer = learn_from_counts(kind, counts, size, job["lowercase"], job["word_splitter"])
    return tokenizer, marks if kind == WordPiece.kind and job["lowercase"] else None


def _checked(counts: Iterable[WordCount], check: Callable[[], object]) -> Iterator[WordCount]:
    # Reading goes on for minutes where there are many words.
    for number, each in enumerate(counts):
        if number % _TOGETHER == 0:
            check()
        yield each


def _check_digest(place: Path, sha256: str) -> None:
    try:
        with open_plain(place / COUNTS) as file:
            known = hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        known = False
    if not known:
        raise PartError(f"{place / COUNTS}: damaged, not what was written; delete {place}, and make it again")
