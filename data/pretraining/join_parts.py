"""Parts of a preparation (`data.pretraining.tokenize_corpus`) → shards: the same, byte for byte, however many parts."""

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from contexture.data.binary_files import I64, FileEntry, HashingWriter, Int64Writer, close_all, fingerprint_of
from contexture.data.block_cache import BLOCK, block_digests
from contexture.data.errors import DataError
from contexture.data.pretraining import shards_index
from contexture.data.pretraining.manifest import IDS, SourceFacts, merged, versions, write_manifest
from contexture.data.pretraining.part_folder import PART, PartError, PartReader, parts_in, read_index
from contexture.data.pretraining.shards import Shards, SplitTable, TokenFiles
from contexture.data.pretraining.shards_index import DIGESTS, INDEX, SPLITS, UNKNOWN, SourceEntry
from contexture.data.pretraining.text_parts import source_digest
from contexture.data.pretraining.units import ID
from contexture.data.storage import atomic_folder
from contexture.data.text.columnar import TEXT
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.open_vocabulary import CorpusVocabulary
from contexture.data.tokenizers.registry import load_tokenizer
from contexture.data.tokenizers.unknown_tokens import UnknownTokens
from contexture.data.tokenizers.word_level import word_tokenizer

logger = logging.getLogger(__name__)

RUN = 64
"""Tokens of a run. Where whole documents are tokenised, runs take the place of sentences."""
_COPY = 1 << 16
"""Documents whose borders are read back at once."""
_CLOSE = 1 << 20
"""Sentences between the first and the last of some that are read at once."""
_COUNTED = 1 << 20
"""Tokens that are copied, or counted, at once."""
_MEND = "give another vocabulary, or learn one on this text"
_CASED = "keep them with --data.no-lowercase, and a cased vocabulary where one is given"
_JOB = {
    "tokenizer": str,
    "stream": str,
    "documents": str,
    "text_column": str,
    "split_sentences": bool,
    "dev_fraction": float,
    "per_file": int,
    "piece": int,
    "sources": [{"name": str, "size": int, "split": str, "ends": str}],
}
_ENTRY = {
    **dict.fromkeys(("source", "tokens", "sentences", "documents", "whole", "unknown"), int),
    "counts": dict,
    "pieces": [str],
}
_INDEX = {
    "job": _JOB,
    "part": int,
    "of": int,
    "dtype": str,
    "spans": [_ENTRY],
    "unknown": dict,
    "command": str,
    "files": dict,
}
"""The type of everything in part.json."""


class PartEntry(TypedDict):
    """What a part holds of a source."""

    source: int
    """The source's number."""
    tokens: int
    sentences: int
    documents: int
    whole: int
    """The documents that the source itself has: long ones are cut."""
    unknown: int
    """Tokens that stand for what the vocabulary lacks."""
    counts: dict[str, dict[str, int]]
    """Documents by language and source, as rows say."""
    pieces: list[str]
    """The digests of its bytes, as `text_parts.PieceDigests`."""


class PartIndex(TypedDict):
    """The content of part.json."""

    job: dict[str, Any]
    part: int
    of: int
    dtype: str
    spans: list[PartEntry]
    unknown: dict[str, Any]
    command: str
    files: dict[str, FileEntry]


def read_part(folder: Path, job: Mapping[str, object] | None = None) -> PartIndex:
    """Returns the content of a part's part.json. Raises: DataError where it is none, damaged, or of another job."""
    index = read_index(folder, _INDEX, job)
    # A fingerprint is no proof against an index that was made up.
    if index["dtype"] not in ("<u2", "<u4"):
        raise PartError(f"{folder / PART}: {index['dtype']!r} is no dtype of tokens; make the part again")
    return cast(PartIndex, index)


def join(
    folder: Path,
    to: Path,
    tokenizer: Tokenizer | None = None,
    stream: str = "",
    check: Callable[[], object] = lambda: None,
    command: str = "",
) -> Shards:
    """Joins the parts in a folder into shards at `to`, which appear when they are whole, and opens them.

    Args:
        folder: holds the parts.
        to: the folder of the shards.
        tokenizer: the one that made the parts; None: read from the first of them.
        stream: the stream that the parts must be for; "": any.
        check: called between two pieces of the work, which it may stop by an exception.
        command: the command that makes the shards, for their manifest; "": that of the parts.

    Raises:
        DataError: for a part that is missing, damaged or of another preparation, for a source without text, nothing to
            train on, and a folder that is taken.
    """
    parts = parts_in(folder, read_part)
    job, dtype = parts[0][1]["job"], np.dtype(parts[0][1]["dtype"])
    if stream not in ("", job["stream"]):
        raise PartError(f"{folder}: parts for the stream {job['stream']}, and this recipe reads {stream}; give another")
    try:
        tokenizer = tokenizer or load_tokenizer(parts[0][0] / "tokenizer")
        known = tokenizer.fingerprint == job["tokenizer"]
    except DataError:
        known = False
    if tokenizer is None or not known:
        raise PartError(f"{parts[0][0] / 'tokenizer'}: not the tokenizer that made the part; make the part again")
    # Whole or not at all, as all that is written: parts are untouched, whatever happens.
    with atomic_folder(to) as partial:
        writer = _Writer(partial, job, tokenizer, dtype, check)
        try:
            # One after the other, in the order of the text.
            for place, index in parts:
                writer.add(place, index)
            writer.finish(command or parts[0][1]["command"])
            for line in writer.unknown.warnings("the text", _MEND, _CASED):
                logger.warning(line)
        except BaseException:
            writer.close()
            raise
    return Shards.open(to)


class _Writer:
    """A folder of shards while parts are added to it, and what its index will say."""

    def __init__(
        self,
        folder: Path,
        job: Mapping[str, Any],
        tokenizer: Tokenizer,
        dtype: np.dtype[np.integer],
        check: Callable[[], object],
    ) -> None:
        self.check = check
        self.folder, self.tokenizer, self.job, self.dtype = folder, tokenizer, job, dtype
        self.numbering = CorpusVocabulary(word_tokenizer(tokenizer)) if job["stream"] == "lanes" else None
        self.sentences = self.tokens = 0
        self.starts = Int64Writer(folder / "sentences.bin")
        self.starts.add(0)
        # After which sentence each document of the present source ends; emptied for each source, removed at the end.
        self.borders = Int64Writer(folder / "borders.partial")
        self.tables = {name: SplitTable(folder / f"{name}.bin") for name in SPLITS}
        self.unknown = UnknownTokens(tokenizer)
        self.unigrams = np.zeros(tokenizer.size, np.int64)
        self.sources: list[SourceEntry] = []
        self._token_files = TokenFiles(folder, dtype, job["per_file"])
        self._windows = job["stream"] == "windows"
        self._first = self._whole = 0
        self._pieces: list[str] = []
        """Of the present source: its first sentence, the documents that it has, the digests of its bytes."""
        self._entries: list[PartEntry] = []
        """What the parts say of the present source, for the manifest."""
        self.facts: list[SourceFacts] = []
        self.ids: HashingWriter | None = None
        self.id_count = 0

    def add(self, folder: Path, index: PartIndex) -> None:
        """Adds a part. Raises: DataError where a file of it is not as it was written."""
        with ExitStack() as stack:
            files: dict[str, PartReader] = {}
            for name in index["files"]:
                files[name] = PartReader(folder, index["files"], name)
                stack.callback(files[name].close)
            numbers = self._numbers(files[UNKNOWN].rest()) if UNKNOWN in files else None
            before = self.sentences, self.tokens
            # A source ends where the next one begins, in this part or in a later one.
            for entry in index["spans"]:
                while entry["source"] > len(self.sources):
                    self._end_source()
                self._copy(entry, files, before, numbers)
            # Only text in tables has ids.
            if IDS in files:
                self._add_ids(files[IDS].lines(), before[0])
            self.unigrams += np.frombuffer(files["unigrams.bin"].rest(), "<i8")
            for name in ("tokens.bin", "ends.bin", "borders.bin"):
                files[name].rest()
        self.unknown.merge(index["unknown"])

    def _add_ids(self, lines: Iterable[bytes], before: int) -> None:
        """Adds the ids of a part's documents. before: the sentences in front of the part."""
        if self.ids is None:
            self.ids = HashingWriter(self.folder / IDS)
        # Counted from the part's beginning, as its borders.
        for line in lines:
            sentence, _, name = line.partition(b"\t")
            self.ids.write(b"%d\t%b" % (int(sentence) + before, name))
            self.id_count += 1

    def _numbers(self, words: bytes) -> NDArray[np.integer]:
        """Returns the number of each id of a part in all parts together, [V + new]: of the vocabulary's words, and of
        those that it lacks, which each part has numbered from V on."""
        assert self.numbering is not None
        new = self.numbering.number(words.decode("utf-8").split("\n")[:-1])
        return np.concatenate([np.arange(self.tokenizer.size, dtype=self.dtype), np.array(new, self.dtype)])

    def _copy(
        self,
        entry: PartEntry,
        files: Mapping[str, PartReader],
        before: tuple[int, int],
        numbers: NDArray[np.integer] | None,
    ) -> None:
        """Copies what a part holds of a source. before: the sentences and tokens in front of the part."""
        # In turns, since a part may be larger than memory.
        for count in _in_turns(entry["tokens"]):
            self.check()
            ids = files["tokens.bin"].read(count, self.dtype)
            if self.numbering is not None and numbers is not None:
                # Clipped: an id that no part can hold is damage, which the digest shows when all is read.
                ids = numbers.take(ids, mode="clip")
                self.numbering.count(ids)
            self._token_files.write(ids)
        # Ends and borders are counted from the part's beginning: what was in front of it is added.
        for count in _in_turns(entry["sentences"]):
            self.starts.extend(files["ends.bin"].read(count, np.dtype("<i8")) + before[1])
        # Documents of all parts of the source, which are shared out among the splits at its end.
        for count in _in_turns(entry["documents"]):
            self.borders.extend(files["borders.bin"].read(count, np.dtype("<i8")) + before[0])
        self.tokens += entry["tokens"]
        self.sentences += entry["sentences"]
        self._whole += entry["whole"]
        self._pieces += entry["pieces"]
        self._entries.append(entry)

    def _end_source(self) -> None:
        """Enters the documents of a source, whose parts were all added, in the tables of the splits."""
        source = self.job["sources"][len(self.sources)]
        if self.sentences == self._first:
            what = "text" if self._windows else "sentence"
            raise DataError(f"{source['name']}: no {what} in the file; it wants text in UTF-8")
        cut = self._share_out(self._first, self._whole, source["split"])
        name, size, split = source["name"], source["size"], source["split"]
        places, digest = [self._first, cut, self.sentences], source_digest(self._pieces)
        self.sources.append({"name": name, "size": size, "sha256": digest, "split": split, "sentences": places})
        # Counted while they were written: no token is read again.
        self.facts.append(
            {
                "name": name,
                "split": split,
                "documents": os.fstat(self.borders.file.fileno()).st_size // 8,
                "sentences": self.sentences - self._first,
                "tokens": sum(entry["tokens"] for entry in self._entries),
                "unknown": sum(entry["unknown"] for entry in self._entries),
                "counts": merged([entry["counts"] for entry in self._entries]),
            }
        )
        # Emptied for the next source.
        self._entries = []
        self.borders.file.seek(0)
        self.borders.file.truncate()
        self._first, self._whole, self._pieces = self.sentences, 0, []

    def _share_out(self, first: int, whole: int, split: str) -> int:
        """Enters the documents of the source just copied in the tables of the splits → the first sentence held out.

        Args:
            first: the source's first sentence.
            whole: how many documents the source itself has.
            split: the split that the source was given for.
        """
        # A share is held out of text to train on alone.
        dev_fraction = self.job["dev_fraction"] if split == "train" else 0.0
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
            borders = np.append(begin, np.frombuffer(raw, np.int64))
            begin = int(borders[-1])
            before = int(np.searchsorted(borders, cut))
            if 0 < before < len(borders) and borders[before] != cut:
                borders = np.insert(borders, before, cut)
            offsets = self._offsets(borders)
            for split, part in (("train", slice(before + 1)), ("dev", slice(before, None))):
                self.tables[split].add(borders[part], offsets[part])
        # All ids were counted when they were written; the unigrams count the train split only.
        end = self._offset(last)
        for at in range(self._offset(cut), end, _COUNTED):
            ids = self._token_files.read(at, min(at + _COUNTED, end))
            known = ids if self.numbering is None else self.numbering.known(ids)
            # Marks of units are no part of an id.
            known = known & ID if "units" in self.job else known
            self.unigrams -= np.bincount(known, minlength=len(self.unigrams))
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

    def _border(self, number: int) -> int:
        return int(np.frombuffer(os.pread(self.borders.file.fileno(), 8, number * 8), np.int64)[0])

    def _offset(self, sentence: int) -> int:
        return int.from_bytes(os.pread(self.starts.file.fileno(), 8, sentence * 8), "little")

    def _offsets(self, sentences: I64) -> I64:
        """Returns where sentences, in ascending order, begin among all tokens."""
        first, last = int(sentences[0]), int(sentences[-1])
        # Those that lie close together are one read; others are halved, so that no more is read than fits in memory.
        if last - first > _CLOSE and len(sentences) > 1:
            middle = len(sentences) // 2
            return np.concatenate([self._offsets(sentences[:middle]), self._offsets(sentences[middle:])])
        raw = os.pread(self.starts.file.fileno(), (last - first + 1) * 8, first * 8)
        return np.frombuffer(raw, np.int64)[sentences - first]

    def close(self) -> None:
        """Closes every file without writing more."""
        # Of the token files, only the last is open.
        close_all(
            (
                *(self.borders, self.starts, *([self.ids] if self.ids else [])),
                *(table.rows for table in self.tables.values()),
                *self._token_files.files[-1:],
            )
        )

    def finish(self, command: str) -> None:
        """Checks the text and writes the rest of the folder. command: makes the shards.

        Raises: DataError where nothing can be trained on.
        """
        # The last source, and those of which no part has text.
        while len(self.sources) < len(self.job["sources"]):
            self._end_source()
        self._check()
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
        # Their order is that of `shards.by_position`. Read back: a small part of the time that tokenising took.
        by_position = [self.starts, *(table.rows for table in self.tables.values()), *self._token_files.files]
        digests = HashingWriter(self.folder / DIGESTS)
        digests.write(block_digests(out.path for out in by_position))
        digests.file.close()
        self.tokenizer.save(self.folder / "tokenizer")
        # Every file that the index has an entry for.
        fingerprint = self._write_index(splits, [*by_position, unigrams, *words, digests])
        # For people: a run reads neither it nor the ids.
        kind, size = self.tokenizer.kind, self.tokenizer.size
        # Nothing in it depends on how many parts there were, or on when they were made.
        manifest = {
            "shards": fingerprint,
            "command": command,
            "versions": versions(),
            "tokenizer": {"kind": kind, "size": size, "fingerprint": self.tokenizer.fingerprint},
            "sources": self.facts,
            "lengths": {name: table.lengths.tolist() for name, table in self.tables.items()},
            "ids": self.id_count,
        }
        write_manifest(self.folder, manifest)

    def _check(self) -> None:
        """Refuses text in which there is nothing to predict, while nothing is at its place yet."""
        train = self.tables["train"]
        if self._windows and train.tokens < 2:
            name = self.sources[0]["name"]
            raise DataError(f"{name}: fewer than two tokens to train on; give more text, or hold out less")
        if not self._windows and self.numbering is None and not train.pairs:
            raise DataError(
                f"{self.sources[0]['name']}: no document with two sentences to train on ({train.documents} of one "
                "sentence); put sentences or paragraphs on lines, a blank line between documents, or hold out less"
            )

    def _write_index(self, splits: Mapping[str, object], written: Sequence[HashingWriter]) -> str:
        """Writes index.json, and returns the shards' fingerprint."""
        # The index names and seals all of it.
        index: dict[str, object] = {
            "format": shards_index.FORMAT,
            "tokenizer": self.tokenizer.fingerprint,
            "vocabulary": self.tokenizer.size,
            "dtype": self.dtype.str,
            "per_file": self.job["per_file"],
            "sentences": self.sentences,
            "tokens": self.tokens,
            "split_sentences": self.job["split_sentences"],
            "dev_fraction": self.job["dev_fraction"],
            "splits": splits,
            "sources": self.sources,
            "files": {out.path.name: out.entry() for out in written},
            "block": BLOCK,
        }
        # The usual column is left out, as are sentence pairs, the default stream.
        if self.job["text_column"] != TEXT:
            index["text_column"] = self.job["text_column"]
        if units := self.job.get("units"):
            index["units"] = units
        if self._windows:
            index |= {"stream": self.job["stream"], "documents": self.job["documents"]}
        if self.numbering is not None:
            index |= {"stream": self.job["stream"], **self.numbering.facts()}
        # Last, since it covers the sizes and digests of all other files.
        index["fingerprint"] = fingerprint_of(index)
        (self.folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", "utf-8")
        return str(index["fingerprint"])


def _in_turns(count: int) -> Iterator[int]:
    """Yields how many numbers are read at once, until there were so many."""
    while count > 0:
        yield min(count, _COUNTED)
        count -= _COUNTED
