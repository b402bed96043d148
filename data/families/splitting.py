"""How sentences and words are split into what a model reads, and where each word's own begin and end among it."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from contexture.data.errors import DataError
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.checked_text import encode_checked, unknown_ids

Units: TypeAlias = Sequence[str] | Sequence[int]
"""What a sentence is made of: an ELMo's words, or the ids of tokens."""


class TooLongError(DataError):
    """Words that the model has no room for."""


class SplitSentence(NamedTuple):
    """A sentence as a model reads it.

    Args:
        units: its words or token ids, a BERT's [CLS] and [SEP] among them.
        own: how many of them are its own, without [CLS] and [SEP].
        truncated: words whose last bytes are not read, or tokens beyond the model's length.
    """

    units: Units
    own: int
    truncated: int


class SplitWords(NamedTuple):
    """Words as a model reads them: the units, and where each word's own begin and end among them."""

    units: Units
    starts: np.ndarray
    ends: np.ndarray


class SentenceSplitter(Protocol):
    """A sentence and its origin → what a model reads. Raises: DataError for half a character."""

    def __call__(self, text: str, origin: str = "the text", /) -> SplitSentence: ...


class WordSplitter(Protocol):
    """Words and their origin → SplitWords. spaced: which words have white space before them; None: all but the first.
    Only a GPT, whose pieces hold spaces, reads it.

    Raises: TooLongError for words that the model has no room for, DataError for what the vocabulary cannot spell.
    """

    def __call__(self, words: Sequence[str], origin: str, spaced: Sequence[bool] | None = None, /) -> SplitWords: ...


def whole_words(units: Units) -> SplitWords:
    """Returns words as units of their own, none of them split."""
    # Each word is one unit, from its place to the next.
    return SplitWords(units, np.arange(len(units)), np.arange(len(units)) + 1)


def sentences_in_pieces(tokenizer: Tokenizer, length: int, ends: tuple[int, ...]) -> SentenceSplitter:
    """Returns a function that splits a sentence into pieces, and keeps as many as a model of this length takes.

    Args:
        tokenizer: the model's vocabulary.
        length: the model's length.
        ends: the special tokens before and after a sentence, or ().
    """
    # The special tokens are always read: only text is cut.
    room = length - len(ends)

    def split(text: str, origin: str = "the text", /) -> SplitSentence:
        # A line's own end is no text; byte pairs would encode it.
        (ids,) = encode_checked([text.rstrip("\r\n")], [origin], tokenizer)
        kept = ids[:room]
        # The last number is the tokens that were cut off.
        return SplitSentence([*ends[:1], *kept, *ends[1:]], len(kept), len(ids) - len(kept))

    return split


def words_in_pieces(tokenizer: Tokenizer, length: int, ends: tuple[int, ...]) -> WordSplitter:
    """Returns a function that splits words into pieces, each word by itself; in a lossless vocabulary with the space
    before it, as in running text. A word without a piece is read as the unknown token. For the arguments see
    `sentences_in_pieces`."""
    # GPT-2's pieces include the space before a word: without it, a word has other pieces than in running text.
    space = " " if tokenizer.lossless else ""

    def split(words: Sequence[str], origin: str, spaced: Sequence[bool] | None = None, /) -> SplitWords:
        # In running text all words but the first have a space before them.
        before = [n > 0 for n in range(len(words))] if spaced is None else spaced
        written = [f"{space if one else ''}{word}" for one, word in zip(before, words, strict=True)]
        # Every word has a piece at least: its vector is read between its own start and end.
        pieces = [ids or unknown_ids(tokenizer) for ids in encode_checked(written, [origin] * len(written), tokenizer)]
        own = list(chain.from_iterable(pieces))
        # Words are not cut: the caller decides what becomes of those that do not fit.
        if len(own) + len(ends) > length:
            raise TooLongError(
                f"{origin}: {len(own) + len(ends)} tokens, and the model takes {length}; give a shorter one"
            )
        # Where each word begins and the last one ends, after the special token in front.
        bounds = np.cumsum([len(ends[:1]), *map(len, pieces)])
        return SplitWords([*ends[:1], *own, *ends[1:]], bounds[:-1], bounds[1:])

    return split
