"""The vectors of words in their sentences, at every layer."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from contexture.analysis import embed
from contexture.analysis.options import EmbedOptions
from contexture.analysis.senses.occurrences import Occurrence
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.families.splitting import SplitWords, TooLongError
from contexture.data.tokenizers.base import Tokenizer
from contexture.models.model import Model
from contexture.models.shapes import Params
from contexture.train.families import text_family
from contexture.train.run.trained_length import ANY_LENGTH, LengthWatch


def layer_vectors(
    model: Model,
    params: Params,
    tokenizer: Tokenizer,
    occurrences: Sequence[Occurrence],
    *,
    batch: int = 64,
    cancel: CancelToken = NEVER,
    trained: LengthWatch = ANY_LENGTH,
) -> tuple[NDArray[np.float32], list[bool]]:
    """Returns (f32 [occurrences, layers, D], which occurrences these are): a word's vector is the mean of its pieces.

    Each sentence is computed once. One with more tokens than the model takes is left out. The first layer is without
    context.

    Args:
        occurrences: words in their sentences.
        batch: sentences at a time.
        trained: warns of sentences longer than the training sequences.

    Raises:
        DataError: when the vocabulary cannot spell a word.
    """
    split_words = text_family(model.config).word_splitter(tokenizer, model.config.length)
    # By identity: sentences may be equal, and each occurrence holds its own.
    places: dict[int, list[int]] = {}
    for number, each in enumerate(occurrences):
        places.setdefault(id(each.sentence), []).append(number)
    kept = [True] * len(occurrences)
    split: list[tuple[SplitWords, list[int]]] = []
    for numbers in places.values():
        first = occurrences[numbers[0]]
        try:
            split.append((split_words(first.words, first.sentence.origin, first.spaced), numbers))
        except TooLongError:
            for number in numbers:
                kept[number] = False
    config = model.config
    vectors_NLD = np.zeros((len(occurrences), config.layers + 1, config.width), np.float32)
    units = [each.units for each, _ in split]
    arrays = embed.embed(model, params, tokenizer, units, EmbedOptions(batch=batch), cancel=cancel, trained=trained)
    for (each, numbers), array_LUD in zip(split, arrays, strict=True):
        own = [occurrences[number].place for number in numbers]
        # Only the word's own pieces are averaged, of the whole sentence's vectors.
        bounds = SplitWords(each.units, each.starts[own], each.ends[own])
        vectors_NLD[numbers] = embed.word_vectors(array_LUD, bounds).swapaxes(0, 1)
    return vectors_NLD[kept], kept
