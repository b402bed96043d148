"""The nearest sentences of a text, or the nearest words in their sentences."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from contexture.analysis.neighbours.nearest import Neighbours, nearest
from contexture.analysis.neighbours.sentence_vectors import Parts, on_disk, sentence_vectors, word_vectors
from contexture.analysis.neighbours.whitening import fit_whitening
from contexture.analysis.options import VectorOptions
from contexture.analysis.trained_model import TrainedModel
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError

Lines = Callable[[], Iterator[str]]
"""Reads the text again from its start."""


class SentenceNeighbours(TypedDict):
    """The nearest sentences of one."""

    query: str
    neighbours: list[dict[str, Any]]
    """Of each: cosine, line from 1, text; for words also word, and position from 0 among the words of the line."""


def sentence_neighbours(
    model: TrainedModel,
    lines: Lines,
    queries: Sequence[str],
    *,
    top: int = 10,
    how: VectorOptions = VectorOptions(),  # noqa: B008  # frozen
    cancel: CancelToken = NEVER,
) -> list[SentenceNeighbours]:
    """Returns the `top` lines whose vectors have the largest cosine with each query's vector.

    A whitening is fitted to the vectors of the lines.

    Args:
        lines: opens the text; a function, since it is read twice.
        queries: the texts whose neighbours are sought.
        top: neighbours of each query.
        how: how texts become vectors.

    Raises:
        DataError: when the text has no lines, or options do not fit.
    """
    vectors_QD = np.concatenate(list(sentence_vectors(model, queries, how, cancel)))
    result = _nearest(sentence_vectors(model, lines(), how, cancel), vectors_QD, top, how, cancel)
    # A second reading of the text keeps only the lines that are shown.
    needed = {int(number) for number in result.numbers.ravel()}
    texts = {number: text for number, text in enumerate(lines()) if number in needed}
    return [
        {
            "query": query,
            "neighbours": [
                {"cosine": float(cosine), "line": int(number) + 1, "text": texts[int(number)]}
                for number, cosine in zip(numbers, cosines, strict=True)
            ],
        }
        for query, numbers, cosines in zip(queries, result.numbers, result.cosines, strict=True)
    ]


def word_neighbours(
    model: TrainedModel,
    lines: Lines,
    text: str,
    word: str,
    *,
    top: int = 10,
    how: VectorOptions = VectorOptions(),  # noqa: B008  # frozen
    cancel: CancelToken = NEVER,
) -> SentenceNeighbours:
    """Returns the `top` words of the lines, each in its context, with vectors nearest to `word`'s vector in `text`.

    Words are separated by white space. A word of several pieces has the mean of their vectors.

    Args:
        lines: opens the text; a function, since it is read twice.
        text: the sentence that `word` is read in.
        word: one of its words; of several equal ones the first.
        top: how many neighbours.
        how: how texts become vectors.

    Raises:
        DataError: when `text` lacks the word, a line is longer than the model, and as `sentence_neighbours`.
    """
    own = text.split()
    if word not in own:
        raise DataError(f"the word {word!r} is not in the text {text[:60]!r}; give one of its words, as it is written")
    vector_1D = np.concatenate(list(word_vectors(model, [("the text", own)], how, cancel)))[[own.index(word)]]
    counts: list[int] = []

    def split_lines() -> Iterator[tuple[str, list[str]]]:
        for number, line in enumerate(lines()):
            counts.append(len(line.split()))
            yield f"line {number + 1}", line.split()

    result = _nearest(word_vectors(model, split_lines(), how, cancel), vector_1D, top, how, cancel)
    # Vectors are numbered over the words of all lines: a word's line is the first that ends behind it.
    ends = np.cumsum(counts)
    at = np.searchsorted(ends, result.numbers[0], side="right")
    texts = {number: line for number, line in enumerate(lines()) if number in {*at.tolist()}}
    neighbours: list[dict[str, Any]] = []
    for line, number, cosine in zip(at.tolist(), result.numbers[0].tolist(), result.cosines[0].tolist(), strict=True):
        position = number - int(ends[line] - counts[line])
        neighbours.append(
            {
                "cosine": cosine,
                "line": line + 1,
                "word": texts[line].split()[position],
                "position": position,
                "text": texts[line],
            }
        )
    return {"query": word, "neighbours": neighbours}


def _nearest(
    parts: Parts,
    queries_QD: NDArray[np.float32],
    top: int,
    how: VectorOptions,
    cancel: CancelToken,
) -> Neighbours:
    if not how.whiten:
        return nearest(parts, queries_QD, top, cancel)
    # Whitening reads all vectors before it can change the first: they wait on disk, and are not computed twice.
    with on_disk(parts) as read:
        # The queries are whitened by the text's vectors too, so that both lie in one space.
        whitening = fit_whitening(read(), how.dimensions)
        return nearest(map(whitening, read()), whitening(queries_QD), top, cancel)
