"""What a vocabulary does not keep of a text: unknown tokens, and marks of letters that it strips as accents."""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Protocol

from contexture.data.tokenizers.word_level import StaticWords
from contexture.data.tokenizers.wordpiece import WordPiece

LIMIT = 0.01
"""The share of unknown tokens above which a warning is due."""
_TEXTS, _CHARACTERS = 200, 2000
"""How many texts with unknown tokens are searched for words, and how many characters of each: this bounds the
search."""


class Encoder(Protocol):
    """A tokenizer, or an open vocabulary. It may have `unk`, and `words` (text → its words) and `token` besides."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]: ...


@cache
def _marked() -> re.Pattern[str]:
    """Returns what finds a character that is, or holds, a mark which belongs to its letter: vowel signs of Hindi and
    Thai, the two dots of Japanese, points of Hebrew. Accents of Latin, Greek and Cyrillic letters are none of them."""

    def is_marked(character: str) -> bool:
        marks = [each for each in unicodedata.normalize("NFD", character) if unicodedata.category(each) == "Mn"]
        return any(not each.startswith(_ACCENTS) for each in marks)

    # Behind the accents, and in front of the private, variant and ornamental characters of the first plane.
    return re.compile(f"[{''.join(filter(is_marked, map(chr, range(0x0483, 0xAC00))))}]")


_ACCENTS = tuple(
    chr(code)
    for first, end in ((0x300, 0x370), (0x1AB0, 0x1B00), (0x1DC0, 0x1E00), (0x20D0, 0x2100))
    for code in range(first, end)
)
_ENOUGH = 1 << 22
"""Characters of a text in which its script shows."""


class LostMarks:
    """Counts the characters of a text that lose a mark of their letter where accents are stripped."""

    def __init__(self) -> None:
        self.characters = 0
        self.marked = Counter[str]()

    def add(self, text: str) -> None:
        if self.characters < _ENOUGH:
            self.characters += len(text)
            if not text.isascii():
                self.marked.update(_marked().findall(text))

    def warning(self, where: str, mend: str) -> str:
        """Returns a warning where more than LIMIT of the characters lose one, else ""."""
        share = self.marked.total() / max(self.characters, 1)
        if share <= LIMIT:
            return ""
        often = ", ".join(f"{character!r}" for character, _ in self.marked.most_common(3))
        return (
            f"{where}: {share:.1%} of the characters lose a vowel or another mark of their letter (as {often}), since "
            f"this WordPiece strips accents, as the original's lower-case one does; {mend}"
        )


def unknown_id(tokenizer: Encoder) -> int | None:
    """Returns the id of the unknown token; None where there is none."""
    unk = getattr(tokenizer, "unk", None)
    # The sentencepiece library says -1 where a model lacks the token.
    return unk if unk is not None and unk >= 0 else None


class UnknownTokens:
    """Counts unknown tokens. A tokenizer that spells every text (byte-level, or ELMo's characters) has none."""

    def __init__(self, tokenizer: Encoder) -> None:
        self._unk = unknown_id(tokenizer)
        self._tokenizer = tokenizer
        self._texts: list[str] = []
        # A WordPiece strips marks where it lower-cases, unless it was told otherwise; other vocabularies keep them.
        self._marks = LostMarks() if isinstance(tokenizer, WordPiece) and tokenizer.strip_accents else None
        self.tokens = self.unknown = 0

    def facts(self, parts: int) -> dict[str, Any]:
        """Returns what was counted, as JSON for `merge`; of the texts, as many as one of so many parts may keep."""
        facts: dict[str, Any] = {"tokens": self.tokens, "unknown": self.unknown}
        facts["texts"] = self._texts[: _TEXTS // parts + 1]
        if self._marks is not None:
            facts |= {"characters": self._marks.characters, "marked": dict(self._marks.marked)}
        return facts

    def merge(self, facts: Mapping[str, Any]) -> None:
        """Adds what another one has counted of a further text."""
        # Shares of all the text, and words of its first parts.
        self.tokens += facts["tokens"]
        self.unknown += facts["unknown"]
        self._texts = [*self._texts, *facts["texts"]][:_TEXTS]
        # As one that reads all the text: the first characters alone are counted.
        if self._marks is not None and self._marks.characters < _ENOUGH:
            self._marks.characters += facts["characters"]
            self._marks.marked.update(facts["marked"])

    @property
    def share(self) -> float:
        return self.unknown / max(self.tokens, 1)

    def add(self, texts: Sequence[str], encoded: Sequence[Sequence[int]]) -> None:
        """Counts the ids of texts."""
        for text, ids in zip(texts, encoded, strict=True):
            self.tokens += len(ids)
            if self._marks is not None:
                self._marks.add(text)
            # Most texts have no unknown token, and are not counted one id at a time.
            if self._unk is not None and self._unk in ids:
                self.unknown += sum(number == self._unk for number in ids)
                if len(self._texts) < _TEXTS:
                    self._texts.append(text[:_CHARACTERS])

    def commonest(self, count: int = 5) -> list[tuple[str, int]]:
        """Returns the commonest characters that are unknown alone, and words that are unknown for another reason."""
        # As the tokenizer itself splits text, or at white space.
        split = getattr(self._tokenizer, "words", str.split)
        # Only texts with an unknown token are kept, and not all of them.
        words = Counter(word for text in self._texts for word in split(text))
        # Sorted, so that equally frequent ones come in the same order every time.
        unknown = sorted(self._unknown_of([*words]))
        # A word is unknown for a character that the vocabulary lacks, which is then what the user wants to know; or
        # because it is too long; or as a whole, by a vocabulary of words. That one lacks letters alone, too, but they
        # occur in the words that it knows.
        known = set("".join(words.keys() - set(unknown)))
        whole = isinstance(self._tokenizer, StaticWords)  # each of its words has a vector of its own, or none
        characters = set[str]() if whole else self._unknown_of(sorted(set("".join(unknown)) - known))
        commonest = Counter[str]()
        for word in unknown:
            for one in [one for one in word if one in characters] or [word]:
                commonest[one] += words[word]
        return commonest.most_common(count)

    def _unknown_of(self, texts: list[str]) -> set[str]:
        encoded = self._tokenizer.encode(texts)
        return {text for text, ids in zip(texts, encoded, strict=True) if self._unk in ids}

    def warnings(self, where: str, mend: str, cased: str) -> list[str]:
        """Returns a line for what a text loses by the vocabulary, none for little. mend: how to have no unknown tokens;
        cased: how to keep the marks of letters."""
        lost = "" if self._marks is None else self._marks.warning(where, cased)
        return [line for line in (self.warning(where, mend), lost) if line]

    def warning(self, where: str, mend: str) -> str:
        """Returns a warning where the share is above LIMIT, else ""."""
        if self._unk is None or self.share <= LIMIT:
            return ""
        words = ", ".join(f"{word[:40]!r} ({count})" for word, count in self.commonest())
        often = f", most often {words}" if words else ""
        # An open vocabulary has no `token`: its number is shown.
        name = getattr(self._tokenizer, "token", str)(self._unk)
        return f"{where}: {self.share:.1%} of the tokens are {name}, unknown to the vocabulary{often}; {mend}"
