"""Texts → tokens, and the characters of the text that each token covers."""

from collections.abc import Sequence

import numpy as np

from contexture.data.binary_files import I64
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.open_vocabulary import OpenVocabulary


def encode_with_places(texts: Sequence[str], tokenizer: Tokenizer | OpenVocabulary) -> list[tuple[list[int], I64]]:
    """Returns the tokens of each text, encoded as running text, with begin and end of each among its characters, i64
    [n, 2]. White space around a token is left out. What a tokenizer drops (marks, joiners) belongs to the token before.

    Raises: DataError for text that the vocabulary cannot spell.
    """
    encoded = tokenizer.encode_with_offsets(texts)
    return [
        (ids, _with_dropped(text, _trimmed(text, places))) for text, (ids, places) in zip(texts, encoded, strict=True)
    ]


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
    # For an empty place at the text's beginning, end - 1 would be -1, which NumPy reads as the last place.
    last = np.where(end > 0, preceding[np.maximum(end - 1, 0)] if len(preceding) else 0, 0)
    return np.stack([first, np.maximum(np.where(first < end, last, end), first)], 1)


def _with_dropped(text: str, places_N2: I64) -> I64:
    """Returns places that go on to the next token or white space, so that an answer keeps its last accent."""
    begin, end = places_N2.T
    # The end of the text is a blank too, so that searchsorted always finds one.
    blanks = np.array([n for n, character in enumerate(text) if character.isspace()] + [len(text)])
    # The next white space or the next token, whichever comes first.
    until = np.minimum(blanks[np.searchsorted(blanks, end)], np.append(begin[1:], len(text)))
    # An empty place stays empty: a token without characters takes none that were dropped.
    return np.stack([begin, np.where(begin < end, np.maximum(end, until), end)], 1)
