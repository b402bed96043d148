"""Texts → tokens, and the characters of the text that each of them stands for."""

import re
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from contexture.data.binary_files import I64
from contexture.data.tasks.example_store import Rows
from contexture.data.tokenizers.base import Tokenizer, WithAddedTokens
from contexture.data.tokenizers.open_vocabulary import OpenVocabulary

Placed = tuple[list[int], I64]
"""Ids, and begin and end of each among the characters of the text, i64 [n, 2]."""
# A word of a script without spaces is a character: Chinese, Japanese and Korean characters, kana, Thai, Lao, Khmer.
_CJK = (
    r"\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+|[^\w\s]")


@runtime_checkable
class HasOffsets(Protocol):
    """A tokenizer that knows the characters of each token."""

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Texts → ids, and begin and end of each among the characters of the text."""
        ...


def encode_with_places(texts: Sequence[str], tokenizer: Tokenizer | OpenVocabulary) -> list[Placed]:
    """Returns the tokens of texts and their characters, white space around a token left out.

    Where a tokenizer does not know them (a SentencePiece, a GPT-1's), words and punctuation are encoded one by one, and
    each token of a word stands for the whole word.

    Raises: DataError for text that the vocabulary cannot spell.
    """
    base = tokenizer.base if isinstance(tokenizer, WithAddedTokens) else tokenizer
    if isinstance(base, HasOffsets):
        encoded = base.encode_with_offsets(texts)
    else:
        encoded = [_by_words(text, tokenizer) for text in texts]
    return [(ids, _trimmed(text, places)) for text, (ids, places) in zip(texts, encoded, strict=True)]


def _by_words(text: str, tokenizer: Tokenizer | OpenVocabulary) -> tuple[list[int], list[tuple[int, int]]]:
    words = list(_WORD.finditer(text))
    # Where spaces are part of the tokens, a word that follows one has it before it, as in running text.
    written = [
        (" " if tokenizer.lossless and text[word.start() - 1 : word.start()].isspace() else "") + word[0]
        for word in words
    ]
    encoded = tokenizer.encode(written)
    ids = [number for pieces in encoded for number in pieces]
    return ids, [word.span() for word, pieces in zip(words, encoded, strict=True) for _ in pieces]


def _trimmed(text: str, places: Sequence[tuple[int, int]]) -> I64:
    """Returns places without the white space at both ends; one that holds nothing else becomes empty, at its end."""
    if not places:
        return np.zeros((0, 2), np.int64)
    begin, end = np.array(places, np.int64).T
    # The next and the last character before that is no white space, for every character at once.
    shown = np.array([not character.isspace() for character in text] + [True])
    number = np.arange(len(shown))
    following = np.minimum.accumulate(np.where(shown, number, len(text))[::-1])[::-1]
    preceding = np.maximum.accumulate(np.where(shown[:-1], number[:-1] + 1, 0)) if len(text) else number[:0]
    first = np.minimum(following[begin], end)
    last = np.where(end > 0, preceding[np.maximum(end - 1, 0)] if len(preceding) else 0, 0)
    return np.stack([first, np.maximum(np.where(first < end, last, end), first)], 1)


def token_places(rows: Rows, tokens: I64, elmo: bool) -> I64:
    """Returns where tokens, counted from the first of their row, stand in its sequence: behind the special token in
    front, and behind that between the two texts; an ELMo's arrays have none."""
    if elmo:
        return tokens
    second = np.where(rows["b"] < 0, rows["end"], rows["b"]) - rows["a"]
    return 1 + tokens + (tokens >= second)
