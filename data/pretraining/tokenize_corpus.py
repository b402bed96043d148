"""Raw text → shards (`data.pretraining.shards` describes their files): one pass over the text, in bounded memory,
tokenising on all cores."""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from contexture.data.binary_files import I64, HashingWriter, Int64Writer, close_all, fingerprint_of
from contexture.data.block_cache import BLOCK, block_digests
from contexture.data.config import DataConfig, Stream
from contexture.data.errors import DataError
from contexture.data.pretraining.shards import BLOCK_TOKENS, Shards, SplitTable, TokenFiles
from contexture.data.pretraining.shards_index import DIGESTS, FORMAT, INDEX, PER_FILE, SPLITS, UNKNOWN, SourceEntry
from contexture.data.storage import atomic_folder, check_free
from contexture.data.text.sources import Source, document_batches, expand, sentence_batches, shared
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.open_vocabulary import CorpusVocabulary
from contexture.data.tokenizers.unknown_tokens import UnknownTokens
from contexture.data.tokenizers.word_level import word_tokenizer

logger = logging.getLogger(__name__)

LONGEST_DOCUMENT = 16384
"""Sentences after which a document is cut in two (or after BLOCK_TOKENS), so that a file without blank lines is still
walked in pieces."""
RUN = 64
"""Tokens of a run. Where whole documents are tokenised, runs take the place of sentences."""
_COPY = 1 << 16
"""Documents whose borders are read back at once."""
_COUNTED = 1 << 22
"""Held-out tokens whose ids are counted at once."""
_MEND = "give another vocabulary, or learn one on this text"
_CASED = "keep them with --data.no-lowercase, and a cased vocabulary where one is given"


def prepare(
    config: DataConfig,
    tokenizer: Tokenizer,
    to: str | Path,
    progress: Callable[[int, int], None] | None = None,
    *,
    stream: Stream = "sentence_pairs",
    per_file: int = PER_FILE,
) -> Shards:
    """Tokenises `config.path` (and `config.dev`) into the folder `to` and opens it.

    The folder appears when it is whole. `config.dev_fraction` holds out the end of each file, in whole documents where
    it has several. Sentences without tokens and documents without sentences are dropped. `progress` is called with the
    bytes read and the bytes in all (approximate for a TFDS set and a columnar file), at least every half megabyte; an
    exception that it raises stops the work and leaves nothing behind. Warns where many tokens of the text are unknown.

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
    to = Path(os.path.realpath(to))
    train, dev = _apart(config)
    total = sum(source.size for source in train + dev)
    done = 0

    # Called without bytes between two batches too, where `progress` may stop the work.
    def seen(raw: bytes = b"") -> None:
        nonlocal done
        # Some sizes are estimates: never more than all.
        done = min(done + len(raw), total)
        if progress:
            progress(done, total)

    with atomic_folder(to) as part:
        writer = _Writer(part, tokenizer, config, stream, per_file)
        try:
            for source in train:
                writer.add(source, "train", config.dev_fraction, seen)
            for source in dev:
                writer.add(source, "dev", 0.0, seen)
            writer.finish()
            for line in writer.unknown.warnings("the text", _MEND, _CASED):
                logger.warning(line)
        except BaseException:
            writer.close()
            raise
    return Shards.open(to)


def _apart(config: DataConfig) -> tuple[list[Source], list[Source]]:
    """Returns the sources to train on and those held out. Raises: DataError for a source that is both."""
    train = expand(config.path, "data.path")
    dev = expand(config.dev, "data.dev") if config.dev else []
    if both := shared([*train, *dev]):
        raise DataError(f"{both}: data.dev names a {both.kind} that data.path holds too; keep held-out text apart")
    return train, dev


class _Writer:
    """A folder of shards while it is written, and what its index will say."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, config: DataConfig, stream: Stream, per_file: int) -> None:
        self.folder, self.tokenizer, self.config, self.per_file = folder, tokenizer, config, per_file
        self.stream = stream
        self.numbering = CorpusVocabulary(word_tokenizer(tokenizer)) if stream == "lanes" else None
        # For lanes there may be any number of ids beyond the vocabulary's, and how many is known at the end alone.
        self.dtype = np.dtype("<u2" if tokenizer.size <= 1 << 16 and self.numbering is None else "<u4")
        self.sentences = self.tokens = 0
        self.starts = Int64Writer(folder / "sentences.bin")
        self.starts.add(0)
        # After which sentence each document of the file being read ends; emptied for each file, removed at the end.
        self.borders = Int64Writer(folder / "borders.partial")
        self.tables = {name: SplitTable(folder / f"{name}.bin") for name in SPLITS}
        self.unknown = UnknownTokens(tokenizer)
        self.unigrams = np.zeros(tokenizer.size, np.int64)
        self.sources: list[SourceEntry] = []
        self._token_files = TokenFiles(folder, self.dtype, per_file)
        self._windows = stream == "windows"

    def add(self, source: Source, split: str, dev_fraction: float, seen: Callable[..., None]) -> None:
        """Writes a source, and enters its documents in the tables of the splits.

        A share of the whole source is held out, so documents are entered after its last sentence was written.
        """
        digest, size, first = hashlib.sha256(), source.size, self.sentences

        def read(raw: bytes) -> None:
            digest.update(raw)
            seen(raw)

        # Emptied: it holds the documents of one source at a time.
        self.borders.file.seek(0)
        self.borders.file.truncate()
        whole = (self._add_documents if self._windows else self._add_sentences)(source, read, seen)
        if self.sentences == first:
            what = "text" if self._windows else "sentence"
            raise DataError(f"{source}: no {what} in the {source.kind}; it wants text in UTF-8")
        cut = self._share_out(first, whole, split, dev_fraction)
        self.sources.append(
            {
                "name": source.name,
                "size": size,
                "sha256": digest.hexdigest(),
                "split": split,
                "sentences": [first, cut, self.sentences],
            }
        )

    def _add_documents(self, source: Source, read: Callable[[bytes], None], seen: Callable[..., None]) -> int:
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
                elif at > document_start:  # a document without tokens is dropped, and has no end either
                    pieces.append(end)
                    at += len(end)
                    self._add_runs(run_start, at)
                    self.borders.add(self.sentences)
                    document_start = run_start = at
                    whole += 1
            self._write(pieces)
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
            ends = [*range(begin + RUN, end, RUN), end]
            self.sentences += len(ends)
            self.starts.add(*ends)

    def _add_sentences(self, source: Source, read: Callable[[bytes], None], seen: Callable[..., None]) -> int:
        """Writes sentences → how many documents the source itself tells apart."""
        whole = 0
        first_sentence, first_token = self.sentences, self.tokens  # of the document being written
        fresh = True
        for batch in sentence_batches(source, self.config.split_sentences, read):
            for ids in self._tokenised(batch):
                if ids is None:
                    fresh = True
                    if self.sentences > first_sentence:
                        self.borders.add(self.sentences)
                        first_sentence, first_token = self.sentences, self.tokens
                    continue
                # `whole` counts the documents of the text, not the parts that long ones are cut into below: a file of
                # one document may be split anywhere, whatever its length.
                whole += fresh
                fresh = False
                self.sentences += 1
                self.tokens += ids
                # Where the next sentence begins.
                self.starts.add(self.tokens)
                too_long = self.tokens - first_token >= BLOCK_TOKENS
                if self.sentences - first_sentence == LONGEST_DOCUMENT or too_long:
                    self.borders.add(self.sentences)
                    first_sentence, first_token = self.sentences, self.tokens
            seen()
        # The end of the source ends its last document, without a border.
        if self.sentences > first_sentence:
            self.borders.add(self.sentences)
        return whole

    def _tokenised(self, batch: list[str | None]) -> Iterator[int | None]:
        """Writes the tokens of sentences; yields the length of each that has any, and None for a border."""
        texts = [text for text in batch if text is not None]
        # For lanes, words outside the vocabulary get numbers of their own.
        sentences = (self.numbering or self.tokenizer).encode(texts)
        if self.numbering is None:  # for lanes, the shards say how many words the vocabulary lacks
            self.unknown.add(texts, sentences)
        self._write(sentences)
        encoded = iter(sentences)
        # A sentence without tokens is dropped here.
        for text in batch:
            if text is None:
                yield None
            elif length := len(next(encoded)):
                yield length

    def _write(self, pieces: list[list[int]]) -> None:
        """Appends tokens, which the caller adds to `self.tokens`, and counts their ids."""
        # One array in the dtype of the files, without a list of all numbers in between.
        ids = np.fromiter(chain.from_iterable(pieces), self.dtype, sum(map(len, pieces)))
        self.unigrams += self._counts(ids)
        if self.numbering is not None:
            self.numbering.count(ids)
        self._token_files.write(ids)

    def _counts(self, ids: NDArray[np.integer]) -> I64:
        """Returns how often each id of the vocabulary occurs. Words that it lacks count as its unknown token."""
        size = len(self.unigrams)
        return np.bincount(ids if self.numbering is None else self.numbering.known(ids), minlength=size)

    def _share_out(self, first: int, whole: int, split: str, dev_fraction: float) -> int:
        """Enters the documents of the source just written in the tables of the splits → the first sentence held out.

        Args:
            first: the source's first sentence.
            whole: how many documents the source itself tells apart.
            split: the split that the source was given for.
            dev_fraction: the share of it to hold out.
        """
        # Borders and offsets are read back from the files, since a source may have more of them than fit in memory.
        self.borders.flush()
        self.starts.flush()
        last = self.sentences
        documents = os.fstat(self.borders.file.fileno()).st_size // 8
        cut = self._first_held_out(first, last, documents, whole, split, dev_fraction)
        # Documents before the cut are for training, documents after it held out; one that it runs through is both.
        begin = first
        for at in range(0, documents, _COPY):
            raw = os.pread(self.borders.file.fileno(), _COPY * 8, at * 8)
            for end in np.frombuffer(raw, np.int64).tolist():
                if begin < cut < end:
                    self._enter("train", begin, cut)
                    begin = cut
                self._enter("train" if begin < cut else "dev", begin, end)
                begin = end
        # All ids were counted when they were written; the unigrams count the train split only.
        end = self._offset(last)
        for at in range(self._offset(cut), end, _COUNTED):
            self.unigrams -= self._counts(self._token_files.read(at, min(at + _COUNTED, end)))
        return cut

    def _first_held_out(
        self, first: int, last: int, documents: int, whole: int, split: str, dev_fraction: float
    ) -> int:
        """Returns where sentences first … last-1 are cut: the first one held out, `last` for none."""
        # A source of one sentence cannot be parted.
        if not dev_fraction or last - first < 2:
            return first if split == "dev" else last
        if whole > 1:
            return self._cut(first, last, documents, dev_fraction)
        # A single document is cut within, but for a sentence (or run) at least on both sides.
        if self._windows:
            # Runs have RUN tokens each (but for the last), so the tokens in front of the cut say which run it is.
            tokens = self._held_out_start(first, last, dev_fraction) - self._offset(first)
            cut = first + round(tokens / RUN)
        else:
            cut = last - round((last - first) * dev_fraction)
        return min(max(cut, first + 1), last - 1)

    def _cut(self, first: int, last: int, documents: int, dev_fraction: float) -> int:
        """Returns the first border of a document from which at most the share remains, so that no document is cut. One
        document at least stays on both sides."""
        start = self._held_out_start(first, last, dev_fraction)
        # Bisection over the borders in the file: documents - 2 is the last border that a document follows.
        low, high = 0, documents - 2
        while low < high:
            middle = (low + high) // 2
            if self._place(self._border(middle)) >= start:
                high = middle
            else:
                low = middle + 1
        return self._border(low)

    def _held_out_start(self, first: int, last: int, dev_fraction: float) -> float:
        """Returns where the share to hold out begins, counted in tokens for windows, else in sentences."""
        begin, end = self._place(first), self._place(last)
        return end - (end - begin) * dev_fraction

    def _place(self, sentence: int) -> int:
        return self._offset(sentence) if self._windows else sentence

    def _enter(self, split: str, first: int, last: int) -> None:
        self.tables[split].add(first, last, self._offset(last) - self._offset(first))

    def _border(self, number: int) -> int:
        return int(np.frombuffer(os.pread(self.borders.file.fileno(), 8, number * 8), np.int64)[0])

    def _offset(self, sentence: int) -> int:
        return int.from_bytes(os.pread(self.starts.file.fileno(), 8, sentence * 8), "little")

    def close(self) -> None:
        """Closes every file without writing more."""
        # Of the token files, only the last is open.
        close_all(
            (self.borders, self.starts, *(table.rows for table in self.tables.values()), *self._token_files.files[-1:])
        )

    def finish(self) -> None:
        """Checks the text and writes the rest of the folder. Raises: DataError where nothing can be trained on."""
        train = self.tables["train"]
        # Refused while nothing is at its place yet: text in which there is nothing to predict.
        if self._windows and train.tokens < 2:
            name = self.sources[0]["name"]
            raise DataError(f"{name}: fewer than two tokens to train on; give more text, or hold out less")
        if not self._windows and self.numbering is None and not train.pairs:
            raise DataError(
                f"{self.sources[0]['name']}: no document with two sentences to train on ({train.documents} of one "
                "sentence); put sentences or paragraphs on lines, a blank line between documents, or hold out less"
            )
        # What was counted, written to files of its own.
        splits = {name: table.summary() for name, table in self.tables.items()}
        self.starts.flush()
        unigrams = HashingWriter(self.folder / "unigrams.bin")
        unigrams.write(self.unigrams.astype("<i8").tobytes())
        unigrams.file.close()
        words = []
        if self.numbering is not None:
            words = [HashingWriter(self.folder / UNKNOWN)]
            words[0].write(self.numbering.unknown())
            words[0].file.close()
        # Closed before the index is written: a full disk shows here, when the last bytes are written.
        self.close()
        (self.folder / "borders.partial").unlink()
        by_position = [self.starts, *(table.rows for table in self.tables.values()), *self._token_files.files]
        # Their order is that of `shards.by_position`.
        # Read back: a small part of the time that tokenising took.
        digests = HashingWriter(self.folder / DIGESTS)
        digests.write(block_digests(out.path for out in by_position))
        digests.file.close()
        # Every file that the index has an entry for.
        written = [*by_position, unigrams, *words, digests]
        self.tokenizer.save(self.folder / "tokenizer")
        # The index names and seals all of it.
        index: dict[str, object] = {
            "format": FORMAT,
            "tokenizer": self.tokenizer.fingerprint,
            "vocabulary": self.tokenizer.size,
            "dtype": self.dtype.str,
            "per_file": self.per_file,
            "sentences": self.sentences,
            "tokens": self.tokens,
            "split_sentences": self.config.split_sentences,
            "dev_fraction": float(self.config.dev_fraction),
            "splits": splits,
            "sources": self.sources,
            "files": {out.path.name: out.entry() for out in written},
            "block": BLOCK,
        }
        # Sentence pairs are the default stream, and leave it out.
        if self._windows:
            index |= {"stream": self.stream, "documents": self.config.documents}
        if self.numbering is not None:
            index |= {"stream": self.stream, **self.numbering.facts()}
        # Last, since it covers the sizes and digests of all other files.
        index["fingerprint"] = fingerprint_of(index)
        (self.folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", "utf-8")
