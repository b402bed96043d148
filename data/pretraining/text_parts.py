"""Parts of text: which bytes of which sources each part of a preparation reads, a function of (sources, part, count).

A source is cut into pieces of PIECE bytes, where its documents follow each other in its bytes; any other source is one
piece. Part i of n has the pieces that begin in the i-th of n equal shares of all bytes. A document belongs to the part
in whose pieces it begins, so parts that are joined in their order are the text, whatever n is.
"""

import dataclasses
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

from contexture.data.config import DataConfig, Stream
from contexture.data.errors import DataError
from contexture.data.plain_files import open_plain
from contexture.data.pretraining.shards_index import PER_FILE
from contexture.data.pretraining.units import Units, units_of
from contexture.data.text.sources import Source, TextFile, expand, shared
from contexture.data.tokenizers.base import Tokenizer

PIECE = 1 << 22
"""Bytes of a piece. The digest of a source is made of those of its pieces, which parts compute apart."""
_END = 1 << 16
"""Bytes at the beginning and at the end of a file by which a changed file of the same size is noticed."""
_PARTS, _PART = 64, 1 << 28
"""How many parts a preparation has on one machine (as far as there are pieces), and their bytes where these are more:
so much of the work is lost by a kill at most."""


class PartedText(ABC):
    """A text that is read in parts."""

    @property
    @abstractmethod
    def sources(self) -> Sequence[Source]:
        """Returns its sources in their order."""

    @property
    @abstractmethod
    def documents(self) -> str:
        """Returns what a document of a *.txt is, as `data.documents`."""

    def part_count(self) -> int:
        """Returns the default number of parts."""
        return part_count([piece.end - piece.start for piece in self._pieces])

    def spans(self, part: int, count: int) -> list["PartSpan"]:
        """Returns what a part reads, in the order of the text."""
        spans: list[PartSpan] = []
        for piece in shared_out(self._pieces, [piece.end - piece.start for piece in self._pieces], part, count):
            # Pieces that follow each other are read at once: a part has one span of a source.
            if spans and spans[-1].source == piece.source:
                spans[-1] = spans[-1]._replace(end=piece.end)
            else:
                spans.append(piece)
        return spans

    def open(self, span: "PartSpan") -> Source | None:
        """Returns the documents that begin in a span; None where none does."""
        # A source that cannot be cut has one span.
        source = self.sources[span.source]
        if not isinstance(source, TextFile) or (span.start == 0 and span.end >= source.size):
            return source
        # Both ends move on to where a document begins: what is left in front belongs to the span before.
        first = source.document_border(span.start) if span.start else 0
        last = source.size if span.end >= source.size else source.document_border(span.end)
        return dataclasses.replace(source, span=(first, last)) if first < last else None

    @cached_property
    def _pieces(self) -> list["PartSpan"]:
        # Once: whether a file can be cut is seen by reading its beginning.
        return _pieces(self.sources, self.documents)


@dataclass(frozen=True)
class Job(PartedText):
    """A preparation: what all of its parts have in common."""

    config: DataConfig
    tokenizer: Tokenizer
    stream: Stream
    per_file: int
    train: Sequence[Source]
    dev: Sequence[Source]
    command: str = ""
    """The command that makes the shards, for their manifest."""

    @property
    def sources(self) -> list[Source]:
        """Returns the sources in the order of the shards: those to train on, then those held out."""
        return [*self.train, *self.dev]

    @property
    def documents(self) -> str:
        # Where sentences are tokenised, an empty line ends a document, whatever a document is elsewhere.
        return self.config.documents if self.stream == "windows" else "blank_lines"

    @cached_property
    def units(self) -> Units | None:
        """Returns how the units of an ERNIE are found; None where none are marked."""
        return units_of(self.config) if self.stream == "sentence_pairs" else None

    @cached_property
    def facts(self) -> dict[str, object]:
        """Everything that the shards depend on, as JSON; of a source a digest of its ends, since it may be large."""
        sources = [
            {"name": source.name, "size": source.size, "split": split, "ends": digest_of_ends(source)}
            for split, each in (("train", self.train), ("dev", self.dev))
            for source in each
        ]
        units = {} if self.units is None else {"units": self.units.facts}
        return {
            **units,
            "tokenizer": self.tokenizer.fingerprint,
            "stream": self.stream,
            "documents": self.config.documents,
            "text_column": self.config.text_column,
            "split_sentences": self.config.split_sentences,
            "dev_fraction": float(self.config.dev_fraction),
            "per_file": self.per_file,
            "piece": PIECE,
            "sources": sources,
        }


def job_of(
    config: DataConfig, tokenizer: Tokenizer, stream: Stream, per_file: int = PER_FILE, command: str = ""
) -> Job:
    """Returns a preparation. command: as in `Job`. Raises: as `sources_of`."""
    return Job(config, tokenizer, stream, per_file, *sources_of(config), command)


def sources_of(config: DataConfig) -> tuple[list[Source], list[Source]]:
    """Returns the text to train on, and that which is held out. Raises: DataError for text that `sources` refuses, and
    for a source that is both."""
    train = expand(config.path, "data.path", config.text_column)
    dev = expand(config.dev, "data.dev", config.text_column) if config.dev else []
    if both := shared([*train, *dev]):
        raise DataError(f"{both}: data.dev names a {both.kind} that data.path holds too; keep held-out text apart")
    return train, dev


def digest_of_ends(source: Source) -> str:
    """Returns the sha256 of a file's first and last bytes; "" for another source."""
    if not isinstance(source, TextFile) or source.path.is_dir():
        return ""
    # All of it is read by the parts, and its digest is in the shards.
    with open_plain(source.path) as file:
        head = file.read(_END)
        file.seek(max(source.size - _END, 0))
        return hashlib.sha256(head + file.read(_END)).hexdigest()


class PartSpan(NamedTuple):
    """Bytes start … end-1 of a source, by its number; of one that cannot be cut, all."""

    source: int
    start: int
    end: int


def _pieces(sources: Sequence[Source], documents: str) -> list[PartSpan]:
    # An empty source has one piece too, of no bytes: it is named as one without text.
    pieces = []
    for number, source in enumerate(sources):
        size = source.size
        step = PIECE if source.can_be_cut(documents) else max(size, 1)
        pieces += [PartSpan(number, at, min(at + step, size)) for at in range(0, max(size, 1), step)]
    return pieces


def part_count(sizes: Sequence[int]) -> int:
    """Returns the default number of parts for pieces of so many bytes."""
    # Independent of the machine: another one resumes with the same parts.
    return max(min(len(sizes), max(_PARTS, -(-sum(sizes) // _PART))), 1)


T = TypeVar("T")


def shared_out(pieces: Sequence[T], sizes: Sequence[int], part: int, count: int) -> list[T]:
    """Returns the pieces of a part: those that begin in its share of all bytes."""
    # Each piece is in one part, whatever the number of parts.
    total, before = sum(sizes), 0
    mine: list[T] = []
    for piece, size in zip(pieces, sizes, strict=True):
        # By the place of its first byte among all, in whole numbers: a share holds none, one or many.
        if part * total <= before * count < (part + 1) * total:
            mine.append(piece)
        before += size
    return mine


def sampled(sources: Sequence[Source], limit: float = math.inf) -> list[Source]:
    """Returns about so many bytes of the sources, in whole lines: pieces at equal distances, or all where they are
    fewer. A source that cannot be cut is taken whole or not at all."""
    pieces = _pieces(sources, "lines")
    total = sum(piece.end - piece.start for piece in pieces)
    sample: list[Source] = []
    seen = taken = 0
    for piece in pieces:
        source, size = sources[piece.source], piece.end - piece.start
        # As soon as less was taken than the sample's share of what was passed, at least one piece.
        if total <= limit or taken * total <= seen * limit:
            taken += size
            if isinstance(source, TextFile) and size < source.size:
                first = source.document_border(piece.start, lines=True) if piece.start else 0
                last = source.document_border(piece.end, lines=True) if piece.end < source.size else source.size
                source = dataclasses.replace(source, span=(first, last))
            sample.append(source)
        seen += size
    return sample


class PieceDigests:
    """The sha256 (hex) of each piece of a span, of the bytes that are read of it.

    The bytes in front of a span's first document belong to its first piece, and are read here; those of its last
    document that lie behind its end belong to the next span.
    """

    def __init__(self, source: Source, span: PartSpan, first: int | None) -> None:
        """first: where its first document begins, None where there is none; both are for a source that is cut."""
        # Of a source that is read whole, all bytes count, however many there turn out to be.
        cut = isinstance(source, TextFile) and (span.start > 0 or span.end < source.size)
        self._left = span.end - span.start if cut else None
        self._digests: list[str] = []
        self._digest, self._room = hashlib.sha256(), PIECE
        # The bytes in front of the first document, which nobody else reads.
        if isinstance(source, TextFile) and cut and first != span.start:
            with open_plain(source.path) as file:
                file.seek(span.start)
                at, end = span.start, span.end if first is None else min(first, span.end)
                while at < end and (raw := file.read(min(end - at, 1 << 20))):
                    self.update(raw)
                    at += len(raw)

    def update(self, raw: bytes) -> None:
        """Takes the next bytes of the span, and drops those behind its end."""
        if self._left is not None:
            raw = raw[: self._left]
            self._left -= len(raw)
        # Up to the end of the piece, then on with the next one.
        while raw:
            self._digest.update(raw[: self._room])
            raw, self._room = raw[self._room :], self._room - min(len(raw), self._room)
            if not self._room:
                self._digests.append(self._digest.hexdigest())
                self._digest, self._room = hashlib.sha256(), PIECE

    def pieces(self) -> list[str]:
        """Returns the digests, the last one of a piece that may be shorter."""
        # No empty piece follows one that is complete.
        return [*self._digests, *([self._digest.hexdigest()] if self._room < PIECE else [])]


def source_digest(pieces: Sequence[str]) -> str:
    """Returns the digest of a source: of its bytes, or where it has several pieces, of their digests."""
    return pieces[0] if len(pieces) == 1 else hashlib.sha256("".join(pieces).encode()).hexdigest()
