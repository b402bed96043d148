"""Raw text → shards, whose files `data.pretraining.shards` describes: one pass, bounded memory, tokenising on all
cores."""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from contexture.data.binary_files import HashingWriter, Int64Writer, close_all, fingerprint_of
from contexture.data.config import DataConfig, Stream
from contexture.data.errors import DataError
from contexture.data.pretraining.shards import FORMAT, INDEX, PER_FILE, SPLITS, UNKNOWN, Shards
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
BLOCK_SENTENCES, BLOCK_TOKENS = 32768, 1 << 20
"""A block of documents, the unit of planning and shuffling, is closed when it holds this much of either."""
RUN = 64
"""Tokens of a run: what stands for a sentence where whole documents are tokenised."""
_COPY = 1 << 16
_MEND = "give another vocabulary, or learn one on this text"


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

    The folder appears when it is whole. `config.dev_fraction` holds out the end
    of each file, counted in sentences, in whole documents where there are several. Sentences without tokens and
    documents without sentences are dropped. `progress` is called with the bytes read and the bytes in all (about, for a
    TFDS set), for every line and at least every half megabyte; what it raises stops the work and leaves nothing behind.

    stream: how sequences will be drawn. For `windows` documents are tokenised whole, line ends and all, each with the
    tokenizer's end behind it, and what is held out is counted in tokens. A single document is cut between two runs of
    RUN tokens; its first part has no end then.

    Warns where the vocabulary lacks much of the text.

    For `lanes` the words of each sentence are written with the end behind them. Those that the vocabulary lacks get
    numbers behind it, by first appearance, and their spelling is kept in the folder.

    Differs: for sentence pairs, a document of more than LONGEST_DOCUMENT sentences is cut in two.

    Raises: DataError for what `sources` refuses, text without a sentence, nothing to train on, a folder that is taken,
    and for lanes a vocabulary that is not of words.
    """
    check_free(Path(to))
    to = Path(os.path.realpath(to))
    train = expand(config.path, "data.path")
    dev = expand(config.dev, "data.dev") if config.dev else []
    if held_out := shared([*train, *dev]):
        raise DataError(
            f"{held_out}: data.dev names a {held_out.kind} that data.path holds too; keep held-out text apart"
        )
    total = sum(source.size for source in train + dev)
    done = 0

    def seen(raw: bytes = b"") -> None:
        nonlocal done
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
            if line := writer.unknown.warning("the text", _MEND):
                logger.warning(line)
        except BaseException:
            writer.close()
            raise
    return Shards.open(to)


class _Table:
    """The documents of one split."""

    def __init__(self, path: Path) -> None:
        self.rows = Int64Writer(path)
        self.documents = self.sentences = self.tokens = self.pairs = 0
        self.blocks = [0]
        self._block = [0, 0]

    def add(self, first: int, last: int, tokens: int) -> None:
        self.rows.add(first, last)
        self.documents += 1
        self.sentences += last - first
        self.tokens += tokens
        self.pairs += last - first > 1
        self._block[0] += last - first
        self._block[1] += tokens
        if self._block[0] >= BLOCK_SENTENCES or self._block[1] >= BLOCK_TOKENS:
            self.blocks.append(self.documents)
            self._block = [0, 0]

    def summary(self) -> dict[str, Any]:
        self.rows.flush()
        blocks = self.blocks if self.blocks[-1] == self.documents else [*self.blocks, self.documents]
        return {"documents": self.documents, "sentences": self.sentences, "tokens": self.tokens, "blocks": blocks}


class _Writer:
    def __init__(self, folder: Path, tokenizer: Tokenizer, config: DataConfig, stream: Stream, per_file: int) -> None:
        self.folder, self.tokenizer, self.config, self.per_file = folder, tokenizer, config, per_file
        self.stream = stream
        self.numbering = CorpusVocabulary(word_tokenizer(tokenizer)) if stream == "lanes" else None
        # how many words a vocabulary lacks is not known beforehand
        self.dtype = np.dtype("<u2" if tokenizer.size <= 1 << 16 and self.numbering is None else "<u4")
        self.sentences = self.tokens = 0
        self.starts = Int64Writer(folder / "sentences.bin")
        self.starts.add(0)
        self.borders = Int64Writer(folder / "borders.partial")
        self.tables = {name: _Table(folder / f"{name}.bin") for name in SPLITS}
        self.unknown = UnknownTokens(tokenizer)
        self.unigrams = np.zeros(tokenizer.size, np.int64)
        self.sources: list[dict[str, Any]] = []
        self._pieces: list[HashingWriter] = []
        self._windows = stream == "windows"

    def add(self, source: Source, split: str, dev_fraction: float, seen: Callable[..., None]) -> None:
        digest, size, first = hashlib.sha256(), source.size, self.sentences

        def read(raw: bytes) -> None:
            digest.update(raw)
            seen(raw)

        self.borders.file.seek(0)
        self.borders.file.truncate()
        whole = (self._add_documents if self._windows else self._add_sentences)(source, read, seen)
        if self.sentences == first:
            what = "text" if self._windows else "sentence"
            raise DataError(f"{source}: no {what} in the {source.kind}; it wants text in UTF-8")
        cut = self._share_out(first, whole, split, dev_fraction)
        entry = {"name": source.name, "size": size, "sha256": digest.hexdigest(), "split": split}
        self.sources.append({**entry, "sentences": [first, cut, self.sentences]})

    def _add_documents(self, source: Source, read: Callable[[bytes], None], seen: Callable[..., None]) -> int:
        """Writes whole documents, each with the end behind it, in runs → how many there are."""
        end = [] if self.tokenizer.end is None else [self.tokenizer.end]
        whole = 0
        begun = run = self.tokens  # where the document and the run being written begin
        for batch in document_batches(source, self.config.documents, self.tokenizer.split_long, read):
            texts = [text for text in batch if text is not None]
            try:
                parts = self.tokenizer.encode(texts)
            except DataError as error:
                raise DataError(f"{source}: {error}") from None
            self.unknown.add(texts, parts)
            encoded = iter(parts)
            lines: list[list[int]] = []
            at = self.tokens
            for text in batch:
                if text is not None:
                    lines.append(next(encoded))
                    at += len(lines[-1])
                elif at > begun:
                    lines.append(end)
                    at += len(end)
                    self._add_runs(run, at)
                    self.borders.add(self.sentences)
                    begun = run = at
                    whole += 1
            self._write(lines)
            self.tokens = at
            full = at - (at - run) % RUN
            self._add_runs(run, full)
            run = full
            seen()
        return whole

    def _add_runs(self, begin: int, end: int) -> None:
        if begin < end:
            ends = [*range(begin + RUN, end, RUN), end]
            self.sentences += len(ends)
            self.starts.add(*ends)

    def _add_sentences(self, source: Source, read: Callable[[bytes], None], seen: Callable[..., None]) -> int:
        """Writes sentences → how many documents the source itself tells apart."""
        whole = 0
        begun, tokens = self.sentences, self.tokens  # where the document being written begins
        fresh = True
        for batch in sentence_batches(source, self.config.split_sentences, read):
            for ids in self._tokenised(batch):
                if ids is None:
                    fresh = True
                    if self.sentences > begun:
                        self.borders.add(self.sentences)
                        begun, tokens = self.sentences, self.tokens
                    continue
                whole += fresh
                fresh = False
                self.sentences += 1
                self.tokens += ids
                self.starts.add(self.tokens)
                if self.sentences - begun == LONGEST_DOCUMENT or self.tokens - tokens >= BLOCK_TOKENS:
                    self.borders.add(self.sentences)
                    begun, tokens = self.sentences, self.tokens
            seen()
        if self.sentences > begun:
            self.borders.add(self.sentences)
        return whole

    def _tokenised(self, batch: list[str | None]) -> Iterator[int | None]:
        """Writes the tokens of sentences; yields the length of each that has any, and None for a border."""
        texts = [text for text in batch if text is not None]
        lines = (self.numbering or self.tokenizer).encode(texts)
        if self.numbering is None:  # for lanes, the shards say how many words the vocabulary lacks
            self.unknown.add(texts, lines)
        self._write(lines)
        place = iter(lines)
        for text in batch:
            if text is None:
                yield None
            elif length := len(next(place)):
                yield length

    def _write(self, lines: list[list[int]]) -> None:
        """Writes tokens behind those that are counted."""
        ids = np.fromiter(chain.from_iterable(lines), self.dtype, sum(map(len, lines)))
        self.unigrams += self._counts(ids)
        if self.numbering is not None:
            self.numbering.count(ids)
        written = 0
        while written < len(ids):
            number, at = divmod(self.tokens + written, self.per_file)
            if not at:
                self._close_tokens()
                self._pieces.append(HashingWriter(self.folder / f"tokens-{number:05d}.bin"))
            piece = ids[written : written + self.per_file - at]
            self._pieces[-1].write(piece.tobytes())
            written += len(piece)

    def _counts(self, ids: np.ndarray) -> np.ndarray:
        """How often each id of the vocabulary occurs; words that it lacks are those that are unknown."""
        size = len(self.unigrams)
        return np.bincount(ids if self.numbering is None else self.numbering.known(ids), minlength=size)

    def _close_tokens(self) -> None:
        if self._pieces:
            self._pieces[-1].file.close()

    def _share_out(self, first: int, whole: int, split: str, dev_fraction: float) -> int:
        """Enters the file's documents in the tables of the splits → the first sentence held out."""
        self.borders.flush()
        self.starts.flush()
        last = self.sentences
        documents = os.fstat(self.borders.file.fileno()).st_size // 8
        cut = first if split == "dev" else last
        if dev_fraction and whole > 1:
            cut = self._cut(first, last, documents, dev_fraction)
        elif dev_fraction and last - first > 1:
            if self._windows:
                cut = first + round((self._wanted(first, last, dev_fraction) - self._offset(first)) / RUN)
            else:
                cut = last - round((last - first) * dev_fraction)
            cut = min(max(cut, first + 1), last - 1)
        begin = first
        for at in range(0, documents, _COPY):
            raw = os.pread(self.borders.file.fileno(), _COPY * 8, at * 8)
            for end in np.frombuffer(raw, np.int64).tolist():
                if begin < cut < end:
                    self._enter("train", begin, cut)
                    begin = cut
                self._enter("train" if begin < cut else "dev", begin, end)
                begin = end
        end = self._offset(last)
        for at in range(self._offset(cut), end, 1 << 22):
            self.unigrams -= self._counts(self._read(at, min(at + (1 << 22), end)))
        return cut

    def _cut(self, first: int, last: int, documents: int, dev_fraction: float) -> int:
        """The first border of a document from which at most the share remains, but for one document on both sides."""
        wanted = self._wanted(first, last, dev_fraction)
        low, high = 0, documents - 2
        while low < high:
            middle = (low + high) // 2
            if self._place(self._border(middle)) >= wanted:
                high = middle
            else:
                low = middle + 1
        return self._border(low)

    def _wanted(self, first: int, last: int, dev_fraction: float) -> float:
        """Where the share to hold out begins, counted in tokens for windows, else in sentences."""
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

    def _read(self, start: int, end: int) -> np.ndarray:
        if self._pieces:
            self._pieces[-1].file.flush()
        pieces = []
        while start < end:
            number, at = divmod(start, self.per_file)
            count = min(end - start, self.per_file - at)
            name = self.folder / f"tokens-{number:05d}.bin"
            pieces.append(np.fromfile(name, self.dtype, count, offset=at * self.dtype.itemsize))
            start += count
        return np.concatenate(pieces)

    def close(self) -> None:
        """Closes every file, as it is."""
        close_all((self.borders, self.starts, *(table.rows for table in self.tables.values()), *self._pieces[-1:]))

    def finish(self) -> None:
        """Checks what was read and writes the rest of the folder. Raises: DataError where nothing can be trained on."""
        train = self.tables["train"]
        if self._windows and train.tokens < 2:
            name = self.sources[0]["name"]
            raise DataError(f"{name}: fewer than two tokens to train on; give more text, or hold out less")
        if not self._windows and self.numbering is None and not train.pairs:
            raise DataError(
                f"{self.sources[0]['name']}: no document with two sentences to train on ({train.documents} of one "
                "sentence); put sentences or paragraphs on lines, a blank line between documents, or hold out less"
            )
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
        self.close()
        (self.folder / "borders.partial").unlink()
        written = [self.starts, unigrams, *words, *(table.rows for table in self.tables.values()), *self._pieces]
        self.tokenizer.save(self.folder / "tokenizer")
        index: dict[str, Any] = {
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
        }
        if self._windows:
            index |= {"stream": self.stream, "documents": self.config.documents}
        if self.numbering is not None:
            index |= {"stream": self.stream, **self.numbering.facts()}
        index["fingerprint"] = fingerprint_of(index)
        (self.folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", "utf-8")
