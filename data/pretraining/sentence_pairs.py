"""BERT's sentence pairs: which sentences make which training sequence, planned from lengths alone, so that any sequence
can be read in any order; and the batches made of them."""

import contextlib
import hashlib
import json
import random
import threading
from array import array
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from contexture.data import rng
from contexture.data.binary_files import I64
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.layouts import Batch, SpanPairs, bert_marks, lay_out, truncate_randomly
from contexture.data.phases import stages_of
from contexture.data.pretraining.masking import Masking, bert_masking, span_boundaries
from contexture.data.pretraining.sequence_batches import FIELDS, HeldOutSequences, SequenceBatches
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.units import CONTINUES_ENTITY, CONTINUES_PHRASE, ID
from contexture.data.storage import atomic_file
from contexture.data.tokenizers.wordpiece import wordpiece

WINDOW = 16
"""Blocks whose sequences are shuffled together."""
_KEPT = 3
"""Windows, and orders of epochs, that are kept planned: readers that run ahead are in two or three at a time."""
_GUESS = 32
"""Sentences whose lengths are read first to find where a random span ends."""
_PLANNED = np.dtype(
    [(name, np.int64) for name in ("a_start", "a_length", "b_start", "b_length", "b_target", "is_random")]
)
"""A sequence as `_walk` appends it to an array of whole numbers, with the fields of a Plan."""


@dataclass(frozen=True)
class Plan:
    """Planned sequences, each field [n].

    A random second span begins at sentence b_start of a document that has b_length sentences from there on, and takes
    sentences until it has b_target tokens. Any other is a span of tokens, like the first.
    """

    a_start: I64
    b_start: I64
    a_length: NDArray[np.int32]
    b_length: NDArray[np.int32]
    b_target: NDArray[np.int32]
    is_random: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.a_start)

    def take(self, rows: I64) -> "Plan":
        return Plan(*(getattr(self, field.name)[rows] for field in fields(self)))


class SentencePairs:
    """BERT's pairs of spans (create_pretraining_data.py, create_instances_from_document), endless and in any order.

    An epoch walks every document with a generator keyed (seed, epoch, document), asked in the original's order.
    Sequence `n` belongs to epoch `n // examples_per_epoch`. An epoch takes the blocks of the shards in an order of its
    own and shuffles the sequences within each WINDOW of them; so any sequence is found by arithmetic, and its window
    planned.

    Differs: in the original each epoch (a round of dupe_factor) has as many sequences as it happens to have. Here a
    block gives as many sequences in every epoch as it has in epoch 0; where another epoch has more of them, some are
    left out, and where it has fewer, some come twice. Tokens that are too many are cut by numbers keyed (seed,
    sequence), not by the document's generator (`layouts.truncate_randomly`).
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
        """Raises: DataError where the split holds no documents, or none that give a sequence; what `cancel` raises to
        stop the counting of an epoch."""
        self.shards = shards
        self.split = shards.splits[split]
        self.length, self.short_fraction, self.seed = length, short_fraction, seed
        if not self.split.documents:
            raise DataError(f"{shards.folder}: no {split} text; prepare it again with data.dev or data.dev-fraction")
        # Readers are threads: they share both caches below.
        self._lock = threading.Lock()
        self._windows: OrderedDict[tuple[int, int], Plan] = OrderedDict()
        self._orders: OrderedDict[int, tuple[I64, I64]] = OrderedDict()
        self.quotas = self._quotas(cancel)
        """Sequences that each block gives in an epoch, i64 [blocks]."""
        self.examples_per_epoch = int(self.quotas.sum())
        if not self.examples_per_epoch:
            raise DataError(
                f"{shards.folder}: the {split} text has no document that gives a pair of sentences; "
                "prepare other text into another folder"
            )

    def pairs(self, numbers: I64) -> SpanPairs:
        """Returns the sequences with these numbers, i64 [n], from 0 on without end; safe to call from any thread."""
        parts: list[tuple[NDArray[np.intp], Plan]] = []
        epochs, places = np.divmod(numbers, self.examples_per_epoch)
        # A batch mostly lies in one window. At the end of a window or an epoch it takes rows of several, which are put
        # back into the order asked for.
        for e in np.unique(epochs).tolist():
            _, ends = self._order(e)
            mine = np.flatnonzero(epochs == e)
            windows = np.searchsorted(ends, places[mine], side="right")
            for w in np.unique(windows).tolist():
                rows = mine[windows == w]
                # Places are counted in the epoch, rows of a plan in its window.
                begin = int(ends[w - 1]) if w else 0
                parts.append((rows, self._window(e, w).take(places[rows] - begin)))
        if len(parts) == 1:
            return self._resolved(parts[0][1])
        back = np.argsort(np.concatenate([rows for rows, _ in parts]))
        plans = [plan for _, plan in parts]
        return self._resolved(_joined(plans).take(back))

    def plan(self, block: int, e: int) -> Plan:
        """Returns every sequence of a block in epoch e, in the order of its documents."""
        first, last = self.split.blocks[block : block + 2]
        bounds = self.split.bounds(first, last)
        planned = array("q")
        # Documents that lie side by side in the shards share one read of their sentences' offsets. Held-out documents
        # between them break the run.
        runs = np.append(np.flatnonzero(np.append(True, bounds[1:, 0] != bounds[:-1, 1])), len(bounds))
        for begin, end in zip(runs[:-1].tolist(), runs[1:].tolist(), strict=True):
            offsets = self.shards.offsets(int(bounds[begin, 0]), int(bounds[end - 1, 1])).tolist()
            ends = (bounds[begin:end, 1] - bounds[begin, 0]).tolist()
            self._walk(e, first + begin, offsets, ends, planned)
        table = np.frombuffer(planned, _PLANNED)
        # Copies: a view of one field would keep the whole table in memory.
        return Plan(
            a_start=table["a_start"].copy(),
            b_start=table["b_start"].copy(),
            a_length=table["a_length"].astype(np.int32),
            b_length=table["b_length"].astype(np.int32),
            b_target=table["b_target"].astype(np.int32),
            is_random=table["is_random"].astype(bool),
        )

    def _walk(self, e: int, document: int, offsets: list[int], ends: list[int], planned: "array[int]") -> None:
        """Plans the sequences of adjoining documents, from number `document` on, and appends each to `planned` with the
        fields of _PLANNED.

        offsets: where each of their sentences begins among all tokens, and where the last one ends. ends: by its place
        in offsets, the sentence after each document's last.

        This replays create_instances_from_document as CPython runs it: the same questions to random.Random, in the same
        order, with the same answers. A call more or fewer changes every later sequence, and so what a seed means.
        """
        generator = random.Random()
        # Methods bound once: the loop below goes over the whole text in every epoch.
        seed_generator, uniform, random_bits = generator.seed, generator.random, generator.getrandbits
        max_tokens, documents, bounds = self.length - 3, self.split.documents, self.split.document
        epoch_key = rng.key(rng.DOCUMENT, self.seed, e)
        short_fraction = self.short_fraction

        def below(limit: int) -> int:
            """randint(0, limit - 1) as CPython draws it: the bits that `limit` takes, again until they are below it.
            The library's own goes through three calls for each number."""
            width = limit.bit_length()
            number = random_bits(width)
            while number >= limit:
                number = random_bits(width)
            return number

        first = 0
        for last in ends:
            seed_generator(rng.key(epoch_key, document))
            # target_seq_length: mostly all that fits, and now and then (short_seq_prob) randint(2, max_num_tokens).
            target = 2 + below(max_tokens - 1) if uniform() < short_fraction else max_tokens
            while first < last:
                # current_chunk: sentences first … stop-1, until they have `target` tokens or the document ends. The
                # original adds their lengths one by one; in sorted offsets the same place is found by bisection.
                start = offsets[first]
                stop = bisect_left(offsets, start + target, first + 1, last)
                # a_end = randint(1, len(chunk) - 1) sentences are the first span; a lone one is it without a draw.
                middle = first + 1 + (below(stop - first - 1) if stop - first > 1 else 0)
                begin = offsets[middle]
                # A chunk of one sentence has nothing that follows, so its second span is random without a draw: more
                # than half of all are.
                if stop - first == 1 or uniform() < 0.5:
                    # Up to ten tries for another document; the tenth is taken, whatever it is.
                    other = below(documents)
                    for _ in range(9):
                        if other != document:
                            break
                        other = below(documents)
                    # From a random sentence on until target - len(tokens_a) tokens. That end needs the lengths of the
                    # other document, and no draw: `_resolved` finds it for the sequences that are read.
                    sentence, end = bounds(other)
                    sentence += below(end - sentence)
                    planned.extend((start, begin - start, sentence, end - sentence, target - (begin - start), 1))
                    # The chunk's other sentences were not used: the next chunk begins with them.
                    first = middle
                else:
                    # The second span is the rest of the chunk.
                    planned.extend((start, begin - start, begin, offsets[stop] - begin, 0, 0))
                    first = stop
            document += 1

    def _resolved(self, plan: Plan) -> SpanPairs:
        """Returns the spans of tokens: reads where the sentences of random second spans begin and end."""
        b_start, b_length = plan.b_start.copy(), plan.b_length.astype(np.int64)
        rows = np.flatnonzero(plan.is_random)
        sentences, counts, targets = (x[rows].tolist() for x in (plan.b_start, plan.b_length, plan.b_target))
        for row, sentence, count, target in zip(rows.tolist(), sentences, counts, targets, strict=True):
            # A few sentences mostly suffice; more are read only where these are too short.
            guess = min(count, _GUESS)
            offsets = self.shards.offsets(sentence, sentence + guess)
            while guess < count and offsets[-1] - offsets[0] < target:
                guess = min(count, guess * 8)
                offsets = self.shards.offsets(sentence, sentence + guess)
            start = offsets[0]
            # Behind the first sentence with which the span has its tokens; the first one is always taken.
            end = offsets[min(int(offsets[1:].searchsorted(start + target)) + 1, guess)]
            b_start[row], b_length[row] = start, end - start
        return SpanPairs(plan.a_start, plan.a_length.astype(np.int64), b_start, b_length, plan.is_random)

    def _order(self, e: int) -> tuple[I64, I64]:
        """Returns the blocks in the order of epoch e, and after how many sequences each of its windows ends."""
        with self._lock:
            if e not in self._orders:
                # A window is WINDOW blocks of this order.
                order = rng.permutation(rng.key(rng.BLOCK_ORDER, self.seed, e), len(self.quotas))
                starts = np.arange(0, len(order), WINDOW)
                self._orders[e] = order, np.cumsum(np.add.reduceat(self.quotas[order], starts))
                if len(self._orders) > _KEPT:
                    self._orders.popitem(last=False)
            return self._orders[e]

    def _window(self, e: int, w: int) -> Plan:
        """Returns the sequences of a window in the order they are read."""
        order, _ = self._order(e)
        # Planned under the lock: two readers of one window would otherwise both plan it.
        with self._lock:
            if (e, w) in self._windows:
                self._windows.move_to_end((e, w))
            else:
                blocks = order[w * WINDOW : (w + 1) * WINDOW].tolist()
                plan = _joined([self._quota_of(block, e) for block in blocks])
                shuffled = rng.permutation(rng.key(rng.WINDOW_ORDER, self.seed, e, w), len(plan))
                self._windows[e, w] = plan.take(shuffled)
                if len(self._windows) > _KEPT:
                    # The window that was not read for the longest time.
                    self._windows.popitem(last=False)
            return self._windows[e, w]

    def _quota_of(self, block: int, e: int) -> Plan:
        """Returns as many of the block's sequences as it gives in every epoch."""
        plan, quota = self.plan(block, e), int(self.quotas[block])
        if len(plan) == quota:
            return plan
        # The same number in each epoch makes a sequence's number arithmetic: no epoch before it need be walked.
        chosen = rng.permutation(rng.key(rng.SURPLUS, self.seed, e, block), len(plan))
        if len(plan) > quota:
            # Too many: some, in the documents' order. Too few: all of them, and some once more.
            return plan.take(np.sort(chosen[:quota]))
        return plan.take(np.append(np.arange(len(plan)), np.resize(chosen, quota - len(plan))))

    def _quotas(self, cancel: CancelToken) -> I64:
        """Counts the sequences of each block in epoch 0, once: the counts are kept with the shards if allowed."""
        # Everything that the counts depend on.
        what: dict[str, object] = {"length": self.length, "short_fraction": self.short_fraction, "seed": self.seed}
        what |= {"split": self.split.name, "fingerprint": self.shards.fingerprint, "format": 1}
        blocks = len(self.split.blocks) - 1
        name = f"pairs-{self.split.name}-{self.length}-{self.short_fraction}-{self.seed}.json"
        file = self.shards.folder / name
        # Counts kept for other text or options, or damaged ones, are counted again.
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
            # A folder that may not be written to is no error: the next run counts again.
            with contextlib.suppress(OSError), atomic_file(file) as part:
                part.write_text(json.dumps(_sealed(what, counts)), "utf-8")
        return np.array(counts, np.int64)


def _joined(plans: list[Plan]) -> Plan:
    return Plan(*(np.concatenate([getattr(plan, field.name) for plan in plans]) for field in fields(Plan)))


def _sealed(what: dict[str, object], counts: list[int]) -> dict[str, object]:
    """Returns the JSON that keeps the counts: what they were counted for, the counts, and a digest over both."""
    content = {"for": what, "lines": counts}
    return {**content, "sha256": hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}


class PairBatches(SequenceBatches):
    """Batches of sentence pairs: step s, row r is sequence `s · batch + r` of the endless stream."""

    def __init__(
        self,
        shards: Shards,
        config: DataConfig,
        *,
        seed: int,
        split: str = "train",
        parts: int = 1,
        devices: int = 1,
        cancel: CancelToken = NEVER,
    ) -> None:
        """Opens a split.

        Args:
            shards: the text.
            config: the run's data.
            seed: of the pairs, their order and masks.
            split: train or dev.
            parts: microbatches of a batch.
            devices: how many devices share a batch.
            cancel: may raise to stop the counting of an epoch.

        Raises:
            DataError: where the split holds no text, or the shards' tokenizer is not theirs.
        """
        self.shards, self.seed = shards, seed
        length, short = config.length, config.short_fraction
        self.stream = SentencePairs(shards, split, length=length, short_fraction=short, seed=seed, cancel=cancel)
        pieces = wordpiece(shards.tokenizer).vocabulary if config.masking != "pieces" else None
        self._continues = None if pieces is None else np.array([piece.startswith("##") for piece in pieces])
        super().__init__(shards.tokenizer, config, self.stream.examples_per_epoch, parts, devices)

    def lengths_of(self, numbers: I64) -> I64:
        """Returns the tokens of the sequences with these numbers, special ones counted; no token is read."""
        pairs = self.stream.pairs(self._drawn(numbers))
        return np.minimum(pairs.a_length + pairs.b_length + 3, self.length)

    def notes(self) -> list[str]:
        """Returns what was fetched from a bucket."""
        return self.shards.notes()

    def describe_source(self) -> str:
        split = self.stream.split
        return f"{split.tokens:,} tokens in {split.sentences:,} sentences of {split.documents:,} documents"

    def _continuing(self, tokens_BL: NDArray[np.int32], numbers: I64, step: int | None) -> NDArray[np.bool_] | None:
        """Returns which tokens are masked together with the one before them; None: none of them."""
        if self._continues is None:
            return None
        # Pieces of a word belong together, and where units are marked what is between two of their borders.
        piece_BL = self._continues[tokens_BL & ID]
        phrase_BL, entity_BL = (piece_BL | (tokens_BL & bit > 0) for bit in (CONTINUES_PHRASE, CONTINUES_ENTITY))
        if self.config.masking != "ernie":
            return phrase_BL
        stages = stages_of(self.config.masking_stages)
        if stages:
            # Held-out sequences are masked as in the last stage.
            level = [name for first, name in stages if step is None or step >= first][-1]
            return {"pieces": np.zeros_like(piece_BL), "phrases": phrase_BL, "entities": entity_BL}[level]
        # Differs: the original draws for a file, and not for a sequence, whether its units are masked.
        by_unit_B = rng.uniform(rng.random_bits(rng.key(rng.MASKING_LEVEL, self.seed), numbers))
        return entity_BL & (by_unit_B < self.config.unit_fraction)[:, None]

    def _drawn(self, numbers: I64) -> I64:
        # As the original's copies of the text, of which each has pairs and masks of its own, they come again in turn.
        copies = self.config.masking_copies
        return numbers % (copies * self.examples_per_epoch) if copies else numbers

    def sequences(self, numbers: I64, step: int | None = None) -> Batch:
        """Returns the sequences with these numbers, with a row each: planned, cut to length, laid out and masked."""
        config, numbers = self.config, self._drawn(numbers)
        # The original's order: pairs, cut to length, laid out, masked.
        pairs = truncate_randomly(self.stream.pairs(numbers), numbers, length=config.length, seed=self.seed)
        tokenizer = wordpiece(self.tokenizer)
        marks = bert_marks(tokenizer)
        batch, text_BL, lengths = lay_out(self.shards.read, pairs, marks, tokenizer.pad, config.length, FIELDS)
        masking = Masking(
            seed=self.seed,
            predictions=config.slots,
            masked_fraction=config.masked_fraction_at(step),
            mask=tokenizer.mask,
            vocab=tokenizer.size,
            kind=config.masking,
            mask_share=config.mask_token_fraction,
            random_share=config.random_token_fraction,
        )
        continues_BL = self._continuing(batch["tokens"], numbers, step)
        batch["tokens"] &= ID
        masked = bert_masking(batch["tokens"], text_BL, lengths, numbers, masking, continues_BL)
        if config.span_boundary:
            batch.update(span_boundaries(masked))
        batch["tokens"], batch["slots"], batch["labels"] = masked.tokens, masked.slots, masked.labels
        batch["slot_weights"] = masked.weights
        # Of classes that are the other way round, 1 is the next.
        batch["is_random"] = pairs.is_random.astype(np.int32) ^ config.next_label
        batch["valid"] = np.ones(len(numbers), np.float32)
        return batch


class HeldOutPairs(HeldOutSequences):
    """Every held-out pair once: epoch 0 of the dev split, with masks that never change."""

    def __init__(
        self, shards: Shards, config: DataConfig, *, seed: int = 0, devices: int = 1, cancel: CancelToken = NEVER
    ) -> None:
        """Raises: DataError where nothing is held out; what `cancel` raises to stop the counting of an epoch."""
        super().__init__(PairBatches(shards, config, seed=seed, split="dev", devices=devices, cancel=cancel))
