"""Batches of a task's examples: shuffled and endless for training; in order, each once, for everything else."""

import copy
import threading
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from contexture.data import rng
from contexture.data.binary_files import I64
from contexture.data.bucketing import batch_lengths, bucket, one_of, places_for
from contexture.data.config import DataConfig, Family, StepSize, TaskConfig
from contexture.data.families.registry import TEXT_FAMILIES
from contexture.data.layouts import Batch
from contexture.data.packing import Packing, Shape, choose_heights, fill, pack, row_width
from contexture.data.tasks.batch.answer_rules import AnswerRules
from contexture.data.tasks.batch.reader import TokenReader, WordReader, sequence_length, task_fields
from contexture.data.tasks.read.labels import class_weights
from contexture.data.tasks.read.tables import counted
from contexture.data.tasks.store.example_store import ExampleSplit, ExampleStore, Rows
from contexture.data.tasks.store.stored_features import FeatureFiles
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.elmo_char_ids import MAX_BYTES

WINDOW = 64
"""Held-out batches whose examples are put together: sorted by length, or packed into the same rows."""
EPOCHS = 3
"""The passes over its examples that a fine-tuning is taken to have, as BERT's own have (section A.3). In these a number
of rows must make up for its compilation."""
SAMPLE = 1 << 14
"""Examples that the numbers of rows are chosen by."""


class TaskBatches:
    """Training batches: step s, row r is example `permuted[s · batch + r]` of an endless row of epochs, each of which
    has every example once, in an order of its own.

    Differs: the original shuffles within a buffer of 100 examples; here an epoch is shuffled whole.
    """

    def __init__(
        self,
        store: ExampleStore,
        tokenizer: Tokenizer,
        config: DataConfig,
        task: TaskConfig,
        *,
        family: Family,
        seed: int,
        parts: int = 1,
        devices: int = 1,
    ) -> None:
        """Opens the training split.

        Args:
            store: the examples.
            tokenizer: the model's vocabulary.
            config: the run's data.
            task: its task.
            family: the model's family.
            seed: of the order of the examples.
            parts: microbatches of a batch.
            devices: how many devices share a batch: of a microbatch's rows each has as many.
        """
        split = store.splits["train"]
        self.fields = task_fields(store.kind, family, split.symmetric, store.pair)
        self.tokenizer, self.batch, self.seed, self.split = tokenizer, config.batch, seed, split
        self.config, self._cut_words = config, store.cut_words
        self.examples_per_epoch = split.examples
        self.rows_read = 0
        weights_C = class_weights(task, store.labels, store.counts)
        text, longest = TEXT_FAMILIES[family], sequence_length(config, split.longest)
        self.length = longest
        """Tokens of the longest sequences."""
        self._parts, self._multiple = parts, parts * devices
        self._features: FeatureFiles | None = None
        self._orders: dict[int, I64] = {}
        self._heights: dict[int, tuple[int, ...]] = {}
        self._lock = threading.Lock()
        args = (split, tokenizer, text, longest, weights_C, config.length)
        self._tokens = None if text.reads_words else TokenReader(*args)
        self._words = WordReader(*args) if text.reads_words else None
        self.lengths = batch_lengths(split, longest, config.batch, shuffled=True) if text.reads_words else (longest,)
        """Of words, the lengths of sequences: a batch has the least that holds its longest example."""
        self.width = self._row_width() if self._tokens is not None else 0
        """Tokens of a row that sequences share."""

    def with_features(self, files: FeatureFiles, fields: dict[str, str]) -> "TaskBatches":
        """Returns these batches with what a frozen backbone computes of their examples, the fields of its files, in
        place of what it reads."""
        # A shallow copy: both have the same reader, orders and lock.
        other = copy.copy(self)
        other._features, other.fields = files, {**without_rows(self.fields), **fields}
        return other

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """Returns the rows (numbers within the batch, all of them if None) of the step's batch, in the order asked
        for."""
        rows = np.arange(self.config.batch_size_at(step)) if rows is None else np.asarray(rows, np.int64)
        with self._lock:
            self.rows_read += len(rows)
        numbers = self._numbers(step)
        if self._words is not None:
            batch = self._words.read(numbers, rows, self.length_at(step), self.config.word_types)
        else:
            assert self._tokens is not None
            batch = self._tokens.read(numbers, rows, None if self._features else self.packing(step))
        return batch if self._features is None else self._features.add(batch, numbers[rows])

    def length_at(self, step: int) -> int:
        """Returns the tokens of the step's sequences."""
        return self.length if self._words is None else self._words.length_of(self._numbers(step), self.lengths)

    def size_at(self, step: int) -> StepSize:
        """Returns the size of the step's batch."""
        numbers = self._numbers(step)
        if self._tokens is not None and self._features is None:
            packing = self.packing(step)
            return StepSize(len(packing.lengths), int(packing.lengths.sum()), packing.rows * packing.width)
        # Of words the longer text of a pair counts for both.
        length, each = self.length_at(step), self.split.sequences
        tokens = int(np.minimum(self.split.tokens_of(numbers) + 2, length).sum()) * each
        return StepSize(len(numbers) * each, tokens, len(numbers) * each * length)

    def packing(self, step: int) -> Packing:
        """Returns where the step's sequences lie in its rows."""
        return self._packed(self._numbers(step), self.heights(self.config.batch_size_at(step)))

    def heights(self, batch: int) -> tuple[int, ...]:
        """Returns the numbers of rows that batches of so many examples have, but for rare ones that need more."""
        if batch not in self._heights:
            needed = [self._packed(numbers, ()).rows for numbers in self._sample(batch)]
            steps = EPOCHS * self.examples_per_epoch // batch + 1
            self._heights[batch] = choose_heights(needed, steps, self._multiple)
        return self._heights[batch]

    def _packed(self, numbers: I64, heights: tuple[int, ...]) -> Packing:
        assert self._tokens is not None
        lengths, each = self._tokens.lengths_of(numbers), self._tokens.each
        return pack(lengths, self.width, heights, self._multiple, self._parts, each)

    def _sample(self, batch: int) -> Iterator[I64]:
        """Yields the examples of some batches, at least eight of them, in the order of the first epoch."""
        for first in range(0, max(min(SAMPLE, 256 * batch), 8 * batch), batch):
            yield self._order(0)[np.arange(first, first + batch) % self.examples_per_epoch]

    def _row_width(self) -> int:
        assert self._tokens is not None
        # A microbatch fills rows of its own, and each device has as many of them.
        groups = [self._tokens.lengths_of(numbers) for numbers in self._sample(-(-self.batch // self._parts))]
        devices = self._multiple // self._parts
        share = -(-max(int(lengths.sum()) for lengths in groups) // devices)
        # The longest of all sequences, wherever it comes.
        every = np.array([min(self.split.longest + 2, self.length)])
        return row_width([*groups[:16], every], share, devices)

    def _numbers(self, step: int) -> I64:
        """Returns the examples of the step's batch."""
        every = np.arange(self.config.batch_size_at(step))
        places = self.config.examples_before(step) + every
        # A batch at the end of an epoch goes on with the next one, and an epoch may be shorter than a batch.
        epochs, within = np.divmod(places, self.examples_per_epoch)
        numbers = np.empty(len(places), np.int64)
        for e in np.unique(epochs).tolist():
            mine = epochs == e
            numbers[mine] = self._order(e)[within[mine]]
        return numbers

    def _order(self, e: int) -> I64:
        with self._lock:
            if e not in self._orders:
                # Readers that run ahead meet at the border of two epochs: the neighbours' orders are kept, others not.
                self._orders = {p: order for p, order in self._orders.items() if abs(p - e) == 1}
                self._orders[e] = rng.permutation(rng.key(rng.EXAMPLE_ORDER, self.seed, e), self.examples_per_epoch)
            return self._orders[e]

    def notes(self) -> list[str]:
        """Returns no notes."""
        return []

    def describe(self) -> str:
        """Describes the training data, in a sentence."""
        shape = f"{one_of(self.lengths)} tokens"
        if self.split.spans is not None:
            windows = f"{self.split.examples:,} windows of {shape}"
            return f"{self.split.spans.count:,} questions in {windows}"
        if self.split.windows != "off":
            return f"{self.split.texts:,} texts in {self.split.examples:,} windows of {shape}"
        longer = self.split.longer_than(self.length)
        cut = f"; {longer:,} of them longer, and cut" if longer else ""
        sequences = 2 if self.split.symmetric else self.split.choices
        several = f"{'up to ' * self.split.has_absent()}{sequences} " if sequences > 1 else ""
        words = f"; {counted(self._cut_words, 'word')} longer than {MAX_BYTES} bytes, cut" if self._cut_words else ""
        return f"{self.split.examples:,} examples in {several}sequences of {shape}{cut}{words}{self._in_rows()}"

    def _in_rows(self) -> str:
        """Describes the rows that the sequences of a batch share."""
        if self._tokens is None:
            return ""
        heights = self.heights(self.batch)
        packed = [self._packed(numbers, heights) for numbers in self._sample(self.batch)]
        ratio = sum(each.rows * each.width for each in packed) / sum(int(each.lengths.sum()) for each in packed)
        rows = "1 row" if heights == (1,) else f"{one_of(heights)} rows"
        return f"; {rows} of {self.width} tokens a batch, padding ratio {ratio:.2f}"


def without_rows(fields: dict[str, str]) -> dict[str, str]:
    """Returns the fields of a batch without the rows that sequences share."""
    return {name: spec for name, spec in fields.items() if not spec.endswith("XY") and name != "begins"}


class HeldOutTask:
    """Every example once, in `steps` batches: within each window, tokens in packed rows that are dealt out to batches,
    words in batches of `batch` examples by length."""

    unit = "examples"

    def __init__(
        self,
        split: ExampleSplit,
        tokenizer: Tokenizer,
        config: DataConfig,
        batch: int,
        weights_C: NDArray[np.float32] | None = None,
        shape: "Shape | tuple[int, ...]" = (),
        *,
        family: Family,
        devices: int = 1,
    ) -> None:
        """Opens a split.

        Args:
            split: the examples.
            tokenizer: the model's vocabulary.
            config: the run's data.
            batch: about how many examples a batch has.
            weights_C: the weight of each label in the loss (all 1 if None).
            shape: the rows of a batch, or where words are read the lengths of sequences; (): what suits the examples.
            family: the model's family.
            devices: how many devices share a batch.
        """
        self.fields = task_fields(split.kind, family, split.symmetric, split.pair)
        self.text = TEXT_FAMILIES[family]
        self.shift = int(self.text.reads_words)
        """1 where no special token precedes the text, so that a word is a place earlier than its piece would be."""
        self.tokenizer, self.split, self.config = tokenizer, split, config
        self.rules = AnswerRules()
        """How the answer to a question is chosen."""
        # `count` is of what the user gave, texts or questions; `steps` go over their windows.
        self.count = split.count
        self.rows_read = 0
        # All labels weigh the same, unless the caller says otherwise.
        self._lock = threading.Lock()
        ones_C = np.ones(max(len(split.labels), 1), np.float32)
        # Of few lengths, since each is a program for whoever predicts one file after the other.
        self.length = (
            sequence_length(config, split.longest)
            if self.text.reads_words
            else bucket(split.longest + 2, config.length)
        )
        """Tokens of the longest sequences."""
        args = (split, tokenizer, self.text, self.length, ones_C if weights_C is None else weights_C, config.length)
        self._features: FeatureFiles | None = None
        self.batch = batch
        """For how many examples the arrays of a batch have room."""
        self._words = WordReader(*args) if self.text.reads_words else None
        self._tokens = None if self.text.reads_words else TokenReader(*args)
        self._reader = self._words or self._tokens
        # The examples of each batch, and where their sequences lie; and which batches end a window.
        self._plan: list[tuple[I64, Packing | None]] = []
        self._ends = set[int]()
        if self._words is not None:
            assert not isinstance(shape, Shape)
            self.shape: Shape | tuple[int, ...] = shape or batch_lengths(split, self.length, batch, shuffled=False)
            self.length = self.shape[-1]
            self._plan_words(self.shape)
        else:
            packed = shape if isinstance(shape, Shape) else self.shape_for(batch, devices)
            self.shape = packed
            self._plan_tokens(packed, devices)
        self.steps = len(self._plan)

    def shape_for(self, batch: int, devices: int = 1) -> Shape:
        """Returns the shape that suits the examples, for batches of about so many."""
        assert self._tokens is not None
        every, each = np.arange(self.split.examples), self._tokens.each
        lengths = self._tokens.lengths_of(every[:: max(len(every) // SAMPLE, 1)])
        # Of the longest of all, which may not be among these, a row must have the room.
        longest = np.array([min(self.split.longest + 2, self.length)])
        if each == 1:
            return Shape.for_lengths(np.concatenate([longest, lengths]), batch, devices)
        # Of an example with several sequences all are in one batch, and batches need more or fewer rows.
        groups = [lengths[first : first + batch * each] for first in range(0, len(lengths), batch * each)]
        share = -(-max(int(group.sum()) for group in groups) // devices)
        width = row_width([*groups[:16], longest], share, devices)
        needed = [pack(group, width, (), devices).rows for group in groups]
        return Shape(width, choose_heights(needed, -(-len(every) // batch), devices), batch)

    def _plan_tokens(self, shape: Shape, devices: int) -> None:
        assert self._tokens is not None
        each, window = self._tokens.each, WINDOW * self.batch
        if each == 1:
            self.batch = shape.slots
        for first in range(0, self.split.examples, window if each == 1 else self.batch):
            numbers = np.arange(first, min(first + (window if each == 1 else self.batch), self.split.examples))
            lengths = self._tokens.lengths_of(numbers)
            if each == 1:
                self._plan += [(numbers[own], packing) for own, packing in fill(lengths, shape)]
            else:
                self._plan.append((numbers, pack(lengths, shape.width, shape.heights, devices, each=each)))
            self._ends.add(len(self._plan) - 1)

    def _plan_words(self, lengths: tuple[int, ...]) -> None:
        # Batches of one length need no order, and their answers come one batch after the other.
        window = (WINDOW if lengths[1:] else 1) * self.batch
        for first in range(0, self.split.examples, window):
            numbers = np.arange(first, min(first + window, self.split.examples))
            if lengths[1:]:
                # The longest first: if memory does not suffice, that shows at once.
                numbers = numbers[np.argsort(-places_for(lengths, self.split.tokens_of(numbers)), kind="stable")]
            self._plan += [(numbers[at : at + self.batch], None) for at in range(0, len(numbers), self.batch)]
            self._ends.add(len(self._plan) - 1)

    def with_rules(self, rules: AnswerRules) -> "HeldOutTask":
        """Returns these batches with other rules for the answer to a question."""
        other = copy.copy(self)
        other.rules = rules
        return other

    def with_features(self, files: FeatureFiles, fields: dict[str, str]) -> "HeldOutTask":
        """As `TaskBatches.with_features`."""
        other = copy.copy(self)
        other._features, other.fields = files, {**without_rows(self.fields), **fields}
        return other

    def numbers(self, step: int) -> I64:
        """Returns the examples (of questions, the windows) of a batch, without those that only fill it up."""
        return self._plan[step][0]

    def tokens_before(self, rows: Rows) -> I64:
        """Returns how many tokens of its document precede each row's own."""
        assert self._reader is not None
        return self._reader.context(rows)[0]

    def ends_window(self, step: int) -> bool:
        """Returns whether the examples of all batches up to this one are a number of first examples."""
        return step in self._ends

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """Reads as TaskBatches does, for steps below `steps`. Rows past the last example repeat it without
        weight or tokens."""
        rows = np.arange(self.batch) if rows is None else np.asarray(rows, np.int64)
        numbers, packing = self._plan[step]
        # Devices need whole batches, so each is filled up by an example that counts nowhere: one of its own, which
        # makes it no longer.
        filled = np.concatenate([numbers, np.repeat(numbers[-1:], self.batch - len(numbers))])
        if self._words is not None:
            assert isinstance(self.shape, tuple)
            length = self._words.length_of(numbers, self.shape)
            batch = self._words.read(filled, rows, length, self.config.word_types)
        else:
            assert self._tokens is not None
            batch = self._tokens.read(numbers, rows, None if self._features else packing)
        spare = rows >= len(numbers)
        for name in ("valid", "weights", "tag_weights", "mask"):
            if name in batch:
                batch[name][spare] = 0
        with self._lock:
            self.rows_read += len(rows)
        return batch if self._features is None else self._features.add(batch, filled[rows])


class ExampleOrder:
    """Puts predictions back into the order of the examples: batches are sorted by length within a window."""

    def __init__(self, held_out: HeldOutTask) -> None:
        # The batches of the current window so far.
        self._held_out = held_out
        self._numbers: list[I64] = []
        self._outputs: list[dict[str, np.ndarray]] = []

    def add(self, step: int, predictions: dict[str, np.ndarray]) -> tuple[I64, dict[str, np.ndarray]] | None:
        """Takes the predictions of a batch. Returns, at the end of a window of batches, (the numbers of its examples,
        ascending; their predictions); else None."""
        numbers = self._held_out.numbers(step)
        # The last batch is filled up with sequences that are no examples.
        self._numbers.append(numbers)
        self._outputs.append({name: array[: len(numbers)] for name, array in predictions.items()})
        # Only a complete window has all examples between its first and its last one.
        if not self._held_out.ends_window(step):
            return None
        # A window is complete: it holds a run of consecutive examples, which argsort puts in order.
        numbers, outputs = np.concatenate(self._numbers), self._outputs
        self._numbers, self._outputs = [], []
        # Every number comes once, so the order is unique.
        order = np.argsort(numbers)
        return numbers[order], {name: _joined([each[name] for each in outputs])[order] for name in predictions}


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Joins arrays BX of several lengths X; shorter ones are padded with -inf, or with 0 if they are integers."""
    if len({part.shape[1:] for part in parts}) > 1:
        # Batches of one window may have different lengths, and so may what is predicted for each token.
        most = max(part.shape[1] for part in parts)
        nothing = -np.inf if parts[0].dtype.kind == "f" else 0
        parts = [np.pad(x, ((0, 0), (0, most - x.shape[1])), constant_values=nothing) for x in parts]
    return np.concatenate(parts) if len(parts) > 1 else parts[0]
