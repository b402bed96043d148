"""Raw text → shards (`data.shards` says what lies in the folder): one pass, bounded memory, tokenising on all cores."""

import hashlib
import json
import os
import shutil
from array import array
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from data.config import DataConfig
from data.errors import DataError
from data.shards import FORMAT, INDEX, PER_FILE, SPLITS, Shards, fingerprint_of
from data.sources import Source, check_free, expand, sentences, shared
from data.tokenizer import WordPiece

LONGEST_DOCUMENT = 16384
"""Sentences after which a document is cut in two (or after BLOCK_TOKENS), so that a file without blank lines is still
walked in pieces."""
BLOCK_SENTENCES, BLOCK_TOKENS = 32768, 1 << 20
"""A block of documents, the unit of planning and shuffling, is closed when it holds this much of either."""
_BATCH = 1 << 19
_COPY = 1 << 16


def prepare(
    config: DataConfig,
    tokenizer: WordPiece,
    to: str | Path,
    progress: Callable[[int, int], None] | None = None,
    *,
    per_file: int = PER_FILE,
) -> Shards:
    """Tokenises `config.path` (and `config.dev`) into the folder `to` and opens it.

    The folder is written beside its place and renamed there when it is whole. `config.dev_fraction` holds out the end
    of each file, counted in sentences, in whole documents where there are several. Sentences without tokens and
    documents without sentences are dropped. `progress` is called with the bytes read and the bytes in all (about, for a
    TFDS set), for every line and at least every half megabyte; what it raises stops the work and leaves nothing behind.

    Differs: a document of more than LONGEST_DOCUMENT sentences is cut in two.

    Raises: DataError for what `sources` refuses, text without a sentence, nothing to train on, a folder that is taken.
    """
    check_free(Path(to))
    to = Path(os.path.realpath(to))
    train = expand(config.path, "data.path")
    dev = expand(config.dev, "data.dev") if config.dev else []
    if held_out := shared([*train, *dev]):
        raise DataError(
            f"{held_out}: data.dev names a {held_out.kind} that data.path holds too; keep held-out text apart"
        )
    temporary = to.parent / f".{to.name}.partial"
    shutil.rmtree(temporary, ignore_errors=True)
    writer = None
    try:
        temporary.mkdir(parents=True)
        writer = _Writer(temporary, tokenizer, config, per_file)
        total = sum(source.size for source in train + dev)
        done = 0

        def seen(raw: bytes = b"") -> None:
            nonlocal done
            done = min(done + len(raw), total)
            if progress:
                progress(done, total)

        for source in train:
            writer.add(source, "train", config.dev_fraction, seen)
        for source in dev:
            writer.add(source, "dev", 0.0, seen)
        writer.finish()
        if to.is_dir():
            to.rmdir()
        os.rename(temporary, to)
    except BaseException:
        try:
            if writer is not None:
                writer.close()
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    return Shards.open(to)


class Out:
    """A file being written, and the digest of what was written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: BinaryIO = path.open("w+b")
        self._digest, self._size = hashlib.sha256(), 0

    def write(self, raw: bytes) -> None:
        self._digest.update(raw)
        self._size += len(raw)
        self.file.write(raw)

    def entry(self) -> dict[str, Any]:
        return {"size": self._size, "sha256": self._digest.hexdigest()}


class _Rows(Out):
    """Numbers written to a file through a small buffer."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.buffer = array("q")

    def add(self, *numbers: int) -> None:
        self.buffer.extend(numbers)
        if len(self.buffer) >= _COPY:
            self.flush()

    def flush(self) -> None:
        self.write(np.frombuffer(self.buffer, np.int64).astype("<i8").tobytes())
        self.buffer = array("q")
        self.file.flush()


class _Table:
    """The documents of one split."""

    def __init__(self, path: Path) -> None:
        self.rows = _Rows(path)
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
    def __init__(self, folder: Path, tokenizer: WordPiece, config: DataConfig, per_file: int) -> None:
        self.folder, self.tokenizer, self.config, self.per_file = folder, tokenizer, config, per_file
        self.dtype = np.dtype("<u2" if tokenizer.size <= 1 << 16 else "<u4")
        self.sentences = self.tokens = 0
        self.starts = _Rows(folder / "sentences.bin")
        self.starts.add(0)
        self.borders = _Rows(folder / "borders.partial")
        self.tables = {name: _Table(folder / f"{name}.bin") for name in SPLITS}
        self.unigrams = np.zeros(tokenizer.size, np.int64)
        self.sources: list[dict[str, Any]] = []
        self._pieces: list[Out] = []

    def add(self, source: Source, split: str, dev_fraction: float, seen: Callable[..., None]) -> None:
        digest, size, first = hashlib.sha256(), source.size, self.sentences

        def read(raw: bytes) -> None:
            digest.update(raw)
            seen(raw)

        self.borders.file.seek(0)
        self.borders.file.truncate()
        whole = 0  # documents that the source itself tells apart
        begun, tokens = first, self.tokens  # where the document being written begins
        fresh = True
        for batch in _batches(source, read, self.config.split_sentences):
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
        if self.sentences == first:
            raise DataError(f"{source}: no sentence in the {source.kind}; it wants text in UTF-8")
        if self.sentences > begun:
            self.borders.add(self.sentences)
        cut = self._share_out(first, whole, split, dev_fraction)
        entry = {"name": source.name, "size": size, "sha256": digest.hexdigest(), "split": split}
        self.sources.append({**entry, "sentences": [first, cut, self.sentences]})

    def _tokenised(self, batch: list[str | None]) -> Iterator[int | None]:
        """Writes the tokens of sentences; yields the length of each that has any, and None for a border."""
        lines = self.tokenizer.encode([text for text in batch if text is not None])
        ids = np.fromiter(chain.from_iterable(lines), self.dtype, sum(map(len, lines)))
        self.unigrams += np.bincount(ids, minlength=len(self.unigrams))
        written = 0
        while written < len(ids):
            number, at = divmod(self.tokens + written, self.per_file)
            if not at:
                self._close_tokens()
                self._pieces.append(Out(self.folder / f"tokens-{number:05d}.bin"))
            piece = ids[written : written + self.per_file - at]
            self._pieces[-1].write(piece.tobytes())
            written += len(piece)
        place = iter(lines)
        for text in batch:
            if text is None:
                yield None
            elif length := len(next(place)):
                yield length

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
            cut = min(max(last - round((last - first) * dev_fraction), first + 1), last - 1)
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
            held_out = self._read(at, min(at + (1 << 22), end))
            self.unigrams -= np.bincount(held_out, minlength=len(self.unigrams))
        return cut

    def _cut(self, first: int, last: int, documents: int, dev_fraction: float) -> int:
        """The first border of a document from which at most the share remains, but for one document on both sides."""
        wanted = last - (last - first) * dev_fraction
        low, high = 0, documents - 2
        while low < high:
            middle = (low + high) // 2
            if self._border(middle) >= wanted:
                high = middle
            else:
                low = middle + 1
        return self._border(low)

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
        for out in (self.borders, self.starts, *(table.rows for table in self.tables.values()), *self._pieces[-1:]):
            out.file.close()

    def finish(self) -> None:
        """Checks what was read and writes the rest of the folder. Raises: DataError where nothing can be trained on."""
        train = self.tables["train"]
        if not train.pairs:
            raise DataError(
                f"{self.sources[0]['name']}: no document with two sentences to train on ({train.documents} of one "
                "sentence); put sentences or paragraphs on lines, a blank line between documents, or hold out less"
            )
        splits = {name: table.summary() for name, table in self.tables.items()}
        self.starts.flush()
        unigrams = Out(self.folder / "unigrams.bin")
        unigrams.write(self.unigrams.astype("<i8").tobytes())
        unigrams.file.close()
        self.close()
        (self.folder / "borders.partial").unlink()
        written = [self.starts, unigrams, *(table.rows for table in self.tables.values()), *self._pieces]
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
        index["fingerprint"] = fingerprint_of(index)
        (self.folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", "utf-8")


def _batches(source: Source, seen: Callable[[bytes], None], split: bool) -> Iterator[list[str | None]]:
    """Sentences, None for a border, in lists of about half a million characters."""
    batch: list[str | None] = []
    size = 0
    for _, line in source.documents(seen):
        for text in (sentences(line) if split else [line]) if line else [None]:
            batch.append(text)
            size += len(text or "") + 1
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
    yield batch
