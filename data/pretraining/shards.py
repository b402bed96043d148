"""Shards: tokenised text on disk, with an index of its sentences, documents, splits and sources.

    tokens-00000.bin …   u16 (u32 where the vocabulary needs it), one long row of ids cut every PER_FILE of them
    sentences.bin        i64 [sentences + 1], where each sentence begins in that row, and the end; shards for windows
                         have runs of at most 64 tokens as sentences; in those for lanes a sentence includes its end
    train.bin, dev.bin   i64 [documents, 2], each document's first sentence and the sentence after its last
    unigrams.bin         i64 [V], how often each id occurs in the train split
    words.txt            lanes only: the words that the vocabulary lacks, V, V+1, …, a word a line
    digests.bin          digests of the blocks of the files above that are read by position (`data.block_cache`)
    documents.tsv        ids of documents that tables gave (`data.pretraining.manifest`); not always there
    manifest.json        what they hold of each source, how they were made; neither of the two is in the fingerprint
    tokenizer/           the tokenizer that made them
    index.json           "format": 1, counts, size and sha256 of each file and source, a fingerprint of all that; for
                         windows "stream" and "documents", as in data/config.py; for lanes "stream", and how many words
                         are "unknown", and how many "cut"

Everything is read by position (pread): nothing is held or mapped, so memory does not grow with the text. Of shards in a
bucket, only the blocks are fetched that rows lie in, and each is compared with its digest.
`data.pretraining.tokenize_corpus` writes the folder.
"""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from contexture.data import mirror
from contexture.data.binary_files import I64, Bytes, File, HashingWriter, Int64Writer, check_bytes, joined
from contexture.data.block_cache import BlockCache, Piece
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.plain_files import read_plain
from contexture.data.pretraining.shards_index import (
    DIGESTS,
    INDEX,
    MADE_FOR,
    MEND,
    PAIRS,
    SPLITS,
    UNKNOWN,
    ShardsIndex,
    SplitCounts,
    by_position,
    file_sizes,
    read_index,
)
from contexture.data.text import hub
from contexture.data.text.sources import Source, present
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.elmo_char_ids import BEGIN_ROW, END_ROW, WIDTH, char_ids
from contexture.data.tokenizers.registry import load_tokenizer
from contexture.data.tokenizers.word_level import word_tokenizer

_SMALL = 1 << 20
"""Bytes up to which a file is read and compared with its sha256 whenever the shards are opened."""
_WORDS = 1 << 14
"""Words whose characters are looked up together."""


@dataclass(frozen=True)
class Split:
    """One side of the text. `blocks` are contiguous runs of documents: the first document of each, and their number."""

    name: str
    documents: int
    sentences: int
    tokens: int
    blocks: tuple[int, ...]
    file: Bytes

    def bounds(self, first: int, last: int) -> I64:
        """Returns the first sentence and the one after the last of documents first … last-1, i64 [n, 2]."""
        # Two numbers of 8 bytes for each document.
        raw = self.file.read((last - first) * 16, first * 16)
        return np.frombuffer(raw, "<i8").reshape(-1, 2)

    def document(self, number: int) -> tuple[int, int]:
        """Returns a document's first sentence and the one after its last."""
        # Without NumPy: this is asked for each random second span of an epoch.
        raw = self.file.read(16, number * 16)
        return int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:], "little")


class Shards:
    """A folder of shards, opened for reading by any number of threads."""

    def __init__(self, folder: Path, index: ShardsIndex, cache_gb: float) -> None:
        """index: the content of index.json, as `read_index` has checked it. cache_gb: as in `data.config`."""
        self.folder = folder
        self.index = index
        self.vocabulary: int = index["vocabulary"]
        self.tokens: int = index["tokens"]
        self.sentences: int = index["sentences"]
        self.fingerprint: str = index["fingerprint"]
        """sha256 (hex) over the tokenizer, the bytes of the sources and of every file, and how they were cut and split:
        the same for the same text and tokenizer on any machine."""
        self.tokenizer_fingerprint: str = index["tokenizer"]
        self.stream, self.documents = (str(index.get(name, may[0])) for name, may in MADE_FOR.items())
        """The stream that they were prepared for (`data.config.Stream`), and what a document is (data.documents)."""
        self.labels: tuple[str, ...] = ()
        self.counts: tuple[int, ...] = ()
        """Empty: text has no labels. A task's examples (`tasks.example_store`) have some."""
        self.dtype = np.dtype(index["dtype"])
        self._per_file: int = index["per_file"]
        # Shards in a bucket: blocks of all files go through one cache.
        self._cache = _block_cache(folder, index, cache_gb)
        self.splits = {name: self._split(name, index["splits"][name]) for name in SPLITS}
        self._offsets = self._file("sentences.bin")
        # In their order: token t is in file t // per_file.
        self._names = [name for name in file_sizes(index) if name.startswith("tokens-")]
        self._tokens = [self._file(name) for name in self._names]

    def _file(self, name: str) -> Bytes:
        return (
            _InBlocks(self._cache, name)
            if self._cache and mirror.is_left(self.folder / name)
            else File(self.folder / name)
        )

    def _split(self, name: str, counts: SplitCounts) -> Split:
        file, blocks = self._file(f"{name}.bin"), tuple(counts["blocks"])
        return Split(name, counts["documents"], counts["sentences"], counts["tokens"], blocks, file)

    @staticmethod
    def is_at(folder: str | Path) -> bool:
        """Returns whether the folder holds shards (of any format), and not just some index.json."""
        mirror.fetched(folder)
        try:
            index = json.loads(read_plain(Path(folder) / INDEX))
        except (OSError, ValueError, RecursionError):
            return False
        # The keys that an index of any format has.
        return isinstance(index, dict) and {"format", "tokenizer", "splits"} <= index.keys()

    @staticmethod
    def open(folder: str | Path, cache_gb: float = DataConfig.cache_gb) -> "Shards":
        """Opens a folder.

        Args:
            folder: of shards.
            cache_gb: as in `data.config`, for shards in a bucket.

        Raises:
            DataError: where there are no shards or they have another format, where the index is not as it was written,
                where a file is missing or has another size, or where a small one has other bytes (`verify` reads all).
        """
        folder = Path(folder)
        index = read_index(folder)
        for name, size in file_sizes(index).items():
            file = folder / name
            # Pairs are planned from the lengths of all sentences: their files are needed whole, but not the tokens.
            if mirror.is_left(file) and not name.startswith("tokens-") and index.get("stream", PAIRS) == PAIRS:
                mirror.fetched(file)
            # Blocks of a bucket are compared with their digests as they are fetched.
            if mirror.is_left(file):
                continue
            # Sizes are compared for all files, since that costs nothing; bytes below.
            if not file.is_file():
                raise DataError(f"{file}: missing; {MEND}")
            if file.stat().st_size != size:
                raise DataError(f"{file}: {file.stat().st_size} bytes where the index says {size}; {MEND}")
        # Small files are compared whole each time: a flipped bit in them would move whole documents.
        for name, size in file_sizes(index).items():
            if size <= _SMALL:
                _verify(folder, index, name)
        return Shards(folder, index, cache_gb)

    def verify(self, cancel: CancelToken = NEVER) -> None:
        """Reads every file once, on all cores, in bounded memory, and compares it with what was written.

        Raises: DataError naming a file that is not as it was written; what `cancel` raises to stop the work.
        """
        _ = self.tokenizer  # its files have no digests: its own fingerprint is compared when it is loaded
        # Reading and hashing release the interpreter's lock, so threads use all cores.
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            try:
                for _ in pool.map(lambda name: _verify(self.folder, self.index, name, cancel), self.index["files"]):
                    pass
            except BaseException:
                # A damaged file or a signal ends the check: files that no thread has started to read are skipped.
                pool.shutdown(cancel_futures=True)
                raise

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer kept inside. Raises: DataError where it is not the one that made the shards."""
        tokenizer = load_tokenizer(self.folder / "tokenizer")
        # Another tokenizer would decode the ids to other text, and without an error where it has as many.
        if tokenizer.fingerprint != self.tokenizer_fingerprint:
            raise DataError(f"{self.folder / 'tokenizer'}: not the tokenizer that made these shards; {MEND}")
        return tokenizer

    @cached_property
    def char_ids(self) -> NDArray[np.uint16]:
        """Returns the character ids of every word, u16 [n, 50], for lanes: first the vocabulary's words, then those
        that it lacks, as their ids are numbered (`data.tokenizers.elmo_char_ids`).

        Raises: DataError where the words that it lacks are not as they were written.
        """
        vocabulary = word_tokenizer(self.tokenizer).vocabulary
        # `open` compares small files only, and this one may be large.
        _verify(self.folder, self.index, UNKNOWN)
        # The file ends in a line feed: nothing follows the last one.
        words = [*vocabulary, *read_plain(self.folder / UNKNOWN).decode("utf-8").split("\n")[:-1]]
        # u16 is half of what a batch holds, since there may be millions of words.
        rows = np.empty((len(words), WIDTH), np.uint16)
        for at in range(0, len(words), _WORDS):
            rows[at : at + _WORDS] = char_ids(words[at : at + _WORDS])
        # The ids 0 and 1, <S> and </S>, are no text: their rows are marks.
        rows[:2] = BEGIN_ROW, END_ROW
        return rows

    def unigrams(self) -> I64:
        """Returns how often each id occurs in the train split, i64 [V]. For lanes, words that the vocabulary lacks
        count as its `<UNK>`."""
        return np.fromfile(self.folder / "unigrams.bin", "<i8")

    def spans(self, split: str) -> tuple[I64, I64]:
        """Returns where the split's tokens lie in the row of all tokens: starts and lengths in their order, i64 [n]
        each."""
        # Of each source the end is held out: its sentences first … cut-1 are train, cut … last-1 are dev.
        ends = []
        for source in self.index["sources"]:
            first, cut, last = source["sentences"]
            first, last = (first, cut) if split == "train" else (cut, last)
            if first < last:
                ends.append([int(self.offsets(place, place)[0]) for place in (first, last)])
        # reshape: a split without text has two empty columns.
        starts, stops = np.array(ends, np.int64).reshape(-1, 2).T
        # Sources that adjoin are one span.
        return joined(starts, stops - starts)

    def offsets(self, first: int, last: int) -> I64:
        """Returns where sentences first … last begin among all tokens (last included: lengths are differences)."""
        return np.frombuffer(self._offsets.read((last - first + 1) * 8, first * 8), "<i8")

    def read(self, starts: I64, lengths: I64) -> NDArray[np.integer]:
        """Spans of the row of all tokens, joined: starts i64 [n], lengths i64 [n] → ids [sum of lengths]."""
        # Spans that touch are one read, as for documents side by side.
        starts, lengths = joined(starts, lengths)
        width, per = self.dtype.itemsize, self._per_file
        pieces: list[tuple[int, int, int]] = []
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            file, at = divmod(start, per)
            # A span may run on into the next files.
            while at + length > per:
                pieces.append((file, (per - at) * width, at * width))
                file, at, length = file + 1, 0, length - (per - at)
            pieces.append((file, length * width, at * width))
        # All of a batch at once, where they come over a network.
        if self._cache:
            read = self._cache.read([Piece(self._names[file], count, at) for file, count, at in pieces])
        else:
            read = [self._tokens[file].read(count, at) for file, count, at in pieces]
        return np.frombuffer(b"".join(read), self.dtype)

    def notes(self) -> list[str]:
        """Returns what a user should know after training: how much was fetched from a bucket."""
        return [line] if self._cache and (line := self._cache.describe()) else []

    def sources_changed(self, config: DataConfig) -> str:
        """Returns a sentence saying how the text that `config` names differs by name or size from the text that was
        read, or ""."""
        # Where the shards themselves are the text that was named, there is no source to compare.
        if not config.path or os.path.realpath(config.path[0]) == os.path.realpath(self.folder):
            return ""
        named = [("train", path) for path in config.path] + [("dev", path) for path in config.dev]
        for split, source in ((split, source) for split, path in named for source in _still(path)):
            # Names and sizes only: reading all of a large text again would take minutes.
            sizes = [s["size"] for s in self.index["sources"] if (s["split"], s["name"]) == (split, source.name)]
            if not sizes:
                return f"{source} was not there when {self.folder} was prepared"
            # Several files may have one name, in several folders.
            if source.size not in sizes:
                return f"{source} has {source.size} bytes and had {sizes[-1]} when {self.folder} was prepared"
        return ""


def prepared_at(paths: Sequence[str]) -> Path | None:
    """Returns the folder of `contexture prepare` that data.path names, or None."""
    # Told by its index file: any other folder is one of *.txt and *.jsonl.
    return Path(paths[0]) if len(paths) == 1 and Shards.is_at(paths[0]) else None


def _still(path: str) -> list[Source]:
    """Returns the sources that still exist: text that was prepared is no longer needed, nor downloaded again."""
    try:
        # Files of a hub count only where they are in the cache: looking must not download.
        return present(path) if not hub.is_address(path) or hub.cached_files(path) else []
    except DataError:
        return []


def _verify(folder: Path, index: ShardsIndex, name: str, cancel: CancelToken = NEVER) -> None:
    # A file in a bucket is compared block by block as it is read.
    if not mirror.is_left(folder / name):
        check_bytes(folder / name, index["files"][name]["sha256"], MEND, cancel)


def _block_cache(folder: Path, index: ShardsIndex, cache_gb: float) -> BlockCache | None:
    """Returns where tokens are read from a bucket; None where they are on this machine."""
    sizes = file_sizes(index)
    address = mirror.address_of(folder)
    # Shards that were made in this process are here, though their folder is one of a bucket.
    if address is None or not any(mirror.is_left(folder / name) for name in sizes):
        return None
    # Every block that is fetched is compared with them.
    _verify(folder, index, DIGESTS)
    sizes = {name: sizes[name] for name in by_position(sizes)}
    return BlockCache(address, sizes, (folder / DIGESTS).read_bytes(), cache_gb * 1e9)


@dataclass(frozen=True)
class _InBlocks:
    """A file in a bucket, read like a File."""

    cache: BlockCache
    name: str

    def read(self, count: int, at: int) -> bytes:
        return self.cache.read([Piece(self.name, count, at)])[0]


class TokenFiles:
    """tokens-00000.bin, tokens-00001.bin, …, each with `per_file` ids of `dtype`; the last one has what is left."""

    def __init__(self, folder: Path, dtype: np.dtype[np.integer], per_file: int) -> None:
        self._folder, self._dtype, self._per_file = folder, dtype, per_file
        self._count = 0
        self.files: list[HashingWriter] = []
        """All of them in their order; the last one is being written, the others are closed."""

    def write(self, ids: NDArray[np.integer]) -> None:
        """Appends ids to the row."""
        written = 0
        while written < len(ids):
            # A file is created when its first id is written, so no file is empty.
            number, at = divmod(self._count, self._per_file)
            if not at:
                if self.files:
                    self.files[-1].file.close()
                self.files.append(HashingWriter(self._path(number)))
            part = ids[written : written + self._per_file - at]
            self.files[-1].write(part.tobytes())
            written += len(part)
            self._count += len(part)

    def read(self, start: int, end: int) -> NDArray[np.integer]:
        """Reads ids start … end-1 back."""
        # What is still in Python's buffer would be missing from the file.
        if self.files and not self.files[-1].file.closed:
            self.files[-1].file.flush()
        parts = []
        while start < end:
            number, at = divmod(start, self._per_file)
            count = min(end - start, self._per_file - at)
            # By path, since all files but the last are closed.
            parts.append(np.fromfile(self._path(number), self._dtype, count, offset=at * self._dtype.itemsize))
            start += count
        return np.concatenate(parts)

    def _path(self, number: int) -> Path:
        return self._folder / f"tokens-{number:05d}.bin"


BLOCK_SENTENCES, BLOCK_TOKENS = 32768, 1 << 20
"""A block of documents, the unit of planning and shuffling, is closed when it holds this much of either."""


_LENGTHS = 32
"""Powers of two that lengths of documents are counted by."""


class SplitTable:
    """The documents of one split, as they are written to its file, and its blocks.

    A block is closed by whichever comes first, BLOCK_SENTENCES or BLOCK_TOKENS, so that planning one takes about the
    same time and memory whatever the text is like.
    """

    def __init__(self, path: Path) -> None:
        self.rows = Int64Writer(path)
        self.documents = self.sentences = self.tokens = self.pairs = 0
        # How many documents have 1, 2 to 3, 4 to 7, … tokens, for the manifest.
        self.lengths = np.zeros(_LENGTHS, np.int64)
        # The first document of each block; what the current one holds.
        self.blocks = [0]
        self._block = 0, 0

    def add(self, borders: I64, offsets: I64) -> None:
        """Adds documents that follow each other.

        Args:
            borders: the first sentence of each, and the one after the last.
            offsets: where these begin among all tokens.
        """
        sentences, tokens = np.diff(borders), np.diff(offsets)
        self.rows.extend(np.stack([borders[:-1], borders[1:]], 1).ravel())
        # A document of one sentence gives no pair but a random one: a text of such documents alone is refused.
        self.pairs += int((sentences > 1).sum())
        # The exponent of a whole number is how many bits it has.
        powers = np.minimum(np.frexp(np.maximum(tokens, 1))[1], _LENGTHS) - 1
        self.lengths += np.bincount(powers, minlength=_LENGTHS)
        # One after the other, since where a block ends depends on where it began.
        held_sentences, held_tokens = self._block
        for number, (size, count) in enumerate(
            zip(sentences.tolist(), tokens.tolist(), strict=True), self.documents + 1
        ):
            held_sentences += size
            held_tokens += count
            if held_sentences >= BLOCK_SENTENCES or held_tokens >= BLOCK_TOKENS:
                self.blocks.append(number)
                held_sentences = held_tokens = 0
        self._block = held_sentences, held_tokens
        # Nothing where there is no document.
        self.documents += len(sentences)
        self.sentences += int(sentences.sum())
        self.tokens += int(tokens.sum())

    def summary(self) -> SplitCounts:
        """Writes what is buffered, closes the last block, and returns the split's entry in index.json."""
        self.rows.flush()
        # The number of documents closes the list, so that block n is blocks[n] … blocks[n + 1].
        blocks = self.blocks if self.blocks[-1] == self.documents else [*self.blocks, self.documents]
        return {"documents": self.documents, "sentences": self.sentences, "tokens": self.tokens, "blocks": blocks}
