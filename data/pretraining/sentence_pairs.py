"""Streams: which sentences make which training line, worked out from lengths alone, for any line in any order."""

import contextlib
import hashlib
import json
import random
import threading
from array import array
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contexture.data import rng
from contexture.data.binary_files import I64
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.layouts import Batch, SpanPairs, bert_pair, truncate_randomly
from contexture.data.pretraining.masking import bert_masking
from contexture.data.pretraining.shards import Shards
from contexture.data.storage import atomic_file
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
WINDOW = 16
"""Blocks whose lines are shuffled together."""
_KEPT = 3
_GUESS = 32


@dataclass(frozen=True)
class Plan:
    """Lines planned, each field [n]. A random second span begins at sentence b_start of a document that has b_length
    sentences from there on, and takes sentences until it has `wanted` tokens; else b is a span of tokens, like a."""

    a_start: I64
    b_start: I64
    a_length: NDArray[np.int32]
    b_length: NDArray[np.int32]
    wanted: NDArray[np.int32]
    is_random: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.a_start)

    def take(self, rows: I64) -> "Plan":
        return Plan(*(getattr(self, field.name)[rows] for field in fields(self)))


class SentencePairs:
    """BERT's pairs of spans (create_pretraining_data.py, create_instances_from_document), endless and in any order.

    A pass walks every document with a generator keyed (seed, pass, document), which is asked in the original's order.
    Line `n` belongs to pass `n // examples_per_epoch`. A pass takes the blocks of the shards in an order of its own and
    shuffles the lines within each WINDOW of them; so any line is found by arithmetic, and its window planned.

    Differs: in the original each pass has as many lines as it happens to have. Here a block gives as many lines in
    every pass as it has in pass 0; where another pass has more of them, some are left out, and where it has less, some
    come twice. Tokens that are too many are cut by numbers keyed (seed, line), not by the document's generator
    (`layouts.truncate_randomly`).
    """

    def __init__(
        self,
        shards: Shards,
        split: str,
        *,
        length: int,
        short_fraction: float,
        seed: int,
        cancel: CancelToken = NEVER,
    ) -> None:
        """Raises: DataError where the split holds no documents, or none that give a line; what `cancel` raises to stop
        the counting of a pass."""
        self.shards = shards
        self.split = shards.splits[split]
        self.length, self.short_fraction, self.seed = length, short_fraction, seed
        if not self.split.documents:
            raise DataError(f"{shards.folder}: no {split} text; prepare it again with data.dev or data.dev-fraction")
        self._lock = threading.Lock()
        self._windows: OrderedDict[tuple[int, int], Plan] = OrderedDict()
        self._orders: OrderedDict[int, tuple[I64, I64]] = OrderedDict()
        self.quotas = self._quotas(cancel)
        """Lines that each block gives in a pass, i64 [blocks]."""
        self.examples_per_epoch = int(self.quotas.sum())
        if not self.examples_per_epoch:
            raise DataError(
                f"{shards.folder}: the {split} text has no document that gives a pair of sentences; "
                "prepare other text into another folder"
            )

    def pairs(self, numbers: I64) -> SpanPairs:
        """Lines by their numbers, i64 [n], from 0 on without end. Safe to call from several threads."""
        parts: list[tuple[NDArray[np.intp], Plan]] = []
        passes, places = np.divmod(numbers, self.examples_per_epoch)
        for e in np.unique(passes).tolist():
            _, ends = self._order(e)
            mine = np.flatnonzero(passes == e)
            windows = np.searchsorted(ends, places[mine], side="right")
            for w in np.unique(windows).tolist():
                rows = mine[windows == w]
                begin = int(ends[w - 1]) if w else 0
                parts.append((rows, self._window(e, w).take(places[rows] - begin)))
        if len(parts) == 1:
            return self._resolved(parts[0][1])
        back = np.argsort(np.concatenate([rows for rows, _ in parts]))
        plans = [plan for _, plan in parts]
        return self._resolved(_joined(plans).take(back))

    def plan(self, block: int, e: int) -> Plan:
        """Every line of a block in pass e, in the order of its documents."""
        first, last = self.split.blocks[block : block + 2]
        bounds = self.split.bounds(first, last)
        found = array("q")
        runs = np.append(np.flatnonzero(np.append(True, bounds[1:, 0] != bounds[:-1, 1])), len(bounds))
        for begin, end in zip(runs[:-1].tolist(), runs[1:].tolist(), strict=True):
            offsets = self.shards.offsets(int(bounds[begin, 0]), int(bounds[end - 1, 1])).tolist()
            ends = (bounds[begin:end, 1] - bounds[begin, 0]).tolist()
            self._walk(e, first + begin, offsets, ends, found)
        table = np.frombuffer(found, np.int64).reshape(-1, 6)
        a, a_length, b, b_length, wanted, is_random = (table[:, column] for column in range(6))
        small = np.int32
        narrow = a_length.astype(small), b_length.astype(small), wanted.astype(small)
        return Plan(a.copy(), b.copy(), *narrow, is_random.astype(bool))

    def _walk(self, e: int, document: int, offsets: list[int], ends: list[int], found: array) -> None:
        """Adjoining documents, from `document` on, by where their sentences begin (`offsets`) and where they end."""
        generator = random.Random()
        seed_, chance, bits = generator.seed, generator.random, generator.getrandbits
        most, documents, bounds = self.length - 3, self.split.documents, self.split.document
        salt = rng.key(rng.DOCUMENT, self.seed, e)
        short = self.short_fraction

        def below(limit: int) -> int:  # randint(0, limit - 1), bit by bit as random.Random draws it
            width = limit.bit_length()
            number = bits(width)
            while number >= limit:
                number = bits(width)
            return number

        first = 0
        for last in ends:
            seed_(rng.key(salt, document))
            target = 2 + below(most - 1) if chance() < short else most
            while first < last:
                start = offsets[first]
                stop = bisect_left(offsets, start + target, first + 1, last)
                middle = first + 1 + (below(stop - first - 1) if stop - first > 1 else 0)
                begin = offsets[middle]
                if stop - first == 1 or chance() < 0.5:
                    for _ in range(10):
                        other = below(documents)
                        if other != document:
                            break
                    sentence, end = bounds(other)
                    sentence += below(end - sentence)
                    found.extend((start, begin - start, sentence, end - sentence, target - (begin - start), 1))
                    first = middle
                else:
                    found.extend((start, begin - start, begin, offsets[stop] - begin, 0, 0))
                    first = stop
            document += 1

    def _resolved(self, plan: Plan) -> SpanPairs:
        """Reads the sentence lengths that random second spans need."""
        b_start, b_length = plan.b_start.copy(), plan.b_length.astype(np.int64)
        rows = np.flatnonzero(plan.is_random)
        sentences, left, wanted = (x[rows].tolist() for x in (plan.b_start, plan.b_length, plan.wanted))
        for row, sentence, count, tokens in zip(rows.tolist(), sentences, left, wanted, strict=True):
            guess = min(count, _GUESS)
            offsets = self.shards.offsets(sentence, sentence + guess)
            while guess < count and offsets[-1] - offsets[0] < tokens:
                guess = min(count, guess * 8)
                offsets = self.shards.offsets(sentence, sentence + guess)
            start = offsets[0]
            end = offsets[min(int(offsets[1:].searchsorted(start + tokens)) + 1, guess)]
            b_start[row], b_length[row] = start, end - start
        return SpanPairs(plan.a_start, plan.a_length.astype(np.int64), b_start, b_length, plan.is_random)

    def _order(self, e: int) -> tuple[I64, I64]:
        """The blocks in the order of pass e, and after how many lines each of its windows ends."""
        with self._lock:
            if e not in self._orders:
                order = rng.permutation(rng.key(rng.BLOCK_ORDER, self.seed, e), len(self.quotas))
                starts = np.arange(0, len(order), WINDOW)
                self._orders[e] = order, np.cumsum(np.add.reduceat(self.quotas[order], starts))
                if len(self._orders) > _KEPT:
                    self._orders.popitem(last=False)
            return self._orders[e]

    def _window(self, e: int, w: int) -> Plan:
        """The lines of a window in the order they are read."""
        order, _ = self._order(e)
        with self._lock:
            if (e, w) in self._windows:
                self._windows.move_to_end((e, w))
            else:
                blocks = order[w * WINDOW : (w + 1) * WINDOW].tolist()
                lines = _joined([self._quota_of(block, e) for block in blocks])
                shuffled = rng.permutation(rng.key(rng.WINDOW_ORDER, self.seed, e, w), len(lines))
                self._windows[e, w] = lines.take(shuffled)
                if len(self._windows) > _KEPT:
                    self._windows.popitem(last=False)
            return self._windows[e, w]

    def _quota_of(self, block: int, e: int) -> Plan:
        """As many of the block's lines as it gives in every pass."""
        plan, quota = self.plan(block, e), int(self.quotas[block])
        if len(plan) == quota:
            return plan
        chosen = rng.permutation(rng.key(rng.SURPLUS, self.seed, e, block), len(plan))
        if len(plan) > quota:
            return plan.take(np.sort(chosen[:quota]))
        return plan.take(np.append(np.arange(len(plan)), np.resize(chosen, quota - len(plan))))

    def _quotas(self, cancel: CancelToken) -> I64:
        """Counts the lines of each block in pass 0, once: the counts are kept with the shards where that is allowed."""
        what = {"length": self.length, "short_fraction": self.short_fraction, "seed": self.seed}
        what |= {"split": self.split.name, "fingerprint": self.shards.fingerprint, "format": 1}
        blocks = len(self.split.blocks) - 1
        name = f"pairs-{self.split.name}-{self.length}-{self.short_fraction}-{self.seed}.json"
        file = self.shards.folder / name
        try:
            kept = json.loads(file.read_text("utf-8"))
            if kept == _sealed(what, kept["lines"]) and len(kept["lines"]) == blocks:
                return np.array(kept["lines"], np.int64)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass
        counts: list[int] = []
        for block in range(blocks):
            cancel.check()
            counts.append(len(self.plan(block, 0)))
        if any(counts):
            _keep(file, json.dumps(_sealed(what, counts)))
        return np.array(counts, np.int64)


def _joined(plans: list[Plan]) -> Plan:
    return Plan(*(np.concatenate([getattr(plan, field.name) for plan in plans]) for field in fields(Plan)))


def _sealed(what: dict[str, Any], lines: list[int]) -> dict[str, Any]:
    """What is kept of the counts: them, what they were counted for, and a digest over both."""
    content = {"for": what, "lines": lines}
    return {**content, "sha256": hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}


def _keep(file: Path, text: str) -> None:
    """Writes a file; where the folder cannot be written, nothing."""
    with contextlib.suppress(OSError), atomic_file(file) as part:
        part.write_text(text, "utf-8")


class PairBatches:
    """BERT's pretraining batches: step s, row r is line `s · batch + r` of the endless stream of sentence pairs."""

    def __init__(
        self, shards: Shards, config: DataConfig, *, seed: int, split: str = "train", cancel: CancelToken = NEVER
    ) -> None:
        """Raises: DataError where the split holds no text, or the shards' tokenizer is not theirs; what `cancel` raises
        to stop the counting of a pass."""
        self.fields = dict(FIELDS)
        self.tokenizer: Tokenizer = shards.tokenizer
        self.shards, self.config, self.seed, self.batch = shards, config, seed, config.batch
        self.length = config.length
        length, short = config.length, config.short_fraction
        self.stream = SentencePairs(shards, split, length=length, short_fraction=short, seed=seed, cancel=cancel)
        self.examples_per_epoch = self.stream.examples_per_epoch
        self.rows_read = 0
        """Rows read so far, by all threads."""
        self._lock = threading.Lock()

    def notes(self) -> list[str]:
        """Nothing."""
        return []

    def describe(self) -> str:
        """What there is to train on, in a sentence."""
        split = self.stream.split
        return (
            f"{split.tokens:,} tokens in {split.sentences:,} sentences of {split.documents:,} documents; "
            f"a pass is {self.examples_per_epoch:,} lines"
        )

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """The rows (numbers within the batch, all of them if None) of the step's batch, in the order asked for."""
        rows = np.arange(self.config.batch_size_at(step)) if rows is None else np.asarray(rows, np.int64)
        return self._lines(self.config.examples_before(step) + rows)

    def _lines(self, numbers: I64) -> Batch:
        config = self.config
        with self._lock:
            self.rows_read += len(numbers)
        pairs = truncate_randomly(self.stream.pairs(numbers), numbers, length=config.length, seed=self.seed)
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

    unit = "sequences"

    def __init__(self, shards: Shards, config: DataConfig, *, seed: int = 0, cancel: CancelToken = NEVER) -> None:
        """Raises: DataError where nothing is held out; what `cancel` raises to stop the counting of a pass."""
        self._batches = PairBatches(shards, config, seed=seed, split="dev", cancel=cancel)
        self.fields = self._batches.fields
        self.tokenizer = self._batches.tokenizer
        self.batch = config.batch
        self.count = self._batches.examples_per_epoch
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
