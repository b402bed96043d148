"""Training batches of a task's examples: shuffled, and endless."""

import copy
import threading
from collections.abc import Iterator

import numpy as np

from contexture.data import rng
from contexture.data.binary_files import I64
from contexture.data.bucketing import batch_lengths, length_for, one_of
from contexture.data.config import DataConfig, Family, StepSize, TaskConfig
from contexture.data.layouts import Batch
from contexture.data.packing import BatchRows, Packing, row_width, some_batches
from contexture.data.tasks.batch.batches import (
    open_reader,
    sequence_length,
    task_fields,
    without_rows,
)
from contexture.data.tasks.read.labels import class_weights
from contexture.data.tasks.read.tables import counted
from contexture.data.tasks.store.example_store import ExampleStore
from contexture.data.tasks.store.stored_features import FeatureFiles
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.elmo_char_ids import MAX_BYTES

EPOCHS = 3
"""The passes over its examples that a fine-tuning is taken to have, as BERT's own have (section A.3). In these a number
of rows must make up for its compilation."""


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
        self.length = sequence_length(config, split.longest)
        """Tokens of the longest sequences."""
        self._features: FeatureFiles | None = None
        self._orders: dict[int, I64] = {}
        self._lock = threading.Lock()
        self._reader = open_reader(split, tokenizer, family, self.length, weights_C, config)
        self.lengths: tuple[int, ...] = (self.length,)
        """Of stored features, the lengths of sequences: a batch has the least that holds its longest example."""
        self.rows = self._shared_rows(parts, devices)
        """The rows that sequences share."""

    def with_features(self, files: FeatureFiles, fields: dict[str, str]) -> "TaskBatches":
        """Returns these batches with what a frozen backbone computes of their examples, the fields of its files, in
        place of what it reads."""
        # A shallow copy: both have the same reader, orders and lock.
        other = copy.copy(self)
        other._features, other.fields = files, {**without_rows(self.fields), **fields}
        # These have no rows to share: a batch is as long as its own longest example, not as the longest of all.
        other.lengths = batch_lengths(self.split, self.length, self.batch, shuffled=True)
        return other

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """Returns the rows (numbers within the batch, all of them if None) of the step's batch, in the order asked
        for."""
        rows = np.arange(self.config.batch_size_at(step)) if rows is None else np.asarray(rows, np.int64)
        with self._lock:
            self.rows_read += len(rows)
        numbers = self._numbers(step)
        stored = self._features is not None
        length = self.length_at(step) if stored else self.length
        batch = self._reader.read(numbers, rows, None if stored else self.packing(step), length)
        return batch if self._features is None else self._features.add(batch, numbers[rows])

    def length_at(self, step: int) -> int:
        """Returns the tokens of the step's sequences."""
        # Of a single length the examples need not be looked at.
        if not self.lengths[1:]:
            return self.length
        return length_for(self.lengths, self.split.tokens_of(self._numbers(step)))

    def size_at(self, step: int) -> StepSize:
        """Returns the size of the step's batch."""
        numbers = self._numbers(step)
        if self._features is None:
            packing = self.packing(step)
            return StepSize(len(packing.lengths), int(packing.lengths.sum()), packing.rows * packing.width)
        # Of words the longer text of a pair counts for both.
        length, each = self.length_at(step), self.split.sequences
        tokens = int(np.minimum(self.split.tokens_of(numbers) + 2, length).sum()) * each
        return StepSize(len(numbers) * each, tokens, len(numbers) * each * length)

    def packing(self, step: int) -> Packing:
        """Returns where the step's sequences lie in its rows."""
        lengths = self._reader.lengths_of(self._numbers(step))
        return self.rows.pack(lengths, self.config.batch_size_at(step))

    def _sample(self, batch: int) -> Iterator[I64]:
        """Yields the lengths of the sequences of some batches, in the order of the first epoch."""
        # Once: a reader that is two epochs further would have it made again for each batch.
        order = self._order(0)
        for places in some_batches(batch):
            yield self._reader.lengths_of(order[places % self.examples_per_epoch])

    def _shared_rows(self, parts: int, devices: int) -> BatchRows:
        # A microbatch fills rows of its own, and each device has as many of them.
        groups = [*self._sample(-(-self.batch // parts))]
        share = -(-max(int(lengths.sum()) for lengths in groups) // devices)
        # The longest of all sequences, wherever it comes.
        every = np.array([min(self.split.longest + 2, self.length)])
        width = row_width([*groups[:16], every], share, devices, words=self._reader.text.reads_words)
        examples, each = EPOCHS * self.examples_per_epoch, self._reader.each
        return BatchRows(width, self._sample, examples, parts=parts, devices=devices, each=each)

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
        shape, shared = f"{one_of(self.lengths)} tokens", self.rows if self._features is None else None
        rows = f"; {shared.describe(self.batch)}" if shared else ""
        if self.split.spans is not None:
            windows = f"{self.split.examples:,} windows of {shape}{rows}"
            return f"{self.split.spans.count:,} questions in {windows}"
        if self.split.windows != "off":
            return f"{self.split.texts:,} texts in {self.split.examples:,} windows of {shape}{rows}"
        longer = self.split.longer_than(self.length)
        cut = f"; {longer:,} of them longer, and cut" if longer else ""
        sequences = 2 if self.split.symmetric else self.split.choices
        several = f"{'up to ' * self.split.has_absent()}{sequences} " if sequences > 1 else ""
        words = f"; {counted(self._cut_words, 'word')} longer than {MAX_BYTES} bytes, cut" if self._cut_words else ""
        return f"{self.split.examples:,} examples in {several}sequences of {shape}{cut}{words}{rows}"
