"""Examples by their numbers → the arrays of a batch, in rows that sequences share; and every example once, in
batches."""

import copy
import threading
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from contexture.data.binary_files import I64
from contexture.data.bucketing import batch_lengths, bucket, length_for, padded, places_for
from contexture.data.config import DataConfig, Family
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
from contexture.data.packing import Packing, Shape, choose_heights, fields_in_rows, fill, in_rows, pack, row_width
from contexture.data.task_kinds import KINDS
from contexture.data.tasks.batch.answer_rules import AnswerRules
from contexture.data.tasks.batch.document_context import context_tokens, own_tags
from contexture.data.tasks.store.example_store import ExampleSplit, Rows, is_absent
from contexture.data.tasks.store.span_store import UNSPELLED, SpanSplit, token_places
from contexture.data.tasks.store.stored_features import FeatureFiles
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.elmo_char_ids import FIRST_WORD

WINDOW = 64
"""Held-out batches whose examples are put together: in the same rows, or sorted by length."""
SAMPLE = 1 << 14
"""Examples that the numbers of rows are chosen by."""
SHORTEST = 5
"""Tokens of a sequence with room for a pair: three special tokens and a token of each text."""


def task_fields(kind: str, family: Family, symmetric: bool = False, pair: bool = False) -> dict[str, str]:
    """Returns the arrays of a task's batch. Where an example has several sequences (a choice's alternatives, the two
    orders of a pair, the two texts of a pair where words are read), they are BAL: `task_fields("choice",
    "bert")["mask"]` → `i32 BAL`.

    Tokens, or words, lie in rows XY that sequences share (`packing.fields_in_rows`).
    """
    text = TEXT_FAMILIES[family]
    # An example has one answer, however many sequences it has.
    several = kind == "choice" or symmetric or (pair and text.reads_words)
    own = "BA" if several else "B"
    return {**fields_in_rows({**text.sequences, **text.own_tokens}, own), **KINDS[kind].batch}


def without_rows(fields: dict[str, str]) -> dict[str, str]:
    """Returns the fields of a batch without the rows that sequences share, and the table of their words."""
    return {name: spec for name, spec in fields.items() if not spec.endswith("XY") and name not in ("begins", "types")}


def sequence_length(config: DataConfig, longest: int) -> int:
    """Returns the tokens of a sequence: of the longest example, rounded up to a multiple of 8, at most data.length."""
    return int(padded(np.int64(longest), config.length))


@dataclass(frozen=True)
class Reader:
    """What both kinds of sequences have in common: rows, context from the document, and answers."""

    split: ExampleSplit
    tokenizer: Tokenizer
    text: TextFamily
    length: int
    """L, the greatest length of a sequence."""
    weights_C: NDArray[np.float32]
    context_length: int
    """Tokens of a sequence that is filled with context: data.length, whatever the longest example has."""
    word_types: int
    """Rows for the distinct words of a batch; 0: as many as there could be."""

    def __post_init__(self) -> None:
        """Raises: DataError where the vocabulary lacks the family's special tokens, or a sequence has no room for
        them."""
        self.text.check_task_vocabulary(self.tokenizer)
        if self.length < SHORTEST:
            raise DataError(
                f"data.length={self.length} has no room for a pair of texts and its special tokens; "
                f"give at least {SHORTEST}"
            )

    @property
    def each(self) -> int:
        """Sequences of an example."""
        return self.split.sequences

    @abstractmethod
    def lengths_of(self, numbers: I64) -> I64:
        """Returns the tokens of each sequence of these examples, as they are cut, with the special ones; of an ELMo's
        words with begin and end."""

    @abstractmethod
    def read(self, numbers: I64, chosen: I64, packing: Packing | None, length: int) -> Batch:
        """Returns the examples with these numbers as a batch: of fields XY all rows, of the others the chosen examples.

        Args:
            numbers: the examples of the batch.
            chosen: rows of the fields B, from 0 on; beyond the last example they repeat it.
            packing: where the sequences lie; None: no fields XY, for batches that hold what a backbone computed.
            length: L, of the fields BL. Words have two places fewer.
        """

    def context(self, rows: Rows) -> tuple[I64, I64]:
        """Returns how many tokens are read before and after each row's own: none, but of a sentence within its
        document."""
        split = self.split
        if split.documents is None or split.tags is None:
            return np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        # + 2: the special tokens at the two ends of a sequence, which an ELMo counts too.
        return context_tokens(rows, split.documents, split.tags, self.context_length - 2, at_ends=self.text.is_causal)

    def _places(self, batch: Batch, chosen: I64) -> Batch:
        """Returns a batch of all sequences with `mask`, and `begins` where it has rows, of the chosen examples."""
        several = self.split.kind == "choice" or self.each > 1
        for name in {"begins", "mask"} & batch.keys():
            array = batch[name].reshape(-1, self.each, *batch[name].shape[1:])
            batch[name] = array[chosen] if several else array[chosen, 0]
        return batch

    def _answers(self, rows: Rows, numbers: I64) -> Batch:
        split, batch = self.split, dict[str, np.ndarray]()
        if split.kind == "choice":
            batch["choices"] = (~is_absent(rows)).reshape(-1, split.choices).astype(np.float32)
        # One answer an example: its first row has it.
        first = rows[:: split.choices]
        answer, _ = KINDS[split.kind].answer
        if answer == "label":
            # -1, no label, becomes 0: predictions are made without one, and their loss is never read.
            batch["labels"] = np.maximum(first["label"], 0).astype(np.int32)
            batch["weights"] = self.weights_C[batch["labels"]]
        elif answer == "value":
            batch["targets"] = first["value"].astype(np.float32)
        batch["valid"] = np.ones(len(first), np.float32)
        return batch | self._spans(split.spans, numbers, rows) if split.spans is not None else batch

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


class TokenReader(Reader):
    """Sequences of tokens with special ones around them."""

    def lengths_of(self, numbers: I64) -> I64:
        pairs = self._pairs(self.split.take(numbers))[0]
        # b_length is -1 where there is no second text, and no mark between two.
        return pairs.a_length + pairs.b_length + 3

    def _pairs(self, rows: Rows) -> tuple[SpanPairs, I64, I64]:
        """Returns the sequences of examples as spans of tokens, how many tokens of context precede each row, and the
        row's own tokens of the first text."""
        # Where there is no second text, `b` is -1.
        single = rows["b"] < 0
        middle = np.where(single, rows["end"], rows["b"])  # where the first text ends
        b_length, own = np.where(single, -1, rows["end"] - middle), middle - rows["a"]
        # Context belongs to the first text: a tagged sentence has no second one.
        before, after = self.context(rows)
        pairs = SpanPairs(rows["a"] - before, before + own + after, middle, b_length, np.zeros(len(rows), bool))
        # Both orders first: a pair and its reverse are each cut for themselves, since b gives on a tie.
        pairs = truncate_longest_first(both_orders(pairs) if self.split.symmetric else pairs, self.length)
        return pairs, before, own

    def read(self, numbers: I64, chosen: I64, packing: Packing | None, length: int) -> Batch:
        split = self.split
        rows = split.take(numbers)
        pairs, before, own = self._pairs(rows)
        marks = self.text.marks(self.tokenizer)
        assert marks is not None  # the vocabulary was checked
        fields = {**self.text.sequences, **self.text.own_tokens}
        sequences, text_SL, _ = lay_out(split.tokens.read, pairs, marks, self.tokenizer.pad, length, fields)
        if split.kind == "choice" and "next_weights" in sequences:
            sequences["next_weights"][is_absent(rows)] = 0.0  # special tokens alone say nothing of the language
        # Slots beyond the last example repeat it.
        chosen = np.minimum(chosen, len(numbers) - 1)
        batch: Batch = {"mask": sequences["mask"]}
        batch = self._places(batch if packing is None else in_rows(sequences, packing, pad=self.tokenizer.pad), chosen)
        batch |= self._answers(rows.reshape(-1, split.choices)[chosen].ravel(), numbers[chosen])
        if split.tags is not None:
            # Tags are stored in parallel to the tokens: the span that was read as text is read again as tags.
            tags_BL = np.full(text_SL.shape, -1, np.int32)
            tags_BL[text_SL] = split.tags.read(pairs.a_start, pairs.a_length)
            batch |= self._tags(own_tags(tags_BL, before, own, 1)[chosen])
        return batch


class WordReader(Reader):
    """Sequences of words, a pair's texts as two sequences, or as one where an alternative is chosen.

    data.length counts the begin and the end of a sentence, which an ELMo's have in rows alone, so the other arrays have
    two places fewer. The arrays of static vectors have too, so that they read the same words.
    """

    def lengths_of(self, numbers: I64) -> I64:
        _, lengths, _, _ = self._texts(self.split.take(numbers), self.length - 2)
        # Static vectors have no begin and no end.
        return lengths.reshape(len(numbers) * self.each, -1).sum(1) + 2 * (self.split.char_ids is not None)

    def _texts(self, rows: Rows, words: int) -> tuple[I64, I64, I64, I64]:
        """Returns where the texts are among the tokens, how much of each is read, how many words of context precede
        each row, and the row's own words of the first text."""
        texts = 2 if self.split.pair else 1
        middle = np.where(rows["b"] < 0, rows["end"], rows["b"])
        own, (before, after) = middle - rows["a"], self.context(rows)
        starts = np.stack([rows["a"] - before, middle], 1)[:, :texts].ravel()
        lengths = np.stack([before + own + after, rows["end"] - middle], 1)[:, :texts]
        if self.split.layout == "joined":
            # Both are in one sequence: the longer one gives first, as where special tokens separate them.
            lengths = np.stack(kept_tokens(lengths[:, 0], lengths[:, 1], words), 1)
        return starts, np.minimum(lengths, words).ravel(), before, own

    def read(self, numbers: I64, chosen: I64, packing: Packing | None, length: int) -> Batch:
        split, rows, words = self.split, self.split.take(numbers), length - 2
        starts, lengths, before, own = self._texts(rows, words)
        count, chosen = len(numbers) * self.each, np.minimum(chosen, len(numbers) - 1)
        inside_SL = np.arange(words) < lengths.reshape(count, -1).sum(1)[:, None]
        batch: Batch = {"mask": inside_SL.astype(np.int32)}
        if packing is not None:
            # All words are read, also where a few examples are chosen: the distinct ones of the whole batch make its
            # table, which has room for a batch in which every word is distinct.
            size = self.word_types or packing.rows * packing.width + FIRST_WORD
            if split.char_ids is None:
                batch = word_lines(split.tokens.read, starts, lengths, words, count)
            else:
                batch = elmo_words(split.tokens.read, starts, lengths, split.char_ids, words, size, count)
            batch = in_rows(batch, packing, pad=self.tokenizer.pad)
        batch = self._places(batch, chosen)
        batch |= self._answers(rows.reshape(-1, split.choices)[chosen].ravel(), numbers[chosen])
        if split.tags is not None:
            tags_BL = np.full(inside_SL.shape, -1, np.int32)
            tags_BL[inside_SL] = split.tags.read(starts, lengths)
            batch |= self._tags(own_tags(tags_BL, before, own, 0)[chosen])
        return batch


def open_reader(
    split: ExampleSplit,
    tokenizer: Tokenizer,
    family: Family,
    length: int,
    weights_C: NDArray[np.float32],
    config: DataConfig,
) -> Reader:
    """Returns the reader of a split; the arguments are its fields."""
    text = TEXT_FAMILIES[family]
    reader = WordReader if text.reads_words else TokenReader
    return reader(split, tokenizer, text, length, weights_C, config.length, config.word_types)


class HeldOutTask:
    """Every example once, in `steps` batches: within each window, in packed rows that are dealt out to batches."""

    unit = "examples"

    def __init__(
        self,
        split: ExampleSplit,
        tokenizer: Tokenizer,
        config: DataConfig,
        batch: int,
        weights_C: NDArray[np.float32] | None = None,
        shape: Shape | None = None,
        *,
        family: Family,
        devices: int = 1,
    ) -> None:
        """Opens a split.

        Args:
            split: the examples.
            tokenizer: the model's vocabulary.
            config: the run's data.
            batch: about how many examples a batch has.
            weights_C: the weight of each label in the loss (all 1 if None).
            shape: the rows of a batch; None: what suits the examples.
            family: the model's family.
            devices: how many devices share a batch.
        """
        self.fields = task_fields(split.kind, family, split.symmetric, split.pair)
        self.text = TEXT_FAMILIES[family]
        self.shift = int(self.text.reads_words)
        """1 where no special token precedes the text, so that a word is a place earlier than its piece would be."""
        self.tokenizer, self.split, self.config = tokenizer, split, config
        self.rules = AnswerRules()
        """How the answer to a question is chosen."""
        # `count` is of what the user gave, texts or questions; `steps` go over their windows.
        self.count = split.count
        self.rows_read = 0
        self._lock = threading.Lock()
        # All labels weigh the same, unless the caller says otherwise.
        ones_C = np.ones(max(len(split.labels), 1), np.float32)
        # Of few lengths, since each is a program for whoever predicts one file after the other.
        self.length = bucket(split.longest + 2, config.length)
        """Tokens of the longest sequences."""
        weights_C = ones_C if weights_C is None else weights_C
        self._reader = open_reader(split, tokenizer, family, self.length, weights_C, config)
        self._features: FeatureFiles | None = None
        self._lengths: tuple[int, ...] = (self.length,)
        """Of stored features, the lengths of sequences: a batch has the least that holds its longest example."""
        self._examples = batch
        self.batch = batch
        """For how many examples the arrays of a batch have room. As many share a batch as its rows hold."""
        # The examples of each batch, and where their sequences lie; and which batches end a window.
        self._plan: list[tuple[I64, Packing | None]] = []
        self._ends = set[int]()
        self.shape = shape or self.shape_for(batch, devices)
        """The rows of a batch."""
        self._plan_rows(devices)
        self.steps = len(self._plan)

    def shape_for(self, batch: int, devices: int = 1) -> Shape:
        """Returns the shape that suits the examples, for batches of about so many."""
        every, each, words = np.arange(self.split.examples), self._reader.each, self.text.reads_words
        some = every[:: max(len(every) // SAMPLE, 1)]
        # In parts: within documents each sentence is looked at with all that is around it.
        parts = [self._reader.lengths_of(part) for part in np.split(some, range(1024, len(some), 1024))]
        lengths = np.concatenate(parts)
        # Of the longest of all, which may not be among these, a row must have the room.
        longest = np.array([min(self.split.longest + 2, self.length)])
        if each == 1:
            return Shape.for_lengths(np.concatenate([longest, lengths]), batch, devices, words=words)
        # Of an example with several sequences all are in one batch, and batches need more or fewer rows.
        groups = [lengths[first : first + batch * each] for first in range(0, len(lengths), batch * each)]
        share = -(-max(int(group.sum()) for group in groups) // devices)
        width = row_width([*groups[:16], longest], share, devices, words=words)
        needed = [pack(group, width, (), devices).rows for group in groups]
        return Shape(width, choose_heights(needed, -(-len(every) // batch), devices), batch)

    def _plan_rows(self, devices: int) -> None:
        each, shape, window = self._reader.each, self.shape, WINDOW * self.batch
        if each == 1:
            self.batch = shape.slots
        for first in range(0, self.split.examples, window if each == 1 else self.batch):
            numbers = np.arange(first, min(first + (window if each == 1 else self.batch), self.split.examples))
            lengths = self._reader.lengths_of(numbers)
            if each == 1:
                self._plan += [(numbers[own], packing) for own, packing in fill(lengths, shape)]
            else:
                self._plan.append((numbers, pack(lengths, shape.width, shape.heights, devices, each=each)))
            self._ends.add(len(self._plan) - 1)

    def _plan_by_length(self) -> None:
        """Plans batches of examples that have no rows to share, sorted by length within each window."""
        self.batch, self._plan, self._ends = self._examples, [], set()
        self._lengths = batch_lengths(self.split, self.length, self.batch, shuffled=False)
        window = WINDOW * self.batch
        for first in range(0, self.split.examples, window):
            numbers = np.arange(first, min(first + window, self.split.examples))
            # The longest first: if memory does not suffice, that shows at once.
            numbers = numbers[np.argsort(-places_for(self._lengths, self.split.tokens_of(numbers)), kind="stable")]
            self._plan += [(numbers[at : at + self.batch], None) for at in range(0, len(numbers), self.batch)]
            self._ends.add(len(self._plan) - 1)
        self.steps = len(self._plan)

    def with_rules(self, rules: AnswerRules) -> "HeldOutTask":
        """Returns these batches with other rules for the answer to a question."""
        other = copy.copy(self)
        other.rules = rules
        return other

    def with_features(self, files: FeatureFiles, fields: dict[str, str]) -> "HeldOutTask":
        """As `TaskBatches.with_features`."""
        other = copy.copy(self)
        other._features, other.fields = files, {**without_rows(self.fields), **fields}
        other._plan_by_length()
        return other

    def numbers(self, step: int) -> I64:
        """Returns the examples (of questions, the windows) of a batch, without those that only fill it up."""
        return self._plan[step][0]

    def tokens_before(self, rows: Rows) -> I64:
        """Returns how many tokens of its document precede each row's own."""
        return self._reader.context(rows)[0]

    def ends_window(self, step: int) -> bool:
        """Returns whether the examples of all batches up to this one are a number of first examples."""
        return step in self._ends

    def read(self, step: int, rows: I64 | None = None) -> Batch:
        """Reads as TaskBatches does, for steps below `steps`. Rows past the last example repeat it without
        weight or tokens."""
        rows = np.arange(self.batch) if rows is None else np.asarray(rows, np.int64)
        numbers, packing = self._plan[step]
        length = length_for(self._lengths, self.split.tokens_of(numbers)) if self._features else self.length
        batch = self._reader.read(numbers, rows, packing, length)
        # Devices need whole batches, so each is filled up by an example that counts nowhere: one of its own.
        spare = rows >= len(numbers)
        for name in ("valid", "weights", "tag_weights", "mask"):
            if name in batch:
                batch[name][spare] = 0
        with self._lock:
            self.rows_read += len(rows)
        own = numbers[np.minimum(rows, len(numbers) - 1)]
        return batch if self._features is None else self._features.add(batch, own)


class ExampleOrder:
    """Puts predictions back into the order of the examples: batches are put together within a window."""

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
