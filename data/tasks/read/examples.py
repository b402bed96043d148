"""Labelled examples: the content of a row of a user's file or of a TFDS set, before it is tokenised."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

CHUNK = 4096
"""Most examples that are encoded together."""
# A few long texts fill as much memory as many short ones; their tokens take many times more.
CHUNK_CHARACTERS = 1 << 24
"""Characters after which fewer are."""


@dataclass(frozen=True, slots=True)
class Text:
    """One text. label: as it is written (a class, or the digits of a number), None for none."""

    text: str
    label: str | None
    origin: str
    """Its file and line: "train.tsv:7"."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts and the label of the pair."""

    first: str
    second: str
    label: str | None
    origin: str


@dataclass(frozen=True, slots=True)
class Tagged:
    """Words, and a tag for each of them or None."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    origin: str
    document: int | None = field(default=None, compare=False)
    """The number of its document within the file; None where that is not known."""
    follows: bool = field(default=False, compare=False)
    """Whether another sentence of its document precedes it."""


@dataclass(frozen=True, slots=True)
class ChoiceExample:
    """A text and alternatives, one of which fits it. label: its number from 0, its name, or its own text."""

    text: str
    choices: tuple[str, ...]
    label: str | None
    origin: str


class Answer(NamedTuple):
    """A right answer, and the character of the context that it begins at by its file (-1: nowhere)."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class QuestionExample:
    """A question about a context. answers: the right ones, () where the context holds none, None if unknown."""

    id: str
    """Its own id, else its origin."""
    question: str
    context: str
    # All answers are kept: SQuAD's scores are the best over a question's right answers.
    answers: tuple[Answer, ...] | None
    origin: str


Example = Text | Pair | Tagged | ChoiceExample | QuestionExample


def characters(example: Example) -> int:
    """Returns how many characters the texts of an example have."""
    # Only what may be long is counted: no labels, no tags, and no answers, which lie in the context.
    match example:
        case Text(text=text):
            return len(text)
        case Pair(first=first, second=second):
            return len(first) + len(second)
        case Tagged(words=words):
            return sum(map(len, words))
        case ChoiceExample(text=text, choices=choices):
            return len(text) + sum(map(len, choices))
        case QuestionExample(question=question, context=context):
            return len(question) + len(context)


def example_chunks(read: Iterable[Example]) -> Iterator[list[Example]]:
    """Yields lists of at most CHUNK examples. One with long texts ends before, so that memory follows no row."""
    chunk: list[Example] = []
    size = 0
    for example in read:
        chunk.append(example)
        size += characters(example)
        # Whichever is reached first: many short texts, or a few long ones.
        if len(chunk) == CHUNK or size >= CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
