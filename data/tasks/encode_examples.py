"""Examples of a task → tokens and answers, once and in bounded memory: into a folder, or a chunk at a time."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from contexture.data import rng
from contexture.data.binary_files import I64, HashingWriter, close_all, fingerprint_of
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.config import TaskConfig
from contexture.data.errors import DataError
from contexture.data.storage import atomic_file, atomic_folder
from contexture.data.tasks.example_store import (
    FORMAT,
    INDEX,
    ROW,
    SPLITS,
    WORDS,
    Column,
    ExampleSplit,
    ExampleStore,
    Memory,
    Rows,
    SourceEntry,
    SplitCounts,
    sha256_of,
    tokens_of,
)
from contexture.data.tasks.example_tokens import tagged_tokens, text_tokens
from contexture.data.tasks.examples import ChoiceExample, Example, Tagged
from contexture.data.tasks.file_report import FileReport
from contexture.data.tasks.labels import Labels, alternatives, answer, usual_alternatives
from contexture.data.tasks.read_examples import check_sources, examples, open_source, source_of
from contexture.data.text.columnar import is_saved
from contexture.data.text.sources import shared
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.open_vocabulary import OpenVocabulary
from contexture.data.tokenizers.word_level import Words

T = TypeVar("T")
CHUNK = 4096
"""Examples encoded together."""
_AT_ONCE = 1 << 16
"""Answers that get their final numbers together."""
_TAG = np.dtype("<i4")


@dataclass(frozen=True)
class EncodedChunk:
    """A chunk of examples, encoded: rows [n · choices], whose places are counted from the chunk's first token; tokens;
    tags."""

    rows: Rows
    tokens: NDArray[np.uint32]
    tags: NDArray[np.int32] | None
    choices: int = 1


def reader(tokenizer: Tokenizer) -> Tokenizer | OpenVocabulary:
    """Returns the encoder of a task's examples: the tokenizer itself; for words, an open vocabulary that numbers any
    word."""
    return OpenVocabulary(tokenizer) if isinstance(tokenizer, Words) else tokenizer


def encode_chunk(
    chunk: Sequence[Example],
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
    choices = alternatives(chunk, labels) if kind == "choice" else 1
    rows = np.full(len(chunk) * choices, -1, ROW)
    rows["file"] = file
    rows["line"] = np.repeat([int(example.origin.rpartition(":")[2]) for example in chunk], choices)

    tags: list[list[int]] | None = None
    if kind == "tag":
        # Words, and a tag for each: the answer stands beside the tokens, and the row has none.
        pieces, tags = tagged_tokens([x for x in chunk if isinstance(x, Tagged)], tokenizer, labels, report)
    else:
        # One text or two. The second lies behind the first; its place is known once all ends are.
        plain = [x for x in chunk if not isinstance(x, Tagged)]
        texts = text_tokens(plain, tokenizer, report)
        pieces = [first + (second or []) for first, second in texts]
        rows["b"] = [-1 if second is None else len(first) for first, second in texts]
        rows["answer"] = np.repeat([answer(example, kind, labels) for example in plain], choices)

    lengths = np.array([len(ids) for ids in pieces], np.int64)
    rows["end"] = np.cumsum(lengths)
    rows["a"] = rows["end"] - lengths
    rows["b"] += np.where(rows["b"] >= 0, rows["a"], 0)

    total = int(lengths.sum())
    flat_tags = None if tags is None else np.fromiter(chain.from_iterable(tags), np.int32, total)
    return EncodedChunk(rows, np.fromiter(chain.from_iterable(pieces), np.uint32, total), flat_tags, choices)


def same_shape(encoded: EncodedChunk, pair: bool | None, origin: str) -> bool:
    """Returns whether the examples are pairs; origin: that of one of them. Raises: DataError where one differs from the
    others, or from `pair`."""
    is_pair = encoded.rows["b"] >= 0
    pair = bool(is_pair[0]) if pair is None else pair
    if len(others := np.flatnonzero(is_pair != pair)):
        at = f"{origin.rpartition(':')[0]}:{encoded.rows['line'][others[0]]}"
        kinds = ("a single text", "a pair of texts")
        raise DataError(
            f"{at}: {kinds[not pair]}, and {kinds[pair]} is what was learned from; name the columns: --task.text "
            "(and --task.second), or in predict --text (and --second)"
        )
    return pair


def in_memory(
    encoded: EncodedChunk,
    kind: str,
    labels: tuple[str, ...],
    source: str,
    symmetric: bool = False,
    char_ids: NDArray[np.uint16] | None = None,
) -> ExampleSplit:
    """Returns a chunk as a split of its own."""
    tags = None if encoded.tags is None else Column(Memory(encoded.tags), _TAG)
    longest = int(tokens_of(encoded.rows, char_ids is not None).max())
    rows, tokens = Column(Memory(encoded.rows), ROW), Column(Memory(encoded.tokens), np.dtype("<u4"))
    choices = encoded.choices
    count = len(encoded.rows) // choices
    return ExampleSplit(kind, labels, (source,), count, longest, rows, tokens, tags, choices, symmetric, char_ids)


MAX_BATCH = 1 << 14
"""Sequences in one batch of a prediction: a mistyped number is refused, and takes no memory."""


def check_batch(batch: int, unit: str = "sentences") -> None:
    """Raises: DataError for an empty batch, or one of more than MAX_BATCH."""
    if batch < 1:
        raise DataError(f"batch={batch} is not a positive number of {unit}")
    if batch > MAX_BATCH:
        raise DataError(f"batch={batch} is more than {MAX_BATCH} {unit} at a time; give fewer")


def chunks(items: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    """Yields lists of at most `size` items."""
    iterator = iter(items)
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

    labels, pair: those of a run that is already trained, instead of task.labels and the shape of train's examples; then
    task.train may be empty. The folder appears when it is whole; what `cancel` raises stops the work and leaves nothing
    behind.

    Raises: DataError for files that `examples` and `encode_chunk` refuse, and where examples of train are held out too.
    """
    check_sources(task.train, "task.train")
    check_sources(task.dev, "task.dev")
    _apart(task)
    with atomic_folder(to) as part:
        writer = _Writer(part, task, tokenizer, Labels(labels or task.labels, bool(task.labels)), pair)
        try:
            for path in task.train:
                writer.add(path, "train", cancel)
            # From here on a new label is an error: the model would have no output for it.
            writer.close_labels()
            for path in task.dev:
                writer.add(path, "dev", cancel)
            writer.finish()
        except BaseException:
            writer.close()
            raise
    return ExampleStore.open(to)


def _apart(task: TaskConfig) -> None:
    """Raises: DataError where training examples are held out too."""
    train = [open_source(path) for path in task.train]
    for name, paths in (("task.dev", task.dev), ("task.test", task.test)):
        for path in paths:
            exists = path.startswith("tfds:") or os.path.isfile(path) or is_saved(path)
            if exists and shared([*train, open_source(path)]):
                raise DataError(f"{path}: {name} names examples of task.train too; keep held-out examples apart")


def _renumbered(raw: bytes, tagged: bool, numbers: I64) -> bytes:
    """Returns stored rows, or stored tags, with numbers[n] for each label's number n."""
    if tagged:
        tags = np.frombuffer(raw, _TAG)
        return np.where(tags >= 0, numbers[tags], -1).astype(_TAG).tobytes()
    rows = np.frombuffer(raw, ROW).copy()
    rows["answer"] = np.where(rows["answer"] >= 0, numbers[rows["answer"]], -1)
    return rows.tobytes()


class _Writer:
    def __init__(self, folder: Path, task: TaskConfig, tokenizer: Tokenizer, labels: Labels, pair: bool | None) -> None:
        self.pair = pair
        self.folder, self.task, self.labels = folder, task, labels
        self.tokenizer = reader(tokenizer)
        # How many distinct words an ELMo's examples have is not known beforehand.
        spells = isinstance(self.tokenizer, OpenVocabulary)
        self.dtype = np.dtype("<u4" if spells or tokenizer.size > 1 << 16 else "<u2")
        parts = ("rows", "tokens", "tags") if task.kind == "tag" else ("rows", "tokens")
        self.files = {
            f"{split}-{name}": HashingWriter(folder / f"{split}-{name}.bin") for split in SPLITS for name in parts
        }
        self.splits: dict[str, SplitCounts] = {name: {"examples": 0, "tokens": 0, "longest": 0} for name in SPLITS}
        self.sources: list[SourceEntry] = []
        self.counts = np.zeros(0, np.int64)
        """How often each label stands in train, by its number."""
        self._read = 0
        """Examples so far, which are held out by their numbers."""

    def add(self, path: str, split: str, cancel: CancelToken) -> None:
        """Encodes a file, a chunk at a time."""
        source = source_of(path)
        # Example ids are unique: files with the same name are distinguished by their paths.
        name = path if source["name"] in [other["name"] for other in self.sources] else source["name"]
        self.sources.append({"name": name, "size": source["size"], "sha256": sha256_of(path), "split": split})
        fraction = self.task.dev_fraction if split == "train" else 0.0
        report = FileReport(Path(path).name, self.tokenizer)
        for read in chunks(examples(path, self.task, labelled=True, report=report)):
            cancel.check()
            # The first chunk says how many alternatives there are; examples with more or fewer are then odd.
            if self.task.kind == "choice":
                self.labels.number_alternatives(usual_alternatives(read))
            # Answers are checked before anything is encoded, so that an odd one costs its row and not the chunk.
            chunk = [example for example in read if self._is_answered(example, report)]
            if not chunk:
                continue
            encoded = encode_chunk(chunk, self.task.kind, self.tokenizer, self.labels, len(self.sources) - 1, report)
            self.pair = same_shape(encoded, self.pair, chunk[0].origin)
            if self.task.symmetric and not self.pair:
                raise DataError(
                    f"{chunk[0].origin}: a single text, and task.symmetric reads pairs in both orders; name the second "
                    "text's column, --task.second, or leave task.symmetric out"
                )
            # A number for each example from its own number alone: the same are held out, whatever else is asked for.
            numbers = np.arange(self._read, self._read + len(chunk))
            self._read += len(chunk)
            held = rng.uniform(rng.random_bits(rng.key(rng.HELD_OUT), numbers)) < fraction
            self._write(encoded, split, np.flatnonzero(~held))
            self._write(encoded, "dev", np.flatnonzero(held))
        report.finish()

    def _is_answered(self, example: Example, report: FileReport) -> bool:
        """Returns whether the answer of an example is valid; else `report` counts it."""
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

    def _write(self, encoded: EncodedChunk, split: str, chosen: NDArray[np.intp]) -> None:
        """Writes the chosen examples of a chunk behind those of the split."""
        if not len(chosen):
            return
        counts, choices = self.splits[split], encoded.choices
        chosen_rows = (chosen[:, None] * choices + np.arange(choices)).ravel()
        rows = encoded.rows[chosen_rows].copy()

        # The chosen rows' tokens move together: those of rows that are not chosen fall out from between them.
        kept = np.zeros(len(encoded.rows), bool)
        kept[chosen_rows] = True
        places = np.flatnonzero(np.repeat(kept, encoded.rows["end"] - encoded.rows["a"]))
        # So each row begins behind the split's tokens and those of the chosen rows before it.
        lengths = rows["end"] - rows["a"]
        shift = counts["tokens"] + np.cumsum(lengths) - lengths - rows["a"]
        rows["b"] = np.where(rows["b"] >= 0, rows["b"] + shift, -1)
        rows["a"] += shift
        rows["end"] += shift

        self.files[f"{split}-rows"].write(rows.tobytes())
        self.files[f"{split}-tokens"].write(encoded.tokens[places].astype(self.dtype).tobytes())
        answers = rows["answer"][::choices]
        if encoded.tags is not None:
            tags = encoded.tags[places]
            self.files[f"{split}-tags"].write(tags.astype(_TAG).tobytes())
            answers = tags[tags >= 0]

        counts["examples"] += len(chosen)
        counts["tokens"] += len(places)
        longest = int(tokens_of(rows, isinstance(self.tokenizer, OpenVocabulary)).max())
        counts["longest"] = max(counts["longest"], longest)
        if split == "train" and self.task.kind != "regress":
            # Labels are numbered as they come, so there may be more of them than in the chunk before.
            new = np.bincount(answers, minlength=max(len(self.labels.numbers), len(self.counts)))
            self.counts = new + np.pad(self.counts, (0, len(new) - len(self.counts)))

    def close_labels(self) -> None:
        """Gives the labels their sorted numbers, also in the files.

        Sorted numbers do not depend on the order of the examples, but are known only when all of train was read.
        """
        if self.labels.closed or self.task.kind == "regress":
            return
        renumbered = self.labels.close()
        counts = np.zeros(len(renumbered), np.int64)
        counts[renumbered[: len(self.counts)]] = self.counts
        self.counts = counts
        for split in SPLITS:
            name = f"{split}-{'tags' if self.task.kind == 'tag' else 'rows'}"
            old = self.files[name]
            tagged = self.task.kind == "tag"
            size = _TAG.itemsize if tagged else ROW.itemsize
            old.file.seek(0)
            with atomic_file(old.path) as part:
                new = HashingWriter(part)
                while raw := old.file.read(size * _AT_ONCE):
                    new.write(_renumbered(raw, tagged, renumbered))
                new.file.flush()
            # Open still: held-out examples are written behind these.
            old.file.close()
            new.path = old.path
            self.files[name] = new

    def finish(self) -> None:
        """Checks the examples, and writes the index."""
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
        index: dict[str, object] = {
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
