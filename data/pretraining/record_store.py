"""TFRecords of BERT's original script as a folder of rows of equal width, so that any sequence is read by its number.

    rows.bin        a row for each record, as `row_type`, in the order of the files and of their records
    unigrams.bin    i64 [V], how often each id is to be predicted in the train split
    tokenizer/      the vocabulary
    index.json      "format": 1, "kind": "google-tfrecord", the width of rows, size and sha256 of each file and source,
                    a fingerprint of all that

Read by position (pread), as shards are: nothing is held or mapped. The records themselves are needed once.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from contexture.data.binary_files import (
    I64,
    File,
    FileEntry,
    HashingWriter,
    check_bytes,
    close_all,
    fingerprint_of,
    misfit,
)
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.plain_files import read_plain
from contexture.data.pretraining.instance_records import FEATURES, FLOATS, features_of, record_files
from contexture.data.storage import atomic_folder
from contexture.data.tfrecord import read_records
from contexture.data.tokenizers.registry import load_tokenizer
from contexture.data.tokenizers.wordpiece import WordPiece, wordpiece

logger = logging.getLogger(__name__)

KIND = "google-tfrecord"
ROWS, UNIGRAMS, INDEX = "rows.bin", "unigrams.bin", "index.json"
_MEND = "delete the folder and start the command again"
_AGAIN = "write the records again"
_BLOCK = 1 << 14
_INDEX = {
    "format": int,
    "kind": str,
    "tokenizer": str,
    "vocabulary": int,
    "length": int,
    "predictions": int,
    "sources": [{"name": str, "size": int, "sha256": str, "split": str, "records": [int]}],
    "files": {name: {"size": int, "sha256": str} for name in (ROWS, UNIGRAMS)},
    "fingerprint": str,
}


class SourceEntry(TypedDict):
    """A source's entry in index.json."""

    name: str
    size: int
    sha256: str
    split: str
    """The split that it was given for; with dev_fraction, both splits have some of it."""
    records: list[int]
    """Its first row, the first one held out, and the one after its last."""


class RecordIndex(TypedDict):
    """The content of index.json."""

    format: int
    kind: str
    tokenizer: str
    """The tokenizer's fingerprint."""
    vocabulary: int
    length: int
    """Tokens of every record (max_seq_length)."""
    predictions: int
    """Masked slots of every record (max_predictions_per_seq)."""
    sources: list[SourceEntry]
    files: dict[str, FileEntry]
    fingerprint: str


def row_type(length: int, predictions: int, vocabulary: int) -> np.dtype[np.void]:
    """Returns what is stored of a record. The mask is `tokens` ones and then zeros."""
    # Half the size where the vocabulary allows it, as shards.
    token = "<u2" if vocabulary <= 1 << 16 else "<u4"
    return np.dtype(
        [
            ("input_ids", token, (length,)),
            ("segment_ids", "u1", (length,)),
            ("masked_lm_positions", "<u2", (predictions,)),
            ("masked_lm_ids", token, (predictions,)),
            ("masked_lm_weights", "<f4", (predictions,)),
            ("next_sentence_labels", "u1", (1,)),
            ("tokens", "<u2"),
        ]
    )


class RecordStore:
    """A folder of records, opened for reading by any number of threads."""

    labels: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    """Empty: text has no labels. A task's examples (`tasks.store.example_store`) have some."""
    stream = "sentence_pairs"

    def __init__(self, folder: Path, index: RecordIndex) -> None:
        self.folder, self.index = folder, index
        self.fingerprint: str = index["fingerprint"]
        self.vocabulary: int = index["vocabulary"]
        self.length, self.predictions = index["length"], index["predictions"]
        self._type = row_type(self.length, self.predictions, self.vocabulary)
        # Open as long as the store; pread has no position, so that any thread may read.
        self._rows = File(folder / ROWS)
        # The rows of each split, as spans: of a source the beginning is train, and the end may be held out.
        self._spans = {split: _spans(index["sources"], split) for split in ("train", "dev")}

    @staticmethod
    def is_at(folder: Path) -> bool:
        """Returns whether a folder holds records, of any format."""
        try:
            index = json.loads(read_plain(folder / INDEX))
        except (OSError, ValueError, RecursionError):
            return False
        return isinstance(index, dict) and index.get("kind") == KIND

    @staticmethod
    def open(folder: Path) -> "RecordStore":
        """Raises: DataError where the folder holds no records, or they are not as they were written."""
        # The shape first, then the fingerprint: where it is missing, the message names it.
        file = folder / INDEX
        try:
            index = json.loads(read_plain(file))
        except (OSError, ValueError, RecursionError):
            raise DataError(f"{file}: missing, or not the index of records; {_MEND}") from None
        if (wrong := misfit(index, _INDEX)) or index["fingerprint"] != fingerprint_of(index):
            raise DataError(f"{file}: damaged ({wrong or 'its content does not match its fingerprint'}); {_MEND}")
        if index["format"] != 1 or index["kind"] != KIND:
            raise DataError(f"{file}: {index['kind']} of format {index['format']}, this reads {KIND} of 1; {_MEND}")
        # Sizes cost nothing; `verify` compares all bytes.
        for name, entry in index["files"].items():
            if not (folder / name).is_file() or (folder / name).stat().st_size != entry["size"]:
                raise DataError(f"{folder / name}: missing or not as long as it was written; {_MEND}")
        return RecordStore(folder, cast(RecordIndex, index))

    def verify(self, cancel: CancelToken = NEVER) -> None:
        """Reads every file once and compares it with its digest.

        Raises: DataError naming one that differs; what `cancel` raises to stop the work.
        """
        # Its own fingerprint is compared when it is loaded.
        _ = self.tokenizer
        for name, entry in self.index["files"].items():
            check_bytes(self.folder / name, entry["sha256"], _MEND, cancel)

    @cached_property
    def tokenizer(self) -> WordPiece:
        """The vocabulary. Raises: DataError where it is not the one that the ids were checked with."""
        tokenizer = wordpiece(load_tokenizer(self.folder / "tokenizer"))
        if tokenizer.fingerprint != self.index["tokenizer"]:
            raise DataError(f"{self.folder / 'tokenizer'}: not the vocabulary of these records; {_MEND}")
        return tokenizer

    def count(self, split: str) -> int:
        """Returns how many records a split has."""
        return int(self._spans[split][1].sum())

    def read(self, split: str, places: I64) -> NDArray[np.void]:
        """Returns the records at these places of a split, as `row_type`, [n]."""
        # Rows lie in the order of the files; a split has the beginnings of some and the ends of others.
        firsts, counts = self._spans[split]
        # A place lies in the first span that ends behind it.
        ends = np.cumsum(counts)
        span = np.searchsorted(ends, places, side="right")
        rows = (firsts + counts - ends)[span] + places
        # A read for each row: an epoch's order scatters them over the file.
        width = self._type.itemsize
        return np.frombuffer(b"".join(self._rows.read(width, row * width) for row in rows.tolist()), self._type)

    def unigrams(self) -> I64:
        """Returns how often each id is to be predicted in the train split, i64 [V]."""
        return np.fromfile(self.folder / UNIGRAMS, "<i8")

    def sources_changed(self, config: DataConfig) -> str:
        """Returns a sentence saying how the files that `config` names differ by name or size from those that were read,
        or ""."""
        for split, paths in (("train", config.path), ("dev", config.dev)):
            # Records that are gone are no longer needed.
            # By name and size alone: reading all records again would take as long as the first time.
            present = [path for path in paths if Path(path).exists()]
            for file in record_files(present, "data.path") if present else ():
                was = [s["size"] for s in self.index["sources"] if (s["split"], s["name"]) == (split, file.name)]
                if file.stat().st_size not in was:
                    return f"{file} is not among the TFRecords that {self.folder} was made of"
        return ""


def convert(config: DataConfig, tokenizer: WordPiece, to: Path, cancel: CancelToken = NEVER) -> RecordStore:
    """Reads TFRecords into the folder `to`, which appears when it is whole, and opens it.

    `config.dev_fraction` holds out the last records of each file. Warns that those may be copies of others.

    Args:
        config: names the files, and how long sequences may be.
        tokenizer: their vocabulary.
        to: the folder.
        cancel: may raise to stop the work.

    Raises:
        DataError: naming file and record, for what is damaged, lacks a feature, has another length than the first one
            or a greater one than `config`, or does not fit the vocabulary; and a file that is given twice.
    """
    train, dev = record_files(config.path, "data.path"), record_files(config.dev, "data.dev")
    # The same file by another path or a link is found too.
    if both := {file.resolve() for file in train} & {file.resolve() for file in dev}:
        raise DataError(f"{min(both)}: data.dev names a file that data.path holds too; keep held-out records apart")
    # A start that is killed leaves no half a store, and the next one begins anew.
    with atomic_folder(to) as part:
        writer = _Writer(part, tokenizer, config, cancel)
        try:
            for file in train:
                writer.add(file, "train", config.dev_fraction)
            # Held-out files lie behind the others, in the same rows.
            for file in dev:
                writer.add(file, "dev", 0.0)
            writer.finish()
        finally:
            writer.close()
    if config.dev_fraction:
        logger.warning(
            "the script writes its text several times (dupe_factor): held-out records may be those to train on with "
            "other masks; for a figure of other text, give records of it as --data.dev"
        )
    return RecordStore.open(to)


def check_sizes(length: int, predictions: int, config: DataConfig, where: object) -> None:
    """Raises: DataError for records that are longer than a run's sequences, or have more predictions."""
    for what, own, most, option in (
        ("tokens", length, config.length, "data.length"),
        ("predictions", predictions, config.slots, "data.max-predictions"),
    ):
        if own > most:
            raise DataError(f"{where} has {own:,} {what}, more than {most:,}; give --{option} {own}")


class _Writer:
    """The folder of records while it is written."""

    def __init__(self, folder: Path, tokenizer: WordPiece, config: DataConfig, cancel: CancelToken) -> None:
        self._folder, self._tokenizer, self._config, self._cancel = folder, tokenizer, config, cancel
        self._rows, self._unigrams = HashingWriter(folder / ROWS), HashingWriter(folder / UNIGRAMS)
        self._counts = np.zeros(tokenizer.size, np.int64)
        self._type: np.dtype[np.void] | None = None
        self._first, self._sizes = "", (0, 0)
        self._sources: list[SourceEntry] = []
        self._count = 0

    def add(self, file: Path, split: str, dev_fraction: float) -> None:
        """Appends the records of a file."""
        # The bytes on disk, which also a compressed file's digest is of.
        digest, first = hashlib.sha256(), self._count
        for number, record in enumerate(read_records(file, digest.update), 1):
            self._cancel.check()
            where = f"{file}: record {number:,}"
            try:
                features = features_of(record)
            except (ValueError, IndexError, OverflowError):
                raise DataError(f"{where} is no tf.train.Example; {_AGAIN}") from None
            self._rows.write(self._row(features, where).tobytes())
            self._count += 1
        count = self._count - first
        if not count:
            raise DataError(f"{file}: holds no record; leave the file out")
        # At least one record, and never all of them.
        # Of a single record nothing can be held out.
        held = min(max(round(count * dev_fraction), 1), count - 1) if dev_fraction else 0
        # Rows first … cut-1 are to train on, the others are held out.
        cut = first if split == "dev" else self._count - held
        self._count_labels(first, cut)
        self._sources.append(
            {
                "name": file.name,
                "size": file.stat().st_size,
                "sha256": digest.hexdigest(),
                "split": split,
                "records": [first, cut, self._count],
            }
        )

    def _row(self, features: dict[str, NDArray[np.generic]], where: str) -> NDArray[np.void]:
        """Returns a record's row. Raises: DataError for what does not fit the first record, or the vocabulary."""
        for name in FEATURES:
            if name not in features or (features[name].dtype.kind == "f") != (name == FLOATS):
                what = "is no list of " + ("floats" if name == FLOATS else "whole numbers")
                raise DataError(
                    f"{where} has no {name}; this reads records of create_pretraining_data.py"
                    if name not in features
                    else f"{where}: {name} {what}; {_AGAIN}"
                )
        if self._type is None:
            # The first record says how long all of them are: a model has one shape.
            length, predictions = len(features["input_ids"]), len(features["masked_lm_ids"])
            if not 0 < length < 1 << 16 or not predictions:
                raise DataError(f"{where} has {length:,} tokens, {predictions:,} of them to predict; {_AGAIN}")
            check_sizes(length, predictions, self._config, where)
            self._type, self._first = row_type(length, predictions, self._tokenizer.size), where
            self._sizes = length, predictions
        row = np.zeros(1, self._type)
        length, predictions = self._sizes
        for name in FEATURES:
            wanted = 1 if name.startswith("next") else predictions if name.startswith("masked") else length
            if len(features[name]) != wanted:
                raise DataError(
                    f"{where}: {name} has {len(features[name]):,} values, and {wanted:,} in {self._first}; give files "
                    "of one length and one number of predictions"
                )
        if wrong := self._misfit(features, length):
            raise DataError(f"{where}: {wrong}")
        for name in FEATURES:
            if name != "input_mask":
                row[name] = features[name]
        # The mask is its number of ones: half the places of a row would say nothing else.
        row["tokens"] = int(features["input_mask"].sum())
        return row

    def _misfit(self, features: dict[str, NDArray[np.generic]], length: int) -> str:
        """Returns what is wrong with the values of a record, or ""."""
        tokenizer = self._tokenizer
        for name in ("input_ids", "masked_lm_ids"):
            if (largest := int(features[name].max())) >= tokenizer.size:
                # Negative numbers are read as if they had 64 bits.
                largest = largest - (1 << 64) if largest >= 1 << 63 else largest
                return (
                    f"{name} has the id {largest}, and the vocabulary {tokenizer.size:,} pieces; give the vocabulary "
                    "that the records were made with: --data.tokenizer VOCAB"
                )
        # Another vocabulary may have as many pieces: every sequence begins with [CLS].
        if (id := int(features["input_ids"][0])) != tokenizer.cls:
            return (
                f"begins with the id {id}, {tokenizer.token(id)!r} in the vocabulary, and not with [CLS]; give the "
                "vocabulary that the records were made with: --data.tokenizer VOCAB"
            )
        # The backbone's attention could take any mask, but positions count from the first token on.
        mask = features["input_mask"]
        if not np.array_equal(mask, np.arange(length) < mask.sum()) or not mask[0]:
            return f"input_mask is not ones and then zeros; {_AGAIN}"
        for name in ("segment_ids", "next_sentence_labels"):
            if features[name].max() > 1:
                return f"{name} holds another number than 0 and 1; {_AGAIN}"
        # Free slots point to place 0, and weigh nothing.
        if features["masked_lm_positions"].max() >= mask.sum():
            return f"masked_lm_positions has a place behind the {int(mask.sum())} tokens; {_AGAIN}"
        weights = features[FLOATS].astype(np.float64)
        # Written so that NaN is refused too.
        return "" if (weights >= 0).all() and weights.max() < np.inf else f"{FLOATS} holds {weights.min()}; {_AGAIN}"

    def _count_labels(self, first: int, end: int) -> None:
        """Counts what is to be predicted in rows first … end-1."""
        assert self._type is not None
        self._rows.file.flush()
        file, width = File(self._rows.path), self._type.itemsize
        for at in range(first, end, _BLOCK):
            # Read back in blocks, since which rows are held out is known at the end of the file only.
            rows = np.frombuffer(file.read((min(at + _BLOCK, end) - at) * width, at * width), self._type)
            # Free slots hold id 0, which nobody is to predict.
            labels = rows["masked_lm_ids"][rows[FLOATS] > 0]
            self._counts += np.bincount(labels, minlength=len(self._counts))

    def finish(self) -> None:
        """Writes what is known at the end. Raises: DataError where nothing is left to train on."""
        # Possible where all files are held out, or have a single record each.
        if not any(source["records"][0] < source["records"][1] for source in self._sources):
            raise DataError("no record to train on; give more of them as data.path")
        self._unigrams.write(self._counts.astype("<i8").tobytes())
        self._tokenizer.save(self._folder / "tokenizer")
        index = {
            "format": 1,
            "kind": KIND,
            "tokenizer": self._tokenizer.fingerprint,
            "vocabulary": self._tokenizer.size,
            "length": self._sizes[0],
            "predictions": self._sizes[1],
            "sources": self._sources,
            "files": {out.path.name: out.entry() for out in (self._rows, self._unigrams)},
        }
        text = json.dumps({**index, "fingerprint": fingerprint_of(index)}, indent=2)
        (self._folder / INDEX).write_text(text, "utf-8")

    def close(self) -> None:
        close_all((self._rows, self._unigrams))


def _spans(sources: Sequence[SourceEntry], split: str) -> tuple[I64, I64]:
    """Returns the first rows of a split's spans and how many each has, i64 [n] each."""
    spans = []
    for source in sources:
        first, cut, last = source["records"]
        first, last = (first, cut) if split == "train" else (cut, last)
        if first < last:
            spans.append((first, last - first))
    firsts, counts = np.array(spans, np.int64).reshape(-1, 2).T
    return firsts, counts
