"""Batches of a task's examples: shuffled and endless for training, in order and each once for everything else."""

import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from contexture.data import rng
from contexture.data.binary_files import I64
from contexture.data.config import DataConfig, Family, TaskConfig
from contexture.data.errors import DataError, did_you_mean
from contexture.data.layouts import (
    Batch,
    SpanPairs,
    bert_pair,
    both_orders,
    elmo_words,
    gpt_pair,
    gpt_specials,
    truncate_longest_first,
)
from contexture.data.tasks.example_store import ANSWER, END, A, B, ExampleSplit, ExampleStore
from contexture.data.tasks.tables import counted
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.elmo_char_ids import FIRST_WORD, MOST_BYTES
from contexture.data.tokenizers.word_level import word_tokenizer
from contexture.data.tokenizers.wordpiece import wordpiece

SEQUENCES: dict[Family, dict[str, str]] = {
    "bert": {"tokens": "i32 BL", "segments": "i32 BL", "mask": "i32 BL"},
    "gpt": {"tokens": "i32 BL", "mask": "i32 BL", "next": "i32 BL", "next_weights": "f32 BL"},
    "elmo": {"types": "i32 RW", "index": "i32 BL", "mask": "i32 BL"},
}
"""The arrays of sequences, by family. next: the token that follows each; next_weights: those of a sequence sum to 1.
types: the characters of each distinct word of the whole batch; index: the row of a word."""
ANSWERS = {
    "classify": {"labels": "i32 B", "weights": "f32 B", "valid": "f32 B"},
    "regress": {"targets": "f32 B", "valid": "f32 B"},
    "tag": {"tags": "i32 BL", "tag_weights": "f32 BL", "valid": "f32 B"},
    "choice": {"labels": "i32 B", "weights": "f32 B", "valid": "f32 B"},
}
"""The arrays of answers, by task.kind. labels and tags: numbers, 0 and -1 where there is none; weights: what an
example, or the piece that stands for a word, counts in the loss; valid: 0 where a line only fills up a batch."""


def task_fields(kind: str, family: Family, symmetric: bool = False, pair: bool = False) -> dict[str, str]:
    """The arrays of a task's batch. Where an example has several lines, an alternative or an order each, or an ELMo's
    texts of a pair, they are BAL: `task_fields("choice", "bert")["tokens"]` → `i32 BAL`."""
    sequences = SEQUENCES[family]
    if kind == "choice" or symmetric or (pair and family == "elmo"):
        sequences = {name: spec.replace("BL", "BAL") for name, spec in sequences.items()}
    return {**sequences, **ANSWERS[kind]}


SHORTEST = 5
"""Tokens of a line that has room for a pair: three special tokens and a token of each text."""


def line_length(config: DataConfig, longest: int) -> int:
    """Tokens of a line: what the longest example needs, in steps of 8, at most data.length."""
    return min(config.length, -(-(longest + 2) // 8) * 8)


def class_weights(task: TaskConfig, labels: tuple[str, ...], counts: tuple[int, ...]) -> NDArray[np.float32]:
    """What an example of each label counts. `balanced`: examples / (labels · the label's examples), as scikit-learn
    has it. Raises: DataError for a label that is not there, or a weight that is no number above 0."""
    weights_C = np.ones(max(len(labels), 1), np.float32)
    if task.class_weights == ("balanced",):
        counted = np.maximum(np.array(counts, np.float64), 1.0)
        return (sum(counts) / (len(labels) * counted)).astype(np.float32)
    for entry in task.class_weights:
        label, _, weight = entry.rpartition("=")
        if label not in labels:
            raise DataError(
                f"task.class-weights={entry}: {label!r} is not one of {', '.join(labels[:12])}"
                f"{did_you_mean(label, labels)}; give `balanced`, or LABEL=WEIGHT"
            )
        try:
            weights_C[labels.index(label)] = float(weight)
        except ValueError:
            raise DataError(f"task.class-weights={entry}: {weight!r} is not a number") from None
    if not (np.isfinite(weights_C) & (weights_C > 0)).all():
        raise DataError(f"task.class-weights={' '.join(task.class_weights)}: weights must be above 0")
    return weights_C


@dataclass(frozen=True)
class _Reader:
    """Examples by their numbers → the arrays of a batch."""

    split: ExampleSplit
    tokenizer: Tokenizer
    family: Family
    length: int
    weights_C: NDArray[np.float32]
    types: int = 0
    """Rows for distinct words; 0: as many as there could be."""

    def __post_init__(self) -> None:
        """Raises: DataError where the family's special tokens are not in the vocabulary, or have no room in a line."""
        if self.family == "elmo":
            word_tokenizer(self.tokenizer)
        else:
            _ = wordpiece(self.tokenizer) if self.family == "bert" else gpt_specials(self.tokenizer)
        if self.length < SHORTEST:
            raise DataError(
                f"data.length={self.length} has no room for a pair of texts and its special tokens; "
                f"give at least {SHORTEST}"
            )

    def read(self, numbers: I64, chosen: I64 | None = None) -> Batch:
        """The examples with these numbers, of them the chosen rows; where words are read by their letters, `types` are
        those of all of them."""
        if self.family == "elmo":
            return self._words(numbers, np.arange(len(numbers)) if chosen is None else chosen)
        split, rows = self.split, self.split.take(numbers if chosen is None else numbers[chosen])
        count = len(rows) // split.choices
        single = rows[:, B] < 0
        middle = np.where(single, rows[:, END], rows[:, B])
        b_length = np.where(single, -1, rows[:, END] - middle)
        pairs = SpanPairs(rows[:, A], middle - rows[:, A], middle, b_length, np.zeros(len(rows), bool))
        pairs = truncate_longest_first(both_orders(pairs) if split.symmetric else pairs, self.length)
        batch: Batch
        if self.family == "gpt":
            batch = gpt_pair(split.tokens.read, pairs, self.tokenizer, self.length)
        else:
            batch = bert_pair(split.tokens.read, pairs, wordpiece(self.tokenizer), self.length)
        text_BL = batch.pop("candidates")
        del batch["lengths"]
        if split.kind == "choice" or split.symmetric:
            batch = {name: lines.reshape(count, -1, self.length) for name, lines in batch.items()}
        answers = self._answers(rows[:: split.choices])
        if split.tags is not None:
            tags_BL = np.full(text_BL.shape, -1, np.int32)
            tags_BL[text_BL] = split.tags.read(pairs.a_start, pairs.a_length)
            answers |= self._tags(tags_BL)
        return {**batch, **answers}

    def _words(self, numbers: I64, chosen: I64) -> Batch:
        """Of a pair two lines; length counts the begin and the end of a sentence, which the model puts there."""
        split, rows = self.split, self.split.take(numbers)
        assert split.char_ids is not None
        words, many = self.length - 2, 2 if split.pair else 1
        middle = np.where(rows[:, B] < 0, rows[:, END], rows[:, B])
        starts = np.stack([rows[:, A], middle], 1)[:, :many].ravel()
        lengths = np.stack([middle - rows[:, A], rows[:, END] - middle], 1)[:, :many].ravel()
        lengths = np.minimum(lengths, words)
        size = self.types or len(starts) * words + FIRST_WORD
        batch = elmo_words(split.tokens.read, starts, lengths, split.char_ids, words, size)
        lines = {name: batch[name].reshape(len(numbers), many, words) for name in ("index", "mask")}
        lines = {name: x[chosen] if split.pair else x[chosen, 0] for name, x in lines.items()}
        answers = self._answers(rows[chosen])
        if split.tags is not None:
            tags_BL = np.full((len(numbers), words), -1, np.int32)
            tags_BL[batch["mask"] > 0] = split.tags.read(starts, lengths)
            answers |= self._tags(tags_BL[chosen])
        return {"types": batch["types"], **lines, **answers}

    def _answers(self, rows: I64) -> Batch:
        split, batch = self.split, dict[str, np.ndarray]()
        if split.kind in ("classify", "choice"):
            batch["labels"] = np.maximum(rows[:, ANSWER], 0).astype(np.int32)
            batch["weights"] = self.weights_C[batch["labels"]]
        elif split.kind == "regress":
            batch["targets"] = rows[:, ANSWER].copy().view(np.float64).astype(np.float32)
        return {**batch, "valid": np.ones(len(rows), np.float32)}

    def _tags(self, tags_BL: NDArray[np.int32]) -> Batch:
        weights_BL = np.where(tags_BL >= 0, self.weights_C[np.maximum(tags_BL, 0)], 0).astype(np.float32)
        return {"tags": tags_BL, "tag_weights": weights_BL}


class TaskBatches:
    """Training batches: step s, row r is example `permuted[s · batch + r]` of an endless row of passes, each of which
    has every example once, in an order of its own.

    Differs: the original shuffles within a buffer of 100 examples; here a pass is shuffled whole.
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
        length, types = line_length(config, split.longest), config.word_types
        self._reader = _Reader(split, tokenizer, family, length, weights_C, types)
        self._orders: dict[int, I64] = {}
        self._lock = threading.Lock()

    @property
    def length(self) -> int:
        """Tokens of a line."""
        return self._reader.length

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """The rows (numbers within the batch, all of them if None) of the step's batch, in the order asked for."""
        rows = np.arange(self.config.batch_size_at(step)) if rows is None else np.asarray(rows, np.int64)
        every = np.arange(self.config.batch_size_at(step))
        places = self.config.examples_before(step) + every
        passes, within = np.divmod(places, self.examples_per_epoch)
        numbers = np.empty(len(places), np.int64)
        for e in np.unique(passes).tolist():
            mine = passes == e
            numbers[mine] = self._order(e)[within[mine]]
        with self._lock:
            self.rows_read += len(rows)
        return self._reader.read(numbers, rows)

    def _order(self, e: int) -> I64:
        with self._lock:
            if e not in self._orders:
                self._orders = {p: order for p, order in self._orders.items() if abs(p - e) == 1}
                self._orders[e] = rng.permutation(rng.key(rng.EXAMPLE_ORDER, self.seed, e), self.examples_per_epoch)
            return self._orders[e]

    def notes(self) -> list[str]:
        """Nothing."""
        return []

    def describe(self) -> str:
        """What there is to train on, in a sentence."""
        longer = self.split.longer_than(self.length)
        cut = f"; {longer:,} of them longer, and cut" if longer else ""
        lines = 2 if self.split.symmetric else self.split.choices
        several = f"{lines} " if lines > 1 else ""
        words = f"; {counted(self._cut_words, 'word')} longer than {MOST_BYTES} bytes, cut" if self._cut_words else ""
        return f"{self.split.examples:,} examples in {several}lines of {self.length} tokens{cut}{words}"


class HeldOutTask:
    """Every example once and in order, in `steps` batches of `batch` lines."""

    unit = "examples"

    def __init__(
        self,
        split: ExampleSplit,
        tokenizer: Tokenizer,
        config: DataConfig,
        lines: int,
        weights_C: NDArray[np.float32] | None = None,
        length: int = 0,
        *,
        family: Family,
    ) -> None:
        """weights_C: what each label counts in the loss (all 1 if None). length: tokens of a line, if not what the
        longest needs."""
        self.fields = task_fields(split.kind, family, split.symmetric, split.pair)
        self.shift = int(family == "elmo")
        """By how many places a word stands before that of its piece in a line with a special token in front."""
        self.tokenizer, self.batch, self.split = tokenizer, lines, split
        self.count = split.examples
        self.steps = -(-self.count // lines)
        self.rows_read = 0
        ones_C = np.ones(max(len(split.labels), 1), np.float32)
        length = length or line_length(config, split.longest)
        weights_C = ones_C if weights_C is None else weights_C
        self._reader = _Reader(split, tokenizer, family, length, weights_C, config.word_types)

    @property
    def length(self) -> int:
        """Tokens of a line."""
        return self._reader.length

    def numbers(self, step: int) -> I64:
        """The examples of a batch, without those that only fill it up."""
        return np.arange(step * self.batch, min((step + 1) * self.batch, self.count))

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """As TaskBatches.read, for steps below `steps`; rows past the last example repeat example 0 without weight, of
        an ELMo without its words."""
        rows = np.arange(self.batch) if rows is None else np.asarray(rows, np.int64)
        numbers = step * self.batch + np.arange(self.batch)
        batch = self._reader.read(np.where(numbers >= self.count, 0, numbers), rows)
        spare = numbers[rows] >= self.count
        weights = ("valid", "weights", "tag_weights", "next_weights")
        for name in (*weights, "mask") if self.split.char_ids is not None else weights:
            if name in batch:
                batch[name][spare] = 0.0
        self.rows_read += len(rows)
        return batch
