"""The static vector of a word, as a baseline: it is the same in every sentence and cannot tell senses apart."""

from pathlib import Path

import numpy as np

from contexture.analysis.cosines import unit_length
from contexture.analysis.senses.word_senses import Similarities, WordSenses, similarities
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.plain_files import check_plain
from contexture.data.word_vectors import read_word_vectors


class StaticSimilarities(Similarities):
    """The figures of a static vector, with the file that holds it and the spelling of the word there."""

    file: str
    word: str


def static_vector(file: Path, word: str, cancel: CancelToken = NEVER) -> tuple[str, np.ndarray]:
    """Returns (the word as the file has it, its vector); a word that the file lacks is sought in lower case.

    Raises:
        DataError: when the file is missing or damaged, or lacks the word.
    """
    check_plain(file)
    if not file.is_file():
        raise DataError(f"{file}: --static names no such file; check the path")
    read = read_word_vectors(file, cancel)
    for form in dict.fromkeys((word, word.lower())):
        if form in read.words:
            return form, read.vectors_VD[read.words.index(form)]
    raise DataError(f"{file}: none of its {len(read.words):,} words is {word!r}; give a file that holds it")


def static_similarities(file: Path, word: str, vector_D: np.ndarray, senses: WordSenses) -> StaticSimilarities:
    """Returns the figures of a vector that is the same in every sentence, by the senses, or by the last layer's
    clusters."""
    count = len(senses["texts"])
    unit_ND = np.tile(unit_length(vector_D.astype(np.float64)), (count, 1))
    if senses["senses"] is not None:
        groups_N = np.unique(senses["senses"], return_inverse=True)[1]
    else:
        assert senses["clusters"] is not None
        groups_N = senses["clusters"][-1]
    return {"file": str(file), "word": word, **similarities(unit_ND, groups_N)}
