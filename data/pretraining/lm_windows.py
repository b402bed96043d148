"""GPT's windows: a split's tokens are one long row, and a line is a stretch of it with the token after each token."""

import threading

import numpy as np
from numpy.typing import NDArray

from contexture.data import rng
from contexture.data.binary_files import I64
from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.layouts import Batch, Read
from contexture.data.pretraining.shards import Shards
from contexture.data.tokenizers.base import Tokenizer

FIELDS = {
    "tokens": "i32 BL",
    "mask": "i32 BL",
    "next": "i32 BL",
    "next_weights": "f32 BL",
    "valid": "f32 B",
}
"""The arrays of a batch of windows. next: the token after each token; next_weights: 0 where none is to be predicted."""
PACKED = {"packs": "i32 BL", "positions": "i32 BL"}
"""What packed windows have besides. packs: 1, 2, … by document, 0 at padding; positions: counted in each document."""


class TokenStream:
    """The tokens of a split as one row: those of each source behind those of the source before it."""

    def __init__(self, shards: Shards, split: str) -> None:
        self._shards = shards
        starts, lengths = shards.spans(split)
        self._ends = np.cumsum(lengths)
        self._begins = self._ends - lengths
        self._shift = starts - self._begins
        self.tokens = int(lengths.sum())

    def read(self, starts: I64, lengths: I64) -> NDArray[np.integer]:
        """Spans of the row, joined; each holds a token or more: starts i64 [n], lengths i64 [n] → ids."""
        ends = starts + lengths
        first = np.searchsorted(self._ends, starts, side="right")
        counts = np.searchsorted(self._ends, ends, side="left") - first + 1
        before = np.cumsum(counts) - counts
        source = np.repeat(first - before, counts) + np.arange(counts.sum())
        begins = np.maximum(np.repeat(starts, counts), self._begins[source])
        stops = np.minimum(np.repeat(ends, counts), self._ends[source])
        return self._shards.read(begins + self._shift[source], stops - begins)


def windows_of(read: Read, starts: I64, lengths: I64, width: int, pad: int) -> NDArray[np.int32]:
    """Windows of a row, each filled up to `width` with `pad`: starts i64 [n], lengths i64 [n] → ids i32 [n, width].

    Windows that touch or overlap and follow each other are read at once.
    """
    ends = starts + lengths
    apart = np.flatnonzero(np.append(True, (starts[1:] < starts[:-1]) | (starts[1:] > ends[:-1])))
    begins = starts[apart]
    sizes = np.maximum.reduceat(ends, apart) - begins
    ids = read(begins, sizes)
    run = np.repeat(np.arange(len(apart)), np.diff(np.append(apart, len(starts))))
    at = (np.cumsum(sizes) - sizes - begins)[run] + starts
    place = np.arange(width)
    inside = place < lengths[:, None]
    windows = np.full((len(starts), width), pad, np.int32)
    windows[inside] = ids[(at[:, None] + place)[inside]]
    return windows


def gpt_lines(windows: NDArray[np.int32], lengths: I64, pad: int, end: int | None = None) -> Batch:
    """Windows of L+1 places, of which `lengths` hold text → tokens, mask, next i32 BL, next_weights f32 BL; where an
    `end` is given, the documents that it ends do not see each other: packs and positions i32 BL besides.

    `7 8 [end] 9 7` → tokens `7 8 [end] 9`, next `8 [end] 9 7`, packs `1 1 1 2`, positions `0 1 2 0`. What a document
    begins with cannot be known from another one, so that next_weights are `1 1 0 1` then.
    """
    place = np.arange(windows.shape[1] - 1)
    inside_BL = place < (lengths - 1)[:, None]
    tokens_BL = np.where(inside_BL, windows[:, :-1], np.int32(pad))
    predicted_BL = inside_BL
    batch = {"tokens": tokens_BL, "mask": inside_BL.astype(np.int32), "next": windows[:, 1:].copy()}
    if end is not None:
        ends_BL = tokens_BL == end
        begins_BL = np.concatenate([np.ones_like(ends_BL[:, :1]), ends_BL[:, :-1]], 1)
        positions_BL = place - np.maximum.accumulate(begins_BL * place, 1)
        batch["packs"] = (np.cumsum(begins_BL, 1) * inside_BL).astype(np.int32)
        batch["positions"] = (positions_BL * inside_BL).astype(np.int32)
        predicted_BL = inside_BL & ~ends_BL
    return {**batch, "next_weights": predicted_BL.astype(np.float32)}


class _Windows:
    """What training and held-out windows share."""

    def __init__(self, shards: Shards, config: DataConfig, split: str) -> None:
        """Raises: DataError where the split holds no text, or its tokenizer ends no documents that are to be packed."""
        self.tokenizer: Tokenizer = shards.tokenizer
        self.fields = {**FIELDS, **PACKED} if config.packed else dict(FIELDS)
        self.shards, self.config, self.split = shards, config, shards.splits[split]
        self.batch, self.length = config.batch, config.length
        self.row = TokenStream(shards, split)
        if not self.row.tokens:
            raise DataError(f"{shards.folder}: no {split} text; prepare it again with data.dev or data.dev-fraction")
        if config.packed and self.tokenizer.end is None:
            raise DataError(
                f"{shards.folder}: data.packed wants a vocabulary with a token that ends documents, and that of kind "
                f"{self.tokenizer.kind} has none; leave data.packed out"
            )
        self.rows_read = 0
        """Rows read so far, by all threads."""
        self._lock = threading.Lock()

    def _lines(self, starts: I64) -> Batch:
        """Windows that begin at these places of the row."""
        with self._lock:
            self.rows_read += len(starts)
        lengths = np.minimum(self.length + 1, self.row.tokens - starts)
        windows = windows_of(self.row.read, starts, lengths, self.length + 1, self.tokenizer.pad)
        batch = gpt_lines(windows, lengths, self.tokenizer.pad, self.tokenizer.end if self.config.packed else None)
        return {**batch, "valid": np.ones(len(starts), np.float32)}


class WindowBatches(_Windows):
    """GPT's pretraining batches: step s, row r is line `s · batch + r` of an endless row of windows.

    Line `n` belongs to pass `n // examples_per_epoch`. A pass cuts the row of all tokens into windows of `length`, from
    a first place on that is drawn for (seed, pass), and takes them in an order drawn for it too. So any line is found
    by arithmetic.

    Differs: the papers speak of contiguous windows and do not say how they were cut. Here the cuts move with each pass,
    so that no token is for ever the first of its window, without context. A pass has the same number of lines every
    time, so that less than two windows' tokens at the ends of the row are left out of it.
    """

    def __init__(self, shards: Shards, config: DataConfig, *, seed: int) -> None:
        """Raises: DataError where the text gives no window, or where it cannot be packed."""
        super().__init__(shards, config, "train")
        self.seed = seed
        spare = self.row.tokens - self.length
        if spare < 1:
            raise DataError(
                f"{shards.folder}: the train text has {self.row.tokens} tokens, too few for a window of "
                f"data.length={self.length} and the token after it; lower data.length, or give more text"
            )
        self._shifts = min(self.length, spare)
        self.examples_per_epoch = (self.row.tokens - self._shifts) // self.length

    def notes(self) -> list[str]:
        """Nothing."""
        return []

    def describe(self) -> str:
        """What there is to train on, in a sentence."""
        return (
            f"{self.split.tokens:,} tokens in {self.split.documents:,} documents; "
            f"a pass is {self.examples_per_epoch:,} windows"
        )

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """The rows (numbers within the batch, all of them if None) of the step's batch, in the order asked for."""
        rows = np.arange(self.config.batch_size_at(step)) if rows is None else np.asarray(rows, np.int64)
        return self._lines(self.starts(self.config.examples_before(step) + rows))

    def starts(self, numbers: I64) -> I64:
        """Where lines begin in the row of tokens, by their numbers, from 0 on without end."""
        passes, places = np.divmod(numbers, self.examples_per_epoch)
        starts = np.empty_like(numbers)
        for e in np.unique(passes).tolist():
            mine = passes == e
            windows = rng.permutation_at(rng.key(rng.WINDOW_PLACE, self.seed, e), places[mine], self.examples_per_epoch)
            starts[mine] = rng.key(rng.WINDOW_SHIFT, self.seed, e) % self._shifts + windows * self.length
        return starts


class HeldOutWindows(_Windows):
    """Every held-out token once, in `steps` batches: windows side by side, the last one filled up.

    Each token but the very first of all is predicted; of packed windows, none that begins a document.
    """

    unit = "sequences"

    def __init__(self, shards: Shards, config: DataConfig) -> None:
        """Raises: DataError where no token or a single one is held out, or where the text cannot be packed."""
        super().__init__(shards, config, "dev")
        if self.row.tokens < 2:
            raise DataError(f"{shards.folder}: the dev text has a single token; prepare it again and hold out more")
        self.count = -(-(self.row.tokens - 1) // self.length)
        """Windows in all."""
        self.steps = -(-self.count // self.batch)

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """As in WindowBatches, for steps below `steps`; rows past the last window repeat the first with no weight."""
        if not 0 <= step < self.steps:
            raise IndexError(f"held-out step {step} is not below {self.steps}")
        numbers = step * self.batch + (np.arange(self.batch) if rows is None else np.asarray(rows, np.int64))
        spare = numbers >= self.count
        batch = self._lines(np.where(spare, 0, numbers) * self.length)
        batch["valid"][spare] = 0.0
        batch["next_weights"][spare] = 0.0
        return batch
