"""Texts encoded with an error that says which text it is, and the ids of a text that has no token."""

from collections.abc import Sequence

from contexture.data.errors import DataError
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.open_vocabulary import OpenVocabulary
from contexture.data.tokenizers.word_level import UNK


def unknown_ids(tokenizer: Tokenizer | OpenVocabulary) -> list[int]:
    """Returns the ids of a text or a word without a piece: the unknown token; where a vocabulary has none, a space,
    else its first token."""
    if isinstance(tokenizer, OpenVocabulary):
        return tokenizer.number([UNK])
    # The sentencepiece library says -1 where a model lacks a token.
    if tokenizer.unk is not None and tokenizer.unk >= 0:
        return [tokenizer.unk]
    try:
        # A clean-up may drop even a space. Then any id serves: a text without a token could not be read at all.
        return tokenizer.encode([" "])[0] or [0]
    except DataError:  # a vocabulary of characters without it
        return [0]


def check_characters(text: str, origin: str) -> None:
    """Raises: DataError with the origin of a text that no UTF-8 file could hold: one with half a character."""
    # JSON escapes and Python strings may hold a lone surrogate, which UTF-8 has no bytes for.
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"half a character, U+{ord(text[error.start]):04X}, at place {error.start}"
        raise DataError(f"{origin}: {half}; give text in UTF-8") from None


def encode_checked(
    texts: Sequence[str], origins: Sequence[str], tokenizer: Tokenizer | OpenVocabulary
) -> list[list[int]]:
    """Returns the pieces of texts. Raises: DataError with the origin of a text that the vocabulary cannot spell."""
    try:
        return tokenizer.encode(texts)
    except (AttributeError, DataError, TypeError, UnicodeEncodeError):
        # The error of a batch does not say which text it was: they are tried one by one.
        for text, origin in zip(texts, origins, strict=True):
            if not isinstance(text, str):
                raise DataError(f"{origin}: {text!r} is no text") from None
            check_characters(text, origin)
            try:
                tokenizer.encode([text])
            except DataError as error:
                raise DataError(f"{origin}: {error}") from None
        # No text fails alone: the error was of the batch, and is raised as it was.
        raise
