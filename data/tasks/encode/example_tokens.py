"""Examples → pieces by a tokenizer or an open vocabulary, and their answers as numbers: a chunk at a time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from contexture.data.binary_files import I64, Column, Memory
from contexture.data.config import Context, TaskConfig
from contexture.data.errors import DataError, did_you_mean
from contexture.data.task_kinds import KINDS
from contexture.data.tasks.encode.windows import SpanChunk, SpanLayout, span_windows
from contexture.data.tasks.encode.word_alignment import cut_words
from contexture.data.tasks.read.examples import ChoiceExample, Example, Pair, QuestionExample, Tagged, Text
from contexture.data.tasks.read.file_report import FileReport
from contexture.data.tasks.read.labels import Labels, alternatives, whole_number
from contexture.data.tasks.store.document_offsets import offsets_in_memory
from contexture.data.tasks.store.example_store import (
    ExampleSplit,
    Rows,
    is_absent,
    pair_layout,
    row_type,
    tokens_of,
)
from contexture.data.tasks.store.span_store import spans_in_memory
from contexture.data.text.written_numbers import written_number
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.checked_text import encode_checked, unknown_ids
from contexture.data.tokenizers.open_vocabulary import OpenVocabulary
from contexture.data.tokenizers.word_level import Words

_LARGEST = 1e18
"""Largest number of a regression, of either sign: in float32 a sum of squares of larger ones is not finite."""


def answer(example: Text | Pair | ChoiceExample, kind: str, labels: Labels) -> float:
    """Returns the number of an example's label, -1 for none; for a regression the number itself, NaN for none.

    Raises: DataError with file:line for an unknown label, a number that is none, a label that names no alternative.
    """
    label, origin = example.label, example.origin
    if label is None:
        return -1 if KINDS[kind].has_classes else math.nan
    if isinstance(example, ChoiceExample):
        return _right(example, label, labels)
    if KINDS[kind].has_classes:
        return labels.number(label, origin)
    value = written_number(label)
    if value is None or not np.isfinite(value):
        raise DataError(f"{origin}: {label!r} is not a number, which task.kind=regress wants")
    if abs(value) > _LARGEST:
        raise DataError(f"{origin}: {label!r} is beyond ±{_LARGEST:g}, whose square no float32 sums; scale the numbers")
    return value


def _right(example: ChoiceExample, label: str, labels: Labels) -> int:
    """Returns the alternative that a label means, by its name (or number) or by its own text."""
    # By name or number ...
    names = labels.alternatives(len(example.choices), example.origin)
    matches = {names.index(label)} if label in names else set[int]()
    # A label that is a name given by the user is that name alone. A number from 0 may also be an alternative's own text
    # ("2" among sums): if the two differ, nobody can tell which was meant.
    if not matches or not labels.named:
        matches |= {number for number, choice in enumerate(example.choices) if choice.strip() == label}
    # `1.0` means alternative 1.
    if not matches and whole_number(label) in names:
        matches = {names.index(whole_number(label))}
    if not matches:
        raise DataError(
            f"{example.origin}: label {label[:40]!r} is neither one of {', '.join(names)} nor an alternative's own text"
            f"{did_you_mean(label, [*names, *example.choices])}; count the alternatives from 0, or name them in their "
            "order: --task.labels 1 2"
        )
    if len(matches) > 1:
        which = " or ".join(map(str, sorted(matches)))
        raise DataError(
            f"{example.origin}: label {label[:40]!r} may mean alternative {which}, by number or by text; give numbers, "
            f"and say so: --task.labels {' '.join(names)}"
        )
    return matches.pop()


def tagged_tokens(
    chunk: Sequence[Tagged],
    tokenizer: Tokenizer | OpenVocabulary,
    labels: Labels,
    report: FileReport,
    context: Context = "sentence",
) -> tuple[list[list[int]], list[list[int]]]:
    """Returns the pieces of each example, and for each piece its word's tag, or -1 where the word is read at another
    piece. Where tags are not known, 0 marks the pieces that words are read at."""
    pieces, places = cut_words(chunk, tokenizer, report, context)
    # -1 everywhere, then each word's tag where the word is read.
    tags = [[-1] * len(ids) for ids in pieces]
    for example, example_tags, example_places in zip(chunk, tags, places, strict=True):
        # Without tags there is an empty name for each word, which is never looked up.
        known = example.tags or ("",) * len(example_places)
        for place, tag in zip(example_places, known, strict=True):
            example_tags[place] = labels.number(tag, example.origin) if example.tags is not None else 0
    return pieces, tags


def text_tokens(
    chunk: Sequence[Text | Pair | ChoiceExample],
    tokenizer: Tokenizer | OpenVocabulary,
    report: FileReport,
    choices: int = 1,
) -> list[tuple[list[int], list[int] | None]]:
    """Returns the pieces of each row's first text and of its second, where it has one; a choice has a row for each
    alternative, and empty ones up to `choices` rows."""
    texts = [_texts(example) for example in chunk]
    # The tokenizer gets all texts at once (it runs on all cores), and they are dealt out to the rows afterwards.
    origins = [example.origin for example, parts in zip(chunk, texts, strict=True) for _ in parts]
    flat = list(chain.from_iterable(texts))
    encoded = encode_checked(flat, origins, tokenizer)
    unknown = unknown_ids(tokenizer)
    # Every text gets a token at least: a row without tokens means no alternative (`is_absent`).
    for place, (text, ids) in enumerate(zip(flat, encoded, strict=True)):
        if not ids:
            encoded[place] = unknown
            if text:  # an empty one is counted by its reader
                report.read_unspelled(f"the text {text[:40]!r}", origins[place])
    report.count_tokens(flat, encoded)
    pieces = iter(encoded)
    rows: list[tuple[list[int], list[int] | None]] = []
    for parts in texts:
        first, *others = [next(pieces) for _ in parts]
        # A row for each alternative, all with the same first text.
        rows += [(first, other) for other in others or [None]]
        # Rows without tokens, up to the longest list of the chunk.
        rows += [([], None)] * (choices - max(len(others), 1))
    return rows


def _texts(example: Text | Pair | ChoiceExample) -> tuple[str, ...]:
    if isinstance(example, Pair):
        return example.first, example.second
    return (example.text, *example.choices) if isinstance(example, ChoiceExample) else (example.text,)


@dataclass(frozen=True)
class EncodedChunk:
    """A chunk of examples, encoded.

    Args:
        rows: [n · choices], with places counted from the chunk's first token. A question with fewer alternatives than
            others has rows without tokens after its own (`is_absent`). A question about a context has a row for each
            of its windows; the row's `question` is its number in the chunk.
        tokens: the tokens of all rows.
        tags: for each token, its word's tag or -1.
        choices: rows of an example.
        spans: for questions, what is stored of them in addition.
        documents: [n], for sentences with context, the number of each one's document; below 0 where it has none.
        owners: [rows], for texts in windows, the number of each row's text in the chunk.
    """

    rows: Rows
    tokens: NDArray[np.uint32]
    tags: NDArray[np.int32] | None
    choices: int = 1
    spans: SpanChunk | None = None
    documents: I64 | None = None
    owners: I64 | None = None

    def rows_of(self, chosen: NDArray[np.intp]) -> NDArray[np.intp]:
        """Returns the rows of examples, by their numbers in the chunk."""
        # Questions and texts have as many rows as windows: found by their owners, not by arithmetic.
        if self.spans is not None:
            return np.flatnonzero(np.isin(self.rows["question"], chosen))
        if self.owners is not None:
            return np.flatnonzero(np.isin(self.owners, chosen))
        return (chosen[:, None] * self.choices + np.arange(self.choices)).ravel()


def reader(tokenizer: Tokenizer) -> Tokenizer | OpenVocabulary:
    """Returns the encoder of a task's examples: the tokenizer itself; for an ELMo's words, an open vocabulary that
    numbers any word."""
    return OpenVocabulary(tokenizer) if isinstance(tokenizer, Words) else tokenizer


def encode_chunk(
    chunk: Sequence[Example],
    kind: str,
    tokenizer: Tokenizer | OpenVocabulary,
    labels: Labels,
    report: FileReport | None = None,
    layout: SpanLayout | None = None,
    context: Context = "sentence",
    window: int = 0,
) -> EncodedChunk:
    """Tokenises examples and numbers their answers. A text or a word without a piece is read as the unknown token,
    which `report` counts. The file's number stays 0, for the caller to set.

    Args:
        chunk: the examples.
        kind: task.kind.
        tokenizer: what encodes their texts (`reader`).
        labels: numbers their labels.
        report: counts what is read as unknown.
        layout: for questions, the sequences that they are laid out in.
        context: data.context.
        window: the most tokens of a row, where texts are read in windows (`window_of`).

    Raises:
        DataError: with file:line for an unknown label, a number that is none, too few or too many alternatives.
    """
    report = report or FileReport("examples", tokenizer)
    # As many rows as the chunk's longest list needs; `_Writer._widen` makes them equal over all chunks.
    choices = int(alternatives(chunk, labels).max()) if kind == "choice" else 1
    # An origin ends in its line: "train.tsv:7".
    lines = np.array([int(example.origin.rpartition(":")[2]) for example in chunk])
    # Only questions have a layout.
    if layout is not None:
        return _encode_questions([x for x in chunk if isinstance(x, QuestionExample)], tokenizer, lines, report, layout)
    # -1 means none, in every field that is not set below.
    rows = np.full(len(chunk) * choices, -1, row_type(kind))
    rows["file"], rows["line"] = 0, np.repeat(lines, choices)

    tags: list[list[int]] | None = None
    documents: I64 | None = None
    if kind == "tag":
        # Words, and a tag for each: the answer is stored in parallel to the tokens, and the row has none.
        sentences = [x for x in chunk if isinstance(x, Tagged)]
        pieces, tags = tagged_tokens(sentences, tokenizer, labels, report, context)
        if context == "document":
            # A sentence of no known document is its own: ~n is below 0, and another for each.
            documents = np.array([~n if x.document is None else x.document for n, x in enumerate(sentences)])
    else:
        # One text or two. The second follows the first; its place is known once all ends are.
        plain = [x for x in chunk if not isinstance(x, Tagged | QuestionExample)]
        texts = text_tokens(plain, tokenizer, report, choices)
        pieces = [first + (second or []) for first, second in texts]
        rows["b"] = [-1 if second is None else len(first) for first, second in texts]
        # Every row of an example has its answer; readers take the first row's.
        rows[KINDS[kind].answer[0]] = np.repeat([answer(example, kind, labels) for example in plain], choices)

    tokens = _laid_out(rows, pieces)
    flat_tags = None if tags is None else np.fromiter(chain.from_iterable(tags), np.int32, len(tokens))
    encoded = EncodedChunk(rows, tokens, flat_tags, choices, documents=documents)
    return _in_windows(encoded, window) if window else encoded


def window_of(task: TaskConfig, length: int) -> int:
    """Returns the tokens of a text that a window holds; 0 where texts are not read in windows."""
    # - 2: the special tokens at the two ends of a sequence, which an ELMo counts too.
    return length - 2 if task.windows != "off" else 0


def _in_windows(encoded: EncodedChunk, tokens: int) -> EncodedChunk:
    """Returns a chunk of single texts with a row for each window of at most `tokens` tokens, one after the other.

    Raises: DataError for pairs, since a window would have to hold parts of both texts.
    """
    rows = encoded.rows
    if (rows["b"] >= 0).any():
        raise DataError("task.windows reads single texts, and these examples are pairs; leave it out")
    # A text has at least one window, an empty one too.
    counts = np.maximum(-(-(rows["end"] - rows["a"]) // tokens), 1)
    owners = np.repeat(np.arange(len(rows)), counts)
    windows = rows[owners].copy()
    # The k-th window of a text begins k · tokens after the text.
    windows["a"] += tokens * (np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts))
    windows["end"] = np.minimum(windows["a"] + tokens, windows["end"])
    return replace(encoded, rows=windows, owners=owners)


def _laid_out(rows: Rows, pieces: Sequence[Sequence[int]]) -> NDArray[np.uint32]:
    """Returns the tokens of all rows, joined, and enters their places in the rows; until then `b` is counted from its
    row's first token."""
    lengths = np.array([len(ids) for ids in pieces], np.int64)
    rows["end"] = np.cumsum(lengths)
    rows["a"] = rows["end"] - lengths
    # -1, no second text, stays.
    rows["b"] += np.where(rows["b"] >= 0, rows["a"], 0)
    return np.fromiter(chain.from_iterable(pieces), np.uint32, int(lengths.sum()))


def _encode_questions(
    chunk: Sequence[QuestionExample],
    tokenizer: Tokenizer | OpenVocabulary,
    lines: I64,
    report: FileReport,
    layout: SpanLayout,
) -> EncodedChunk:
    windows = span_windows(chunk, tokenizer, layout, report)
    rows = np.full(len(windows.tokens), -1, row_type("span"))
    rows["file"], rows["line"] = 0, lines[windows.owners]
    rows["b"], rows["question"] = windows.seconds, windows.owners
    return EncodedChunk(rows, _laid_out(rows, windows.tokens), None, 1, windows.chunk)


def same_shape(encoded: EncodedChunk, pair: bool | None, origin: str) -> bool:
    """Returns whether the examples are pairs. origin: the origin of one of them. Raises: DataError where one differs
    from the others, or from `pair`."""
    is_pair = encoded.rows["b"] >= 0
    # The first example decides, where no earlier one has.
    pair = bool(is_pair[0]) if pair is None else pair
    # Rows for no alternative have no second text either, and are no single texts.
    if len(others := np.flatnonzero((is_pair != pair) & ~is_absent(encoded.rows))):
        at = f"{origin.rpartition(':')[0]}:{encoded.rows['line'][others[0]]}"
        kinds = ("a single text", "a pair of texts")
        raise DataError(
            f"{at}: {kinds[not pair]}, and {kinds[pair]} is what was learned from; name the columns: --task.text "
            "(and --task.second), or in predict --text (and --second)"
        )
    return pair


def with_context(before: EncodedChunk | None, encoded: EncodedChunk, after: EncodedChunk | None) -> EncodedChunk:
    """Returns a chunk whose sentences may be read with the sentences before and after the chunk: the tokens and tags of
    all are joined, and only the chunk's own rows remain."""
    parts = [part for part in (before, encoded, after) if part is not None]
    # Rows count from the chunk's first token, before which others are put.
    rows, shift = encoded.rows.copy(), 0 if before is None else len(before.tokens)
    rows["a"] += shift
    rows["end"] += shift
    # Only tagged sentences have context, so that every part has tags.
    tags = np.concatenate([part.tags for part in parts if part.tags is not None])
    return replace(encoded, rows=rows, tokens=np.concatenate([part.tokens for part in parts]), tags=tags)


def in_memory(
    encoded: EncodedChunk,
    kind: str,
    labels: tuple[str, ...],
    source: str,
    symmetric: bool = False,
    char_ids: NDArray[np.uint16] | None = None,
    by_words: bool = False,
    windows: str = "off",
) -> ExampleSplit:
    """Returns a chunk as a split of its own. The last four arguments are fields of an ExampleSplit; `char_ids` implies
    `by_words`."""
    by_words = by_words or char_ids is not None
    documents = None
    # Renumbered within the chunk, whose sentences follow each other.
    if encoded.documents is not None:
        rows = encoded.rows.copy()
        rows["document"], documents = offsets_in_memory(encoded.documents, rows["a"], len(encoded.tokens))
        encoded = replace(encoded, rows=rows)
    # The columns of a folder, in memory.
    tags = None if encoded.tags is None else Column(Memory(encoded.tags), np.dtype("<i4"))
    lengths = tokens_of(encoded.rows, pair_layout(kind, by_words))
    # A sentence within its document may need as much as the whole document has.
    longest = int((lengths if documents is None else documents.lengths(encoded.rows)).max())
    rows, tokens = Column(Memory(encoded.rows), row_type(kind)), Column(Memory(encoded.tokens), np.dtype("<u4"))
    choices = encoded.choices
    count = len(encoded.rows) // choices
    spans = encoded.spans and spans_in_memory(
        encoded.spans.examples, encoded.spans.windows, encoded.spans.places, encoded.spans.labels
    )
    return ExampleSplit(
        kind,
        labels,
        (source,),
        count,
        longest,
        rows,
        tokens,
        tags,
        choices,
        symmetric,
        char_ids,
        spans,
        documents=documents,
        by_words=by_words,
        windows=windows,
        # Owners are numbered from 0 in their order, so the last one says how many there are.
        texts=0 if encoded.owners is None else int(encoded.owners[-1]) + 1,
    )
