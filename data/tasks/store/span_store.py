"""What is stored for question answering in addition to rows and tokens; the rows are windows of contexts.

SPLIT-places.bin     PLACE of each token: where it is in the context
SPLIT-labels.bin     LABEL of each window: where the answer is among its tokens
SPLIT-questions.bin  QUESTION of each question: where its texts are
SPLIT-texts.bin      UTF-8: contexts, and a JSON object for each question
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from contexture.data.binary_files import I64, Column, Memory
from contexture.data.tasks.read.examples import Answer, QuestionExample

FILES = ("places", "labels", "questions", "texts")
# i32: a context has at most 2**24 characters (`tables.LONGEST_FIELD`), and each token of each window has a PLACE.
PLACE = np.dtype([(name, "<i4") for name in ("begin", "end", "widest")])
"""A token's characters in its context (from begin to before end; -1: a token of the question), and 1 where no other
window shows more of the context around it."""
LABEL = np.dtype([(name, "<i4") for name in ("start", "end")])
"""The first and the last token of the answer, counted from the window's first token; NO_ANSWER or UNSPELLED."""
# i64: bytes in a file of all contexts and questions, which may be larger than 4 GiB.
QUESTION = np.dtype([(name, "<i8") for name in ("at", "size", "context_at", "context_size", "windows")])
"""Where the question's JSON and its context are among the texts (bytes), and how many windows it has."""
NO_ANSWER, UNSPELLED = -1, -2
"""NO_ANSWER: the window holds no answer. UNSPELLED: no token holds the answer, or the context does not hold it at its
place, so that the window teaches nothing."""
_TEXT = np.dtype("u1")


def token_places(rows: NDArray[np.void], tokens: I64, elmo: bool) -> I64:
    """Returns the places in a sequence of tokens that are counted from the first token of their row: the sequence also
    has a special token in front and one between the two texts. An ELMo's arrays have none."""
    if elmo:
        return tokens
    # Where the second text begins, counted from the row's first token; of a single text, its end.
    second = np.where(rows["b"] < 0, rows["end"], rows["b"]) - rows["a"]
    # One for the token in front, and one more for what follows the token between.
    return 1 + tokens + (tokens >= second)


@dataclass(frozen=True)
class SpanSplit:
    """The questions of one split. Their windows are the rows of the split, in the order of the questions."""

    count: int
    """Questions."""
    places: Column[np.void]
    labels: Column[np.void]
    questions: Column[np.void]
    texts: Column[np.uint8]

    def take(self, numbers: I64) -> NDArray[np.void]:
        """Questions by their numbers → QUESTION [n]."""
        return self.questions.read(numbers, np.ones(len(numbers), np.int64))

    def read(self, record: np.void, origin: str) -> QuestionExample:
        """Returns the question of a record. origin: its file and line."""
        content = json.loads(self._bytes(int(record["at"]), int(record["size"])))
        context = self._bytes(int(record["context_at"]), int(record["context_size"])).decode()
        # None: not labelled; an empty list: there is no answer.
        answers = None if content["answers"] is None else tuple(Answer(*pair) for pair in content["answers"])
        return QuestionExample(content["id"], content["question"], context, answers, origin)

    def _bytes(self, at: int, size: int) -> bytes:
        return self.texts.read(np.array([at]), np.array([size])).tobytes()


def question_records(
    examples: Sequence[QuestionExample], windows: Sequence[int], at: int
) -> tuple[NDArray[np.void], bytes]:
    """Returns QUESTION [n] and the texts that they refer to, which will follow `at` bytes of other texts."""
    records, texts, size = np.zeros(len(examples), QUESTION), list[bytes](), 0
    contexts: dict[str, tuple[int, int]] = {}  # the questions of a paragraph share it

    def add(text: bytes) -> tuple[int, int]:
        nonlocal size
        # Counted from the beginning of the file, and not of this chunk.
        place = at + size, len(text)
        texts.append(text)
        size += len(text)
        return place

    for number, (example, count) in enumerate(zip(examples, windows, strict=True)):
        if example.context not in contexts:
            contexts[example.context] = add(example.context.encode())
        content = {"id": example.id, "question": example.question, "answers": example.answers}
        # In the order of QUESTION's fields: its JSON, its context, its windows.
        records[number] = (*add(json.dumps(content, ensure_ascii=False).encode()), *contexts[example.context], count)
    return records, b"".join(texts)


def spans_in_memory(
    examples: Sequence[QuestionExample], windows: Sequence[int], places: NDArray[np.void], labels: NDArray[np.void]
) -> SpanSplit:
    """Returns questions that are in memory."""
    records, texts = question_records(examples, windows, 0)
    # The columns of a folder, in memory.
    return SpanSplit(
        len(examples),
        Column(Memory(places), PLACE),
        Column(Memory(labels), LABEL),
        Column(Memory(records), QUESTION),
        Column(Memory(np.frombuffer(texts, _TEXT)), _TEXT),
    )
