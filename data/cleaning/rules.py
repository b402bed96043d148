"""The rules that text is cleaned by: their names in the order in which they are asked, what each took, and lines."""

import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

LANGUAGE, CONTAMINATED = "language", "decontaminate"
DOCUMENTS, NEAR, PARAGRAPHS = "duplicate-documents", "near-duplicates", "duplicate-paragraphs"
C4_RULES = (
    "c4-lorem-ipsum",
    "c4-curly-bracket",
    "c4-bad-words",
    "c4-citations",
    "c4-terminal-punctuation",
    "c4-words",
    "c4-javascript",
    "c4-policy",
    "c4-sentences",
)
GOPHER_RULES = (
    "gopher-words",
    "gopher-word-length",
    "gopher-hashes",
    "gopher-ellipses",
    "gopher-bullets",
    "gopher-ellipsis-lines",
    "gopher-letters",
    "gopher-stop-words",
    "gopher-duplicate-lines",
    "gopher-duplicate-paragraphs",
    "gopher-duplicate-line-characters",
    "gopher-duplicate-paragraph-characters",
    *(f"gopher-top-{n}-gram" for n in (2, 3, 4)),
    *(f"gopher-duplicate-{n}-gram" for n in range(5, 11)),
)
ORDER = (LANGUAGE, *C4_RULES, *GOPHER_RULES, CONTAMINATED, DOCUMENTS, NEAR, PARAGRAPHS)
"""All rules. What several would refuse is counted under the first."""
EXAMPLES = 5
"""Examples that are kept of each rule, the first in the order of the text."""
_EXCERPT = 160
"""Characters of an example."""
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
# A character of Chinese or Japanese is a word of its own, as nothing parts the words of these.
_CJK = "\u3005\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"


_PLAIN_WORD = re.compile(r"[^\W_]+")


@lru_cache(1)
def _word() -> re.Pattern[str]:
    """Returns the pattern of a word: letters, digits and the marks that belong to them, as the vowels of Hindi or
    Thai."""
    # Python's own pattern of a word has no marks. Made when it is asked for: it takes a quarter of a second.
    marks = "".join(chr(n) for n in range(sys.maxunicode + 1) if unicodedata.category(chr(n)) in ("Mn", "Mc"))
    return re.compile(rf"[{_CJK}]|(?:[^\W_{_CJK}]|[{re.escape(marks)}])+")


class Removed(NamedTuple):
    """What a rule took of a document."""

    rule: str
    text: str
    bytes: int
    unit: str
    """"document", "paragraph", or "" for less than a paragraph."""


@dataclass
class Count:
    """What a rule has taken."""

    documents: int = 0
    paragraphs: int = 0
    bytes: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)

    def add(self, removed: Removed, where: dict[str, Any]) -> None:
        """where: the source and the number of the document, and what it doubles."""
        # A rule may take less than a paragraph: bytes alone say so.
        self.documents += removed.unit == "document"
        self.paragraphs += removed.unit == "paragraph"
        self.bytes += removed.bytes
        if len(self.examples) < EXAMPLES and removed.unit:
            self.examples.append({**where, "text": excerpt(removed.text)})

    def join(self, other: dict[str, Any]) -> None:
        """Adds the count of the text that follows, as JSON."""
        self.documents += other["documents"]
        self.paragraphs += other["paragraphs"]
        self.bytes += other["bytes"]
        # The first ones of the whole text are among the first ones of its parts.
        self.examples += other["examples"][: EXAMPLES - len(self.examples)]


def excerpt(text: str) -> str:
    """Returns the beginning of a text in one line."""
    # White space is made single before it is cut, but not in all of a book.
    # An example is one line of a page, whatever the text.
    line = " ".join(text[: 4 * _EXCERPT].split())
    return line if len(line) <= _EXCERPT and len(text) <= 4 * _EXCERPT else f"{line[:_EXCERPT]}…"


def size(text: str) -> int:
    """Returns the bytes of a text in UTF-8."""
    return len(text.encode())


def lines_of(text: str) -> list[str]:
    """Returns the lines of a text with their ends."""
    return _LINE.findall(text)


def without(lines: Sequence[str], gone: Iterable[int]) -> tuple[str, dict[int, int]]:
    """Returns the text of lines without some of them, and the bytes that each of these takes with it."""
    # Bytes, and not characters: they add up to those of files.
    sizes = {number: size(lines[number]) for number in gone}
    # Joined as they are: no line end is made uniform.
    text = "".join(line for number, line in enumerate(lines) if number not in sizes)
    # Where the end of the text goes, the line that is last now loses its end.
    if sizes and max(sizes) == len(lines) - 1:
        short = text.removesuffix("\n").removesuffix("\r")
        sizes[len(lines) - 1] += len(text) - len(short)
        text = short
    return text, sizes


def words_of(text: str) -> list[str]:
    """Returns the words of a text in lower case, without punctuation: what near-duplicates and n-grams of benchmarks
    are compared by."""
    # Digits are words too: a benchmark may be of sums. One form for a letter and its marks, however they are written.
    lower = text.lower()
    if lower.isascii():
        return _PLAIN_WORD.findall(lower)
    return _word().findall(unicodedata.normalize("NFC", lower))
