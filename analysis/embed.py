"""Contextual vectors of the words or tokens of a text (Peters et al. 2018, section 3.2)."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import jax
import numpy as np

from contexture.analysis.options import EmbedOptions
from contexture.analysis.pooling import POOLINGS, Pool
from contexture.data.bucketing import check_batch, chunks, windows
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.families.splitting import SplitWords, Units
from contexture.data.layouts import Batch
from contexture.data.packing import RowFiller, in_rows
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.open_vocabulary import OpenVocabulary
from contexture.models.config import ModelConfig
from contexture.models.families import build
from contexture.models.layers.packed_rows import PACKED, of_rows
from contexture.models.model import Model, Outputs
from contexture.models.shapes import Params
from contexture.train.families import text_family
from contexture.train.run.trained_length import ANY_LENGTH, LengthWatch

logger = logging.getLogger(__name__)

_TOGETHER = 8
"""Sentences that are pooled at a time."""
_Fields: TypeAlias = tuple[list[int], Batch]
"""The places of a batch's sentences in their window, and its arrays."""
_Window: TypeAlias = tuple[Sequence[Units], Iterator[_Fields]]
"""Sentences in the order of the input, and the batches that hold each of them once."""


def units_of(texts: Sequence[str], model: Model, tokenizer: Tokenizer | OpenVocabulary) -> list[Units]:
    """Returns the words or token ids that a model reads of each text; warns once if texts are truncated.

    Raises:
        DataError: when something is no text.
    """
    family, units, truncated = text_family(model.config), list[Units](), 0
    split = family.sentence_splitter(tokenizer, model.config.length)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"text {number}: {str(text)[:60]!r} is no text; give strings")
        sentence = split(text, f"text {number}")
        truncated += sentence.truncated > 0
        units.append(sentence.units)
    if truncated:
        logger.warning(family.truncation(f"{truncated:,} of {len(texts):,} texts", model.config.length))
    return units


def pool_of(of: str, pool: Pool | None) -> Pool:
    """Returns the pooling for vectors of sentences, words or tokens.

    Args:
        of: "sentences", "words" or "tokens".
        pool: for sentences; None: mean-words.

    Raises:
        DataError: when `of` is something else, or a pooling is given for vectors of words or tokens.
    """
    if of not in ("sentences", "words", "tokens"):
        raise DataError(f"of={of!r} is not one of sentences, words, tokens")
    if of == "sentences":
        if pool == "none":
            raise DataError("pool='none' gives a vector for each token; give of='tokens' or of='words'")
        return pool or "mean-words"
    if pool is not None:
        raise DataError(f"pool={pool!r} is for sentences, and has no meaning for of={of!r}; leave it out")
    return "none"


def word_vectors(vectors: np.ndarray, split: SplitWords) -> np.ndarray:
    """[…, units, D] → [..., words, D]: the mean of each word's pieces."""
    # Sums of ranges as differences of prefix sums, in float64: the difference of two large sums keeps its digits.
    sums = np.concatenate([np.zeros_like(vectors[..., :1, :]), np.cumsum(vectors, -2, dtype=np.float64)], -2)
    return ((sums[..., split.ends, :] - sums[..., split.starts, :]) / (split.ends - split.starts)[:, None]).astype(
        np.float32
    )


def embed(
    model: Model,
    params: Params,
    tokenizer: Tokenizer | OpenVocabulary,
    sentences: Iterable[Units],
    how: EmbedOptions = EmbedOptions(),  # noqa: B008  # frozen
    *,
    cancel: CancelToken = NEVER,
    trained: LengthWatch = ANY_LENGTH,
) -> Iterator[np.ndarray]:
    """Yields the vectors of each sentence, in order: f32 [layers, units, D], or [layers, D] if they are pooled.

    Args:
        sentences: the words or token ids of each, as the family's splitter returns them.
        how: which vectors.
        trained: warns of sentences longer than the training sequences.

    Raises:
        DataError: when an option is unknown or does not fit the model.
    """
    config, text, batch = model.config, text_family(model.config), how.batch
    pools = ["none", *(name for name, row in POOLINGS.items() if text.marks_ends or not row.reads_cls)]
    if how.pool not in pools:
        raise DataError(f"pool={how.pool} is not one of {', '.join(pools)}")
    if how.stateful and not config.is_recurrent:
        raise DataError("stateful is an ELMo's, and this run is of another family; leave it out")
    check_batch(batch)
    numbers = tuple(range(config.layers + 1)) if how.layers is None else how.layers
    # An ELMo that was trained with a carried state reads each sentence alone here, unless `stateful` asks for it.
    config = replace(config, stateful=how.stateful) if config.is_recurrent else config
    # The backbone alone: heads are neither compiled nor passed to the device.
    backbone, what = {"backbone": params["backbone"]}, (numbers, how.pool)
    # The numbers that a unit's result takes in memory, which bound the window that batches are made of.
    width = len(numbers) * config.width

    def floats(units: Units) -> int:
        return width * (len(units) if how.pool == "none" else 1)

    layout = _Layout(model.config, tokenizer, batch, sentences, floats)
    carry: Params = {}
    planned = layout.in_order() if how.stateful else layout.in_rows()
    for window, plan in planned:
        trained.check(max(map(len, window)))
        # Results replace their sentences in place, so that they come out in the order of the input.
        vectors = list[np.ndarray](window)  # pyright: ignore[reportArgumentType]  # each is replaced
        before: tuple[list[int], Batch, jax.Array] | None = None
        for places, fields in plan:
            cancel.check()
            arrays, carry = _states(config, what, backbone, fields, carry)
            # A batch is fetched once the next is enqueued, so that the device does not wait for the host.
            _put(vectors, window, before)
            before = places, fields, arrays
        _put(vectors, window, before)
        yield from vectors


@dataclass(frozen=True)
class _Layout:
    """Sentences → windows of them, each with its batches: (places in the window, what the backbone reads)."""

    config: ModelConfig
    tokenizer: Tokenizer | OpenVocabulary
    batch: int
    sentences: Iterable[Units]
    floats: Callable[[Units], int]
    """How many numbers the vectors of a sentence are."""

    def in_order(self) -> Iterator[_Window]:
        """In the order of the input: row n of a batch continues row n of the batch before."""
        for group in chunks(self.sentences, self.batch):
            yield group, iter([(list(range(len(group))), self._lines(group, self.batch, 0))])

    def in_rows(self) -> Iterator[_Window]:
        """Several sentences in a row."""
        filler = RowFiller(self.batch, words=text_family(self.config).reads_words)
        for window in windows(self.sentences, self.batch, self.floats):
            yield window, self._filled(window, filler)

    def _filled(self, window: Sequence[Units], filler: RowFiller) -> Iterator[_Fields]:
        # Begin and end of an ELMo's sentences are in their row too.
        ends = 2 * text_family(self.config).reads_characters
        pad = 0 if isinstance(self.tokenizer, OpenVocabulary) else self.tokenizer.pad
        for numbers, packing, slots in filler.fill(np.array([len(units) + ends for units in window], np.int64)):
            fields = self._lines([window[n] for n in numbers], 0, packing.width)
            yield numbers.tolist(), in_rows(fields, packing, slots, pad)

    def _lines(self, sentences: Sequence[Units], rows: int, length: int) -> Batch:
        return text_family(self.config).lines(sentences, rows, self.tokenizer, self.config.length, length)


def _put(
    vectors: list[np.ndarray], window: Sequence[Units], computed: tuple[list[int], Batch, jax.Array] | None
) -> None:
    """Puts the vectors of a batch at the places of its sentences: [layers, B, D] of sentences, [layers, B, L, D] or
    [layers, X, Y, D] of their units."""
    if computed is None:
        return
    places, fields, array = computed
    array = np.asarray(jax.device_get(array), np.float32)
    if array.ndim == 4 and "begins" in fields:
        # The sentences of all rows, one after the other.
        array = array.reshape(len(array), -1, array.shape[-1])
        for begin, place in zip(fields["begins"].tolist(), places, strict=False):
            # A copy: a view would keep the whole batch.
            vectors[place] = array[:, begin : begin + len(window[place])].copy()
        return
    for row, place in enumerate(places):
        own = array[:, row]
        vectors[place] = own[:, : len(window[place])] if own.ndim == 3 else own


@partial(jax.jit, static_argnums=(0, 1))
def _states(
    config: ModelConfig, what: tuple[tuple[int, ...], str], params: Params, batch: Batch, carry: Params
) -> tuple[jax.Array, Params]:
    """Returns (f32 [layers, B, L, D], or pooled [layers, B, D]; a stateful ELMo's carry for the next batch).

    what: the layers and the pooling.
    """
    layers, pool = what
    model = build(config)  # the backbone alone
    read = {name: jax.numpy.asarray(x) for name, x in batch.items()}
    if PACKED in batch:
        # Rows as they are: a row for each sentence would be many times as large where one sentence is long.
        read = {name: x for name, x in of_rows(read).items() if name != PACKED}
    outputs, variables = model.apply({"params": params, "carry": carry}, read, states=True, mutable=["carry"])
    assert isinstance(outputs, Outputs)
    states = outputs.encoding.states
    stacked = jax.numpy.stack([states[n] for n in layers])
    if pool != "none":
        count_B, ends = jax.numpy.asarray(batch["mask"]).sum(1), text_family(config).marks_ends
        if "begins" in batch:
            stacked = _pooled_rows(stacked, jax.numpy.asarray(batch["begins"]), count_B, pool, ends)
        else:
            stacked = _pooled(stacked, count_B, pool, ends)
    return stacked, dict(variables).get("carry", {})


def _pooled_rows(states_NXYD: jax.Array, begins_B: jax.Array, count_B: jax.Array, pool: str, ends: bool) -> jax.Array:
    """As `_pooled`, of sentences that share rows: a few of them at a time, so that little is taken out of the rows."""
    N, _, Y, D = states_NXYD.shape
    tokens_NTD = states_NXYD.reshape(N, -1, D)
    some = min(_TOGETHER, len(begins_B))

    def of_some(part: tuple[jax.Array, jax.Array]) -> jax.Array:
        begins, counts = part
        at = jax.numpy.minimum(begins[:, None] + jax.numpy.arange(Y)[None], tokens_NTD.shape[1] - 1)
        return _pooled(tokens_NTD[:, at], counts, pool, ends)

    # Slots are a power of two, or a multiple of eight.
    pooled = jax.lax.map(of_some, (begins_B.reshape(-1, some), count_B.reshape(-1, some)))
    return pooled.swapaxes(0, 1).reshape(N, -1, D)


def _pooled(states_NBLD: jax.Array, count_B: jax.Array, pool: str, ends: bool) -> jax.Array:
    """Returns a vector for each sentence, f32 NBD; pooled on the device, so that little is fetched.

    ends: whether the first and the last unit are [CLS] and [SEP].
    """
    place_1L, count_B1 = jax.numpy.arange(states_NBLD.shape[2])[None], count_B[:, None]
    units_BL, words_BL = place_1L < count_B1, (place_1L >= int(ends)) & (place_1L < count_B1 - int(ends))
    return POOLINGS[pool].pool(states_NBLD.astype(jax.numpy.float32), units_BL, words_BL)
