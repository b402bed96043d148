"""What a frozen model computes of sentences, all layers of it, computed once; and where spans of words stand in it."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from contexture.analysis import embed
from contexture.analysis.trained_model import TrainedModel
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.train.errors import CheckpointError

IN_MEMORY = 1 << 31
"""Bytes of features above which they are kept in a file."""


@dataclass(frozen=True)
class SpanFeatures:
    """The vectors of all sentences, one below the other.

    units_UND  f32: of each unit (a token, or an ELMo's word) the vector of each layer
    starts     of each sentence, the unit at which each word begins; None for a sentence that was left out
    ends       the unit behind each word's last
    """

    units_UND: np.ndarray
    starts: Sequence[np.ndarray | None]
    ends: Sequence[np.ndarray | None]
    longest: int
    """The units of the longest sentence."""

    def units_of(self, sentence: int, first: int, behind: int) -> tuple[int, int] | None:
        """Returns the units of a span of words, all pieces of all of its words; None where its sentence is left out."""
        starts, ends = self.starts[sentence], self.ends[sentence]
        if starts is None or ends is None:
            return None
        return int(starts[first]), int(ends[behind - 1])


@contextlib.contextmanager
def computed_features(
    model: TrainedModel,
    sentences: Sequence[tuple[str, ...]],
    origins: Sequence[str],
    folder: Path,
    *,
    batch: int = 32,
    in_memory: int = IN_MEMORY,
    cancel: CancelToken = NEVER,
) -> Iterator[SpanFeatures]:
    """The features of sentences while this lasts; above `in_memory` bytes in a file in `folder`, which is removed.

    Sentences are read alone, sorted by length, by one compiled program for each length. One with more tokens than the
    model takes is left out.

    Raises: DataError for a word that the vocabulary cannot spell, CheckpointError for a disk without room.
    """
    split_words = embed.word_splitter(model.model, model.tokenizer)
    split: list[embed.SplitWords | None] = []
    for words, origin in zip(sentences, origins, strict=True):
        try:
            split.append(split_words(words, origin))
        except embed.TooLongError:
            split.append(None)
    kept = [each for each in split if each is not None]
    begins = np.cumsum([0, *(len(each.units) for each in kept)])
    config = model.model.config
    shape = int(begins[-1]), config.layers + 1, config.width
    with _array(shape, folder, in_memory) as units_UND:
        with model.computing():
            arrays = embed.embed(
                model.model, model.params, model.tokenizer, [each.units for each in kept], batch=batch, cancel=cancel
            )
            for begin, array_NLD in zip(begins, arrays, strict=False):
                units_UND[begin : begin + array_NLD.shape[1]] = array_NLD.swapaxes(0, 1)
        place = iter(begins)
        bounds = [None if each is None else (each, int(next(place))) for each in split]
        yield SpanFeatures(
            units_UND,
            [None if each is None else each[0].starts + each[1] for each in bounds],
            [None if each is None else each[0].ends + each[1] for each in bounds],
            max((len(each.units) for each in kept), default=0),
        )


@contextlib.contextmanager
def _array(shape: tuple[int, ...], folder: Path, in_memory: int) -> Iterator[np.ndarray]:
    size = 4 * int(np.prod(shape))
    if size <= in_memory or not shape[0]:
        yield np.empty(shape, np.float32)
        return
    if size > (free := shutil.disk_usage(folder).free):
        raise CheckpointError(
            f"{folder}: {size / 1e9:,.1f} GB are to be stored of what the model computes, and {free / 1e9:,.1f} GB are "
            "free; make room, or give fewer sentences"
        )
    # A file without a name, which ends with the process however that ends.
    with tempfile.TemporaryFile(dir=folder) as file:
        yield np.memmap(file, np.float32, "w+", shape=shape)


def check_layers(layers: str, top: int) -> list[int]:
    """Returns the numbers of the layers that an option names: `all`, `each`, or numbers with commas between.

    Raises: DataError for a layer that the model lacks.
    """
    if layers in ("all", "each"):
        return list(range(top + 1))
    words = layers.split(",")
    if not all(word.isascii() and word.isdecimal() and int(word) <= top for word in words):
        raise DataError(f"layers={layers} are not all, each, or numbers from 0 to {top} with commas between")
    return sorted({int(word) for word in words})
