"""Examples of a task → tokens and answers, once and in bounded memory: into a folder, or a chunk at a time."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from contexture.data import rng
from contexture.data.binary_files import I64, HashingWriter, close_all, fingerprint_of
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.config import TaskConfig
from contexture.data.errors import DataError
from contexture.data.storage import atomic_folder
from contexture.data.tasks.example_store import (
    ANSWER,
    END,
    FILE,
    FORMAT,
    INDEX,
    LINE,
    SPLITS,
    WORDS,
    A,
    B,
    Column,
    ExampleSplit,
    ExampleStore,
    Memory,
    sha256_of,
    tokens_of,
)
from contexture.data.tasks.examples import ChoiceExample, Example, Pair, Tagged, Text
from contexture.data.tasks.file_report import FileReport
from contexture.data.tasks.labels import Labels, alternatives, answer, usual_alternatives
from contexture.data.tasks.read_examples import check_sources, examples, open_source, source_of
from contexture.data.tasks.word_alignment import cut_words, encode_checked, unknown_ids
from contexture.data.text.sources import shared
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.open_vocabulary import OpenVocabulary
from contexture.data.tokenizers.word_level import Words

T = TypeVar("T")
CHUNK = 4096
"""Examples encoded together."""


@dataclass(frozen=True)
class EncodedChunk:
    """A chunk of examples, encoded: rows i64 [n · choices, 6] (places counted from the chunk's first token), tokens,
    tags."""

    rows: I64
    tokens: NDArray[np.uint32]
    tags: NDArray[np.int32] | None
    choices: int = 1


def reader(tokenizer: Tokenizer) -> Tokenizer | OpenVocabulary:
    """What numbers the tokens of examples: the tokenizer itself; of one of words, what numbers any word."""
    return OpenVocabulary(tokenizer) if isinstance(tokenizer, Words) else tokenizer


def encode_chunk(
    found: Sequence[Example],
    kind: str,
    tokenizer: Tokenizer | OpenVocabulary,
    labels: Labels,
    file: int,
    report: FileReport | None = None,
) -> EncodedChunk:
    """Tokenises examples and numbers their answers. A text or a word without a piece is read as the unknown token,
    which `report` counts.

    Raises: DataError with file:line for an unknown label, a number that is none, more or fewer alternatives than others
    have.
    """
    report = report or FileReport("examples", tokenizer)
    choices = alternatives(found, labels) if kind == "choice" else 1
    rows = np.full((len(found) * choices, 6), -1, np.int64)
    rows[:, FILE] = file
    tags: list[list[int]] | None = None
    if kind == "tag":
        tagged = [example for example in found if isinstance(example, Tagged)]
        lines, places = cut_words(tagged, tokenizer, report)
        tags = [[-1] * len(line) for line in lines]
        for example, marks, place in zip(tagged, tags, places, strict=True):
            for at, tag in zip(place, example.tags or ("",) * len(place), strict=True):
                marks[at] = labels.number(tag, example.origin) if example.tags is not None else 0
    else:
        plain = [example for example in found if not isinstance(example, Tagged)]
        read = _rows(plain, tokenizer, report)
        lines = [a + (b or []) for a, b in read]
        rows[:, B] = [-1 if b is None else len(a) for a, b in read]
        rows[:, ANSWER] = np.repeat([answer(example, kind, labels) for example in plain], choices)
    ends = np.cumsum([len(line) for line in lines])
    rows[:, END], rows[:, A] = ends, ends - [len(line) for line in lines]
    rows[:, B] += np.where(rows[:, B] >= 0, rows[:, A], 0)
    rows[:, LINE] = np.repeat([int(example.origin.rpartition(":")[2]) for example in found], choices)
    total = int(ends[-1])
    flat_tags = None if tags is None else np.fromiter(chain.from_iterable(tags), np.int32, total)
    return EncodedChunk(rows, np.fromiter(chain.from_iterable(lines), np.uint32, total), flat_tags, choices)


def _rows(
    found: Sequence[Text | Pair | ChoiceExample], tokenizer: Tokenizer | OpenVocabulary, report: FileReport
) -> list[tuple[list[int], list[int] | None]]:
    """The pieces of each row's first text and of its second, where it has one; a choice has a row for each
    alternative."""
    texts = [_texts(example) for example in found]
    origins = [example.origin for example, several in zip(found, texts, strict=True) for _ in several]
    flat = list(chain.from_iterable(texts))
    lines = encode_checked(flat, origins, tokenizer)
    unknown = unknown_ids(tokenizer)
    for place, (text, ids) in enumerate(zip(flat, lines, strict=True)):
        if not ids:
            lines[place] = unknown
            if text:  # an empty one is counted by its reader
                report.read_unspelled(f"the text {text[:40]!r}", origins[place])
    report.count_tokens(flat, lines)
    pieces = iter(lines)
    rows: list[tuple[list[int], list[int] | None]] = []
    for read in texts:
        first, *others = [next(pieces) for _ in read]
        rows += [(first, other) for other in others or [None]]
    return rows


def _texts(example: Text | Pair | ChoiceExample) -> tuple[str, ...]:
    if isinstance(example, Pair):
        return example.first, example.second
    return (example.text, *example.choices) if isinstance(example, ChoiceExample) else (example.text,)


def same_shape(coded: EncodedChunk, pair: bool | None, origin: str) -> bool:
    """Whether the examples are pairs; origin: that of one of them. Raises: DataError where one is not what the others
    were."""
    found = coded.rows[:, B] >= 0
    pair = bool(found[0]) if pair is None else pair
    if len(others := np.flatnonzero(found != pair)):
        at, kinds = f"{origin.rpartition(':')[0]}:{coded.rows[others[0], LINE]}", ("a single text", "a pair of texts")
        raise DataError(
            f"{at}: {kinds[not pair]}, and {kinds[pair]} is what was learned from; name the columns: --task.text "
            "(and --task.second), or in predict --text (and --second)"
        )
    return pair


def in_memory(
    coded: EncodedChunk,
    kind: str,
    labels: tuple[str, ...],
    source: str,
    symmetric: bool = False,
    char_ids: NDArray[np.uint16] | None = None,
) -> ExampleSplit:
    """A chunk as a split of its own."""
    tags = None if coded.tags is None else Column(Memory(coded.tags), np.dtype("<i4"))
    longest = int(tokens_of(coded.rows, char_ids is not None).max())
    rows, tokens = Column(Memory(coded.rows), np.dtype("<i8"), 6), Column(Memory(coded.tokens), np.dtype("<u4"))
    many = len(coded.rows) // coded.choices
    return ExampleSplit(kind, labels, (source,), many, longest, rows, tokens, tags, coded.choices, symmetric, char_ids)


MOST_BATCH = 1 << 14
"""Lines that a model is asked about at once: a mistyped number is refused, and takes no memory."""


def check_batch(batch: int, unit: str = "lines") -> None:
    """Raises: DataError for a batch of no lines, or of more than MOST_BATCH."""
    if batch < 1:
        raise DataError(f"batch={batch} is not a positive number of {unit}")
    if batch > MOST_BATCH:
        raise DataError(f"batch={batch} is more than {MOST_BATCH} {unit} at a time; give fewer")


def chunks(found: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    """Lists of at most so many."""
    iterator = iter(found)
    while chunk := list(islice(iterator, size)):
        yield chunk


def encode(
    task: TaskConfig,
    tokenizer: Tokenizer,
    to: Path,
    cancel: CancelToken = NEVER,
    labels: Sequence[str] = (),
    pair: bool | None = None,
) -> ExampleStore:
    """Encodes task.train and task.dev into the folder `to` and opens it.

    labels, pair: those of a run that is already trained, instead of task.labels and what train holds; then task.train
    may be empty. The folder appears when it is whole; what `cancel` raises stops the work and leaves nothing behind.

    Raises: DataError for what `examples` and `encode_chunk` refuse, and where examples of train are held out too.
    """
    check_sources(task.train, "task.train")
    check_sources(task.dev, "task.dev")
    _apart(task)
    with atomic_folder(to) as part:
        writer = _Writer(part, task, tokenizer, Labels(labels or task.labels, bool(task.labels)), pair)
        try:
            for path in task.train:
                writer.add(path, "train", cancel)
            writer.close_labels()
            for path in task.dev:
                writer.add(path, "dev", cancel)
            writer.finish()
        except BaseException:
            writer.close()
            raise
    return ExampleStore.open(to)


def _apart(task: TaskConfig) -> None:
    """Raises: DataError where what is learned from is held out too."""
    train = [open_source(path) for path in task.train]
    for name, paths in (("task.dev", task.dev), ("task.test", task.test)):
        for path in paths:
            if (path.startswith("tfds:") or os.path.isfile(path)) and shared([*train, open_source(path)]):
                raise DataError(f"{path}: {name} names examples of task.train too; keep held-out examples apart")


class _Writer:
    def __init__(self, folder: Path, task: TaskConfig, tokenizer: Tokenizer, labels: Labels, pair: bool | None) -> None:
        self.pair = pair
        self.folder, self.task, self.labels = folder, task, labels
        self.tokenizer = reader(tokenizer)
        spells = isinstance(self.tokenizer, OpenVocabulary)
        self.dtype = np.dtype("<u4" if spells or tokenizer.size > 1 << 16 else "<u2")
        columns = ("rows", "tokens", "tags") if task.kind == "tag" else ("rows", "tokens")
        self.files = {
            f"{split}-{name}": HashingWriter(folder / f"{split}-{name}.bin") for split in SPLITS for name in columns
        }
        self.splits = {name: {"examples": 0, "tokens": 0, "longest": 0} for name in SPLITS}
        self.sources: list[dict[str, Any]] = []
        self.counts = np.zeros(0, np.int64)
        self._read = 0

    def add(self, path: str, split: str, cancel: CancelToken) -> None:
        source = source_of(path)
        if source["name"] in [other["name"] for other in self.sources]:
            source["name"] = path  # so that every example has an id of its own
        self.sources.append({**source, "sha256": sha256_of(path), "split": split})
        fraction = self.task.dev_fraction if split == "train" else 0.0
        report = FileReport(Path(path).name, self.tokenizer)
        for read in chunks(examples(path, self.task, labelled=True, report=report)):
            cancel.check()
            if self.task.kind == "choice":
                self.labels.number_alternatives(usual_alternatives(read))
            chunk = [example for example in read if self._is_answered(example, report)]
            if not chunk:
                continue
            coded = encode_chunk(chunk, self.task.kind, self.tokenizer, self.labels, len(self.sources) - 1, report)
            self.pair = same_shape(coded, self.pair, chunk[0].origin)
            if self.task.symmetric and not self.pair:
                raise DataError(
                    f"{chunk[0].origin}: a single text, and task.symmetric reads pairs in both orders; name the second "
                    "text's column, --task.second, or leave task.symmetric out"
                )
            numbers = np.arange(self._read, self._read + len(chunk))
            self._read += len(chunk)
            held = rng.uniform(rng.random_bits(rng.key(rng.HELD_OUT), numbers)) < fraction
            self._write(coded, split, np.flatnonzero(~held))
            self._write(coded, "dev", np.flatnonzero(held))
        report.finish()

    def _is_answered(self, example: Example, report: FileReport) -> bool:
        """Whether the answer of an example is one; else `report` counts it."""
        try:
            if isinstance(example, Tagged):
                for tag in example.tags or ():
                    self.labels.number(tag, example.origin)
            else:
                if isinstance(example, ChoiceExample):
                    alternatives([example], self.labels)
                answer(example, self.task.kind, self.labels)
        except DataError as error:
            report.leave_out(error)
            return False
        return True

    def _write(self, coded: EncodedChunk, split: str, chosen: NDArray[np.intp]) -> None:
        if not len(chosen):
            return
        chosen_rows = (chosen[:, None] * coded.choices + np.arange(coded.choices)).ravel()
        counts, rows = self.splits[split], coded.rows[chosen_rows].copy()
        kept = np.zeros(len(coded.rows), bool)
        kept[chosen_rows] = True
        spans = np.flatnonzero(np.repeat(kept, coded.rows[:, END] - coded.rows[:, A]))
        lengths = rows[:, END] - rows[:, A]
        shift = counts["tokens"] + np.cumsum(lengths) - lengths - rows[:, A]
        rows[:, B] = np.where(rows[:, B] >= 0, rows[:, B] + shift, -1)
        rows[:, A] += shift
        rows[:, END] += shift
        self.files[f"{split}-rows"].write(rows.astype("<i8").tobytes())
        self.files[f"{split}-tokens"].write(coded.tokens[spans].astype(self.dtype).tobytes())
        answers = rows[:: coded.choices, ANSWER]
        if coded.tags is not None:
            tags = coded.tags[spans]
            self.files[f"{split}-tags"].write(tags.astype("<i4").tobytes())
            answers = tags[tags >= 0]
        counts["examples"] += len(chosen)
        counts["tokens"] += len(spans)
        counts["longest"] = max(
            counts["longest"], int(tokens_of(rows, isinstance(self.tokenizer, OpenVocabulary)).max())
        )
        if split == "train" and self.task.kind != "regress":
            found = np.bincount(answers, minlength=max(len(self.labels.numbers), len(self.counts)))
            self.counts = found + np.pad(self.counts, (0, len(found) - len(self.counts)))

    def close_labels(self) -> None:
        """Gives the labels their sorted numbers, in what was written too."""
        if self.labels.closed or self.task.kind == "regress":
            return
        renumbered = self.labels.close()
        counts = np.zeros(len(renumbered), np.int64)
        counts[renumbered[: len(self.counts)]] = self.counts
        self.counts = counts
        for split in SPLITS:
            name = f"{split}-{'tags' if self.task.kind == 'tag' else 'rows'}"
            old = self.files[name]
            old.file.seek(0)
            new = HashingWriter(self.folder / f"{name}.renumbered")
            width, dtype = (1, "<i4") if self.task.kind == "tag" else (6, "<i8")
            while raw := old.file.read(width * 8 * (1 << 16)):
                table = np.frombuffer(raw, dtype).reshape(-1, width).copy()
                answers = table[:, -1]
                table[:, -1] = np.where(answers >= 0, renumbered[answers], -1)
                new.write(table.tobytes())
            old.file.close()
            os.replace(new.path, old.path)
            new.path = old.path
            self.files[name] = new

    def finish(self) -> None:
        """Checks what was read, and writes the index."""
        kind, labels = self.task.kind, list(self.labels.numbers)
        if self.task.train and not self.splits["train"]["examples"]:
            raise DataError(f"{self.sources[0]['name']}: nothing is left to learn from; lower --task.dev-fraction")
        if self.task.dev_fraction and not self.splits["dev"]["examples"]:
            raise DataError(
                f"task.dev-fraction={self.task.dev_fraction} holds out none of "
                f"{self.splits['train']['examples']} examples; raise it, or give --task.dev"
            )
        if kind != "regress" and self.task.train and len(labels) < 2:
            raise DataError(
                f"{self.sources[0]['name']}: every example has the label {labels[0]!r}, so there is nothing to learn; "
                "see that --task.label names the right column"
            )
        if isinstance(self.tokenizer, OpenVocabulary):
            self.files[WORDS] = HashingWriter(self.folder / WORDS)
            self.files[WORDS].write(self.tokenizer.file())
        self.close()
        index: dict[str, Any] = {
            "format": FORMAT,
            "kind": kind,
            "tokenizer": self.tokenizer.fingerprint,
            "dtype": self.dtype.str,
            "labels": labels,
            "pair": bool(self.pair),
            "counts": self.counts.tolist(),
            "splits": self.splits,
            "sources": self.sources,
            "files": {out.path.name: out.entry() for out in self.files.values()},
        }
        if kind == "choice":
            index["choices"] = len(labels)
        if self.task.symmetric:
            index["symmetric"] = True
        index["fingerprint"] = fingerprint_of(index)
        (self.folder / INDEX).write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n", "utf-8")

    def close(self) -> None:
        close_all(self.files.values())
