"""Which sequences share a row, and their arrays: rows of one width that hold several sequences, with little padding.

Everything follows from the lengths alone, so that all processes of a run agree without a message.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from contexture.data.binary_files import I64
from contexture.data.bucketing import MIN_SAVING, bucket, one_of, power_of_two
from contexture.data.layouts import Batch, between_ends

ROW = 128
"""The least tokens of a row, where there is as much text: in narrower ones long texts leave room that none fills."""
SAMPLE = 1 << 12
"""Sequences that the width of rows is chosen by."""
EXAMPLES = 1 << 14
"""Examples that the numbers of rows of training batches are chosen by."""
STEP = 64
"""Rows are wider by a multiple of this."""
WIDEST = 3
"""Rows are at most so many times as wide as the longest sequence needs, to hold several of about its length."""
ATTENTION = 2048
"""In a row of so many tokens attention costs about as much as all else."""
LANE_STEP = 8
"""Rows of words are wider by a multiple of this, or of an eighth of the longest sentence."""
LANES = 8
"""A step of an LSTM takes as long as so many words would, before its own: a judgement, between a CPU with small kernels
(nearly none) and an accelerator (many)."""
OF_TOKENS = ("tokens", "index", "segments", "next", "next_weights")
"""The fields of a batch that lie in shared rows."""
PLACES = {"packs": "i32 XY", "positions": "i32 XY", "begins": "i32 {}", "mask": "i32 {}L"}
"""The fields that say where sequences lie in rows; {}: the letters of an example's sequences, B or BA."""
MOST_HEIGHTS = 3
"""The most numbers of rows that a run's batches have; each is a program to compile."""


def fields_in_rows(fields: Mapping[str, str], own: str = "B") -> dict[str, str]:
    """Returns the fields of sequences that share rows: `tokens` i32 BL, `mask` i32 BL → `tokens` i32 XY, and PLACES.

    `packs` numbers the sequences, `positions` is a token's place in its sequence, and `begins` is where a sequence
    begins, over all rows one after the other. `mask` says how long each is.

    Args:
        fields: of sequences, of which each has a row.
        own: the letters of an example's sequences.
    """
    rows = {name: spec.replace("BL", "XY") for name, spec in fields.items() if name != "mask"}
    return {**rows, **{name: spec.format(own) for name, spec in PLACES.items()}}


def best_fit(lengths: I64, width: int, most: int = 1 << 30) -> I64:
    """Returns the row of each sequence: the fullest one that still holds it, the longest sequences first.

    Rows are numbered as they are opened, and have at most `most` sequences; `lengths` are at most `width`.
    """
    assert lengths.max(initial=0) <= width
    rows = np.empty(len(lengths), np.int64)
    # Rows with the same room form a stack. Bit n of `rooms` says whether any has room for n tokens: the least that
    # suffices is a shift and a trick with bits, whatever the number of rows.
    of_room: list[list[int]] = [[] for _ in range(width + 1)]
    rooms, held = 0, list[int]()
    for number in np.argsort(-lengths, kind="stable").tolist():
        need = int(lengths[number])
        if above := rooms >> need:
            room = need + (above & -above).bit_length() - 1
            row = of_room[room].pop()
            rooms &= ~((not of_room[room]) << room)
        else:
            room, row = width, len(held)
            held.append(0)
        rows[number] = row
        held[row] += 1
        if (left := room - need) and held[row] < most:
            of_room[left].append(row)
            rooms |= 1 << left
    return rows


def row_width(groups: Sequence[I64], share: int, multiple: int = 1, *, words: bool = False) -> int:
    """Returns the tokens of a row with which groups of sequences compute the least, each group in rows of its own.

    Args:
        groups: the lengths of each.
        share: the tokens that a device has of a batch, at most: no row is much wider.
        multiple: the number of rows is a multiple of it.
        words: whether an LSTM goes through the rows step by step, so that time follows their width.
    """
    longest = max(int(lengths.max(initial=1)) for lengths in groups)
    # An eighth of a long sentence, so that few widths are tried.
    step, widest = (max(LANE_STEP, longest // 64 * 8), 2) if words else (STEP, WIDEST)
    least = max(0 if words else ROW, -(-longest // step) * step)
    if least >= bucket(share):
        return max(bucket(share), longest)

    def cost(width: int) -> float:
        rows = sum(-(-int(best_fit(lengths, width).max(initial=0) + 1) // multiple) * multiple for lengths in groups)
        # An LSTM has no attention, but each of its steps reads its kernels anew.
        return (rows + len(groups) * LANES) * width if words else rows * width * (1 + width / ATTENTION)

    # Sequences of about one length leave up to half of a row that is little longer: some widths hold them, others not.
    return min(range(least, widest * least + 1, step), key=cost)


@dataclass(frozen=True)
class Packing:
    """Where the sequences of a batch lie in its rows. Those of a row follow each other in their own order.

    Args:
        rows: X, the rows.
        width: Y, the tokens of a row.
        begins: where each sequence begins, over all rows one after the other: i64 [sequences].
        lengths: the tokens of each, i64 [sequences].
    """

    rows: int
    width: int
    begins: I64
    lengths: I64


def pack(lengths: I64, width: int, heights: Sequence[int], multiple: int = 1, parts: int = 1, each: int = 1) -> Packing:
    """Packs the sequences of a batch into as few rows as one of the heights has.

    Args:
        lengths: tokens of each sequence.
        width: Y.
        heights: numbers of rows to choose from, ascending. Where the greatest does not suffice, there are as many as it
            takes.
        multiple: the number of rows is a multiple of it.
        parts: microbatches, of which each has rows of its own: example b is in part b % parts, and so is row x.
        each: consecutive sequences that belong to one example.
    """
    part = np.arange(len(lengths)) // each % parts
    row = np.zeros(len(lengths), np.int64)
    for p in range(parts):
        row[part == p] = best_fit(lengths[part == p], width) * parts + p
    # The parts have equally many rows.
    rows = height_for((int(row.max(initial=0)) // parts + 1) * parts, heights, multiple)
    return placed(row, lengths, rows, width)


def height_for(rows: int, heights: Sequence[int], multiple: int) -> int:
    """Returns the least height that has so many rows; beyond the greatest, the number itself, as a multiple."""
    rows = -(-rows // multiple) * multiple
    return next((height for height in heights if height >= rows), rows)


def placed(row: I64, lengths: I64, rows: int, width: int) -> Packing:
    """Returns the packing of sequences whose rows are known."""
    # By row, and within a row by number: kernels skip tiles by the numbers at their two ends.
    order = np.argsort(row, kind="stable")
    here = np.cumsum(lengths[order]) - lengths[order]
    first = np.ones(len(row), bool)
    first[1:] = np.diff(row[order]) != 0
    # How many tokens there are before a row: as many as before its first sequence.
    before = np.maximum.accumulate(np.where(first, here, 0)) if len(row) else here
    begins = np.empty(len(row), np.int64)
    begins[order] = row[order] * width + here - before
    return Packing(rows, width, begins, lengths)


def packed_batch(sequences: Batch, packing: Packing, pad: int = 0) -> Batch:
    """Returns fields BL of sequences, of which each has a row, as fields XY of shared rows, with packs and positions.

    Args:
        sequences: arrays [sequences, L] whose first `packing.lengths` places count.
        packing: where they go.
        pad: the id of padding in `tokens`.
    """
    lengths = packing.lengths
    place = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    number = np.repeat(np.arange(len(lengths)), lengths)
    at, shape = packing.begins[number] + place, (packing.rows, packing.width)
    fields = {name: array[number, place] for name, array in sequences.items()}
    # Packs are numbered from 1 on: 0 is padding.
    fields |= {"packs": (number + 1).astype(np.int32), "positions": place.astype(np.int32)}
    batch = {name: np.full(shape, pad if name == "tokens" else 0, array.dtype) for name, array in fields.items()}
    for name, array in fields.items():
        batch[name].ravel()[at] = array
    return batch


def in_rows(sequences: Batch, packing: Packing, slots: int = 0, pad: int = 0) -> Batch:
    """Returns fields BL of sequences, `mask` among them, as a packed batch with room for so many sequences, at least
    for these.

    The lengths of an ELMo's sentences (`index`, and the table `types` of the batch) count begin and end, which are
    added here. Their words are at places from 0 on all the same, and `begins` is the first one's.
    """
    sequences = dict(sequences)
    mask = sequences.pop("mask")
    table = {name: sequences.pop(name) for name in ("types",) if name in sequences}
    if has_ends := "index" in sequences:
        sequences["index"] = between_ends(sequences["index"], mask)
    batch = packed_batch(sequences, packing, pad)
    begins = packing.begins.astype(np.int32)
    if has_ends:
        # The begin is at place -1: heads count a sentence's words.
        batch["positions"] -= batch["packs"] > 0
        begins += 1
    spare = max(slots - len(begins), 0)
    return {**table, **batch, "begins": np.pad(begins, (0, spare)), "mask": np.pad(mask, ((0, spare), (0, 0)))}


def apart(batch: Mapping[str, np.ndarray]) -> Batch:
    """Returns a packed batch with a row for each sequence, 0 at padding: fields XY become BL, or BAL."""
    if "begins" not in batch:
        return dict(batch)
    mask, begins = batch["mask"], batch["begins"]
    at = np.where(mask > 0, begins[..., None] + np.arange(mask.shape[-1]), 0)
    shared = {name: batch[name] for name in OF_TOKENS if name in batch}
    rows = {name: np.where(mask > 0, array.ravel()[at], 0).astype(array.dtype) for name, array in shared.items()}
    return {**{name: x for name, x in batch.items() if name not in ("packs", "positions", "begins")}, **rows}


def choose_heights(needed: Sequence[int], steps: int, multiple: int = 1) -> tuple[int, ...]:
    """Returns at most MOST_HEIGHTS numbers of rows, ascending, with which batches that need so many compute the least.

    Args:
        needed: the rows that a sample of batches needs.
        steps: how many batches there will be; each height must save MIN_SAVING whole ones.
        multiple: of which each is a multiple.
    """
    values, counts = np.unique(-(-np.asarray(needed) // multiple) * multiple, return_counts=True)
    greatest, share = int(values[-1]), counts / counts.sum()

    def cost(heights: tuple[int, ...]) -> float:
        rows = np.asarray(heights)[np.searchsorted(heights, values)]
        return float((rows * share).sum()) / greatest * steps + MIN_SAVING * len(heights)

    # Few values: the lengths of a batch average out, so that all ways are tried.
    others = values[:-1][-40:].tolist()
    ways = (way for n in range(MOST_HEIGHTS) for way in combinations(others, n))
    return min(((*way, greatest) for way in ways), key=cost)


def some_batches(batch: int) -> Iterator[I64]:
    """Yields the places of the examples of the first batches, at least eight of them, counted over all batches."""
    for first in range(0, max(min(EXAMPLES, 256 * batch), 8 * batch), batch):
        yield np.arange(first, first + batch)


class BatchRows:
    """The rows that the sequences of a run's batches share: of one width, and for each size of a batch few numbers of
    rows, chosen from a sample."""

    def __init__(
        self,
        width: int,
        sample: Callable[[int], Iterable[I64]],
        examples: int,
        *,
        parts: int = 1,
        devices: int = 1,
        each: int = 1,
    ) -> None:
        """Chooses nothing yet.

        Args:
            width: Y, the tokens of a row.
            sample: size of a batch → the lengths of the sequences of some such batches, one after the other.
            examples: how many the run is taken to read. In these a number of rows must make up for its compilation.
            parts: microbatches of a batch.
            devices: how many devices share a batch: of a microbatch's rows each has as many.
            each: consecutive sequences that belong to one example.
        """
        self.width, self._sample, self._examples = width, sample, examples
        # Each microbatch is cut over all devices, so that both numbers divide the rows.
        self._parts, self._multiple, self._each = parts, parts * devices, each
        # By the size of a batch: a ramp (data.ramp-from) has several.
        self._heights: dict[int, tuple[int, ...]] = {}

    def heights(self, batch: int) -> tuple[int, ...]:
        """Returns the numbers of rows that batches of so many examples have, but for rare ones that need more."""
        if batch not in self._heights:
            # Without heights to choose from, a packing has as many rows as its sequences need.
            needed = [self._packed(lengths, ()).rows for lengths in self._sample(batch)]
            self._heights[batch] = choose_heights(needed, self._examples // batch + 1, self._multiple)
        return self._heights[batch]

    def pack(self, lengths: I64, batch: int) -> Packing:
        """Returns where the sequences of a batch of so many examples lie."""
        return self._packed(lengths, self.heights(batch))

    def describe(self, batch: int) -> str:
        """Describes the rows of a batch: `14 or 15 rows of 128 tokens a batch, padding ratio 1.04`."""
        heights = self.heights(batch)
        # Of the sample too: the run's own batches have about these lengths.
        packed = [self._packed(lengths, heights) for lengths in self._sample(batch)]
        ratio = sum(each.rows * each.width for each in packed) / sum(int(each.lengths.sum()) for each in packed)
        rows = "1 row" if heights == (1,) else f"{one_of(heights)} rows"
        return f"{rows} of {self.width} tokens a batch, padding ratio {ratio:.2f}"

    def _packed(self, lengths: I64, heights: tuple[int, ...]) -> Packing:
        return pack(lengths, self.width, heights, self._multiple, self._parts, self._each)


@dataclass(frozen=True)
class Shape:
    """The arrays of held-out batches.

    Args:
        width: Y, the tokens of a row.
        heights: numbers of rows X that a batch may have, ascending: the greatest, and fewer for what is left over.
        slots: the most sequences of a batch.
    """

    width: int
    heights: tuple[int, ...]
    slots: int

    @staticmethod
    def for_lengths(lengths: I64, batch: int, multiple: int = 1, *, words: bool = False) -> "Shape":
        """Returns the shape for batches of about `batch` sequences like these. multiple: of X and of the slots. words:
        as in `row_width`."""
        total, count = int(lengths.sum()), len(lengths)
        # On several devices each has a row at least.
        width = row_width(
            [lengths[:: max(count // SAMPLE, 1)], lengths.max(keepdims=True)],
            -(-total * min(batch, count) // count // multiple),
            words=words,
        )
        # As many tokens as `batch` sequences have, but no more rows than there is text for.
        # What is less than a batch has a power of two: who asks for few texts again and again compiles few programs.
        all_rows = power_of_two(int(best_fit(lengths, width).max() + 1))
        rows = min(max(round(total / count * batch / width), 1), all_rows)
        rows = -(-rows // multiple) * multiple
        # Some rows hold more short texts than others: room for half as many again.
        slots = min(power_of_two(count), -(-3 * rows * width * count // (2 * total) // 8) * 8)
        slots = -(-max(slots, 1) // multiple) * multiple
        return Shape(width, tuple(sorted({max(rows // 4 // multiple, 1) * multiple, rows})), slots)


def fill(lengths: I64, shape: Shape) -> Iterator[tuple[I64, Packing]]:
    """Yields batches that hold these sequences, each once: (their numbers, ascending; where they lie)."""
    if not len(lengths):
        return
    row = best_fit(lengths, shape.width, shape.slots)
    counts = np.bincount(row)
    # Dealt out by how many sequences a row has, so that whole batches have about equally many.
    order = np.argsort(-counts, kind="stable")
    few, most = shape.heights[0], shape.heights[-1]
    whole = len(order) // most
    dealt = [order[n : whole * most : whole] for n in range(whole)]
    # The rest in small batches, unless these have as many rows as a whole one.
    rest = order[whole * most :]
    size = few if -(-len(rest) // few) * few < most else most
    dealt += [rest[first : first + size] for first in range(0, len(rest), size)]
    for rows in dealt:
        for group in _with_slots(rows.tolist(), counts, shape.slots):
            new = np.full(len(counts), -1)
            new[group] = np.arange(len(group))
            numbers = np.flatnonzero(new[row] >= 0)
            height = next(height for height in shape.heights if height >= len(group))
            yield numbers, placed(new[row[numbers]], lengths[numbers], height, shape.width)


class RowFiller:
    """Puts windows of sequences in batches of rows: in one shape, as long as it suits them."""

    def __init__(self, batch: int, *, words: bool = False) -> None:
        """batch: sequences at a time; of words, lanes at a time: steps take an LSTM the same time with few lanes."""
        self.batch, self._words = batch, words
        self._shape: Shape | None = None
        # Of the window that the shape was chosen for: the mean length, and whether it had less than a batch.
        self._mean, self._is_small = 0.0, False

    def fill(self, lengths: I64) -> Iterator[tuple[I64, Packing, int]]:
        """Yields batches that hold these sequences, each once: (their numbers, ascending; where they lie; how many
        sequences the batch has room for)."""
        # The first window sets the shape of later ones, so that few programs are compiled.
        if self._shape is None or lengths.max() > self._shape.width or self._is_unlike(lengths):
            some = np.maximum(lengths, 1)
            self._mean, self._is_small = float(some.mean()), len(some) < self.batch
            self._shape = Shape.for_lengths(some, self.batch, words=self._words)
            if self._words:
                # As many sentences as so many lanes hold.
                sentences = int(self.batch * self._shape.width / some.mean())
                self._shape = Shape.for_lengths(some, sentences, words=True)
        slots = self._shape.slots
        return ((numbers, packing, slots) for numbers, packing in fill(lengths, self._shape))

    def _is_unlike(self, lengths: I64) -> bool:
        """Returns whether a window has sequences of another length than the shape was chosen for, or many more. What is
        left over at the end, less than a batch, is no reason for another shape."""
        if len(lengths) < self.batch:
            return False
        return self._is_small or not 2 / 3 <= max(float(lengths.mean()), 1.0) / self._mean <= 3 / 2


def _with_slots(rows: list[int], counts: I64, slots: int) -> Iterator[list[int]]:
    """Yields the rows of a batch, in several groups where they have more sequences than there are slots."""
    group, used = list[int](), 0
    for row in rows:
        if group and used + counts[row] > slots:
            yield group
            group, used = [], 0
        group.append(row)
        used += int(counts[row])
    yield group
