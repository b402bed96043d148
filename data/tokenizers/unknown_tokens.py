"""The share of text that a vocabulary cannot read: its unknown tokens, counted, with the words that cause them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

LIMIT = 0.01
"""The share of unknown tokens above which a warning is due."""
_TEXTS, _CHARACTERS = 200, 2000
"""How many texts with unknown tokens are searched for words, and how much of each: so that the search costs nothing."""


class UnknownTokens:
    """Counts unknown tokens. A tokenizer that spells every text (byte-level, or ELMo's characters) has none."""

    def __init__(self, tokenizer: Any) -> None:
        unk = getattr(tokenizer, "unk", None)
        self._unk: int | None = unk if unk is not None and unk >= 0 else None
        self._tokenizer = tokenizer
        self._texts: list[str] = []
        self.tokens = self.unknown = 0

    @property
    def share(self) -> float:
        return self.unknown / max(self.tokens, 1)

    def add(self, texts: Sequence[str], lines: Sequence[Sequence[int]]) -> None:
        """Counts texts and their ids."""
        for text, ids in zip(texts, lines, strict=True):
            self.tokens += len(ids)
            if self._unk is not None and self._unk in ids:
                self.unknown += sum(number == self._unk for number in ids)
                if len(self._texts) < _TEXTS:
                    self._texts.append(text[:_CHARACTERS])

    def commonest(self, count: int = 5) -> list[tuple[str, int]]:
        """The commonest characters that are unknown alone, and words that are unknown for another reason."""
        split = self._tokenizer.words if hasattr(self._tokenizer, "words") else str.split
        words = Counter(word for text in self._texts for word in split(text))
        unknown = sorted(self._unknown_of([*words]))
        characters = self._unknown_of(sorted(set("".join(unknown))))
        found = Counter[str]()
        for word in unknown:
            for one in [one for one in word if one in characters] or [word]:
                found[one] += words[word]
        return found.most_common(count)

    def _unknown_of(self, texts: list[str]) -> set[str]:
        lines = self._tokenizer.encode(texts)
        return {text for text, ids in zip(texts, lines, strict=True) if self._unk in ids}

    def warning(self, where: str, mend: str) -> str:
        """A line where the share is above LIMIT, else ""."""
        if self._unk is None or self.share <= LIMIT:
            return ""
        words = ", ".join(f"{word[:40]!r} ({count})" for word, count in self.commonest())
        often = f", most often {words}" if words else ""
        name = self._tokenizer.token(self._unk)
        return f"{where}: {self.share:.1%} of the tokens are {name}, unknown to the vocabulary{often}; {mend}"
