"""Contextual vectors of the words or tokens of a text (Peters et al. 2018, section 3.2)."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple, Protocol, cast

import jax
import numpy as np

from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.layouts import Batch, elmo_lines, power_of_two, token_lines
from contexture.data.tasks.encode_examples import check_batch, chunks
from contexture.data.tasks.lengths import STEP, choose_lengths
from contexture.data.tasks.word_alignment import check_characters, encode_checked, unknown_ids
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.elmo_char_ids import MAX_BYTES, are_cut
from contexture.data.tokenizers.open_vocabulary import OpenVocabulary
from contexture.data.tokenizers.word_level import WordNumbers, word_tokenizer
from contexture.data.tokenizers.wordpiece import wordpiece
from contexture.models.config import BertConfig, ElmoConfig, ModelConfig
from contexture.models.model import Model, Outputs, build
from contexture.models.shapes import Params
from contexture.train.run.trained_length import ANY_LENGTH, LengthWatch

logger = logging.getLogger(__name__)
POOLS = ("none", "mean", "mean-words", "last", "cls")
Units = Sequence[str] | Sequence[int]
"""What a sentence is made of: an ELMo's words, or the ids of tokens."""


class SplitSentence(NamedTuple):
    """A sentence as a model reads it.

    units      its words or token ids, a BERT's [CLS] and [SEP] among them
    own        how many of them are its own, without [CLS] and [SEP]
    truncated  words whose last bytes are not read, or tokens beyond the model's length
    """

    units: Units
    own: int
    truncated: int


class SentenceSplitter(Protocol):
    """A sentence and its origin → what a model reads."""

    def __call__(self, text: str, origin: str = "the text", /) -> SplitSentence: ...


def sentence_splitter(model: Model, tokenizer: Tokenizer | OpenVocabulary) -> SentenceSplitter:
    """Returns the function that splits a sentence into the words or tokens that a model reads. It raises DataError for
    half a character."""
    config = model.config
    if isinstance(config, ElmoConfig):
        split = word_tokenizer(tokenizer).words

        def words(text: str, origin: str = "the text", /) -> SplitSentence:
            check_characters(text, origin)
            own = split(text)
            return SplitSentence(own, len(own), int(are_cut(own).sum()))

        return words
    assert not isinstance(tokenizer, OpenVocabulary)
    ends = (wordpiece(tokenizer).cls, wordpiece(tokenizer).sep) if isinstance(config, BertConfig) else ()
    room = config.length - len(ends)

    def tokens(text: str, origin: str = "the text", /) -> SplitSentence:
        (ids,) = encode_checked([text.rstrip("\r\n")], [origin], tokenizer)
        kept = ids[:room]
        return SplitSentence([ends[0], *kept, ends[1]] if ends else kept, len(kept), len(ids) - len(kept))

    return tokens


def units_of(texts: Sequence[str], model: Model, tokenizer: Tokenizer | OpenVocabulary) -> list[Units]:
    """Returns what a model reads of each text, and warns once of those that lose their end.

    Raises: DataError for what is no text.
    """
    split, units, truncated = sentence_splitter(model, tokenizer), list[Units](), 0
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"text {number}: {str(text)[:60]!r} is no text; give strings")
        sentence = split(text, f"text {number}")
        truncated += sentence.truncated > 0
        units.append(sentence.units)
    if truncated:
        logger.warning(truncation(f"{truncated:,} of {len(texts):,} texts", model.config))
    return units


def truncation(texts: str, config: ModelConfig) -> str:
    """Returns a warning that these texts ("3 of 10 lines") were not read whole."""
    if isinstance(config, ElmoConfig):
        return f"truncated words of {texts}: only their first {MAX_BYTES} bytes are read"
    return f"truncated {texts}, longer than the model takes ({getattr(config, 'length', 0)} tokens)"


class TooLongError(DataError):
    """Words that the model has no room for."""


class SplitWords(NamedTuple):
    """Words as a model reads them: the units, and where each word's own begin and end among them."""

    units: Units
    starts: np.ndarray
    ends: np.ndarray


class WordSplitter(Protocol):
    """Words and their origin → SplitWords. spaced: which words have white space before them; None: all but the first.
    Only a GPT, whose pieces hold spaces, reads it."""

    def __call__(self, words: Sequence[str], origin: str, spaced: Sequence[bool] | None = None, /) -> SplitWords: ...


def word_splitter(model: Model, tokenizer: Tokenizer | OpenVocabulary) -> WordSplitter:
    """Returns the function that splits words into what a model reads.

    Words are tokenised alone, those of a GPT with the space before them, as in running text. A word without a piece is
    read as the unknown token. The function raises TooLongError for words that the model has no room for, DataError for
    what the vocabulary cannot spell.
    """
    config = model.config
    if isinstance(config, ElmoConfig):

        def whole(words: Sequence[str], origin: str, spaced: Sequence[bool] | None = None, /) -> SplitWords:
            check_characters(" ".join(words), origin)
            return SplitWords(words, np.arange(len(words)), np.arange(len(words)) + 1)

        return whole
    if isinstance(tokenizer, WordNumbers):  # none is split
        number = tokenizer.number
        return lambda words, origin, spaced=None: SplitWords(
            number(words), np.arange(len(words)), np.arange(len(words)) + 1
        )
    assert not isinstance(tokenizer, OpenVocabulary)
    ends = (wordpiece(tokenizer).cls, wordpiece(tokenizer).sep) if isinstance(config, BertConfig) else ()
    space = " " if tokenizer.lossless else ""

    def split(words: Sequence[str], origin: str, spaced: Sequence[bool] | None = None, /) -> SplitWords:
        before = [n > 0 for n in range(len(words))] if spaced is None else spaced
        written = [f"{space if one else ''}{word}" for one, word in zip(before, words, strict=True)]
        pieces = [ids or unknown_ids(tokenizer) for ids in encode_checked(written, [origin] * len(written), tokenizer)]
        own = list(chain.from_iterable(pieces))
        if len(own) + len(ends) > config.length:
            raise TooLongError(
                f"{origin}: {len(own) + len(ends)} tokens, and the model takes {config.length}; give a shorter one"
            )
        bounds = np.cumsum([len(ends[:1]), *map(len, pieces)])
        return SplitWords([*ends[:1], *own, *ends[1:]], bounds[:-1], bounds[1:])

    return split


def pool_of(of: str, pool: str | None) -> str:
    """Returns the pooling of vectors of sentences, words or tokens; None is the usual one.

    Raises: DataError for something else, and a pooling where there is a vector for each word or token.
    """
    if of not in ("sentences", "words", "tokens"):
        raise DataError(f"of={of!r} is not one of sentences, words, tokens")
    if of == "sentences":
        return pool or "mean-words"
    if pool is not None:
        raise DataError(f"pool={pool!r} is for sentences, and has no meaning for of={of!r}; leave it out")
    return "none"


def word_vectors(vectors: np.ndarray, split: SplitWords) -> np.ndarray:
    """[…, units, D] → [..., words, D]: the mean of each word's pieces."""
    sums = np.concatenate([np.zeros_like(vectors[..., :1, :]), np.cumsum(vectors, -2, dtype=np.float64)], -2)
    return ((sums[..., split.ends, :] - sums[..., split.starts, :]) / (split.ends - split.starts)[:, None]).astype(
        np.float32
    )


def embed(
    model: Model,
    params: Params,
    tokenizer: Tokenizer | OpenVocabulary,
    sentences: Iterable[Units],
    *,
    layers: str = "all",
    pool: str = "none",
    batch: int = 64,
    stateful: bool = False,
    cancel: CancelToken = NEVER,
    trained: LengthWatch = ANY_LENGTH,
) -> Iterator[np.ndarray]:
    """Yields the vectors of each sentence (words or token ids, see `sentence_splitter`), in order: each f32
    [layers, units, D], the words' own layer first.

    layers    all, last (no first dim then), or numbers, `0,2`; the last is the layer that heads read, a GPT-2's after
              the final norm
    pool      none: a vector for each unit. Else one for the sentence, without the dim of units:
              mean        of all units
              mean-words  of those without a BERT's [CLS] and [SEP]; an ELMo and a GPT have neither
              last        the last of these
              cls         a BERT's [CLS]
              The mean of no units is 0.
    stateful  of an ELMo, sentence n continues the hidden state of sentence n - batch, as in the original
    trained   warns of sentences longer than those of training

    Raises: DataError for layers that the model has not, and unknown or unfitting options.
    """
    config = model.config
    pools = POOLS if isinstance(config, BertConfig) else POOLS[:-1]
    if pool not in pools:
        raise DataError(f"pool={pool} is not one of {', '.join(pools)}")
    if stateful and not isinstance(config, ElmoConfig):
        raise DataError("stateful is an ELMo's, and this run is of another family; leave it out")
    check_batch(batch)
    numbers = _layer_numbers(layers, config.layers)
    if isinstance(config, ElmoConfig):
        config = replace(config, stateful=stateful)
    backbone, what = {"backbone": params["backbone"]}, (tuple(numbers), pool)
    width = len(numbers) * config.width
    in_order = ((group, [(list(range(len(group))), 0)]) for group in chunks(sentences, batch))
    by_length = _planned(sentences, batch, lambda units: width * (len(units) if pool == "none" else 1))
    carry: Params = {}
    rows = 0
    for window, plan in in_order if stateful else by_length:
        trained.check(max(map(len, window)))
        vectors = list[np.ndarray](window)  # pyright: ignore[reportArgumentType]  # each is replaced
        before: tuple[list[int], jax.Array] | None = None
        for places, length in plan:
            cancel.check()
            # All batches have the rows of the first, rounded up: few programs are compiled.
            rows = rows or (batch if stateful else min(batch, power_of_two(len(places))))
            fields = _fields([window[n] for n in places], rows, tokenizer, config, length)
            arrays, carry = _states(config, what, backbone, fields, carry)
            # A batch is fetched when the next is on its way.
            _put(vectors, window, before)
            before = places, arrays
        _put(vectors, window, before)
        yield from (each[0] if layers == "last" else each for each in vectors)


_WINDOW, _FLOATS = 64, 1 << 26
"""Sentences are sorted by length within so many batches, and so many numbers of their vectors."""


def _planned(
    sentences: Iterable[Units], batch: int, floats: Callable[[Units], int]
) -> Iterator[tuple[list[Units], list[tuple[list[int], int]]]]:
    """Yields windows of sentences, each with its batches: (places in the window, length; 0: their power of two)."""
    lengths: tuple[int, ...] = ()
    for window in _windows(sentences, batch, floats):
        units = np.array([len(each) for each in window], np.int64)
        if len(window) <= batch:
            yield window, [(list(range(len(window))), 0)]
            continue
        # The lengths of the first window of several batches serve the later ones, so that no more are compiled.
        needed, counts = np.unique(-(-np.maximum(units, 1) // STEP) * STEP, return_counts=True)
        lengths = lengths or choose_lengths(needed, counts, int(needed[-1]), batch, shuffled=False)
        order = np.argsort(-units, kind="stable")
        groups = [order[first : first + batch].tolist() for first in range(0, len(order), batch)]
        yield window, [(group, next((n for n in lengths if n >= units[group[0]]), 0)) for group in groups]


def _windows(sentences: Iterable[Units], batch: int, floats: Callable[[Units], int]) -> Iterator[list[Units]]:
    """Yields sentences in lists: whole batches, _WINDOW of them, or fewer whose vectors would be too large together."""
    window, size = list[Units](), 0
    for group in chunks(sentences, batch):
        own = sum(map(floats, group))
        if window and (size + own > _FLOATS or len(window) == _WINDOW * batch):
            yield window
            window, size = [], 0
        window += group
        size += own
    if window:
        yield window


def _put(vectors: list[np.ndarray], window: Sequence[Units], computed: tuple[list[int], jax.Array] | None) -> None:
    """Puts the vectors of a batch, [layers, B, L, D] or [layers, B, D], at the places of its sentences."""
    if computed is None:
        return
    places, array = computed
    array = np.asarray(jax.device_get(array), np.float32)
    for row, place in enumerate(places):
        own = array[:, row]
        vectors[place] = own[:, : len(window[place])] if own.ndim == 3 else own


def _fields(
    sentences: Sequence[Units], batch: int, tokenizer: Tokenizer | OpenVocabulary, config: ModelConfig, length: int
) -> Batch:
    """Returns the model's input; words are strings and token ids are ints, which `sentence_splitter` sees to."""
    if isinstance(config, ElmoConfig):
        return elmo_lines(cast(Sequence[Sequence[str]], sentences), batch, length)
    assert not isinstance(tokenizer, OpenVocabulary)
    lines = cast(Sequence[Sequence[int]], sentences)
    return token_lines(lines, batch, tokenizer.pad, config.length, min(length, config.length))


@partial(jax.jit, static_argnums=(0, 1))
def _states(
    config: ModelConfig, what: tuple[tuple[int, ...], str], params: Params, batch: Batch, carry: Params
) -> tuple[jax.Array, Params]:
    """Returns (f32 [layers, B, L, D], or pooled [layers, B, D]; what a stateful ELMo carries to the next batch). what:
    the layers and the pooling."""
    layers, pool = what
    model = build(config)  # the backbone alone
    outputs, variables = model.apply({"params": params, "carry": carry}, batch, states=True, mutable=["carry"])
    assert isinstance(outputs, Outputs)
    states = outputs.encoding.states
    stacked = jax.numpy.stack([states[n] for n in layers])
    if pool != "none":
        stacked = _pooled(stacked, jax.numpy.asarray(batch["mask"]).sum(1), pool, isinstance(config, BertConfig))
    return stacked, dict(variables).get("carry", {})


def _pooled(states_NBLD: jax.Array, count_B: jax.Array, pool: str, ends: bool) -> jax.Array:
    """Returns a vector of each sentence, f32 NBD, here on the device: what is fetched is small. ends: the first and the
    last of its units are [CLS] and [SEP]."""
    own = ends and pool != "mean"
    first, behind_B = int(own and pool != "cls"), count_B - int(own)
    place_1L, behind_B1 = jax.numpy.arange(states_NBLD.shape[2])[None], behind_B[:, None]
    if pool in ("cls", "last"):
        chosen_BL = place_1L == (0 * behind_B1 if pool == "cls" else behind_B1 - 1)
    else:
        chosen_BL = place_1L < behind_B1
    weights_BL = (chosen_BL & (place_1L >= first)).astype(jax.numpy.float32)
    weights_BL /= jax.numpy.maximum(weights_BL.sum(1, keepdims=True), 1.0)
    # A sum, not a product of matrices, which some devices round to 16 bits.
    return (states_NBLD.astype(jax.numpy.float32) * weights_BL[None, :, :, None]).sum(2)


def _layer_numbers(layers: str, top: int) -> list[int]:
    """Returns the numbers of the layers that the option names: 0 is the words' own, `top` the last."""
    if layers in ("all", "last"):
        return list(range(top + 1)) if layers == "all" else [top]
    words = layers.split(",")
    if not all(word.isascii() and word.isdecimal() and int(word) <= top for word in words):
        raise DataError(f"layers={layers} are not all, last, or numbers from 0 to {top} with commas between")
    return [int(word) for word in words]
