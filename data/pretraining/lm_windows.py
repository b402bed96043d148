"""GPT's windows: a split's tokens are one long row, and a sequence is a stretch of it with the token after each."""

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
"""The further arrays of packed windows. packs: 1, 2, … by document, 0 at padding; positions: within each document."""


class TokenStream:
    """The tokens of a split as one row, source after source.

    The shards also hold the other split's text in between: a place in the shards is a place in this row plus the
    source's shift.
    """

    def __init__(self, shards: Shards, split: str) -> None:
        self._shards = shards
        # Where the split's sources lie in the shards, and where in the joined row.
        starts, lengths = shards.spans(split)
        self._ends = np.cumsum(lengths)
        self._begins = self._ends - lengths
        self._shift = starts - self._begins
        self.tokens = int(lengths.sum())

    def read(self, starts: I64, lengths: I64) -> NDArray[np.integer]:
        """Spans of the row, joined; each holds a token or more: starts i64 [n], lengths i64 [n] → ids."""
        # A span over several sources becomes a span in each: repeated once for every source that it touches, …
        ends = starts + lengths
        # Its first source, and how many it touches.
        first = np.searchsorted(self._ends, starts, side="right")
        counts = np.searchsorted(self._ends, ends, side="left") - first + 1
        before = np.cumsum(counts) - counts
        source = np.repeat(first - before, counts) + np.arange(counts.sum())
        # … and cut to that source's tokens.
        begins = np.maximum(np.repeat(starts, counts), self._begins[source])
        stops = np.minimum(np.repeat(ends, counts), self._ends[source])
        return self._shards.read(begins + self._shift[source], stops - begins)


def windows_of(read: Read, starts: I64, lengths: I64, width: int, pad: int) -> NDArray[np.int32]:
    """Windows of a row, each filled up to `width` with `pad`: starts i64 [n], lengths i64 [n] → ids i32 [n, width].

    Windows that touch or overlap and follow each other are read at once.
    """
    ends = starts + lengths
    # Windows that touch form a run, which is one read. Held-out windows overlap by a token, the last of one being the
    # first of the next; the overlap is read once.
    apart = np.flatnonzero(np.append(True, (starts[1:] < starts[:-1]) | (starts[1:] > ends[:-1])))
    begins = starts[apart]
    sizes = np.maximum.reduceat(ends, apart) - begins
    ids = read(begins, sizes)
    # Where each window begins among the ids that were read: its run's first id, plus its distance from there.
    run = np.repeat(np.arange(len(apart)), np.diff(np.append(apart, len(starts))))
    at = (np.cumsum(sizes) - sizes - begins)[run] + starts
    place = np.arange(width)
    inside = place < lengths[:, None]
    windows = np.full((len(starts), width), pad, np.int32)
    windows[inside] = ids[(at[:, None] + place)[inside]]
    return windows


def gpt_sequences(windows: NDArray[np.int32], lengths: I64, pad: int, end: int | None = None) -> Batch:
    """Windows of L+1 places, the first `lengths` of them text → tokens, mask, next i32 BL, next_weights f32 BL. With an
    `end`, the documents that it ends do not attend to each other, and there are packs and positions i32 BL as well.

    `7 8 [end] 9 7` → tokens `7 8 [end] 9`, next `8 [end] 9 7`, packs `1 1 1 2`, positions `0 1 2 0`. The first token of
    a document cannot be predicted from another document, so next_weights are `1 1 0 1` then.
    """
    place = np.arange(windows.shape[1] - 1)
    inside_BL = place < (lengths - 1)[:, None]
    # Input and target are the same window, one place apart.
    tokens_BL = np.where(inside_BL, windows[:, :-1], np.int32(pad))
    predicted_BL = inside_BL
    batch = {"tokens": tokens_BL, "mask": inside_BL.astype(np.int32), "next": windows[:, 1:].copy()}
    if end is not None:
        # A document begins after each end, and at the window's first place, whatever document that continues.
        ends_BL = tokens_BL == end
        begins_BL = np.concatenate([np.ones_like(ends_BL[:, :1]), ends_BL[:, :-1]], 1)
        # Minus the place of the latest beginning: positions start again at 0 in each document.
        positions_BL = place - np.maximum.accumulate(begins_BL * place, 1)
        batch["packs"] = (np.cumsum(begins_BL, 1) * inside_BL).astype(np.int32)
        batch["positions"] = (positions_BL * inside_BL).astype(np.int32)
        # What follows an end belongs to another document.
        predicted_BL = inside_BL & ~ends_BL
    return {**batch, "next_weights": predicted_BL.astype(np.float32)}


class _Windows:
    """What training and held-out windows share."""

    def __init__(self, shards: Shards, config: DataConfig, split: str) -> None:
        """Raises: DataError where the split holds no text, or where documents are to be packed and the tokenizer has no
        token that ends them."""
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

    def _sequences(self, starts: I64) -> Batch:
        """Returns the windows that begin at these places of the row, as a batch."""
        with self._lock:
            self.rows_read += len(starts)
        # One token more than the model reads: the last place's next. Only the row's very end has fewer.
        lengths = np.minimum(self.length + 1, self.row.tokens - starts)
        windows = windows_of(self.row.read, starts, lengths, self.length + 1, self.tokenizer.pad)
        batch = gpt_sequences(windows, lengths, self.tokenizer.pad, self.tokenizer.end if self.config.packed else None)
        return {**batch, "valid": np.ones(len(starts), np.float32)}


class WindowBatches(_Windows):
    """GPT's pretraining batches: step s, row r is sequence `s · batch + r` of an endless row of windows.

    Sequence `n` belongs to epoch `n // examples_per_epoch`. An epoch cuts the row of all tokens into windows of
    `length`, from a first place on that is drawn for (seed, epoch), and takes them in an order drawn for it too. So any
    sequence is found by arithmetic.

    Differs: the papers speak of contiguous windows and do not say how they were cut. Here the cuts move with each
    epoch, so that no token is for ever the first of its window, without context. Every epoch has the same number of
    sequences; fewer than two windows' tokens at the ends of the row are left out of it.
    """

    def __init__(self, shards: Shards, config: DataConfig, *, seed: int) -> None:
        """Raises: DataError where the text gives no window, or where it cannot be packed."""
        super().__init__(shards, config, "train")
        self.seed = seed
        # The last token is only a target, so a window may begin at `spare` places.
        spare = self.row.tokens - self.length
        if spare < 1:
            raise DataError(
                f"{shards.folder}: the train text has {self.row.tokens} tokens, too few for a window of "
                f"data.length={self.length} and the token after it; lower data.length, or give more text"
            )
        # Every epoch must hold the same number of windows, so that a sequence's number says its epoch: as many as fit
        # behind the largest shift.
        self._shifts = min(self.length, spare)
        self.examples_per_epoch = (self.row.tokens - self._shifts) // self.length

    def notes(self) -> list[str]:
        """Returns what was fetched from a bucket."""
        return self.shards.notes()

    def describe(self) -> str:
        """Describes the training data, in a sentence."""
        return (
            f"{self.split.tokens:,} tokens in {self.split.documents:,} documents; "
            f"an epoch is {self.examples_per_epoch:,} windows"
        )

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """Returns the rows (numbers within the batch, all of them if None) of the step's batch, in the order asked
        for."""
        rows = np.arange(self.config.batch_size_at(step)) if rows is None else np.asarray(rows, np.int64)
        return self.sequences(self.config.examples_before(step) + rows)

    def sequences(self, numbers: I64, step: int | None = None) -> Batch:
        """Returns the sequences with these numbers, from 0 on without end. step: changes nothing."""
        return self._sequences(self.starts(numbers))

    def lengths_of(self, numbers: I64) -> I64:
        """Returns the tokens of sequences: windows are full."""
        # Only held-out text has a window that is not.
        return np.full(len(numbers), self.length)

    def starts(self, numbers: I64) -> I64:
        """Returns where sequences begin in the row of tokens, by their numbers, from 0 on without end."""
        epochs, places = np.divmod(numbers, self.examples_per_epoch)
        starts = np.empty_like(numbers)
        # The rows of a batch may belong to two epochs, each with its own shift and order.
        for e in np.unique(epochs).tolist():
            mine = epochs == e
            # A permutation that is computed place by place: an epoch of millions of windows is never shuffled whole.
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
        # The last token is only predicted, so N tokens give windows over N-1 of them.
        self.count = -(-(self.row.tokens - 1) // self.length)
        """Windows in all."""
        self.steps = -(-self.count // self.batch)

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """Reads as WindowBatches does, for steps below `steps`; rows past the last window repeat the first with no
        weight."""
        if not 0 <= step < self.steps:
            raise IndexError(f"held-out step {step} is not below {self.steps}")
        numbers = step * self.batch + (np.arange(self.batch) if rows is None else np.asarray(rows, np.int64))
        # The last batch is filled up with the first window, which weighs nothing.
        spare = numbers >= self.count
        batch = self._sequences(np.where(spare, 0, numbers) * self.length)
        batch["valid"][spare] = 0.0
        batch["next_weights"][spare] = 0.0
        return batch
