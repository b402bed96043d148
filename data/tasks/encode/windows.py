"""Questions → windows: a context that is longer than a sequence is read through several, which overlap.

BERT   `[CLS] question [SEP] window [SEP]`       run_squad.py, convert_examples_to_features
GPT    `[start] window [delimiter] question [extract]`
ELMo and static vectors   `question window`, as one sequence of words

Differs: the original finds an answer by words and improves it by pieces, and gives words back as text; here every token
knows its characters, so an answer is text of the context. Where a window does not hold the answer, the first
place of the sequence is its start and its end, as in the original ([CLS]; for an ELMo, the question's first word).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from contexture.data.binary_files import I64
from contexture.data.config import TaskConfig
from contexture.data.errors import DataError
from contexture.data.layouts import GPT_SPECIALS
from contexture.data.tasks.encode.token_places import encode_with_places
from contexture.data.tasks.read.answers import placed_answer
from contexture.data.tasks.read.examples import QuestionExample
from contexture.data.tasks.read.file_report import FileReport
from contexture.data.tasks.store.span_store import LABEL, NO_ANSWER, PLACE, UNSPELLED
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.checked_text import encode_checked, unknown_ids
from contexture.data.tokenizers.open_vocabulary import OpenVocabulary
from contexture.data.tokenizers.word_level import WordNumbers

SHORTEST = 16
"""Tokens of a sequence with room for a question, special tokens and a window that says something."""


@dataclass(frozen=True)
class SpanLayout:
    """How questions are laid out in sequences of `length` tokens."""

    length: int
    stride: int = 128
    question_length: int = 64

    def __post_init__(self) -> None:
        if self.length < SHORTEST:
            raise DataError(
                f"data.length={self.length} has no room for a question and its context; give at least {SHORTEST}"
            )

    @property
    def longest_question(self) -> int:
        """Tokens of a question, from its first: at least a quarter of a sequence is left for the context."""
        # Three special tokens, as around a pair of texts. Words have two, and cut a question by the same limit.
        return min(self.question_length, (self.length - 3) * 3 // 4)


def span_layout(task: TaskConfig, length: int) -> SpanLayout | None:
    """Returns the layout of a task's questions, None for another kind of task."""
    return SpanLayout(length, task.stride, task.question_length) if task.kind == "span" else None


@dataclass(frozen=True)
class SpanChunk:
    """A chunk of questions: PLACE of each token, LABEL of each window, how many windows each question has, and which
    questions are longer than task.question-length and lost their end."""

    examples: Sequence[QuestionExample]
    windows: list[int]
    places: NDArray[np.void]
    labels: NDArray[np.void]
    cut: list[bool]


@dataclass(frozen=True)
class SpanWindows:
    """The windows of a chunk: their tokens, where the second text begins among them (-1: one text), their question."""

    tokens: list[list[int]]
    seconds: list[int]
    owners: I64
    chunk: SpanChunk


def window_spans(tokens: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Returns (first token, tokens) of each window of a context: as many as there is room for, from every stride on."""
    windows, first = list[tuple[int, int]](), 0
    while True:
        size = min(room, tokens - first)
        windows.append((first, size))
        if first + size >= tokens:
            return windows
        # As in the original: by the stride, or by a whole window where that is less, so that no token is left out.
        first += min(size, stride)


def widest_window(tokens: int, windows: Sequence[tuple[int, int]]) -> I64:
    """Returns, for each token of a context, the window with most context around it: min(left, right) + size / 100, the
    first of equals (run_squad.py, _check_is_max_context)."""
    best, scores = np.zeros(tokens, np.int64), np.full(tokens, -np.inf)
    for number, (first, size) in enumerate(windows):
        # A token's place in the window is the number of tokens to its left; size - 1 - left are to its right.
        left = np.arange(size)
        score = np.minimum(left, size - 1 - left) + 0.01 * size
        inside = slice(first, first + size)
        # A later window must be better, not as good.
        better = score > scores[inside]
        best[inside][better] = number
        scores[inside][better] = score[better]
    return best


def span_windows(
    examples: Sequence[QuestionExample],
    tokenizer: Tokenizer | OpenVocabulary,
    layout: SpanLayout,
    report: FileReport,
) -> SpanWindows:
    """Cuts the contexts of questions into windows, and finds the first answer of each in them.

    Raises: DataError with file:line for text that the vocabulary cannot spell.
    """
    origins = [example.origin for example in examples]
    # Texts are stored as UTF-8, which has no form for half a character.
    _check_characters(examples)
    joined = isinstance(tokenizer, WordNumbers)
    context_first = not joined and GPT_SPECIALS[-1] in tokenizer.specials
    # Three special tokens, or the begin and the end of a sentence, which an ELMo adds itself.
    special = 2 if joined else 3
    questions = encode_checked([example.question for example in examples], origins, tokenizer)
    contexts = _encoded_contexts(examples, tokenizer, report)

    # For each question its windows, and for each window its tokens, their places, and the answer among them.
    tokens: list[list[int]] = []
    seconds: list[int] = []
    owners: list[int] = []
    counts: list[int] = []
    places: list[NDArray[np.void]] = []
    labels: list[tuple[int, int]] = []
    for number, (example, question) in enumerate(zip(examples, questions, strict=True)):
        # A question that no token spells is read as the unknown token.
        # As in run_squad.py (max_query_length), a question that is too long loses its end.
        question = (question or unknown_ids(tokenizer))[: layout.longest_question]
        ids, of_context = contexts[example.context]
        windows = window_spans(len(ids), layout.length - special - len(question), layout.stride)
        widest = widest_window(len(ids), windows)
        start, end = _answer_tokens(example, of_context)
        before = 0 if context_first else len(question)  # tokens in front of the window
        for window, (first, size) in enumerate(windows):
            shown = ids[first : first + size]
            tokens.append([*shown, *question] if context_first else [*question, *shown])
            # The second text is the question or the window, by the family.
            seconds.append(-1 if joined else size if context_first else len(question))
            # Tokens of the question have no place in the context: no answer begins or ends there.
            place = np.full(len(question) + size, -1, PLACE)
            place["begin"][before : before + size] = of_context[first : first + size, 0]
            place["end"][before : before + size] = of_context[first : first + size, 1]
            place["widest"] = 0
            place["widest"][before : before + size] = widest[first : first + size] == window
            places.append(place)
            # Only a window with the whole answer has it; NO_ANSWER and UNSPELLED go for every window of the question.
            holds = first <= start and end < first + size
            labels.append((start, start) if start < 0 else _moved(start, end, before - first) if holds else (-1, -1))
        owners += [number] * len(windows)
        counts.append(len(windows))
    cut = [len(question) > layout.longest_question for question in questions]
    report.cut_questions += sum(cut)
    # A context has at least one window, so that there is something to join.
    chunk = SpanChunk(examples, counts, np.concatenate(places), np.array(labels, LABEL), cut)
    return SpanWindows(tokens, seconds, np.array(owners, np.int64), chunk)


def _check_characters(examples: Sequence[QuestionExample]) -> None:
    """Raises: DataError with the origin of a question that has a text which cannot be stored as UTF-8."""
    for example in examples:
        try:
            f"{example.question}{example.id}".encode()
            example.context.encode()
        except UnicodeEncodeError as error:
            half = f"half a character, U+{ord(error.object[error.start]):04X}"
            raise DataError(f"{example.origin}: {half}; give text in UTF-8") from None


def _moved(start: int, end: int, by: int) -> tuple[int, int]:
    return start + by, end + by


def _encoded_contexts(
    examples: Sequence[QuestionExample], tokenizer: Tokenizer | OpenVocabulary, report: FileReport
) -> dict[str, tuple[list[int], I64]]:
    """Returns the tokens and places of each distinct context, which is encoded once for all of its questions."""
    # Reversed, so that a context has the origin of its first question.
    where = {example.context: example.origin for example in reversed(examples)}
    try:
        encoded = encode_with_places(list(where), tokenizer)
    except (DataError, UnicodeEncodeError):
        encode_checked(list(where), list(where.values()), tokenizer)  # says which text it was
        raise
    contexts = {}
    for (context, origin), (ids, places) in zip(where.items(), encoded, strict=True):
        if not ids:
            if context:  # an empty one is counted by its reader
                report.read_unspelled(f"the text {context[:40]!r}", origin)
            ids = unknown_ids(tokenizer)
            places = np.zeros((len(ids), 2), np.int64)
        contexts[context] = ids, places
    report.count_tokens(list(contexts), [ids for ids, _ in contexts.values()])
    return contexts


def _answer_tokens(example: QuestionExample, places: I64) -> tuple[int, int]:
    """Returns the first and the last token of the first answer that is at its place, NO_ANSWER or UNSPELLED."""
    if not example.answers:
        return NO_ANSWER, NO_ANSWER
    if (answer := placed_answer(example.answers, example.context)) is None:
        return UNSPELLED, UNSPELLED
    # In characters of the context, end not included, as the places of tokens are.
    begin, end = answer.start, answer.start + len(answer.text)
    # The tokens that share a character with the answer; an empty place shares none.
    touched = np.flatnonzero((places[:, 0] < end) & (places[:, 1] > begin) & (places[:, 0] < places[:, 1]))
    return (int(touched[0]), int(touched[-1])) if len(touched) else (UNSPELLED, UNSPELLED)
