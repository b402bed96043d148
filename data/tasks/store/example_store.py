"""Tokenised examples of a task: encoded once, then read by number.

    SPLIT-rows.bin      the six fields of `row_type`, of 8 bytes each. A choice has a row for each alternative, its
                        text and the alternative; one of fewer alternatives than others has rows without tokens
                        behind its own
    SPLIT-tokens.bin    u16 (u32 where the vocabulary needs it), one long row of ids without special tokens
    words.json          for an ELMo, whose ids are numbers of words: the words
    SPLIT-tags.bin      i32 beside the tokens, for task.kind=tag: the tag's number at the piece that stands for a word,
                        else -1
    index.json          "format": 1, labels and their counts, sources, size and sha256 of each file, a fingerprint;
                        "choices": rows of an example, "symmetric": true, "context": "document", where they apply

Question answering has a row for each window of a context, and the files of `data.tasks.store.span_store` besides.
A text that is read in windows has a row for each of them, one behind the other, of one file and line.
Sentences that are read within their documents have the file of `data.tasks.store.document_offsets`, and format 2.

Read by position (pread), as shards are: nothing is held or mapped, so memory does not grow with the examples.
`data.tasks.encode.encode_examples` writes the folder.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, NotRequired, TypeAlias, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from contexture.data.binary_files import I64, Column, File, FileEntry, check_bytes, fingerprint_of, misfit
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.config import Context, TaskConfig
from contexture.data.errors import DataError
from contexture.data.plain_files import open_plain, read_plain
from contexture.data.task_kinds import KINDS
from contexture.data.tasks.read.published.publishers import is_published, open_published
from contexture.data.tasks.store.document_offsets import FILE as DOCUMENTS
from contexture.data.tasks.store.document_offsets import DocumentOffsets
from contexture.data.tasks.store.span_store import FILES, LABEL, PLACE, QUESTION, SpanSplit
from contexture.data.text import hub
from contexture.data.text.columnar import INFO, files_of, is_saved
from contexture.data.tokenizers.elmo_char_ids import are_cut
from contexture.data.tokenizers.word_level import char_id_table

FORMATS: dict[Context, int] = {"sentence": 1, "document": 2}
"""The format by data.context: what reads format 1 alone would read sentences without their context."""
INDEX = "index.json"
WORDS = "words.json"
SPLITS = ("train", "dev")
# Of 8 bytes each: places among the tokens of a large set may pass 2**32.
_PLACES = [(name, "<i8") for name in ("a", "b", "end", "file", "line")]


def row_type(kind: str) -> np.dtype[np.void]:
    """Returns what is stored of an example (of each alternative of a choice) of a kind of task.

    a       where its first text begins among the tokens
    b       where its second text begins, -1 for none; the first ends there
    end     where its last text ends
    file    the number of its source
    line    its line there

    and what is right for it: `TaskKind.answer`
    """
    return np.dtype([*_PLACES, KINDS[kind].answer])


Rows: TypeAlias = NDArray[np.void]
"""Examples as `row_type`."""
Answers: TypeAlias = NDArray[np.int32 | np.float64]
"""i32 (numbers of labels) or f64 (of a regression)."""
_MEND = "delete the folder and start the command again"
# What every index has. Keys that only some kinds have are read by `get`.
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


class SplitCounts(TypedDict):
    """A split's entry in index.json."""

    examples: int
    tokens: int
    longest: int
    questions: NotRequired[int]
    """Of question answering, whose `examples` are windows."""
    text_bytes: NotRequired[int]
    texts: NotRequired[int]
    """Of texts in windows, which are the `examples`."""


class SourceEntry(TypedDict):
    """A source's entry in index.json."""

    name: str
    size: int
    sha256: str
    split: str
    left_out: NotRequired[int]
    """Rows that could not be read, where there were any."""


class ExamplesIndex(TypedDict):
    """The content of index.json."""

    format: int
    kind: str
    tokenizer: str
    """The tokenizer's fingerprint."""
    dtype: str
    labels: list[str]
    pair: bool
    counts: list[int]
    splits: dict[str, SplitCounts]
    sources: list[SourceEntry]
    files: dict[str, FileEntry]
    fingerprint: str
    choices: NotRequired[int]
    symmetric: NotRequired[bool]
    context: NotRequired[Context]
    windows: NotRequired[str]
    """task.windows, where texts are read in windows."""
    by_words: NotRequired[bool]
    """Of words that are numbers of a vocabulary; an ELMo's have a file of their own."""


@dataclass(frozen=True)
class ExampleSplit:
    """The examples of one split. labels: the classes or tags in their order, () for a regression."""

    kind: str
    labels: tuple[str, ...]
    sources: tuple[str, ...]
    examples: int
    longest: int
    """Tokens of the longest sequence, special ones at its two ends not counted; with context, of the longest
    document."""
    rows: Column[np.void]
    tokens: Column[np.integer]
    tags: Column[np.int32] | None
    choices: int = 1
    """Rows of an example: of a choice as many as the longest list of alternatives has."""
    symmetric: bool = False
    """Pairs are read in both orders."""
    char_ids: NDArray[np.uint16] | None = None
    """Where tokens are words that are read by their characters: the character ids of each, u16 [n, 50]."""
    spans: SpanSplit | None = None
    """Of question answering: the questions, whose windows are the rows."""
    left_out: int = 0
    """Rows of its files that could not be read."""
    documents: DocumentOffsets | None = None
    """Of sentences that are read within their documents: where these lie among the tokens."""
    by_words: bool = False
    """Whether sequences hold the words of texts alone, and no special tokens."""
    windows: str = "off"
    """How the answers to a text's windows become one: task.windows."""
    texts: int = 0
    """Of texts in windows, how many there are."""

    @property
    def count(self) -> int:
        """How many examples a user gave: a text, or a question, may have several rows."""
        return self.spans.count if self.spans is not None else self.texts if self.windows != "off" else self.examples

    def begins(self, numbers: I64) -> NDArray[np.bool_]:
        """Returns which windows are the first of their text; all where texts have no windows."""
        if self.windows == "off":
            return np.ones(len(numbers), bool)
        # Number 0 is compared with itself here, and is a first window by the last condition.
        rows, before = self.take(numbers), self.take(np.maximum(numbers - 1, 0))
        # The windows of a text have its file and line, one after the other.
        return (rows["file"] != before["file"]) | (rows["line"] != before["line"]) | (numbers == 0)

    @property
    def layout(self) -> "PairLayout":
        """How the two texts of its pairs lie in sequences."""
        return pair_layout(self.kind, self.by_words)

    @property
    def pair(self) -> bool:
        """Whether its examples are pairs of texts."""
        # One look: all examples of a split have the same shape (`same_shape`).
        return self.examples > 0 and bool(self.take(np.zeros(1, np.int64))["b"][0] >= 0)

    @property
    def sequences(self) -> int:
        """How many sequences an example has: alternatives, both orders of a pair, the two texts of a pair."""
        return 2 if self.symmetric or (self.pair and self.layout == "apart") else self.choices

    def take(self, numbers: I64) -> Rows:
        """Rows of examples by their numbers → ROW [n · choices]."""
        return self.rows.read(numbers * self.choices, np.full(len(numbers), self.choices))

    def answers(self) -> Answers:
        """Returns every answer in order: numbers of labels i32 [n] (-1: none) or of tags (one a word), or for a
        regression f64 [n]."""
        # In chunks, since a row is six times as large as its answer.
        parts = [self._answers(self.take(numbers[self.begins(numbers)])) for numbers in self.parts()]
        return np.concatenate(parts) if parts else np.empty(0, np.int32 if KINDS[self.kind].has_classes else np.float64)

    def _answers(self, rows: Rows) -> Answers:
        if self.tags is not None:
            # Only the pieces that words are read at have tags; they are in the order of the words.
            tags = self.tags.read(rows["a"], rows["end"] - rows["a"])
            return tags[tags >= 0]
        # Each alternative of a choice repeats its example's answer.
        answers = rows[KINDS[self.kind].answer[0]][:: self.choices]
        return answers.astype(np.int32) if KINDS[self.kind].has_classes else answers.copy()

    def origin(self, row: np.void) -> str:
        """Returns the file and the line of an example: "train.tsv:7"."""
        return f"{self.sources[int(row['file'])]}:{int(row['line'])}"

    def tokens_of(self, numbers: I64) -> I64:
        """Returns the tokens of the longest sequence of each example, as `longest` counts them."""
        # A sentence is read with as much of its document as fits: at most, its sequence holds the whole document.
        if self.documents is not None:
            return self.documents.lengths(self.take(numbers))
        return self._own_tokens(numbers)

    def _own_tokens(self, numbers: I64) -> I64:
        # Of a choice, the longest of its sequences.
        return tokens_of(self.take(numbers), self.layout).reshape(-1, self.choices).max(1)

    def has_absent(self) -> bool:
        """Returns whether some examples of a choice have fewer alternatives than others."""
        return self.choices > 1 and any(is_absent(self.take(numbers)).any() for numbers in self.parts())

    def parts(self) -> Iterator[I64]:
        """Yields the numbers of all examples, in parts."""
        # In parts, so that the rows of millions of examples are never in memory together.
        for first in range(0, self.examples, 1 << 16):
            yield np.arange(first, min(first + (1 << 16), self.examples))

    def share_of(self, token: int) -> float:
        """Returns the share of all tokens that are `token`."""
        count = total = 0
        for numbers in self.parts():
            rows = self.take(numbers)
            ids = self.tokens.read(rows["a"], rows["end"] - rows["a"])
            count, total = count + int((ids == token).sum()), total + len(ids)
        # max: the share of an empty split is 0.
        return count / max(total, 1)

    def longer_than(self, length: int) -> int:
        """Returns how many examples do not fit a sequence of so many tokens, whatever their context."""
        return sum(int(self.are_longer(numbers, length).sum()) for numbers in self.parts())

    def are_longer(self, numbers: I64, length: int) -> NDArray[np.bool_]:
        """Returns which examples do not fit a sequence of so many tokens; one alternative that is too long is enough.

        Of questions these are windows, which always fit.
        """
        # With the two special tokens at its ends.
        return self._own_tokens(numbers) + 2 > length


def sha256_of(path: str) -> str:
    """Returns the sha256 (hex) of a file's bytes, or of the digests of a saved data set's files; "" for a TFDS set,
    which has digests of its own."""
    if path.startswith("tfds:"):
        return ""
    # The digest of the content, in the cache: the same files have it at any commit.
    if hub.is_address(path):
        return _digest_of(hub.local_files(path))
    # A set in several files, as RACE is, has a digest over all of theirs.
    if is_published(path):
        files = [file for file, _, _ in open_published(path).parts]
        return _digest_of(files) if len(files) > 1 else sha256_of(files[0])
    # A file's bytes as they lie on disk, compressed or not.
    if not os.path.isdir(path):
        with open_plain(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    # With the file that names the classes: other names are other labels.
    return _digest_of([*files_of(Path(path)), *(file for file in [Path(path, INFO)] if file.is_file())])


def _digest_of(files: Sequence[str | Path]) -> str:
    """Returns the sha256 of the digests of several files."""
    # A digest of digests: no file is held, and their order counts.
    return hashlib.sha256("".join(map(sha256_of, map(str, files))).encode()).hexdigest()


PairLayout = Literal["marked", "apart", "joined"]
"""The two texts of a pair: with a special token between them; of an ELMo in a sequence each, or, where one of several
alternatives is chosen, as one sequence of words."""


def pair_layout(kind: str, by_words: bool) -> PairLayout:
    """Returns how a family lays out the pairs of a kind of task."""
    return "marked" if not by_words else "joined" if kind == "choice" else "apart"


def is_absent(rows: Rows) -> NDArray[np.bool_]:
    """Returns which rows hold no alternative, since their example has fewer than others. Each text has a token."""
    return rows["a"] == rows["end"]


def tokens_of(rows: Rows, layout: PairLayout) -> I64:
    """Returns the tokens of each row's sequence, without the special tokens at its two ends, but with the one between
    two texts. Where the texts lie apart, the longer one counts."""
    whole, single = rows["end"] - rows["a"], rows["b"] < 0
    if layout != "apart":
        # One more for the token between two texts.
        return whole + (~single if layout == "marked" else 0)
    # Each text is a sequence of its own; a single text leaves nothing for a second one.
    first = np.where(single, whole, rows["b"] - rows["a"])
    return np.maximum(first, whole - first)


class ExampleStore:
    """A folder of encoded examples, opened for reading by any number of threads."""

    def __init__(self, folder: Path, index: ExamplesIndex) -> None:
        self.folder, self.index = folder, index
        self.kind: str = index["kind"]
        self.labels: tuple[str, ...] = tuple(index["labels"])
        self.counts: tuple[int, ...] = tuple(index["counts"])
        """How often each label occurs in train; empty for a regression."""
        self.pair: bool = index["pair"]
        """Whether the examples are pairs of texts."""
        self.choices: int = index.get("choices", 1)
        """The most alternatives of an example, each a pair with its text; 1 where there is nothing to choose."""
        self.context: Context = index.get("context", "sentence")
        """What its sentences are read with."""
        self.fingerprint: str = index["fingerprint"]
        self._char_ids, self.cut_words = None, 0
        """cut_words: how many of the distinct words of all examples have more bytes than are read."""
        # An ELMo's words are needed whole, as characters; they are checked when they are read, other files by `verify`.
        if WORDS in index["files"]:
            check_bytes(folder / WORDS, index["files"][WORDS]["sha256"], _MEND)
            words = json.loads(read_plain(folder / WORDS))
            self._char_ids, self.cut_words = char_id_table(words), int(are_cut(words).sum())
        # Files stay open as long as the store, and are read by position.
        self.splits = {name: self._split(name) for name in SPLITS}

    def _split(self, name: str) -> ExampleSplit:
        counts, token = self.index["splits"][name], np.dtype(self.index["dtype"])
        # One tag for each token, -1 where no word is read: both files are read by the same places.
        tags = Column(File(self.folder / f"{name}-tags.bin"), np.dtype("<i4")) if self.kind == "tag" else None
        return ExampleSplit(
            self.kind,
            self.labels,
            tuple(source["name"] for source in self.index["sources"]),
            counts["examples"],
            counts["longest"],
            Column(File(self.folder / f"{name}-rows.bin"), row_type(self.kind)),
            Column(File(self.folder / f"{name}-tokens.bin"), token),
            tags,
            self.choices,
            self.index.get("symmetric", False),
            self._char_ids,
            self._spans(name) if self.kind == "span" else None,
            # Counted by file: rows that dev_fraction held out of train's files are not told apart.
            sum(source.get("left_out", 0) for source in self.index["sources"] if source["split"] == name),
            self._documents(name) if self.context == "document" else None,
            # An ELMo's index leaves it out: its words have a file of their own.
            self.index.get("by_words", self._char_ids is not None),
            self.index.get("windows", "off"),
            counts.get("texts", 0),
        )

    def _documents(self, name: str) -> DocumentOffsets:
        return DocumentOffsets(Column(File(self.folder / f"{name}-{DOCUMENTS}.bin"), np.dtype("<i8")))

    def _spans(self, name: str) -> SpanSplit:
        places, labels, questions, texts = (File(self.folder / f"{name}-{part}.bin") for part in FILES)
        return SpanSplit(
            self.index["splits"][name].get("questions", 0),
            Column(places, PLACE),
            Column(labels, LABEL),
            Column(questions, QUESTION),
            Column(texts, np.dtype("u1")),
        )

    @staticmethod
    def open(folder: Path) -> "ExampleStore":
        """Raises: DataError where the folder holds no examples, or they are not as they were written."""
        file = folder / INDEX
        try:
            index = json.loads(read_plain(file))
        except FileNotFoundError:
            raise DataError(f"{folder}: holds no examples ({INDEX} is missing); {_MEND}") from None
        except (OSError, ValueError, RecursionError):
            raise DataError(f"{file}: cannot be read; {_MEND}") from None
        # The format goes with the context, so that a reader of format 1 alone refuses what it would read wrongly.
        of = FORMATS["document" if isinstance(index, dict) and index.get("context") == "document" else "sentence"]
        if not isinstance(index, dict) or index.get("format") != of:
            got = index.get("format") if isinstance(index, dict) else None
            raise DataError(f"{file}: of format {got!r}, this reads format {of}; {_MEND}")
        # The types first: the fingerprint itself may be missing, and the message then names the key that is wrong.
        if (wrong := misfit(index, _INDEX)) or index["fingerprint"] != fingerprint_of(index):
            raise DataError(f"{file}: damaged ({wrong or 'its content does not match its fingerprint'}); {_MEND}")
        # Sizes cost nothing and are compared now; `verify` compares all bytes.
        for name, entry in index["files"].items():
            size = os.path.getsize(folder / name) if (folder / name).is_file() else None
            if size != entry["size"]:
                raise DataError(f"{folder / name}: missing or not as long as it was written; {_MEND}")
        return ExampleStore(folder, cast(ExamplesIndex, index))

    def sources_changed(self, task: TaskConfig) -> str:
        """Returns a sentence saying how the files that `task` names differ by name or content from those that were
        encoded, or ""."""
        for split, paths in (("train", task.train), ("dev", task.dev)):
            # Files that are gone are no longer needed, nor downloaded again; TFDS sets do not change.
            files = chain.from_iterable(hub.cached_files(path) if hub.is_address(path) else [path] for path in paths)
            for path in map(str, files):
                if path.startswith("tfds:") or not (os.path.isfile(path) or is_saved(path)):
                    continue
                # A file may lie elsewhere now; its content counts.
                name = Path(path).name
                was = [s for s in self.index["sources"] if (s["split"], Path(s["name"]).name) == (split, name)]
                if not was:
                    return f"{path} was not there when {self.folder} was encoded"
                # Files of several folders may share a name: the content of one of them is enough.
                if sha256_of(path) not in [source["sha256"] for source in was]:
                    return f"{path} is not what it was when {self.folder} was encoded"
        return ""

    def verify(self, cancel: CancelToken = NEVER) -> None:
        """Reads every file once and compares it with its digest. Raises: DataError naming one that differs; what
        `cancel` raises to stop the work."""
        for name, entry in self.index["files"].items():
            check_bytes(self.folder / name, entry["sha256"], _MEND, cancel)
