"""Names of a line's vectors: the word or token that each belongs to."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from contexture.analysis.embed import word_vectors
from contexture.data.families.splitting import Units
from contexture.data.tokenizers.base import Tokenizer
from contexture.models.model import Model
from contexture.train.families import text_family

_LONGEST = 256
"""Characters of a name at most: in a *.npz all names of a line take the room of the longest. Longer ones are cut."""


class NamedLine(NamedTuple):
    """A line as a model reads it, and the names of the vectors that are kept of it.

    Args:
        units: what the model reads.
        own: how many words or tokens are the line's own, without [CLS] and [SEP].
        truncated: how many words lose their last bytes, or how many tokens are beyond the model's length.
        names: the name of each kept vector; () for sentences.
        vectors: the units' vectors, […, units, D] → the kept ones, […, names, D].
    """

    units: Units
    own: int
    truncated: int
    names: Sequence[str]
    vectors: Callable[[np.ndarray], np.ndarray]


def line_reader(model: Model, tokenizer: Tokenizer, of: str) -> Callable[[str, str], NamedLine]:
    """Returns the function that splits a line, given with its origin, for vectors of sentences, words or tokens.

    Words are separated by white space, and a word of several pieces has the mean of their vectors. The function raises
    DataError for half a character (a lone surrogate), and for vectors of words if the line is longer than the model.
    """
    text, length = text_family(model.config), model.config.length
    if of == "words":
        split_words = text.word_splitter(tokenizer, length)

        def by_words(line: str, origin: str) -> NamedLine:
            words = line.split()
            split = split_words(words, origin)
            kept = partial(word_vectors, split=split)
            return NamedLine(split.units, len(words), text.truncated_words(words), list(map(_shown, words)), kept)

        return by_words
    split_tokens = text.sentence_splitter(tokenizer, length)

    def by_tokens(line: str, origin: str) -> NamedLine:
        units, own, truncated = split_tokens(line, origin)
        texts = (unit if isinstance(unit, str) else tokenizer.token(unit) for unit in units)
        names = list(map(_shown, texts)) if of == "tokens" else ()
        return NamedLine(units, own, truncated, names, lambda array: array)

    return by_tokens


def _shown(name: str) -> str:
    # HDF5 ends a string at a zero byte, and numpy drops one at the end.
    return name[:_LONGEST].replace("\0", "\\x00")
