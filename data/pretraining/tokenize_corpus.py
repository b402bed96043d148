"""Raw text → shards (`data.pretraining.shards` describes their files), in bounded memory: each part of the text is
tokenised by itself (`data.pretraining.text_parts`), and the parts are joined (`data.pretraining.join_parts`).

A part is a folder:

    tokens.bin     the ids of its documents; u16, or u32 where the vocabulary needs it, or units are marked
                   (`data.pretraining.units`)
    ends.bin       i64, where each of its sentences ends in that row
    borders.bin    i64, after how many sentences each of its documents ends
    unigrams.bin   i64 [V], how often each id occurs
    words.txt      lanes only: the words that the vocabulary lacks, by their first appearance in the part
    tokenizer/     the tokenizer
    part.json      the preparation that it belongs to, what it holds of each source, size and sha256 of its files
"""

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from contexture.data import mirror
from contexture.data.binary_files import I64, HashingWriter, Int64Writer, close_all, fingerprint_of
from contexture.data.config import DataConfig, Stream
from contexture.data.errors import DataError
from contexture.data.plain_files import WHOLE, inner_suffix
from contexture.data.pretraining import text_parts
from contexture.data.pretraining.join_parts import RUN, PartEntry, join, read_part
from contexture.data.pretraining.manifest import IDS, merged
from contexture.data.pretraining.part_folder import PartError, new_part, part_name, with_parts, write_index
from contexture.data.pretraining.part_workers import Report, Tally, make_in_workers
from contexture.data.pretraining.shards import BLOCK_TOKENS, Shards
from contexture.data.pretraining.shards_index import PER_FILE, UNKNOWN
from contexture.data.pretraining.text_parts import Job, PartSpan, PieceDigests, job_of
from contexture.data.pretraining.units import ID, MarkedSentences
from contexture.data.storage import atomic_folder, check_free
from contexture.data.text.row_facts import RowFacts
from contexture.data.text.sources import Source, TextFile, document_batches, sentence_batches
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.open_vocabulary import CorpusVocabulary
from contexture.data.tokenizers.registry import load_tokenizer
from contexture.data.tokenizers.unknown_tokens import UnknownTokens, unknown_id
from contexture.data.tokenizers.word_level import word_tokenizer

LONGEST_DOCUMENT = 16384
"""Sentences after which a document is cut in two (or after BLOCK_TOKENS), so that a file without blank lines is still
walked in pieces."""


def prepare(
    config: DataConfig,
    tokenizer: Tokenizer,
    to: str | Path,
    progress: Callable[[int, int], None] | None = None,
    *,
    stream: Stream = "sentence_pairs",
    per_file: int = PER_FILE,
    workers: "int | Cluster" = 1,
) -> Shards:
    """Tokenises `config.path` (and `config.dev`) into the folder `to` and opens it.

    The folder appears when it is whole. Parts that are done stay next to it where the work is stopped, and the same
    call resumes with them. `config.dev_fraction` holds out the end of each file, in whole documents where
    it has several. Sentences without tokens and documents without sentences are dropped. `progress` is called with the
    bytes read and the bytes in all (approximate for a TFDS set and a columnar file), at least every half megabyte; an
    exception that it raises stops the work. Warns where many tokens of the text are unknown.

    workers: how many processes tokenise, or what has other machines do it.
    stream: how sequences will be drawn.

        sentence_pairs  sentences are tokenised one by one, and held out by their number
        windows         documents are tokenised whole, line ends included, each with the tokenizer's end behind it, and
                        held out by their tokens; a single document is cut between two runs of RUN tokens, and its first
                        part has no end then
        lanes           each sentence ends with </S>; words outside the vocabulary are numbered after it, by first
                        appearance, and their spelling is kept in the folder

    Differs: for sentence pairs, a document of more than LONGEST_DOCUMENT sentences is cut in two.

    Raises: DataError for text that `sources` refuses, text without a sentence, nothing to train on, a folder that is
    taken, and for lanes a vocabulary that is not of words.
    """
    # Before anything is read: tokenising may take hours, and the folder may be taken.
    check_free(Path(to))
    # Sources are looked at once: parts are cut by their sizes.
    return prepare_job(job_of(config, tokenizer, stream, per_file), to, progress, workers)


def prepare_job(
    job: Job,
    to: str | Path,
    progress: Callable[[int, int], object] | None = None,
    workers: "int | Cluster" = 1,
    tally: Tally | None = None,
) -> Shards:
    """As `prepare`. tally: gets what was read and written so far, before `progress` is called."""
    to = Path(os.path.realpath(to))
    tally = tally or Tally(0)
    tally.total = sum(source.size for source in job.sources)

    # Called without bytes between two batches too, where `progress` may stop the work.
    def report(read: int, documents: int, tokens: int) -> None:
        tally.add(read, documents, tokens)
        if progress:
            progress(tally.read, tally.total)

    return _in_parts(job, to, workers, report, tally)


class Cluster(Protocol):
    """Makes parts on other machines, which see the folder of the parts: a shared disk or a bucket."""

    def __call__(self, maker: "PartsOfText", count: int, report: Report) -> None:
        """Makes all parts that are not done. Raises: as `make_in_workers`."""
        ...


def _in_parts(job: Job, to: Path, workers: int | Cluster, report: Report, tally: Tally) -> Shards:
    """Makes all parts that are not done, and joins them."""
    # By the text alone: as many as before a kill, with any number of workers.
    count = job.part_count()

    def make(parts: Path) -> Shards:
        if not isinstance(workers, int):
            workers(_maker(job, parts, count), count, report)
            # Of parts in a bucket, this process has seen none.
            mirror.fetch_again(parts)
        elif min(workers, count) > 1:
            make_in_workers(_maker(job, parts, count), parts, count, min(workers, count), report, tally)
        else:
            for part in range(count):
                tokenize_part(job, parts, part, count, report)
        return join(parts, to, job.tokenizer, check=lambda: report(0, 0, 0), command=job.command)

    # Nothing is written to a bucket by a hidden name.
    return with_parts(to, job.facts, make, hidden=isinstance(workers, int))


@dataclass(frozen=True)
class PartsOfText:
    """Makes the parts of a preparation: the arguments of `job_of` and of `tokenize_part`, as a worker opens them."""

    config: DataConfig
    tokenizer: str
    stream: Stream
    per_file: int
    piece: int
    folder: str
    count: int
    fingerprint: str
    """Of `Job.facts`, which a worker must see too."""

    def open(self) -> Callable[[int, Report], None]:
        text_parts.PIECE = self.piece
        tokenizer = load_tokenizer(self.tokenizer, self.config.lowercase, self.config.word_splitter)
        job = job_of(self.config, tokenizer, self.stream, self.per_file)
        if fingerprint_of(job.facts) != self.fingerprint:
            raise PartError(f"{job.sources[0]}: the text is another here, or has changed; prepare a text that stays")
        return lambda part, report: tokenize_part(job, Path(self.folder), part, self.count, report)


def _maker(job: Job, folder: Path, count: int) -> PartsOfText:
    # Workers read the vocabulary as a run would: from its folder. Made here, so that no worker is the first.
    vocabulary = folder / "tokenizer"
    if not vocabulary.is_dir():
        with atomic_folder(vocabulary) as partial:
            job.tokenizer.save(partial)
    return PartsOfText(
        config=job.config,
        tokenizer=str(vocabulary),
        stream=job.stream,
        per_file=job.per_file,
        piece=text_parts.PIECE,
        folder=str(folder),
        count=count,
        fingerprint=fingerprint_of(job.facts),
    )


def tokenize_part(job: Job, folder: Path, part: int, count: int, report: Report) -> None:
    """Tokenises a part of a text into a folder of its own below `folder`, unless it is there already.

    Args:
        job: the preparation.
        folder: where its parts lie.
        part: the number of the part, from 0.
        count: how many parts there are.
        report: called at least every half megabyte.

    Raises:
        DataError: for text that cannot be read, and where another preparation's part is there.
    """
    place = folder / part_name(part, count)
    mirror.fetched(place)
    if place.is_dir():
        # Its text counts as read.
        index = read_part(place, job.facts)
        read = sum(span.end - span.start for span in job.spans(part, count))
        report(read, *(sum(entry[name] for entry in index["spans"]) for name in ("documents", "tokens")))
        return
    # A part appears when it is whole: whoever sees it need not make it.
    with new_part(place, lambda: read_part(place, job.facts)) as partial:
        writer = _PartWriter(partial, job)
        try:
            for span in job.spans(part, count):
                writer.add(span, report)
            writer.finish(part, count)
        except BaseException:
            writer.close()
            raise


class _PartWriter:
    """The folder of a part while it is written."""

    def __init__(self, folder: Path, job: Job) -> None:
        self.folder, self.job, self.tokenizer, self.config = folder, job, job.tokenizer, job.config
        self.numbering = CorpusVocabulary(word_tokenizer(self.tokenizer)) if job.stream == "lanes" else None
        # For lanes there may be any number of ids beyond the vocabulary's, and how many is known at the end alone.
        self.units = None if job.units is None else MarkedSentences(job.units)
        small = self.tokenizer.size <= 1 << 16 and self.numbering is None and self.units is None
        self.dtype = np.dtype("<u2" if small else "<u4")
        self.sentences = self.tokens = self.documents = 0
        self.ids = HashingWriter(folder / "tokens.bin")
        self.ends = Int64Writer(folder / "ends.bin")
        self.borders = Int64Writer(folder / "borders.bin")
        self.unknown = UnknownTokens(self.tokenizer)
        self.unigrams = np.zeros(self.tokenizer.size, np.int64)
        self.unknown_id = unknown_id(self.tokenizer)
        self.spans: list[PartEntry] = []
        # Ids of documents, where the text has any; what tables say of them; where the present one begins.
        self.document_ids: HashingWriter | None = None
        self.facts = RowFacts()
        self._begin = 0

    def add(self, span: PartSpan, report: Report) -> None:
        """Writes the documents that begin in a span. report: as in `tokenize_part`."""
        # What the span adds is the difference to what there was.
        source, before = self.job.open(span), (self.tokens, self.sentences, self.documents)
        # A source of another span has facts of its own.
        unknown = self._unknown_tokens()
        of_data = self.units is not None and self.units.units.of_data
        if of_data and not (isinstance(source, TextFile) and inner_suffix(source.path) in (".jsonl", ".json")):
            raise DataError(f"{source}: no *.jsonl, in which data.units=spans reads words and entities; give such rows")
        self.facts, self._begin = RowFacts(self.config.text_column, of_data), self.sentences
        if isinstance(source, TextFile):
            source = dataclasses.replace(source, facts=self.facts)
        first = source.span[0] if isinstance(source, TextFile) else None
        digests = PieceDigests(self.job.sources[span.source], span, first)

        def read(raw: bytes) -> None:
            digests.update(raw)
            report(len(raw), 0, 0)

        # Between two batches of text.
        last = [self.documents, self.tokens]

        def seen() -> None:
            now = [self.documents, self.tokens]
            report(0, now[0] - last[0], now[1] - last[1])
            last[:] = now

        # In a part of a long document none may begin.
        whole = 0
        if source is not None:
            add = self._add_documents if self.job.stream == "windows" else self._add_sentences
            try:
                whole = add(source, read, seen)
            except DataError:
                # Its line is counted from where the part begins: read from the beginning, the file names it.
                self._name_line(source)
                raise
        # What the end of the source has added.
        seen()
        counts = (now - then for now, then in zip((self.tokens, self.sentences, self.documents), before, strict=True))
        tokens, sentences, documents = counts
        # Of a source in several parts, the join knows.
        if not sentences and span.start == 0 and span.end == self.job.sources[span.source].size:
            what = "text" if self.job.stream == "windows" else "sentence"
            raise DataError(f"{source}: no {what} in the {self.job.sources[span.source].kind}; it wants text in UTF-8")
        self.spans.append(
            {
                "source": span.source,
                "tokens": tokens,
                "sentences": sentences,
                "documents": documents,
                "whole": whole,
                "unknown": self._unknown_tokens() - unknown,
                "counts": merged([self.facts.counts]),
                "pieces": digests.pieces(),
            }
        )

    def _unknown_tokens(self) -> int:
        # A vocabulary that spells every text has none.
        return 0 if self.unknown_id is None else int(self.unigrams[self.unknown_id])

    def _end_row(self, border: int) -> None:
        """Writes the id of a document that the source has ended behind so many sentences, where it has one and left
        any tokens."""
        # Text that is no table has no ids.
        name = self.facts.ids.popleft() if self.facts.ids else ""
        if name and border > self._begin:
            # No file of them where there are none.
            if self.document_ids is None:
                self.document_ids = HashingWriter(self.folder / IDS)
            self.document_ids.write(f"{self._begin}\t{name}\n".encode())
        self._begin = border

    def _name_line(self, source: Source) -> None:
        if isinstance(source, TextFile) and source.span[0]:
            whole = dataclasses.replace(source, span=WHOLE)
            for _ in whole.chunks(self.config.documents) if self.job.stream == "windows" else whole.documents():
                pass

    def _add_documents(self, source: Source, read: Callable[[bytes], None], seen: Callable[[], None]) -> int:
        """Writes whole documents, each followed by the end token, in runs → how many there are."""
        end = [] if self.tokenizer.end is None else [self.tokenizer.end]
        whole = 0
        document_start = run_start = self.tokens
        for batch in document_batches(source, self.config.documents, self.tokenizer.split_long, read):
            texts = [text for text in batch if text is not None]
            try:
                parts = self.tokenizer.encode(texts)
            except DataError as error:
                raise DataError(f"{source}: {error}") from None
            self.unknown.add(texts, parts)
            encoded = iter(parts)
            pieces: list[list[int]] = []
            at = self.tokens
            for text in batch:
                if text is not None:
                    pieces.append(next(encoded))
                    at += len(pieces[-1])
                    continue
                if at > document_start:  # a document without tokens is dropped, and has no end either
                    pieces.append(end)
                    at += len(end)
                    self._add_runs(run_start, at)
                    self._end_at(np.array([self.sentences]))
                    document_start = run_start = at
                    whole += 1
                self._end_row(self.sentences)
            self._write(self._joined(pieces))
            self.tokens = at
            # The document continues in the next batch: only its full runs are entered, so that where runs end does not
            # depend on how the text was read.
            full = at - (at - run_start) % RUN
            self._add_runs(run_start, full)
            run_start = full
            seen()
        return whole

    def _add_runs(self, begin: int, end: int) -> None:
        """Enters the runs of a document: RUN tokens each, the last one what is left."""
        if begin < end:
            # Each run is entered by its end, which is where the next one begins.
            ends = np.append(np.arange(begin + RUN, end, RUN), end)
            self.sentences += len(ends)
            self.ends.extend(ends)

    def _add_sentences(self, source: Source, read: Callable[[bytes], None], seen: Callable[[], None]) -> int:
        """Writes sentences → how many documents the source itself has."""
        # A document is known by its first sentence, in the part: the one that is open, which may be cut, and the one
        # of the text. Arrays throughout, since a large text has billions of sentences.
        document, begun, whole = (self.sentences, self.tokens), self.sentences, 0
        for batch in sentence_batches(source, self.config.split_sentences, read):
            lengths = self._tokenised(batch)
            # A sentence without tokens is dropped.
            kept = lengths > 0
            offsets = self.tokens + np.append(0, np.cumsum(lengths[kept]))
            borders = self.sentences + np.cumsum(kept)[lengths < 0]
            self.ends.extend(offsets[1:])
            document = self._end_documents(document, borders, offsets)
            # `whole` counts the documents of the text, not the parts that long ones are cut into: a file of one
            # document may be split anywhere, whatever its length.
            whole += int(np.count_nonzero(np.diff(borders, prepend=begun)))
            begun = int(borders[-1]) if len(borders) else begun
            # Only text in tables has facts of its documents.
            for border in borders.tolist() if self.facts.ids else ():
                self._end_row(border)
            self.tokens, self.sentences = int(offsets[-1]), self.sentences + len(offsets) - 1
            seen()
        # The end of the source ends its last document, without a border.
        if self.sentences > document[0]:
            self._end_at(np.array([self.sentences]))
        return whole + (self.sentences > begun)

    def _end_documents(self, begin: tuple[int, int], borders: I64, offsets: I64) -> tuple[int, int]:
        """Enters the documents that end in a batch of sentences; those that are too long are cut.

        Args:
            begin: the sentence and the token at which the open document begins.
            borders: how many sentences there are before each border, i64 [n].
            offsets: where the sentences of the batch begin among all tokens, and where the last one ends, i64 [m + 1].

        Returns:
            Where the document begins that is open now.
        """
        first, last = self.sentences, self.sentences + len(offsets) - 1
        # The ends of documents that have a sentence, and of what there is of the open one.
        ends = np.unique(np.append(borders, last))
        ends = ends[ends > begin[0]]
        sentences = np.diff(ends, prepend=begin[0])
        tokens = np.diff(offsets[ends - first], prepend=begin[1])
        stops = ends if len(borders) and borders[-1] == last else ends[:-1]
        # Few are, and only these are walked.
        for number in np.flatnonzero((sentences >= LONGEST_DOCUMENT) | (tokens >= BLOCK_TOKENS)).tolist():
            sentence, token = (int(ends[number - 1]), int(offsets[ends[number - 1] - first])) if number else begin
            # Cut by whichever comes first.
            while (
                cut := min(sentence + LONGEST_DOCUMENT, first + int(offsets.searchsorted(token + BLOCK_TOKENS)))
            ) <= ends[number]:
                stops = np.append(stops, cut)
                sentence, token = cut, int(offsets[cut - first])
        stops = np.unique(stops)
        self._end_at(stops)
        return (int(stops[-1]), int(offsets[stops[-1] - first])) if len(stops) else begin

    def _end_at(self, stops: I64) -> None:
        """Enters documents. stops: the sentence behind the last one of each."""
        self.borders.extend(stops)
        self.documents += len(stops)

    def _tokenised(self, batch: list[str | None]) -> I64:
        """Writes the tokens of sentences; returns how many each has, i64 [n], and -1 for a border."""
        texts = [text for text in batch if text is not None]
        # For lanes, words outside the vocabulary get numbers of their own.
        if self.numbering is not None:
            ids, counts = self.numbering.encode(texts)
        else:  # for lanes, the shards say how many words the vocabulary lacks
            marked = None if self.units is None else self.units.marked(batch, self.tokenizer, self.facts.spans)
            sentences = self.tokenizer.encode(texts) if marked is None else [ids for ids, _ in marked]
            self.unknown.add(texts, sentences)
            ids, counts = self._joined(sentences), np.fromiter(map(len, sentences), np.int64, len(sentences))
            if marked:
                ids |= np.concatenate([marks for _, marks in marked])
        self._write(ids)
        lengths = np.full(len(batch), -1, np.int64)
        lengths[[text is not None for text in batch]] = counts
        return lengths

    def _joined(self, pieces: list[list[int]]) -> NDArray[np.integer]:
        # One array in the dtype of the files, without a list of all numbers in between.
        return np.fromiter(chain.from_iterable(pieces), self.dtype, sum(map(len, pieces)))

    def _write(self, ids: NDArray[np.integer]) -> None:
        """Appends tokens, which the caller adds to `self.tokens`, and counts their ids."""
        # Words that the vocabulary lacks count as its unknown token.
        known = ids if self.numbering is None else self.numbering.known(ids)
        known = known if self.units is None else known & ID
        self.unigrams += np.bincount(known, minlength=len(self.unigrams))
        self.ids.write(ids.astype(self.dtype, copy=False).tobytes())

    def close(self) -> None:
        """Closes every file without writing more."""
        close_all((self.ids, self.ends, self.borders, *self._ids()))

    def _ids(self) -> list[HashingWriter]:
        return [] if self.document_ids is None else [self.document_ids]

    def finish(self, part: int, count: int) -> None:
        """Writes the rest of the folder."""
        # Numbers that are still in memory, before digests are taken.
        self.ends.flush()
        self.borders.flush()
        written = [*self._ids(), self.ids, self.ends, self.borders, HashingWriter(self.folder / "unigrams.bin")]
        written[-1].write(self.unigrams.astype("<i8").tobytes())
        if self.numbering is not None:
            written.append(HashingWriter(self.folder / UNKNOWN))
            written[-1].write(self.numbering.unknown())
        # Closed before the index is written: a full disk shows here, when the last bytes are written.
        close_all(written)
        self.tokenizer.save(self.folder / "tokenizer")
        index: dict[str, object] = {
            "job": self.job.facts,
            "part": part,
            "of": count,
            "dtype": self.dtype.str,
            "spans": self.spans,
            "unknown": self.unknown.facts(count),
            "command": self.job.command,
            "files": {out.path.name: out.entry() for out in written},
        }
        write_index(self.folder, index)
