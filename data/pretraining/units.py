"""Units of text that an ERNIE masks together (Sun et al. 2019, section 3.2): words or phrases, and named entities.

They are found while text is tokenised, and kept in the upper bits of its tokens: whether a token continues the phrase,
or the entity, that the token before it is in. All else that stores, joins and fetches tokens knows nothing of them.
"""

import functools
import hashlib
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.text.row_facts import RowSpans
from contexture.data.text.sources import lines_of
from contexture.data.tokenizers.base import Tokenizer

CONTINUES_PHRASE, CONTINUES_ENTITY = 1 << 24, 1 << 25
"""Bits of a token. The second is of entities, and outside of these as the first."""
ID = CONTINUES_PHRASE - 1
"""The bits of its id."""
Span = tuple[int, int]
"""The first character, and that behind the last."""


class Units(NamedTuple):
    """How units are found.

    Args:
        segmenter: text → its words; None: those of the data, or none.
        gazetteer: text → the entities of a list; None: those of the data, or none.
        of_data: whether rows say where words and entities are.
        facts: all that units depend on, as JSON.
    """

    segmenter: Callable[[str], list[Span]] | None
    gazetteer: Callable[[str], list[Span]] | None
    of_data: bool
    facts: dict[str, str]

    def marks(self, text: str, offsets: Sequence[Span], given: RowSpans | None) -> NDArray[np.uint32]:
        """Returns the bits of each token of a text; offsets: its characters; given: what the data say, within it."""
        words = self.segmenter(text) if self.segmenter else given.words if given else []
        entities = self.gazetteer(text) if self.gazetteer else given.entities if given else []
        # Each character has the number of its unit, 0 outside of all.
        phrase_C, entity_C = (numbered(spans, len(text)) for spans in (words, entities))
        # Entities come first: what is in one belongs to no phrase.
        either_C = np.where(entity_C > 0, -entity_C, phrase_C)
        firsts = np.array([first for first, _ in offsets], np.int64)
        marks = np.zeros(len(offsets), np.uint32)
        for of_C, bit in ((phrase_C, CONTINUES_PHRASE), (either_C, CONTINUES_ENTITY)):
            # A token is in the unit that its first character is in.
            unit = of_C[firsts] if len(text) else firsts
            marks[1:] |= np.where((unit[1:] == unit[:-1]) & (unit[1:] != 0), bit, 0).astype(np.uint32)
        return marks


class MarkedSentences:
    """The units of the sentences of a text, one batch after the other."""

    def __init__(self, units: Units) -> None:
        self.units = units
        # Where the sentence behind the last one is looked for in the text of its row.
        self._place = 0

    def marked(
        self, batch: Sequence[str | None], tokenizer: Tokenizer, rows: deque[RowSpans]
    ) -> list[tuple[list[int], NDArray[np.uint32]]]:
        """Returns the ids of sentences, and the bits of their units.

        Args:
            batch: sentences, and None for the end of a document.
            tokenizer: the vocabulary.
            rows: what the data say of each document that has begun; those that end are taken out.
        """
        placed = iter(tokenizer.encode_with_offsets([text for text in batch if text is not None]))
        found: list[tuple[list[int], NDArray[np.uint32]]] = []
        for text in batch:
            # The sentences of a row stand in its text one after the other.
            if text is None:
                self._place = 0
                if rows:
                    rows.popleft()
                continue
            ids, offsets = next(placed)
            given = rows[0] if rows else None
            if given is not None:
                first = given.text.index(text, self._place)
                self._place = first + len(text)
                given = given.within(first, self._place)
            found.append((ids, self.units.marks(text, offsets, given)))
        return found


def numbered(spans: Sequence[Span], length: int) -> NDArray[np.int64]:
    """Returns the number of the span that each character is in, from 1 on, and 0 where none is; of two that overlap the
    first."""
    numbers = np.zeros(length, np.int64)
    for number, (first, last) in reversed([*enumerate(spans, 1)]):
        numbers[max(first, 0) : max(last, 0)] = number
    return numbers


def units_of(config: DataConfig) -> Units | None:
    """Returns how a run's units are found (data.units, data.gazetteer); None where it has none.

    Raises: DataError where jieba is not installed, or the gazetteer cannot be read.
    """
    if config.units == "off" and not config.gazetteer:
        return None
    facts = {"units": config.units}
    segmenter = gazetteer = None
    if config.units == "jieba":
        segmenter, facts["units"] = _jieba()
    if config.gazetteer:
        names = entries(Path(config.gazetteer))
        facts["gazetteer"] = hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()
        gazetteer = functools.partial(longest_matches, by_beginning(names))
    return Units(segmenter, gazetteer, config.units == "spans", facts)


def _jieba() -> tuple[Callable[[str], list[Span]], str]:
    try:
        # It imports parts of setuptools that warn of their own end.
        with warnings.catch_warnings(action="ignore"):
            import jieba  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise DataError("data.units=jieba needs jieba, which is not installed; pip install -e '.[zh]'") from None
    # It says on stderr that it reads its dictionary.
    jieba.setLogLevel(60)
    return lambda text: [(first, last) for _, first, last in jieba.tokenize(text)], f"jieba {jieba.__version__}"


def entries(file: Path) -> set[str]:
    """Returns the names of a gazetteer: what stands before a TAB in each line. Raises: DataError for a file without."""
    names = {line.partition("\t")[0].strip() for line in lines_of(file, "a name")}
    # Of blank lines.
    names.discard("")
    if not names:
        raise DataError(f"{file}: holds no name; give a file with a name in each line")
    return names


def by_beginning(names: set[str]) -> dict[str, dict[int, set[str]]]:
    """Returns names by their first character and by their length, the longest first."""
    found: dict[str, dict[int, set[str]]] = defaultdict(dict)
    for name in sorted(names, key=len, reverse=True):
        found[name[0]].setdefault(len(name), set()).add(name)
    return dict(found)


def longest_matches(names: dict[str, dict[int, set[str]]], text: str) -> list[Span]:
    """Returns where names stand in a text, from left to right, the longest where several begin; none overlap.

    A name in letters with spaces between words does not match within a word.
    """
    spans: list[Span] = []
    at = 0
    # What a name has taken is behind the place.
    while at < len(text):
        for length, of_length in names.get(text[at], {}).items():
            last = at + length
            if text[at:last] in of_length and not (_joined(text, at) or _joined(text, last)):
                spans.append((at, last))
                at = last - 1
                break
        at += 1
    return spans


def _joined(text: str, at: int) -> bool:
    """Returns whether a place is within a word of letters; in Chinese, Japanese and Thai none is."""
    return 0 < at < len(text) and _is_spaced(text[at - 1]) and _is_spaced(text[at])


def _is_spaced(letter: str) -> bool:
    # Scripts that write words apart: those before the Thai block, and Hangul.
    return letter.isalnum() and (letter < "\u0e00" or "\uac00" <= letter <= "\ud7a3")
