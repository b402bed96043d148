"""The vectors of all layers of a frozen model for sentences, computed once, and the positions of spans in them."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from contexture.analysis import embed
from contexture.analysis.options import EmbedOptions
from contexture.analysis.trained_model import TrainedModel
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.families.splitting import SplitWords, TooLongError
from contexture.train.errors import CheckpointError

IN_MEMORY = 1 << 31
"""Bytes of features above which they are kept in a file."""


@dataclass(frozen=True)
class SpanFeatures:
    """The vectors of all words that are inside a span, all sentences concatenated.

    Args:
        units_UND: f32, the vector of each unit (a token, or an ELMo's word) at each layer.
        starts: of each sentence, the unit at which each word begins; None for a sentence that was left out.
        ends: likewise, the unit behind each word's last.
        longest: the units of the longest sentence.
    """

    units_UND: np.ndarray
    starts: Sequence[np.ndarray | None]
    ends: Sequence[np.ndarray | None]
    longest: int

    def units_of(self, sentence: int, first: int, behind: int) -> tuple[int, int] | None:
        """Returns (first, behind the last) unit of a span of words; None if its sentence was left out."""
        starts, ends = self.starts[sentence], self.ends[sentence]
        if starts is None or ends is None:
            return None
        return int(starts[first]), int(ends[behind - 1])


@contextlib.contextmanager
def computed_features(
    model: TrainedModel,
    sentences: Mapping[tuple[str, ...], str],
    in_spans: Mapping[tuple[str, ...], np.ndarray],
    folder: Path,
    *,
    batch: int = 32,
    in_memory: int = IN_MEMORY,
    cancel: CancelToken = NEVER,
) -> Iterator[SpanFeatures]:
    """Gives the features of sentences within the block.

    Each sentence is read alone (`analysis.embed`). One with more tokens than the model takes is left out.

    Args:
        sentences: the origin of each, file:line, by its words.
        in_spans: bool, which words of each are inside a span; the others' vectors are not kept.
        folder: for a temporary file of features that take more than `in_memory` bytes.

    Raises:
        DataError: when the vocabulary cannot spell a word.
        CheckpointError: when the disk has too little room.
    """
    split_words = model.run.text.word_splitter(model.tokenizer, model.run.model.length)
    split: list[SplitWords | None] = []
    for words, origin in sentences.items():
        try:
            split.append(split_words(words, origin))
        except TooLongError:
            split.append(None)
    # The positions of a sentence's kept units within it, and of its words among all kept units.
    kept: list[tuple[SplitWords, np.ndarray]] = []
    starts, ends = list[np.ndarray | None](), list[np.ndarray | None]()
    count = 0
    for words, each in zip(sentences, split, strict=True):
        if each is None:
            starts.append(None)
            ends.append(None)
            continue
        # Words outside of all spans keep no units.
        sizes = np.where(in_spans[words], each.ends - each.starts, 0)
        bounds = count + np.cumsum([0, *sizes])
        starts.append(bounds[:-1])
        ends.append(bounds[1:])
        inside = np.repeat(in_spans[words], each.ends - each.starts)
        kept.append((each, int(each.starts[0]) + np.flatnonzero(inside)))
        count = int(bounds[-1])
    config = model.model.config
    longest = max((len(each.units) for each, _ in kept), default=0)
    with _array((count, config.layers + 1, config.width), folder, in_memory) as units_UND:
        begin = 0
        with model.computing():
            units = [each.units for each, _ in kept]
            fixed, how = (model.model, model.forward_params, model.tokenizer), EmbedOptions(batch=batch)
            arrays = embed.embed(*fixed, units, how, cancel=cancel)
            for (_, own), array_NLD in zip(kept, arrays, strict=True):
                units_UND[begin : begin + len(own)] = array_NLD[:, own].swapaxes(0, 1)
                begin += len(own)
        yield SpanFeatures(units_UND, starts, ends, longest)


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
    # A file without a name: the system frees it when the process ends, even if it is killed.
    with tempfile.TemporaryFile(dir=folder) as file:
        yield np.memmap(file, np.float32, "w+", shape=shape)
