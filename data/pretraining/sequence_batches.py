"""Batches of BERT's pretraining sequences, wherever they come from: what a batch holds, the rows that sequences share,
and each held-out sequence once."""

import threading
from collections.abc import Iterator

import numpy as np

from contexture.data.binary_files import I64
from contexture.data.config import DataConfig
from contexture.data.layouts import Batch
from contexture.data.packing import BatchRows, fields_in_rows, in_rows, some_batches
from contexture.data.tokenizers.base import Tokenizer

FIELDS = {
    "tokens": "i32 BL",
    "segments": "i32 BL",
    "mask": "i32 BL",
    "slots": "i32 BP",
    "labels": "i32 BP",
    "slot_weights": "f32 BP",
    "is_random": "i32 B",
    "valid": "f32 B",
}
"""The arrays of a pretraining batch: dtype and dims. is_random: 0 the second span is the next, 1 it is random; valid: 0
where a sequence only fills up a batch."""
BOUNDARIES = {"left": "i32 BP", "right": "i32 BP", "offset": "i32 BP"}
"""The fields that the span boundary objective reads besides: of each slot the places beside its span, and its place in
it."""
SEQUENCES = ("tokens", "segments", "mask")
"""The fields that have a place for each token."""
EPOCHS = 40
"""The passes over its text that a pretraining is taken to have, as BERT's own has (section A.2). In these a number of
rows must make up for its compilation."""


def pair_fields(config: DataConfig) -> dict[str, str]:
    """Returns the fields of a batch of pairs."""
    fields = {**FIELDS, **(BOUNDARIES if config.span_boundary else {})}
    if not config.packed:
        return fields
    own = fields_in_rows({name: fields[name] for name in SEQUENCES})
    return {**own, **{name: spec for name, spec in fields.items() if name not in SEQUENCES}}


class SequenceBatches:
    """Batches of an endless stream of sequences: step s, row r is sequence `s · batch + r`.

    Differs: the original pads each sequence to a row of its own. With data.packed the sequences of a batch share rows
    of data.length tokens. A process then reads the whole batch, since any row may hold its sequences.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        config: DataConfig,
        examples_per_epoch: int,
        parts: int,
        devices: int,
        fields: dict[str, str] | None = None,
    ) -> None:
        """Prepares batches; what `lengths_of` needs must be there.

        Args:
            tokenizer: the vocabulary.
            config: the run's data.
            examples_per_epoch: how many sequences an epoch has.
            parts: microbatches of a batch.
            devices: how many devices share a batch.
            fields: of sequences that never share rows; None: those of pairs.
        """
        # Whoever gives fields has sequences that fill their rows.
        self.fields = dict(fields or pair_fields(config))
        self.tokenizer, self.config, self.batch, self.length = tokenizer, config, config.batch, config.length
        self.examples_per_epoch = examples_per_epoch
        # So many sequences pay for the compilation of another number of rows.
        examples = EPOCHS * examples_per_epoch
        self.rows = (
            BatchRows(config.length, self._sample, examples, parts=parts, devices=devices)
            if config.packed and fields is None
            else None
        )
        """The rows that sequences share; None: each has its own."""
        self.rows_read = 0
        """Sequences read so far, by all threads, but for those of others in shared rows."""
        self._lock = threading.Lock()

    def lengths_of(self, numbers: I64) -> I64:
        """Returns the tokens of the sequences with these numbers, special ones counted."""
        raise NotImplementedError

    def sequences(self, numbers: I64, step: int | None = None) -> Batch:
        """Returns the sequences with these numbers, with a row each, as FIELDS.

        step: the training step that they are for, which masks may depend on; None: they are held out.
        """
        raise NotImplementedError

    def describe_source(self) -> str:
        """Describes where the sequences come from."""
        raise NotImplementedError

    def notes(self) -> list[str]:
        """Returns what a user should know after training."""
        return []

    def _sample(self, batch: int) -> Iterator[I64]:
        """Yields the lengths of the sequences of some batches, the first ones of epoch 0."""
        for places in some_batches(batch):
            yield self.lengths_of(places % self.examples_per_epoch)

    def describe(self) -> str:
        """Describes the training data, in a sentence."""
        rows = f"; {self.rows.describe(self.batch)}" if self.rows else ""
        return f"{self.describe_source()}; an epoch is {self.examples_per_epoch:,} sequences{rows}"

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """Returns the rows (numbers within the batch, all of them if None) of the step's batch, in the order asked
        for."""
        # On a ramp a step has fewer; sequences are numbered through all steps.
        size = self.config.batch_size_at(step)
        return self.chosen(self.config.examples_before(step) + np.arange(size), size, rows, step)

    def chosen(self, numbers: I64, count: int, rows: I64 | None = None, step: int | None = None) -> Batch:
        """Returns some of the sequences of a batch, and all rows that its sequences share.

        Args:
            numbers: of all its sequences.
            count: how many of these count, the first ones; the others lie in no shared row.
            rows: which are returned, from 0 on; None: all.
            step: the training step; None: they are held out.
        """
        rows = np.arange(len(numbers)) if rows is None else np.asarray(rows, np.int64)
        # Readers are threads.
        with self._lock:
            self.rows_read += len(rows)
        if self.rows is None:
            return self.sequences(numbers[rows], step)
        # In shared rows any row may hold any sequence, so that all of them are read.
        whole = self.sequences(numbers, step)
        # Fields with a place for each token move into rows; all others stay with their sequence.
        own = {name: whole.pop(name)[:count] for name in SEQUENCES}
        # Where each lies follows from the lengths alone: every process finds the same.
        packing = self.rows.pack(own["mask"].sum(1), len(numbers))
        packed = in_rows(own, packing, len(numbers), self.tokenizer.pad)
        return {
            name: array if self.fields[name].endswith("XY") else array[rows]
            for name, array in {**packed, **whole}.items()
        }


class HeldOutSequences:
    """Every sequence of epoch 0 once, in `steps` batches."""

    unit = "sequences"

    def __init__(self, batches: SequenceBatches) -> None:
        self._batches = batches
        self.fields = batches.fields
        self.tokenizer = batches.tokenizer
        self.batch = batches.batch
        self.count = batches.examples_per_epoch
        """Sequences in all."""
        # Rounded up: the last batch may be partly filled.
        self.steps = -(-self.count // self.batch)

    @property
    def rows_read(self) -> int:
        return self._batches.rows_read

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """Reads as SequenceBatches does, for steps below `steps`; rows past the last repeat sequence 0 with weights
        0."""
        if not 0 <= step < self.steps:
            raise IndexError(f"held-out step {step} is not below {self.steps}")
        rows = np.arange(self.batch) if rows is None else np.asarray(rows, np.int64)
        numbers = step * self.batch + np.arange(self.batch)
        # The last batch is filled up with sequence 0, which weighs nothing.
        count = min(self.count - step * self.batch, self.batch)
        batch = self._batches.chosen(np.where(numbers < self.count, numbers, 0), count, rows)
        spare = rows >= count
        batch["valid"][spare] = 0.0
        batch["slot_weights"][spare] = 0.0
        return batch
