"""Batches by their step: any rows of any step, from (seed, step, row) alone; and the threads that read them ahead."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from contexture.data.binary_files import I64
from contexture.data.errors import DataError
from contexture.data.layouts import Batch
from contexture.data.tokenizers.base import Tokenizer


class Batches(Protocol):
    """Training batches: read whole, or only the rows that belong to this process."""

    fields: dict[str, str]
    tokenizer: Tokenizer
    batch: int
    rows_read: int
    examples_per_epoch: int

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        ...

    def describe(self) -> str:
        """Describes the training data, in a sentence."""
        ...

    def notes(self) -> list[str]:
        """Returns what a user should know after training, a sentence each."""
        ...

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """Returns the rows (numbers within the batch, all of them if None) of the step's batch, in the order asked
        for. Safe to call from several threads, for any steps in any order."""
        ...


class HeldOut(Protocol):
    """Held-out batches: every sequence once, `count` of them, in `steps` batches."""

    fields: dict[str, str]
    tokenizer: Tokenizer
    batch: int
    count: int
    unit: str
    """The unit of `count`: sequences, examples or words."""
    steps: int

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """Reads as Batches does, for steps below `steps`; rows past the last sequence have no weight."""
        ...


Rows = I64 | Callable[[int], I64] | None
"""The rows to read of every batch, or of a step's; None: all."""


class _Steps:
    """Steps first … last-1 as a random-access source for grain, which reads them ahead in threads."""

    def __init__(self, batches: Batches | HeldOut, first: int, last: int, rows: Rows) -> None:
        self.batches, self.first, self.last, self.rows = batches, first, last, rows

    def __len__(self) -> int:
        return max(self.last - self.first, 0)

    def __getitem__(self, index: int) -> tuple[int, Batch]:
        step = self.first + int(index)
        # Rows by step, since on a ramp a batch has another size.
        return step, self.batches.read(step, self.rows(step) if callable(self.rows) else self.rows)


@contextmanager
def iterate(
    batches: Batches | HeldOut,
    first_step: int,
    last_step: int,
    rows: Rows = None,
    *,
    threads: int = 2,
    prefetch: int = 4,
) -> Iterator[Iterator[tuple[int, Batch]]]:
    """Reads steps first … last-1 in order, `prefetch` of them ahead, and of each batch these rows.

    `with iterate(batches, 0, 9) as steps: for step, batch in steps: …`

    The threads stop when the block is left, however it is left.
    """
    import grain  # here, since it imports jax: preparing data and the command line's help must not wait for that

    # Nothing to read: no threads are started.
    if first_step >= last_step:
        yield iter(())
        return
    # Threads, not processes: `read` may be called from several, and nothing is copied between processes.
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch)
    # Read by index and given in order, whichever thread is ready first.
    steps = iter(grain.MapDataset.source(_Steps(batches, first_step, last_step, rows)).to_iter_dataset(options))
    try:
        yield steps
    finally:
        # Threads that read ahead would otherwise go on until the iterator is collected.
        steps.close()


def check_fields(batch: Batch, fields: dict[str, str]) -> None:
    """Raises: DataError where a batch lacks a field, or a field has another dtype or rank than in `fields`."""
    for name, spec in fields.items():
        # "i32 BL": the dtype, and a letter for each dim.
        dtype, dims = spec.split()
        if name not in batch:
            raise DataError(f"the batch lacks the field {name!r} ({spec})")
        # The only dtypes of batches.
        kind = {"i32": np.int32, "f32": np.float32}[dtype]
        # Dtype and rank alone: batches of one run are padded to several lengths.
        if batch[name].dtype != kind or batch[name].ndim != len(dims):
            raise DataError(f"the batch field {name!r} is {batch[name].dtype} {batch[name].shape}, not {spec}")
