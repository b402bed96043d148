"""Labelled examples: what a row of a user's file or of a TFDS set says, before it is cut into pieces."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """One text. label: as it is written (a class, or a number in words), None where there is none."""

    text: str
    label: str | None
    origin: str
    """Where it stands: "train.tsv:7"."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts and what relates them."""

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


@dataclass(frozen=True, slots=True)
class ChoiceExample:
    """A text and alternatives, one of which fits it. label: its number from 0, its name, or its own text."""

    text: str
    choices: tuple[str, ...]
    label: str | None
    origin: str


Example = Text | Pair | Tagged | ChoiceExample
