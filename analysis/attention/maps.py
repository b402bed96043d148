"""Attention maps of a BERT or a GPT: which tokens each token of a text reads, by layer and head.

Attention kernels store no weights, so the maps are computed again from the queries and keys of each layer, whose input
is the state below it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias, TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from contexture.data.bucketing import bucket
from contexture.data.errors import DataError
from contexture.data.layouts import Batch
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.checked_text import encode_checked
from contexture.models.config import ModelConfig, TransformerConfig
from contexture.models.families import build, family_of
from contexture.models.layers.attention.module import AttentionMap
from contexture.models.model import Model, Outputs
from contexture.models.shapes import Params
from contexture.train.families import text_family

Numbers: TypeAlias = int | Sequence[int] | None
"""Layers or heads by their numbers, from 1; None: all."""


class AttentionMaps(TypedDict):
    """The attention of a text of L tokens, for the N layers and H heads that were asked for.

    Attributes:
        tokens: the tokens as the model reads them, special ones too.
        special: which of them are special: a BERT's [CLS] and [SEP], the tokens of a GPT's task.
        segments: a BERT's token types: 1 for the second text.
        layers: the numbers of the layers, from 1; layer 0, the embeddings, has no attention.
        heads: the numbers of the heads, from 1.
        weights: float32 [N, H, query, key]; a row sums to 1.
        queries: float32 [N, H, L, K].
        keys: float32 [N, H, L, K]; weights are the softmax of queries·keys / sqrt(K) over the keys that a query sees.
    """

    tokens: list[str]
    special: list[bool]
    segments: list[int]
    layers: list[int]
    heads: list[int]
    weights: np.ndarray
    queries: np.ndarray
    keys: np.ndarray


class LayerMaps(NamedTuple):
    """The attention of one layer: weights [H, L, L], queries and keys [H, L, K]."""

    weights: np.ndarray
    queries: np.ndarray
    keys: np.ndarray


@dataclass(frozen=True)
class TokenSequence:
    """A text or a pair as a model reads it: token ids, which of them are special tokens, and their segments."""

    ids: list[int]
    special: list[bool]
    segments: list[int]


def attention_maps(
    model: Model,
    params: Params,
    tokenizer: Tokenizer,
    text: str,
    second: str | None = None,
    *,
    layers: Numbers = None,
    heads: Numbers = None,
) -> AttentionMaps:
    """Computes the attention maps of a text, or of a pair.

    Args:
        layers: their numbers, from 1; None: all.
        heads: likewise.

    Raises:
        DataError: when the model has no attention or lacks a layer or head, or the text is empty or too long.
    """
    config = check_transformer(model.config)
    layer_numbers, head_numbers = chosen("layers", layers, config.layers), chosen("heads", heads, config.heads)
    sequence = token_sequence(config, tokenizer, text, second)
    maps = list(layer_maps(config, params, tokenizer.pad, sequence, layer_numbers, head_numbers))
    weights, queries, keys = (np.stack(arrays) for arrays in zip(*maps, strict=True))
    return {
        "tokens": [tokenizer.token(id) for id in sequence.ids],
        "special": sequence.special,
        "segments": sequence.segments,
        "layers": layer_numbers,
        "heads": head_numbers,
        "weights": weights,
        "queries": queries,
        "keys": keys,
    }


def check_transformer(config: ModelConfig) -> TransformerConfig:
    """Returns the configuration of a model that has attention; an ELMo and static vectors are a DataError."""
    if not isinstance(config, TransformerConfig):
        what = f"a model of the family {config.family} has no attention"
        what += ": its LSTMs have gates instead" if config.is_recurrent else ""
        raise DataError(f"{what}; give a run of a BERT or a GPT")
    return config


def chosen(name: str, given: Numbers, count: int) -> list[int]:
    """Returns the chosen numbers of layers or heads, ascending.

    Args:
        name: "layers" or "heads", for errors.
        given: numbers from 1; None: all.
        count: how many the model has.

    Raises:
        DataError: when the model lacks one, or none is given.
    """
    if given is None:
        return list(range(1, count + 1))
    numbers = [given] if isinstance(given, int) else list(given)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 1 <= number <= count:
            raise DataError(f"{name}: {number!r} is none of the model's {name}, 1 to {count}; give some of these")
    if not numbers:
        raise DataError(f"{name}: none is given; give some of 1 to {count}, or leave {name} out for all")
    return sorted({int(number) for number in numbers})


def token_sequence(
    config: TransformerConfig, tokenizer: Tokenizer, text: str, second: str | None = None
) -> TokenSequence:
    """Lays out a text or a pair as the model reads it in its tasks (`data.layouts`).

    A GPT that was not fine-tuned reads the tokens of one text, without special tokens.

    Raises:
        DataError: when the text has no token or is longer than the model, or the model reads no second text.
    """
    texts = {"text": text} if second is None else {"text": text, "second": second}
    for name, one in texts.items():
        if not isinstance(one, str) or not one.strip():
            raise DataError(f"{name}= is empty; give a text")
    encoded = encode_checked(list(texts.values()), list(texts), tokenizer)
    for name, ids in zip(texts, encoded, strict=True):
        if not ids:
            raise DataError(f"{name}: {texts[name][:60]!r} has no token of the vocabulary; give another text")
    family = text_family(config)
    # A GPT that was not fine-tuned has no special tokens.
    begin, between, end = family.marks(tokenizer) or (None, None, None)
    if begin is None and second is not None:
        raise DataError("second: this GPT was not fine-tuned on pairs and reads one text; leave the second one out")
    ids, special, segments = ([], [], []) if begin is None else ([begin], [True], [0])
    for segment, own in enumerate(encoded):
        mark = end if segment == len(encoded) - 1 else between
        marks = [] if mark is None else [mark]
        ids += own + marks
        special += [False] * len(own) + [True] * len(marks)
        # The special token behind a text belongs to its segment.
        segments += [segment * family.marks_segments] * (len(own) + len(marks))
    if len(ids) > config.length:
        marked = f", {sum(special)} special ones among them," if any(special) else ""
        raise DataError(
            f"the text has {len(ids):,} tokens{marked} and the model takes {config.length:,}; give a shorter text"
        )
    return TokenSequence(ids, special, segments)


def layer_maps(
    config: TransformerConfig,
    params: Params,
    pad: int,
    sequence: TokenSequence,
    layers: Sequence[int],
    heads: Sequence[int],
) -> Iterator[LayerMaps]:
    """Yields the maps of each layer, one at a time: all of them together may take much memory."""
    count = len(sequence.ids)
    # Padded to one of few lengths, so that few programs are compiled. No token sees the padding; it is cut off below.
    width = bucket(count, config.length)
    fields = {"tokens": (sequence.ids, pad), "segments": (sequence.segments, 0), "mask": ([1] * count, 0)}
    batch = {name: np.array([values + [fill] * (width - count)], np.int32) for name, (values, fill) in fields.items()}
    inputs = _layer_inputs(config, params, batch)
    # The layers' parameters are stacked on a leading N.
    stacked = params["backbone"]["layers"]  # pyright: ignore[reportIndexIssue]
    of_head = np.array(heads) - 1
    for layer in layers:
        own = jax.tree.map(lambda x, n=layer - 1: x[n], stacked)
        weights_BHLM, q_BLHK, k_BMHK = _maps(config, own, inputs[layer - 1], jnp.int32(layer - 1), batch["mask"])
        yield LayerMaps(
            np.asarray(weights_BHLM)[0, of_head, :count, :count],
            *(np.asarray(x, np.float32)[0, :count].swapaxes(0, 1)[of_head] for x in (q_BLHK, k_BMHK)),
        )


@partial(jax.jit, static_argnums=0)
def _layer_inputs(config: TransformerConfig, params: Params, batch: Batch) -> tuple[jax.Array, ...]:
    """Returns the input of each layer, N of BLD."""
    outputs = build(config, ()).apply({"params": params}, batch, states=True)
    assert isinstance(outputs, Outputs)
    return outputs.encoding.states[:-1]


@partial(jax.jit, static_argnums=0)
def _maps(
    config: TransformerConfig, params: Params, x_BLD: jax.Array, layer: jax.Array, mask_BL: jax.Array
) -> AttentionMap:
    # The layer's number is an array, so that one program serves all layers.
    make = family_of(config).block
    assert make is not None
    block = make(config)
    return block.apply({"params": params}, x_BLD, layer, mask_BL, method="maps")  # pyright: ignore[reportReturnType]
