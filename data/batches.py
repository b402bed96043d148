"""Batches by their step: any rows of any step, from (seed, step, row) alone; and the reader threads that run ahead."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

import numpy as np

from contexture.data.binary_files import I64, Check
from contexture.data.config import DataConfig, TaskConfig
from contexture.data.errors import DataError
from contexture.data.layouts import Batch, bert_pair, cut
from contexture.data.pretraining.bilm_lanes import HeldOutLanes, LaneBatches
from contexture.data.pretraining.lm_windows import HeldOutWindows, WindowBatches
from contexture.data.pretraining.masking import bert_masking
from contexture.data.pretraining.sentence_pairs import SentencePairs
from contexture.data.pretraining.shards import Shards
from contexture.data.tasks.batches import HeldOutTask, TaskBatches, class_weights
from contexture.data.tasks.example_store import Store
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.wordpiece import wordpiece

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
where a line only fills up a batch."""


class Batches(Protocol):
    """What the trainer reads: whole batches, or the rows of them that are this process's."""

    fields: dict[str, str]
    tokenizer: Tokenizer
    batch: int
    rows_read: int
    lines_per_pass: int

    @property
    def length(self) -> int:
        """Tokens of a line."""
        ...

    def describe(self) -> str:
        """What there is to train on, in a sentence."""
        ...

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """The rows (numbers within the batch, all of them if None) of the step's batch, in the order asked for."""
        ...


class PairBatches:
    """BERT's pretraining batches: step s, row r is line `s · batch + r` of the endless stream of sentence pairs."""

    def __init__(
        self, shards: Shards, config: DataConfig, *, seed: int, split: str = "train", check: Check = lambda: None
    ) -> None:
        """Raises: DataError where the split holds no text, or the shards' tokenizer is not theirs; what `check` raises
        to stop the counting of a pass."""
        self.fields = dict(FIELDS)
        self.tokenizer: Tokenizer = shards.tokenizer
        self.shards, self.config, self.seed, self.batch = shards, config, seed, config.batch
        self.length = config.length
        length, short = config.length, config.short_fraction
        self.stream = SentencePairs(shards, split, length=length, short_fraction=short, seed=seed, check=check)
        self.lines_per_pass = self.stream.lines_per_pass
        self.rows_read = 0
        """Rows read so far, by all threads."""
        self._lock = threading.Lock()

    def describe(self) -> str:
        """What there is to train on, in a sentence."""
        split = self.stream.split
        return (
            f"{split.tokens:,} tokens in {split.sentences:,} sentences of {split.documents:,} documents; "
            f"a pass is {self.lines_per_pass:,} lines"
        )

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """The rows (numbers within the batch, all of them if None) of the step's batch, in the order asked for."""
        rows = np.arange(self.config.lines(step)) if rows is None else np.asarray(rows, np.int64)
        return self._lines(self.config.lines_before(step) + rows)

    def _lines(self, numbers: I64) -> Batch:
        config = self.config
        with self._lock:
            self.rows_read += len(numbers)
        pairs = cut(self.stream.pairs(numbers), numbers, length=config.length, seed=self.seed)
        tokenizer = wordpiece(self.tokenizer)
        batch = bert_pair(self.shards.read, pairs, tokenizer, config.length)
        masked = bert_masking(
            batch["tokens"],
            batch.pop("candidates"),
            batch.pop("lengths"),
            numbers,
            seed=self.seed,
            predictions=config.slots,
            masked_fraction=config.masked_fraction,
            mask=tokenizer.mask,
            vocab=tokenizer.size,
        )
        batch["tokens"], batch["slots"], batch["labels"] = masked.tokens, masked.slots, masked.labels
        batch["slot_weights"] = masked.weights
        batch["is_random"] = pairs.is_random.astype(np.int32)
        batch["valid"] = np.ones(len(numbers), np.float32)
        return batch


class HeldOutPairs:
    """Every held-out line once, in `steps` batches: pass 0 of the dev split, with masks that never change."""

    def __init__(self, shards: Shards, config: DataConfig, *, seed: int = 0, check: Check = lambda: None) -> None:
        """Raises: DataError where nothing is held out; what `check` raises to stop the counting of a pass."""
        self._batches = PairBatches(shards, config, seed=seed, split="dev", check=check)
        self.fields = self._batches.fields
        self.tokenizer = self._batches.tokenizer
        self.batch = config.batch
        self.count = self._batches.lines_per_pass
        """Lines in all."""
        self.steps = -(-self.count // self.batch)

    @property
    def rows_read(self) -> int:
        return self._batches.rows_read

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """As in PairBatches, for steps below `steps`; rows past the last line repeat line 0 with all weights 0."""
        if not 0 <= step < self.steps:
            raise IndexError(f"held-out step {step} is not below {self.steps}")
        numbers = step * self.batch + (np.arange(self.batch) if rows is None else np.asarray(rows, np.int64))
        spare = numbers >= self.count
        batch = self._batches._lines(np.where(spare, 0, numbers))
        batch["valid"][spare] = 0.0
        batch["slot_weights"][spare] = 0.0
        return batch


class HeldOut(Protocol):
    """What evaluation reads: every held-out line once, `count` of them, in `steps` batches."""

    fields: dict[str, str]
    tokenizer: Tokenizer
    batch: int
    count: int
    steps: int

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """As Batches.read, for steps below `steps`; rows past the last line have no weight."""
        ...


def open_batches(
    store: Shards | Store,
    tokenizer: Tokenizer,
    config: DataConfig,
    task: TaskConfig,
    seed: int,
    check: Check = lambda: None,
) -> Batches:
    """The training batches of a task, or of data.stream. `check` may raise to stop the counting of a pass."""
    if isinstance(store, Store):
        return TaskBatches(store, tokenizer, config, task, seed=seed)
    if config.stream == "sentence_pairs":
        return PairBatches(store, config, seed=seed, check=check)
    return {"windows": WindowBatches, "lanes": LaneBatches}[config.stream](store, config, seed=seed)


def open_held_out(
    store: Shards | Store,
    tokenizer: Tokenizer,
    config: DataConfig,
    task: TaskConfig,
    lines: int,
    lanes: int = 0,
    check: Check = lambda: None,
) -> HeldOut | None:
    """The held-out batches of a task or of data.stream, `lines` at a time; None where nothing is held out. lanes: how
    many of the lines carry text where they go on from batch to batch, so that where they begin depends on no mesh; 0:
    all. `check` may raise to stop the counting of a pass."""
    if isinstance(store, Store):
        weights_C = class_weights(task, store.labels, store.counts)
        dev = store.splits["dev"]
        return HeldOutTask(dev, tokenizer, config, lines, weights_C) if dev.examples else None
    if not store.splits["dev"].documents:
        return None
    config = replace(config, batch=lines, ramp_from=0, ramp_steps=0)  # a ramp is for training
    if config.stream == "lanes":
        return HeldOutLanes(store, config, min(lanes or lines, lines))
    return HeldOutWindows(store, config) if config.stream == "windows" else HeldOutPairs(store, config, check=check)


Rows = I64 | Callable[[int], I64] | None


class _Steps:
    """A source of whole batches for grain."""

    def __init__(self, batches: Batches | HeldOut, first: int, last: int, rows: Rows) -> None:
        self.batches, self.first, self.last, self.rows = batches, first, last, rows

    def __len__(self) -> int:
        return max(self.last - self.first, 0)

    def __getitem__(self, index: int) -> tuple[int, Batch]:
        step = self.first + int(index)
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
    """Reads steps first … last-1 in order, `prefetch` of them ahead; rows: of each batch, or of that of a step.

    `with iterate(batches, 0, 9) as steps: for step, batch in steps: …`

    The threads are stopped when the block is left, however it is left.
    """
    import grain  # it imports jax

    if first_step >= last_step:
        yield iter(())
        return
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch)
    steps = iter(grain.MapDataset.source(_Steps(batches, first_step, last_step, rows)).to_iter_dataset(options))
    try:
        yield steps
    finally:
        steps.close()


def check_fields(batch: Batch, fields: dict[str, str]) -> None:
    """Raises: DataError where a batch lacks a field or a field has another type or rank than `fields` says."""
    for name, spec in fields.items():
        dtype, dims = spec.split()
        if name not in batch:
            raise DataError(f"the batch lacks the field {name!r} ({spec})")
        kind = {"i32": np.int32, "f32": np.float32}[dtype]
        if batch[name].dtype != kind or batch[name].ndim != len(dims):
            raise DataError(f"the batch field {name!r} is {batch[name].dtype} {batch[name].shape}, not {spec}")
