"""Tokenised examples of a task: encoded once, from then on read by number.

    SPLIT-rows.bin      i64 [examples, 6]: where its first text begins among the tokens, its second (-1: none), where it
                        ends, the number of its file, its line there, its answer (a label's number, the bits of a f64,
                        or -1 for none); of task.kind=choice a row for each alternative, its text and the alternative
    SPLIT-tokens.bin    u16 (u32 where the vocabulary needs it), one long row of ids without special tokens
    words.json          of an ELMo, whose ids are numbers of words: the words
    SPLIT-tags.bin      i32 beside the tokens, for task.kind=tag: the tag's number at the piece that stands for a word,
                        else -1
    index.json          "format": 1, labels and their counts, sources, size and sha256 of each file, a fingerprint;
                        "choices": how many alternatives, "symmetric": true, where they have a meaning

Read by position (pread), as shards are: nothing is held or mapped, so memory does not grow with the examples.
`data.tasks.encode_examples` writes the folder.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from contexture.data.binary_files import I64, File, check_bytes, fingerprint_of, joined, misfit
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.config import TaskConfig
from contexture.data.errors import DataError
from contexture.data.plain_files import open_plain, read_plain
from contexture.data.tokenizers.elmo_char_ids import are_cut
from contexture.data.tokenizers.word_level import char_id_table

FORMAT = 1
INDEX = "index.json"
WORDS = "words.json"
SPLITS = ("train", "dev")
A, B, END, FILE, LINE, ANSWER = range(6)
"""The columns of rows."""
_MEND = "delete the folder and start the command again"
_INDEX = {
    "kind": str,
    "tokenizer": str,
    "dtype": str,
    "labels": [str],
    "counts": [int],
    "splits": {name: {"examples": int, "tokens": int, "longest": int} for name in SPLITS},
    "sources": [{"name": str, "size": int, "sha256": str, "split": str}],
    "pair": bool,
    "files": dict,
    "fingerprint": str,
}


class _Bytes(Protocol):
    def read(self, count: int, at: int) -> bytes: ...


class Memory:
    """Bytes by their place, as File gives them."""

    def __init__(self, array: np.ndarray) -> None:
        self._bytes = array.tobytes()

    def read(self, count: int, at: int) -> bytes:
        return self._bytes[at : at + count]


@dataclass(frozen=True)
class Column:
    """Numbers by their place, `width` of them at each."""

    bytes: _Bytes
    dtype: np.dtype
    width: int = 1

    def read(self, starts: I64, lengths: I64) -> NDArray[Any]:
        """Spans joined: starts i64 [n], lengths i64 [n] → [sum of lengths] (or [sum, width])."""
        starts, lengths = joined(starts, lengths)
        size = self.dtype.itemsize * self.width
        spans = zip((lengths * size).tolist(), (starts * size).tolist(), strict=True)
        numbers = np.frombuffer(b"".join(self.bytes.read(count, at) for count, at in spans), self.dtype)
        return numbers.reshape(-1, self.width) if self.width > 1 else numbers


@dataclass(frozen=True)
class ExampleSplit:
    """The examples of one split. labels: the classes or tags in their order, () for a regression."""

    kind: str
    labels: tuple[str, ...]
    sources: tuple[str, ...]
    examples: int
    longest: int
    """Tokens of the longest example's line, special ones at its two ends not counted."""
    rows: Column
    tokens: Column
    tags: Column | None
    choices: int = 1
    """Rows of an example: one for each alternative of a choice."""
    symmetric: bool = False
    """Pairs are read in both orders."""
    char_ids: NDArray[np.uint16] | None = None
    """Where tokens are words that are read letter by letter: what is read of each → [n, 50]."""

    @property
    def pair(self) -> bool:
        """Whether its examples are pairs of texts."""
        return self.examples > 0 and bool(self.take(np.zeros(1, np.int64))[0, B] >= 0)

    def take(self, numbers: I64) -> I64:
        """Rows of examples by their numbers → i64 [n · choices, 6]."""
        return self.rows.read(numbers * self.choices, np.full(len(numbers), self.choices))

    def answers(self) -> NDArray[Any]:
        """Every answer in order: numbers of labels i32 [n] (-1: none) or of tags (one a word), or numbers f64 [n]."""
        parts = [self._answers(first) for first in range(0, self.examples, 1 << 16)]
        return np.concatenate(parts) if parts else np.empty(0, np.float64 if self.kind == "regress" else np.int32)

    def _answers(self, first: int) -> NDArray[Any]:
        rows = self.take(np.arange(first, min(first + (1 << 16), self.examples)))
        if self.tags is not None:
            tags = self.tags.read(rows[:, A], rows[:, END] - rows[:, A])
            return tags[tags >= 0]
        bits = rows[:: self.choices, ANSWER]
        return bits.copy().view(np.float64) if self.kind == "regress" else bits.astype(np.int32)

    def origin(self, row: NDArray[np.int64]) -> str:
        """ "train.tsv:7"."""
        return f"{self.sources[int(row[FILE])]}:{int(row[LINE])}"

    def longer_than(self, length: int) -> int:
        """How many examples do not fit a line of so many tokens."""
        many = 0
        for first in range(0, self.examples, 1 << 16):
            rows = self.take(np.arange(first, min(first + (1 << 16), self.examples)))
            too_long = tokens_of(rows, self.char_ids is not None) + 2 > length
            many += int(too_long.reshape(-1, self.choices).any(1).sum())
        return many


def sha256_of(path: str) -> str:
    """Of a file's bytes (hex); of a TFDS set "", for it has its own."""
    if path.startswith("tfds:"):
        return ""
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tokens_of(rows: I64, apart: bool) -> I64:
    """Tokens of each row's line, the special ones at its two ends not counted, that between two texts counted; apart: a
    pair's texts have a line each, and the longer one counts."""
    whole, single = rows[:, END] - rows[:, A], rows[:, B] < 0
    if not apart:
        return whole + ~single
    first = np.where(single, whole, rows[:, B] - rows[:, A])
    return np.maximum(first, whole - first)


class ExampleStore:
    """A folder of encoded examples, opened for reading by any number of threads."""

    def __init__(self, folder: Path, index: dict[str, Any]) -> None:
        self.folder, self.index = folder, index
        self.kind: str = index["kind"]
        self.labels: tuple[str, ...] = tuple(index["labels"])
        self.counts: tuple[int, ...] = tuple(index["counts"])
        """How often each label stands in train; for a regression nothing."""
        self.pair: bool = index["pair"]
        """Whether the examples are pairs of texts."""
        self.choices: int = index.get("choices", 1)
        """Alternatives of an example, each a pair with its text; 1 where there is nothing to choose."""
        self.fingerprint: str = index["fingerprint"]
        self._char_ids, self.cut_words = None, 0
        """cut_words: of the different words of all examples, how many are longer than what is read of them."""
        if WORDS in index["files"]:
            check_bytes(folder / WORDS, index["files"][WORDS]["sha256"], _MEND)
            words = json.loads(read_plain(folder / WORDS))
            self._char_ids, self.cut_words = char_id_table(words), int(are_cut(words).sum())
        self.splits = {name: self._split(name) for name in SPLITS}

    def _split(self, name: str) -> ExampleSplit:
        counts, token = self.index["splits"][name], np.dtype(self.index["dtype"])
        tags = Column(File(self.folder / f"{name}-tags.bin"), np.dtype("<i4")) if self.kind == "tag" else None
        return ExampleSplit(
            self.kind,
            self.labels,
            tuple(source["name"] for source in self.index["sources"]),
            counts["examples"],
            counts["longest"],
            Column(File(self.folder / f"{name}-rows.bin"), np.dtype("<i8"), 6),
            Column(File(self.folder / f"{name}-tokens.bin"), token),
            tags,
            self.choices,
            self.index.get("symmetric", False),
            self._char_ids,
        )

    @staticmethod
    def open(folder: Path) -> "ExampleStore":
        """Raises: DataError where there is none, or it is not as it was written."""
        file = folder / INDEX
        try:
            index = json.loads(read_plain(file))
        except FileNotFoundError:
            raise DataError(f"{folder}: holds no examples ({INDEX} is missing); {_MEND}") from None
        except (OSError, ValueError, RecursionError):
            raise DataError(f"{file}: cannot be read; {_MEND}") from None
        if not isinstance(index, dict) or index.get("format") != FORMAT:
            got = index.get("format") if isinstance(index, dict) else None
            raise DataError(f"{file}: of format {got!r}, this reads format {FORMAT}; {_MEND}")
        if (wrong := misfit(index, _INDEX)) or index["fingerprint"] != fingerprint_of(index):
            raise DataError(f"{file}: damaged ({wrong or 'its content does not match its fingerprint'}); {_MEND}")
        for name, entry in index["files"].items():
            there = os.path.getsize(folder / name) if (folder / name).is_file() else None
            if there != entry["size"]:
                raise DataError(f"{folder / name}: missing or not as long as it was written; {_MEND}")
        return ExampleStore(folder, index)

    def sources_changed(self, task: TaskConfig) -> str:
        """A sentence saying how the files that `task` names differ by name or content from what was read, or ""."""
        for split, paths in (("train", task.train), ("dev", task.dev)):
            for path in paths:
                if path.startswith("tfds:") or not os.path.isfile(path):
                    continue
                name = os.path.basename(path)
                was = [s for s in self.index["sources"] if (s["split"], os.path.basename(s["name"])) == (split, name)]
                if not was:
                    return f"{path} was not there when {self.folder} was encoded"
                if sha256_of(path) not in [source["sha256"] for source in was]:
                    return f"{path} is not what it was when {self.folder} was encoded"
        return ""

    def verify(self, cancel: CancelToken = NEVER) -> None:
        """Reads every file once and compares it with what was written. Raises: DataError naming one that differs; what
        `cancel` raises to stop the work."""
        for name, entry in self.index["files"].items():
            check_bytes(self.folder / name, entry["sha256"], _MEND, cancel)
