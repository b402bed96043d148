"""Examples of a task → tokens and answers, once and in bounded memory: into a folder, or a chunk at a time."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from contexture.data import rng
from contexture.data.binary_files import I64, HashingWriter, close_all, fingerprint_of
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.config import Context, TaskConfig
from contexture.data.errors import DataError
from contexture.data.storage import atomic_file, atomic_folder
from contexture.data.task_kinds import KINDS
from contexture.data.tasks.encode.example_tokens import (
    EncodedChunk,
    answer,
    encode_chunk,
    reader,
    same_shape,
    window_of,
)
from contexture.data.tasks.encode.windows import SpanChunk, span_layout
from contexture.data.tasks.read.answers import check_placed
from contexture.data.tasks.read.examples import CHUNK, Example, QuestionExample, Tagged, example_chunks
from contexture.data.tasks.read.file_report import FileReport
from contexture.data.tasks.read.labels import Labels
from contexture.data.tasks.read.read_examples import check_documents, checked_files, examples, open_source, source_of
from contexture.data.tasks.store.document_offsets import FILE as DOCUMENTS
from contexture.data.tasks.store.document_offsets import DocumentWriter
from contexture.data.tasks.store.example_store import (
    FORMATS,
    INDEX,
    SPLITS,
    WORDS,
    ExampleStore,
    SourceEntry,
    SplitCounts,
    pair_layout,
    row_type,
    sha256_of,
    tokens_of,
)
from contexture.data.tasks.store.span_store import FILES as SPAN_FILES
from contexture.data.tasks.store.span_store import question_records
from contexture.data.text.columnar import is_saved
from contexture.data.text.sources import shared
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.open_vocabulary import OpenVocabulary
from contexture.data.tokenizers.word_level import StaticWords, WordNumbers

T = TypeVar("T")
_AT_ONCE = 1 << 16
"""Answers that get their final numbers together."""
_TAG = np.dtype("<i4")


def encode(
    task: TaskConfig,
    tokenizer: Tokenizer,
    to: Path,
    cancel: CancelToken = NEVER,
    labels: Sequence[str] = (),
    pair: bool | None = None,
    length: int = 384,
    context: Context = "sentence",
) -> ExampleStore:
    """Encodes task.train and task.dev into the folder `to` and opens it.

    The folder appears when it is whole; what `cancel` raises stops the work and leaves nothing behind.

    Args:
        task: the task.
        tokenizer: the model's vocabulary.
        to: the folder.
        cancel: may raise to stop the work.
        labels: the labels of a run that is already trained, instead of task.labels; then task.train may be empty.
        pair: for such a run, whether its examples are pairs, instead of the shape of train's examples.
        length: tokens of a sequence, into which the contexts of questions are cut.
        context: data.context.

    Raises:
        DataError: for files that `examples` and `encode_chunk` refuse, and where examples of train are held out too.
    """
    task = checked_files(task)
    _apart(task)
    if context == "document":
        check_documents((*task.train, *task.dev))
    with atomic_folder(to) as part:
        # Labels of a trained run, or named by the user, are closed from the beginning: a new one is an error.
        names = Labels(labels or task.labels, bool(task.labels))
        writer = _Writer(part, task, tokenizer, names, pair, length, context)
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
            # What is missing has an error of its own, elsewhere.
            exists = path.startswith(("tfds:", "published:")) or os.path.isfile(path) or is_saved(path)
            if exists and shared([*train, open_source(path)]):
                raise DataError(f"{path}: {name} names examples of task.train too; keep held-out examples apart")


def _renumbered(raw: bytes, tagged: bool, numbers: I64) -> bytes:
    """Returns stored rows, or stored tags, with numbers[n] for each label's number n."""
    if tagged:
        tags = np.frombuffer(raw, _TAG)
        return np.where(tags >= 0, numbers[tags], -1).astype(_TAG).tobytes()
    # A copy: what frombuffer gives cannot be written to.
    rows = np.frombuffer(raw, row_type("classify")).copy()
    rows["label"] = np.where(rows["label"] >= 0, numbers[rows["label"]], -1)
    return rows.tobytes()


class _Writer:
    """A folder of encoded examples while it is written, and what its index will say."""

    def __init__(
        self,
        folder: Path,
        task: TaskConfig,
        tokenizer: Tokenizer,
        labels: Labels,
        pair: bool | None,
        length: int,
        context: Context,
    ) -> None:
        self.context: Context = context
        self.pair, self.layout = pair, span_layout(task, length)
        self.window = window_of(task, length)
        self.folder, self.task, self.labels = folder, task, labels
        self.tokenizer = reader(tokenizer)
        # How many distinct words an ELMo's examples have is not known beforehand.
        spells = isinstance(self.tokenizer, OpenVocabulary)
        self.dtype = np.dtype("<u4" if spells or tokenizer.size > 1 << 16 else "<u2")
        # The files and the counts of a split, as its kind of task has them.
        parts = ("rows", "tokens", *{"tag": ("tags",), "span": SPAN_FILES}.get(task.kind, ()))
        self.files = {
            f"{split}-{name}": HashingWriter(folder / f"{split}-{name}.bin") for split in SPLITS for name in parts
        }
        self.documents = (
            {name: DocumentWriter(folder / f"{name}-{DOCUMENTS}.bin") for name in SPLITS}
            if context == "document"
            else {}
        )
        self.files |= {f"{split}-{DOCUMENTS}": writer for split, writer in self.documents.items()}
        more = {"questions": 0, "text_bytes": 0} if task.kind == "span" else {"texts": 0} if self.window else {}
        self.splits = {name: cast(SplitCounts, {"examples": 0, "tokens": 0, "longest": 0, **more}) for name in SPLITS}
        self.sources: list[SourceEntry] = []
        self.counts = np.zeros(0, np.int64)
        """How often each label occurs in train, by its number; for questions, how many have an answer and how many
        none."""
        self.widths: dict[str, list[tuple[int, int]]] = {name: [] for name in SPLITS}
        """Of a choice, (examples, rows of each) of each chunk in the order of the files."""
        self._read = 0
        """Examples so far, or documents where they are the context of sentences: these are held out by their
        numbers."""

    def add(self, path: str, split: str, cancel: CancelToken) -> None:
        """Encodes a file, a chunk at a time."""
        source = source_of(path)
        # Example ids are unique: files with the same name are distinguished by their paths.
        name = path if source["name"] in [other["name"] for other in self.sources] else source["name"]
        self.sources.append({"name": name, "size": source["size"], "sha256": sha256_of(path), "split": split})
        fraction, before, file = self.task.dev_fraction if split == "train" else 0.0, self._read, len(self.sources) - 1
        trains = bool(self.task.train)
        report = FileReport(Path(path).name, self.tokenizer, bad_rows=self.task.bad_rows, trains=trains)
        for read in example_chunks(examples(path, self.task, labelled=True, report=report)):
            cancel.check()
            # Answers are checked before anything is encoded, so that a wrong one costs its row and not the chunk.
            chunk = [example for example in read if self._is_answered(example, split, report)]
            if not chunk:
                continue
            encoded = encode_chunk(
                chunk, self.task.kind, self.tokenizer, self.labels, report, self.layout, self.context, self.window
            )
            encoded.rows["file"] = file
            self.pair = same_shape(encoded, self.pair, chunk[0].origin)
            if self.task.symmetric and not self.pair:
                raise DataError(
                    f"{chunk[0].origin}: a single text, and task.symmetric reads pairs in both orders; name the second "
                    "text's column, --task.second, or leave task.symmetric out"
                )
            # A number for each example from its own number alone: the same are held out, whatever else is asked for.
            # The sentences of a document are each other's context, and held out together.
            numbers = self._read + np.arange(len(chunk))
            if encoded.documents is not None:
                numbers = before + encoded.documents
            self._read = int(numbers[-1]) + 1
            held = rng.uniform(rng.random_bits(rng.key(rng.HELD_OUT), numbers)) < fraction
            # What is held out of train is added to dev.
            self._write(encoded, split, np.flatnonzero(~held))
            self._write(encoded, "dev", np.flatnonzero(held))
        report.finish()
        if report.left_out:
            self.sources[-1]["left_out"] = report.left_out

    def _is_answered(self, example: Example, split: str, report: FileReport) -> bool:
        """Returns whether the answer of an example is valid; else `report` counts it."""
        try:
            if isinstance(example, Tagged):
                for tag in example.tags or ():
                    self.labels.number(tag, example.origin)
            elif not isinstance(example, QuestionExample):
                answer(example, self.task.kind, self.labels)
            elif split == "train":  # evaluation compares texts, wherever they are
                check_placed(example)
        except DataError as error:
            report.leave_out(error)
            return False
        return True

    def _write(self, encoded: EncodedChunk, split: str, chosen: NDArray[np.intp]) -> None:
        """Appends the chosen examples of a chunk to the split."""
        if not len(chosen):
            return
        counts, choices = self.splits[split], encoded.choices
        chosen_rows = encoded.rows_of(chosen)
        rows = encoded.rows[chosen_rows].copy()

        # The chosen rows' tokens move together: the tokens of the other rows fall out from between them.
        kept = np.zeros(len(encoded.rows), bool)
        kept[chosen_rows] = True
        places = np.flatnonzero(np.repeat(kept, encoded.rows["end"] - encoded.rows["a"]))
        # So each row begins after the split's tokens and the tokens of the chosen rows before it.
        lengths = rows["end"] - rows["a"]
        shift = counts["tokens"] + np.cumsum(lengths) - lengths - rows["a"]
        rows["b"] = np.where(rows["b"] >= 0, rows["b"] + shift, -1)
        rows["a"] += shift
        rows["end"] += shift

        if encoded.documents is not None:
            file = int(rows["file"][0])
            rows["document"] = self.documents[split].number(file, encoded.documents[chosen], rows["a"])
        if encoded.spans is not None:
            rows["question"] = self._write_spans(encoded.spans, split, chosen, chosen_rows, places, rows["question"])

        self.files[f"{split}-rows"].write(rows.tobytes())
        self.files[f"{split}-tokens"].write(encoded.tokens[places].astype(self.dtype).tobytes())
        # One answer an example: its first row has it.
        answers = rows[KINDS[self.task.kind].answer[0]][::choices]
        if encoded.owners is not None:
            # The windows of a text share its answer, which counts once.
            answers = answers[np.unique(encoded.owners[chosen_rows], return_index=True)[1]]
            counts["texts"] = counts.get("texts", 0) + len(chosen)
        if encoded.tags is not None:
            tags = encoded.tags[places]
            self.files[f"{split}-tags"].write(tags.astype(_TAG).tobytes())
            # Only the pieces that words are read at have a tag.
            answers = tags[tags >= 0]

        if self.task.kind == "choice":
            # The chunk has as many rows an example as its own longest list; `_widen` adds the others.
            self.widths[split].append((len(rows) // choices, choices))
        counts["examples"] += len(rows) // choices
        counts["tokens"] += len(places)
        longest = int(tokens_of(rows, pair_layout(self.task.kind, isinstance(self.tokenizer, WordNumbers))).max())
        counts["longest"] = max(counts["longest"], longest)
        if split == "train" and KINDS[self.task.kind].has_classes:
            # Labels are numbered as they come, so there may be more of them than in the chunk before.
            new = np.bincount(answers, minlength=max(len(self.labels.numbers), len(self.counts)))
            self.counts = new + np.pad(self.counts, (0, len(new) - len(self.counts)))

    def _write_spans(
        self,
        spans: SpanChunk,
        split: str,
        chosen: NDArray[np.intp],
        windows: NDArray[np.intp],
        tokens: NDArray[np.intp],
        owners: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Writes the chosen questions of a chunk, their windows' labels and their tokens' places. owners: the question
        of each window. Returns their numbers within the split."""
        counts = self.splits[split]
        questions = [spans.examples[number] for number in chosen]
        texts_before = counts.get("text_bytes", 0)
        records, texts = question_records(questions, [spans.windows[number] for number in chosen], texts_before)
        written = (spans.places[tokens], spans.labels[windows], records)
        for name, content in zip(SPAN_FILES, [*(x.tobytes() for x in written), texts], strict=True):
            self.files[f"{split}-{name}"].write(content)
        # From a question's number in the chunk to its number in the split.
        numbers = counts.get("questions", 0) + np.searchsorted(chosen, owners)
        counts["questions"] = counts.get("questions", 0) + len(chosen)
        counts["text_bytes"] = texts_before + len(texts)
        if split == "train":
            without = sum(not question.answers for question in questions)
            # With an answer, and without.
            self.counts = np.pad(self.counts, (0, 2 - len(self.counts))) + [len(questions) - without, without]
        return numbers

    def close_labels(self) -> None:
        """Gives the labels their sorted numbers, also in the files.

        Sorted numbers do not depend on the order of the examples, but are known only when all of train was read.
        """
        if self.labels.closed or not KINDS[self.task.kind].has_classes:
            return
        renumbered = self.labels.close()
        # The counts move to the new numbers too.
        counts = np.zeros(len(renumbered), np.int64)
        counts[renumbered[: len(self.counts)]] = self.counts
        self.counts = counts
        for split in SPLITS:
            name = f"{split}-{'tags' if self.task.kind == 'tag' else 'rows'}"
            tagged = self.task.kind == "tag"
            size = (_TAG if tagged else row_type(self.task.kind)).itemsize
            with self._rewriting(name) as new:
                # In pieces, since the training set may not fit in memory.
                while raw := self.files[name].file.read(size * _AT_ONCE):
                    new.write(_renumbered(raw, tagged, renumbered))

    def _widen(self) -> int:
        """Gives every example of a choice as many rows as the one with most alternatives has, which is known only when
        all were read. Returns that number."""
        width = max((width for parts in self.widths.values() for _, width in parts), default=1)
        row = row_type(self.task.kind)
        for split, parts in self.widths.items():
            # Wide enough already: nothing is rewritten.
            if all(own == width for _, own in parts):
                continue
            name = f"{split}-rows"
            with self._rewriting(name) as new:
                for count, own in parts:
                    for first in range(0, count, CHUNK):
                        few = min(CHUNK, count - first)
                        rows = np.frombuffer(self.files[name].file.read(few * own * row.itemsize), row)
                        rows = rows.reshape(few, own)
                        # The first row has the example's place and answer; without tokens it is no alternative.
                        absent = np.repeat(rows[:, :1], width - own, axis=1)
                        absent["b"], absent["end"] = -1, absent["a"]
                        new.write(np.concatenate([rows, absent], 1).tobytes())
        return width

    @contextmanager
    def _rewriting(self, name: str) -> Iterator[HashingWriter]:
        """A file that takes the place of one that was written, which is read from its beginning meanwhile."""
        old = self.files[name]
        old.file.seek(0)
        # Both have one name: the new file replaces the old one when it is whole.
        with atomic_file(old.path) as part:
            new = HashingWriter(part)
            yield new
            new.file.flush()
        # Open still: held-out examples may be written behind these.
        old.file.close()
        # Renamed by atomic_file, while it stays open.
        new.path = old.path
        self.files[name] = new

    def finish(self) -> None:
        """Checks the examples, and writes the index."""
        kind, labels = self.task.kind, list(self.labels.numbers)
        whole = " (with data.context=document, documents are held out whole)" if self.documents else ""
        # What cannot be trained on is refused, with what to change.
        if self.task.train and not self.splits["train"]["examples"]:
            raise DataError(
                f"{self.sources[0]['name']}: nothing is left to learn from{whole}; lower --task.dev-fraction"
            )
        if self.task.dev_fraction and not self.splits["dev"]["examples"]:
            raise DataError(
                f"task.dev-fraction={self.task.dev_fraction} holds out none of "
                f"{self.splits['train']['examples']} examples{whole}; raise it, or give --task.dev"
            )
        if KINDS[kind].has_classes and self.task.train and len(labels) < 2:
            raise DataError(
                f"{self.sources[0]['name']}: every example has the label {labels[0]!r}, so there is nothing to learn; "
                "see that --task.label names the right column"
            )
        # An ELMo's words are known when all examples have been read.
        if isinstance(self.tokenizer, OpenVocabulary):
            self.files[WORDS] = HashingWriter(self.folder / WORDS)
            self.files[WORDS].write(self.tokenizer.file())
        # The last documents end with the splits' tokens.
        for split, documents in self.documents.items():
            documents.finish(self.splits[split]["tokens"])
            self.splits[split]["longest"] = documents.longest
        choices = self._widen()
        # The held-out questions may have more alternatives than any to learn from.
        self.counts = np.pad(self.counts, (0, max(len(labels) - len(self.counts), 0) if kind == "choice" else 0))
        self.close()
        # The index names and seals all of it.
        index: dict[str, object] = {
            "format": FORMATS[self.context],
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
        # What does not apply is left out.
        index |= {"choices": choices} if kind == "choice" else {}
        index |= {"symmetric": True} if self.task.symmetric else {}
        index |= {"context": self.context} if self.context != "sentence" else {}
        index |= {"windows": self.task.windows} if self.window else {}
        index |= {"by_words": True} if isinstance(self.tokenizer, StaticWords) else {}
        index["fingerprint"] = fingerprint_of(index)
        (self.folder / INDEX).write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n", "utf-8")

    def close(self) -> None:
        close_all(self.files.values())
