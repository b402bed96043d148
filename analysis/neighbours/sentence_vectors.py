"""A vector for each sentence of a text, or for each of its words, in parts, while the text is read."""

import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from contexture.analysis import embed
from contexture.analysis.options import EmbedOptions, VectorOptions, is_single, layer_numbers
from contexture.analysis.trained_model import TrainedModel
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.families.splitting import SplitWords, Units
from contexture.models.heads.layer_mix import learned_mixes

logger = logging.getLogger(__name__)

Parts: TypeAlias = Iterator[NDArray[np.float32]]
_ROWS = 1024
"""Vectors of a part."""


def sentence_vectors(
    model: TrainedModel, texts: Iterable[str], how: VectorOptions, cancel: CancelToken = NEVER
) -> Parts:
    """Yields f32 [rows, D], a row for each text, in order; a text longer than the model is truncated."""
    layers, combine = _layers(model, how.layers)
    split = model.run.text.sentence_splitter(model.tokenizer, model.run.model.length)
    truncated = 0

    def units() -> Iterator[Units]:
        nonlocal truncated
        for text in texts:
            sentence = split(text)
            truncated += sentence.truncated > 0
            yield sentence.units

    options = EmbedOptions(layers=layers, pool=how.pool, batch=how.batch)
    yield from _parts(map(combine, _embedded(model, units(), options, cancel)))
    if truncated:
        logger.warning(model.run.text.truncation(f"{truncated:,} texts", model.run.model.length))


def word_vectors(
    model: TrainedModel, lines: Iterable[tuple[str, list[str]]], how: VectorOptions, cancel: CancelToken = NEVER
) -> Parts:
    """Yields f32 [rows, D], a row for each word of each line: the mean of the word's pieces.

    Args:
        lines: (its origin, for errors, and its words) of each line.
        how: how texts become vectors.

    Raises:
        DataError: when a line is longer than the model.
    """
    layers, combine = _layers(model, how.layers)
    split = model.run.text.word_splitter(model.tokenizer, model.run.model.length)
    waiting: list[SplitWords] = []

    def units() -> Iterator[Units]:
        for origin, words in lines:
            if words:
                waiting.append(split(words, origin))
                yield waiting[-1].units

    for array in _embedded(model, units(), EmbedOptions(layers=layers, batch=how.batch), cancel):
        # Vectors come in the order of the lines, so they belong to the one that has waited longest.
        vectors = embed.word_vectors(array, waiting.pop(0))
        yield combine(vectors)


def _embedded(
    model: TrainedModel, units: Iterator[Units], how: EmbedOptions, cancel: CancelToken
) -> Iterator[np.ndarray]:
    fixed = model.model, model.forward_params, model.tokenizer
    vectors = embed.embed(*fixed, units, how, cancel=cancel, trained=model.watch_lengths())
    with model.computing():
        yield from vectors


def _layers(model: TrainedModel, layers: str) -> tuple[tuple[int, ...], Callable[[np.ndarray], NDArray[np.float32]]]:
    """Returns (the layers to compute, the function that combines them: [layers, …] → […])."""
    top = model.run.model.layers
    if layers != "mix":
        if not is_single(layers):
            raise DataError(f"layers={layers} are several vectors of a text; give one layer, or mix")
        return layer_numbers(layers, top), lambda array: array[0]
    mixes = learned_mixes(model.params) if model.run.head.mixes else {}
    if not mixes:
        raise DataError(
            f"layers=mix, and {model.folder} has learned no mix of layers; give a number, or a run fine-tuned with "
            "--head.mix all or last-four"
        )
    weights = np.asarray(next(iter(mixes.values()))["weights"], np.float32)
    # `last-four` ends with the last layer.
    return tuple(range(top + 1 - len(weights), top + 1)), lambda array: np.tensordot(weights, array, 1)


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
    """Stores parts in a temporary file, and gives a function that yields them again, any number of times."""
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
