"""A vector for each sentence of a text, or for each of its words, in parts, while the text is read."""

import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from contexture.analysis import embed
from contexture.analysis.trained_model import TrainedModel
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.models.heads.layer_mix import learned_mixes

SentencePool: TypeAlias = Literal["mean", "mean-words", "last", "cls"]
logger = logging.getLogger(__name__)

Parts: TypeAlias = Iterator[NDArray[np.float32]]
_ROWS = 1024
"""Vectors of a part."""


@dataclass(frozen=True)
class Pooling:
    """How a sentence becomes one vector.

    pool    mean of all tokens; mean-words, without a BERT's [CLS] and [SEP]; last; cls
    layers  last, a number from 0, or mix: Σ of the layers with the weights that the run's head has learned
    batch   sentences at a time
    """

    pool: SentencePool = "mean-words"
    layers: str = "last"
    batch: int = 64


def sentence_vectors(model: TrainedModel, texts: Iterable[str], how: Pooling, cancel: CancelToken = NEVER) -> Parts:
    """Yields f32 [rows, D], a row for each text, in order; a text longer than the model loses its end."""
    layers, combine = _layers(model, how.layers)
    split = embed.sentence_splitter(model.model, model.tokenizer)
    truncated = 0

    def units() -> Iterator[embed.Units]:
        nonlocal truncated
        for text in texts:
            sentence = split(text)
            truncated += sentence.truncated > 0
            yield sentence.units

    yield from _parts(map(combine, _embedded(model, units(), layers, how.pool, how.batch, cancel)))
    if truncated:
        logger.warning(embed.truncation(f"{truncated:,} texts", model.model.config))


def word_vectors(
    model: TrainedModel, lines: Iterable[tuple[str, list[str]]], how: Pooling, cancel: CancelToken = NEVER
) -> Parts:
    """Yields f32 [rows, D], a row for each word of each line (its origin, its words): the mean of the word's pieces.

    Raises: DataError for a line that the model has no room for.
    """
    layers, combine = _layers(model, how.layers)
    split = embed.word_splitter(model.model, model.tokenizer)
    waiting: list[embed.SplitWords] = []

    def units() -> Iterator[embed.Units]:
        for origin, words in lines:
            if words:
                waiting.append(split(words, origin))
                yield waiting[-1].units

    for array in _embedded(model, units(), layers, "none", how.batch, cancel):
        vectors = embed.word_vectors(array, waiting.pop(0))
        yield combine(vectors)


def _embedded(
    model: TrainedModel, units: Iterator[embed.Units], layers: str, pool: str, batch: int, cancel: CancelToken
) -> Iterator[np.ndarray]:
    how: Any = {"layers": layers, "pool": pool, "batch": batch, "cancel": cancel, "trained": model.watch_lengths()}
    vectors = embed.embed(model.model, model.forward_params, model.tokenizer, units, **how)
    with model.computing():
        yield from vectors


def _layers(model: TrainedModel, layers: str) -> tuple[str, Callable[[np.ndarray], NDArray[np.float32]]]:
    """Returns (the layers to compute, the function that makes one of [layers, …])."""
    if layers == "last":
        return layers, lambda array: array
    if layers != "mix":
        if layers == "all" or "," in layers:
            raise DataError(f"layers={layers} are several vectors of a text; give one layer, or mix")
        return layers, lambda array: array[0]
    mixes = learned_mixes(model.params) if model.run.head.mixes else {}
    if not mixes:
        raise DataError(
            f"layers=mix, and {model.folder} has learned no mix of layers; give a number, or a run fine-tuned with "
            "--head.mix all or last-four"
        )
    weights = np.asarray(next(iter(mixes.values()))["weights"], np.float32)
    first = model.model.config.layers + 1 - len(weights)  # `last-four` ends with the last layer
    numbers = ",".join(str(first + n) for n in range(len(weights)))
    return numbers, lambda array: np.tensordot(weights, array, 1)


def _parts(vectors: Iterator[np.ndarray]) -> Parts:
    part: list[np.ndarray] = []
    for vector in vectors:
        part.append(vector)
        if len(part) == _ROWS:
            yield np.stack(part)
            part = []
    if part:
        yield np.stack(part)


@contextmanager
def on_disk(parts: Parts) -> Iterator[Callable[[], Parts]]:
    """Gives a function that yields the parts again, any number of times, from a temporary file."""
    with tempfile.TemporaryFile(prefix="contexture-") as file:
        width = 0
        for part in parts:
            width = part.shape[1]
            file.write(np.ascontiguousarray(part, "<f4").tobytes())

        def read() -> Parts:
            file.seek(0)
            while chunk := file.read(_ROWS * width * 4):
                yield np.frombuffer(chunk, "<f4").reshape(-1, width)

        yield read
