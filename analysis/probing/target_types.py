"""A labelled span, or pair of spans, and the sentence that contains it."""

from dataclasses import dataclass
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
"""The first word of a span, from 0, and the one behind its last."""


@dataclass(frozen=True)
class Target:
    """A span, or a pair of them, with any number of labels."""

    span1: Span
    span2: Span | None
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Sentence:
    """Words, and the targets among them; origin: file:line."""

    words: tuple[str, ...]
    targets: tuple[Target, ...]
    origin: str
