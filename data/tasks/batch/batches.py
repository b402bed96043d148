"""Batches of a task's examples: shuffled and endless for training; in order, each once, for everything else."""

import copy
import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from contexture.data import rng
from contexture.data.binary_files import I64
from contexture.data.bucketing import batch_lengths, length_for, one_of, padded, places_for
from contexture.data.config import DataConfig, Family, TaskConfig
from contexture.data.errors import DataError
from contexture.data.families.base import TextFamily
from contexture.data.families.registry import TEXT_FAMILIES
from contexture.data.layouts import (
    Batch,
    SpanPairs,
    both_orders,
    elmo_words,
    kept_tokens,
    lay_out,
    truncate_longest_first,
    word_lines,
)
from contexture.data.task_kinds import KINDS
from contexture.data.tasks.batch.answer_rules import AnswerRules
from contexture.data.tasks.batch.document_context import context_tokens, own_tags
from contexture.data.tasks.read.labels import class_weights
from contexture.data.tasks.read.tables import counted
from contexture.data.tasks.store.example_store import ExampleSplit, ExampleStore, Rows, is_absent
from contexture.data.tasks.store.span_store import UNSPELLED, SpanSplit, token_places
from contexture.data.tasks.store.stored_features import FeatureFiles
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.elmo_char_ids import FIRST_WORD, MAX_BYTES


def task_fields(kind: str, family: Family, symmetric: bool = False, pair: bool = False) -> dict[str, str]:
    """Returns the arrays of a task's batch. Where an example has several sequences (a choice's alternatives, the two
    orders of a pair, the two texts of a pair where words are read), they are BAL: `task_fields("choice",
    "bert")["tokens"]` → `i32 BAL`."""
    text = TEXT_FAMILIES[family]
    sequences = {**text.sequences, **text.own_tokens}
    if kind == "choice" or symmetric or (pair and text.reads_words):
        # The sequences alone: an example has one answer, however many of them it has.
        sequences = {name: spec.replace("BL", "BAL") for name, spec in sequences.items()}
    return {**sequences, **KINDS[kind].batch}


WINDOW = 64
"""Held-out batches whose examples are sorted by length together, where batches have several lengths."""
SHORTEST = 5
"""Tokens of a sequence with room for a pair: three special tokens and a token of each text."""


def sequence_length(config: DataConfig, longest: int) -> int:
    """Returns the tokens of a sequence: of the longest example, rounded up to a multiple of 8, at most data.length."""
    return int(padded(np.int64(longest), config.length))


@dataclass(frozen=True)
class _Reader:
    """Examples by their numbers → the arrays of a batch."""

    split: ExampleSplit
    tokenizer: Tokenizer
    text: TextFamily
    lengths: tuple[int, ...]
    """The lengths that batches are padded to, ascending."""
    weights_C: NDArray[np.float32]
    types: int = 0
    """Rows for distinct words; 0: as many as there could be."""
    length: int = 0
    """Tokens of a sequence that is filled with context: data.length, whatever its batch is padded to."""

    def __post_init__(self) -> None:
        """Raises: DataError where the vocabulary lacks the family's special tokens, or a sequence has no room for
        them."""
        self.text.check_task_vocabulary(self.tokenizer)
        if self.lengths[-1] < SHORTEST:
            raise DataError(
                f"data.length={self.lengths[-1]} has no room for a pair of texts and its special tokens; "
                f"give at least {SHORTEST}"
            )

    def length_of(self, numbers: I64) -> int:
        """Returns the length that a batch of the examples with these numbers is padded to."""
        # Of a single length the examples need not be looked at.
        return length_for(self.lengths, self.split.tokens_of(numbers)) if self.lengths[1:] else self.lengths[0]

    def context(self, rows: Rows) -> tuple[I64, I64]:
        """Returns how many tokens are read before and after each row's own: none, but of a sentence within its
        document."""
        split = self.split
        if split.documents is None or split.tags is None:
            return np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        # + 2: the special tokens at the two ends of a sequence, which an ELMo counts too.
        return context_tokens(rows, split.documents, split.tags, self.length - 2, at_ends=self.text.is_causal)

    def read(self, numbers: I64, chosen: I64 | None = None) -> Batch:
        """Returns the examples with these numbers as a batch, or the chosen rows of it. The whole batch decides the
        length and, where words are read by their characters, the table `types`: every device has the same."""
        length = self.length_of(numbers)
        if self.text.reads_words:
            return self._words(numbers, np.arange(len(numbers)) if chosen is None else chosen, length)
        split, rows = self.split, self.split.take(numbers if chosen is None else numbers[chosen])
        count = len(rows) // split.choices
        # Where there is no second text, `b` is -1.
        single = rows["b"] < 0
        middle = np.where(single, rows["end"], rows["b"])  # where the first text ends
        b_length = np.where(single, -1, rows["end"] - middle)
        before, after = self.context(rows)
        # Context belongs to the first text: a tagged sentence has no second one.
        begin, a_length = rows["a"] - before, before + middle - rows["a"] + after
        pairs = SpanPairs(begin, a_length, middle, b_length, np.zeros(len(rows), bool))
        # Both orders first: a pair and its reverse are each cut for themselves, since b gives on a tie.
        pairs = truncate_longest_first(both_orders(pairs) if split.symmetric else pairs, length)
        marks = self.text.marks(self.tokenizer)
        assert marks is not None  # the vocabulary was checked
        fields = {**self.text.sequences, **self.text.own_tokens}
        batch, text_BL, _ = lay_out(split.tokens.read, pairs, marks, self.tokenizer.pad, length, fields)
        # An example's sequences are consecutive rows: BAL are the same numbers in the same order.
        if split.kind == "choice" and "next_weights" in batch:
            batch["next_weights"][is_absent(rows)] = 0.0  # special tokens alone say nothing of the language
        if split.kind == "choice" or split.symmetric:
            batch = {name: array.reshape(count, -1, length) for name, array in batch.items()}
        answers = self._answers(rows)
        if split.spans is not None:
            answers |= self._spans(split.spans, numbers if chosen is None else numbers[chosen], rows)
        if split.tags is not None:
            # Tags are stored in parallel to the tokens: the span that was read as text is read again as tags.
            tags_BL = np.full(text_BL.shape, -1, np.int32)
            tags_BL[text_BL] = split.tags.read(pairs.a_start, pairs.a_length)
            answers |= self._tags(own_tags(tags_BL, before, middle - rows["a"], 1))
        return {**batch, **answers}

    def _words(self, numbers: I64, chosen: I64, length: int) -> Batch:
        """Reads examples as words, a pair's texts as two sequences, or as one where an alternative is chosen.

        data.length counts the begin and the end of a sentence, which an ELMo itself adds, so the arrays have two
        places fewer. The arrays of static vectors have too, so that they read the same words.
        """
        split, rows = self.split, self.split.take(numbers)
        # Where the texts are among the tokens, and how much of each is read.
        words, texts = length - 2, 2 if split.pair else 1
        middle = np.where(rows["b"] < 0, rows["end"], rows["b"])
        own, (before, after) = middle - rows["a"], self.context(rows)
        starts = np.stack([rows["a"] - before, middle], 1)[:, :texts].ravel()
        lengths = np.stack([before + own + after, rows["end"] - middle], 1)[:, :texts]
        if split.layout == "joined":
            # Both are in one sequence: the longer one gives first, as where special tokens separate them.
            lengths = np.stack(kept_tokens(lengths[:, 0], lengths[:, 1], words), 1)
            texts = split.choices
        lengths = np.minimum(lengths, words).ravel()
        # All rows are read, also where a few are chosen: the distinct words of the whole batch make its table.
        count = len(numbers) * texts
        # Room for a batch in which every word is distinct.
        size = self.types or count * words + FIRST_WORD
        if split.char_ids is None:
            batch, types = word_lines(split.tokens.read, starts, lengths, words, count), {}
        else:
            batch = elmo_words(split.tokens.read, starts, lengths, split.char_ids, words, size, count)
            types = {"types": batch.pop("types")}
        # As [examples, texts, words]; then the chosen rows, without the dim of texts where there is one text.
        sequences = {name: x.reshape(len(numbers), texts, words) for name, x in batch.items()}
        sequences = {name: x[chosen] if split.pair else x[chosen, 0] for name, x in sequences.items()}
        rows = rows.reshape(len(numbers), split.choices)[chosen].ravel()
        answers = self._answers(rows)
        if split.spans is not None:
            answers |= self._spans(split.spans, numbers[chosen], rows)
        if split.tags is not None:
            tags_BL = np.full((len(numbers), words), -1, np.int32)
            tags_BL[batch["mask"] > 0] = split.tags.read(starts, lengths)
            answers |= self._tags(own_tags(tags_BL, before, own, 0)[chosen])
        return {**types, **sequences, **answers}

    def _answers(self, rows: Rows) -> Batch:
        split, batch = self.split, dict[str, np.ndarray]()
        if split.kind == "choice":
            batch["choices"] = (~is_absent(rows)).reshape(-1, split.choices).astype(np.float32)
        # One answer an example: its first row has it.
        rows = rows[:: split.choices]
        answer, _ = KINDS[split.kind].answer
        if answer == "label":
            # -1, no label, becomes 0: predictions are made without one, and their loss is never read.
            batch["labels"] = np.maximum(rows["label"], 0).astype(np.int32)
            batch["weights"] = self.weights_C[batch["labels"]]
        elif answer == "value":
            batch["targets"] = rows["value"].astype(np.float32)
        return {**batch, "valid": np.ones(len(rows), np.float32)}

    def _spans(self, spans: SpanSplit, numbers: I64, rows: Rows) -> Batch:
        # A window whose answer no token spells teaches nothing: its weight is 0.
        labels = spans.labels.read(numbers, np.ones(len(numbers), np.int64))
        batch: Batch = {"weights": (labels["start"] != UNSPELLED).astype(np.float32)}
        for field, end in (("starts", "start"), ("ends", "end")):
            places = token_places(rows, labels[end].astype(np.int64), self.text.reads_words)
            # Where the window holds no answer, start and end are place 0, as in the original ([CLS]).
            batch[field] = np.where(labels[end] >= 0, places, 0).astype(np.int32)
        return batch

    def _tags(self, tags_BL: NDArray[np.int32]) -> Batch:
        # Only the pieces that words are read at count; the others have the tag -1.
        weights_BL = np.where(tags_BL >= 0, self.weights_C[np.maximum(tags_BL, 0)], 0).astype(np.float32)
        return {"tags": tags_BL, "tag_weights": weights_BL}


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
    ) -> None:
        split = store.splits["train"]
        self.fields = task_fields(store.kind, family, split.symmetric, store.pair)
        self.tokenizer, self.batch, self.seed, self.split = tokenizer, config.batch, seed, split
        self.config, self._cut_words = config, store.cut_words
        self.examples_per_epoch = split.examples
        self.rows_read = 0
        weights_C = class_weights(task, store.labels, store.counts)
        self.lengths = batch_lengths(split, sequence_length(config, split.longest), config.batch, shuffled=True)
        """Tokens of a sequence: a batch has the least that holds its longest example."""
        text = TEXT_FAMILIES[family]
        self._reader = _Reader(split, tokenizer, text, self.lengths, weights_C, config.word_types, config.length)
        self._features: FeatureFiles | None = None
        self._orders: dict[int, I64] = {}
        self._lock = threading.Lock()

    def with_features(self, files: FeatureFiles, fields: dict[str, str]) -> "TaskBatches":
        """Returns these batches with what a frozen backbone computes of their examples: the fields of its files."""
        # A shallow copy: both have the same reader, orders and lock.
        other = copy.copy(self)
        other._features, other.fields = files, {**self.fields, **fields}
        return other

    @property
    def length(self) -> int:
        """Tokens of the longest sequences."""
        return self.lengths[-1]

    def length_at(self, step: int) -> int:
        """Returns the tokens of the step's sequences."""
        return self._reader.length_of(self._numbers(step)) if self.lengths[1:] else self.length

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """Returns the rows (numbers within the batch, all of them if None) of the step's batch, in the order asked
        for."""
        rows = np.arange(self.config.batch_size_at(step)) if rows is None else np.asarray(rows, np.int64)
        with self._lock:
            self.rows_read += len(rows)
        numbers = self._numbers(step)
        batch = self._reader.read(numbers, rows)
        return batch if self._features is None else self._features.add(batch, numbers[rows])

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
        if self.split.spans is not None:
            windows = f"{self.split.examples:,} windows of {one_of(self.lengths)} tokens"
            return f"{self.split.spans.count:,} questions in {windows}"
        if self.split.windows != "off":
            return f"{self.split.texts:,} texts in {self.split.examples:,} windows of {one_of(self.lengths)} tokens"
        longer = self.split.longer_than(self.length)
        cut = f"; {longer:,} of them longer, and cut" if longer else ""
        sequences = 2 if self.split.symmetric else self.split.choices
        several = f"{'up to ' * self.split.has_absent()}{sequences} " if sequences > 1 else ""
        words = f"; {counted(self._cut_words, 'word')} longer than {MAX_BYTES} bytes, cut" if self._cut_words else ""
        return f"{self.split.examples:,} examples in {several}sequences of {one_of(self.lengths)} tokens{cut}{words}"


class HeldOutTask:
    """Every example once, in `steps` batches of `batch` examples: in order, or of several lengths in order of length
    within each WINDOW of batches."""

    unit = "examples"

    def __init__(
        self,
        split: ExampleSplit,
        tokenizer: Tokenizer,
        config: DataConfig,
        batch: int,
        weights_C: NDArray[np.float32] | None = None,
        lengths: tuple[int, ...] = (),
        *,
        family: Family,
        rules: AnswerRules | None = None,
    ) -> None:
        """Opens a split.

        Args:
            split: the examples.
            tokenizer: the model's vocabulary.
            config: the run's data.
            batch: examples of a batch.
            weights_C: the weight of each label in the loss (all 1 if None).
            lengths: tokens of a sequence, as TaskBatches.lengths; (): the lengths that suit the examples.
            family: the model's family.
            rules: how the answer to a question is chosen.
        """
        self.fields = task_fields(split.kind, family, split.symmetric, split.pair)
        self.text = TEXT_FAMILIES[family]
        self.shift = int(self.text.reads_words)
        """1 where no special token precedes the text, so that a word is a place earlier than its piece would be."""
        self.tokenizer, self.batch, self.split = tokenizer, batch, split
        self.rules = rules or AnswerRules()
        # `count` is of what the user gave, texts or questions; `steps` go over their windows.
        self.count = split.count
        self.steps = -(-split.examples // batch)
        self.rows_read = 0
        # All labels weigh the same, unless the caller says otherwise.
        ones_C = np.ones(max(len(split.labels), 1), np.float32)
        if not lengths:
            lengths = batch_lengths(split, sequence_length(config, split.longest), batch, shuffled=False)
        self.lengths = lengths
        weights_C = ones_C if weights_C is None else weights_C
        self._reader = _Reader(split, tokenizer, self.text, lengths, weights_C, config.word_types, config.length)
        self._features: FeatureFiles | None = None
        self._sorted: dict[int, I64] = {}
        self._lock = threading.Lock()

    def with_features(self, files: FeatureFiles, fields: dict[str, str]) -> "HeldOutTask":
        """As `TaskBatches.with_features`."""
        other = copy.copy(self)
        other._features, other.fields = files, {**self.fields, **fields}
        return other

    @property
    def length(self) -> int:
        """Tokens of the longest sequences."""
        return self.lengths[-1]

    def numbers(self, step: int) -> I64:
        """Returns the examples (of questions, the windows) of a batch, without those that only fill it up."""
        first, last = step * self.batch, min((step + 1) * self.batch, self.split.examples)
        if not self.lengths[1:]:
            return np.arange(first, last)
        # Windows are whole batches, so that no batch lies in two of them.
        window, before = step // WINDOW, step // WINDOW * WINDOW * self.batch
        with self._lock:
            if window not in self._sorted:
                # Readers that run ahead meet at the border of two windows.
                self._sorted = {w: order for w, order in self._sorted.items() if abs(w - window) == 1}
                numbers = np.arange(before, min(before + WINDOW * self.batch, self.split.examples))
                places = places_for(self.lengths, self.split.tokens_of(numbers))
                # The longest first: if memory does not suffice, that shows at once.
                self._sorted[window] = numbers[np.argsort(-places, kind="stable")]
            return self._sorted[window][first - before : last - before]

    def tokens_before(self, rows: Rows) -> I64:
        """Returns how many tokens of its document precede each row's own."""
        return self._reader.context(rows)[0]

    def ends_window(self, step: int) -> bool:
        """Returns whether the examples of all batches up to this one are a number of first examples."""
        return not self.lengths[1:] or step + 1 == self.steps or (step + 1) % WINDOW == 0

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """Reads as TaskBatches does, for steps below `steps`. Rows past the last example repeat it without
        weight, and words without themselves."""
        rows = np.arange(self.batch) if rows is None else np.asarray(rows, np.int64)
        own = self.numbers(step)
        # Devices need whole batches, so the last one is filled up by an example that counts nowhere: one of its own,
        # which makes it no longer.
        numbers = np.concatenate([own, np.repeat(own[-1:], self.batch - len(own))])
        batch = self._reader.read(numbers, rows)
        spare = rows >= len(own)
        weights = ("valid", "weights", "tag_weights", "next_weights")
        for name in (*weights, "mask") if self.split.by_words else weights:
            if name in batch:
                batch[name][spare] = 0.0
        with self._lock:
            self.rows_read += len(rows)
        return batch if self._features is None else self._features.add(batch, numbers[rows])


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
