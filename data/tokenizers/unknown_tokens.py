"""The share of a text's tokens that are unknown to a vocabulary, and the words that cause them."""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from contexture.data.tokenizers.word_level import StaticWords

LIMIT = 0.01
"""The share of unknown tokens above which a warning is due."""
_TEXTS, _CHARACTERS = 200, 2000
"""How many texts with unknown tokens are searched for words, and how many characters of each: this bounds the
search."""


class Encoder(Protocol):
    """A tokenizer, or an open vocabulary. It may have `unk`, and `words` (text → its words) and `token` besides."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]: ...


class UnknownTokens:
    """Counts unknown tokens. A tokenizer that spells every text (byte-level, or ELMo's characters) has none."""

    def __init__(self, tokenizer: Encoder) -> None:
        unk = getattr(tokenizer, "unk", None)
        self._unk: int | None = unk if unk is not None and unk >= 0 else None
        self._tokenizer = tokenizer
        self._texts: list[str] = []
        self.tokens = self.unknown = 0

    @property
    def share(self) -> float:
        return self.unknown / max(self.tokens, 1)

    def add(self, texts: Sequence[str], encoded: Sequence[Sequence[int]]) -> None:
        """Counts the ids of texts."""
        for text, ids in zip(texts, encoded, strict=True):
            self.tokens += len(ids)
            if self._unk is not None and self._unk in ids:
                self.unknown += sum(number == self._unk for number in ids)
                if len(self._texts) < _TEXTS:
                    self._texts.append(text[:_CHARACTERS])

    def commonest(self, count: int = 5) -> list[tuple[str, int]]:
        """Returns the commonest characters that are unknown alone, and words that are unknown for another reason."""
        split = getattr(self._tokenizer, "words", str.split)
        words = Counter(word for text in self._texts for word in split(text))
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

    def warning(self, where: str, mend: str) -> str:
        """Returns a warning where the share is above LIMIT, else ""."""
        if self._unk is None or self.share <= LIMIT:
            return ""
        words = ", ".join(f"{word[:40]!r} ({count})" for word, count in self.commonest())
        often = f", most often {words}" if words else ""
        name = getattr(self._tokenizer, "token", str)(self._unk)
        return f"{where}: {self.share:.1%} of the tokens are {name}, unknown to the vocabulary{often}; {mend}"
