"""The log-probability of each token of a text, the entropy of the distribution that it comes from, and the tokens that
were the most probable there.

The figures are those that `contexture.analysis.score` sums: a GPT predicts each token from those before it, a BERT each
one masked alone (Salazar et al. 2020), an ELMo each word in both directions.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from contexture.analysis.bilm_score import DIRECTIONS, lanes, read_sentences
from contexture.analysis.masked_score import check_masked_lm, check_predicts, mask_each, masked_windows
from contexture.analysis.results import TextCounts, TokenScore
from contexture.analysis.score import next_token_windows
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.layouts import Batch, token_lines
from contexture.data.tasks.encode_examples import check_batch, chunks
from contexture.data.text.sentences import sentences
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.word_level import BEGIN, END, UNK, word_tokenizer
from contexture.data.tokenizers.wordpiece import wordpiece
from contexture.models.config import BertConfig, ElmoConfig, GptConfig, ModelConfig
from contexture.models.layers.stacked import unstack_layers
from contexture.models.model import Model, Outputs, build
from contexture.models.shapes import Params

_TOGETHER = 64
"""Positions whose logits exist at once."""


@dataclass(frozen=True)
class Prediction:
    """How a token was predicted.

    log_prob  in nats
    entropy   of the distribution, in nats
    rank      how many tokens were more probable, and 1
    guesses   the most probable tokens, the first one first
    """

    log_prob: float
    entropy: float
    rank: int
    guesses: list[TokenScore]


@dataclass(frozen=True)
class ScoredToken:
    """A token, and its prediction by direction; what begins a text lacks one. scored_as: the token in its place, where
    the vocabulary lacks it."""

    token: str
    predictions: dict[str, Prediction] = field(default_factory=dict)
    scored_as: str = ""


class _Guesses(NamedTuple):
    log_prob_P: jax.Array
    entropy_P: jax.Array
    rank_P: jax.Array
    probs_PK: jax.Array
    ids_PK: jax.Array


def token_scores(
    model: Model,
    params: Params,
    tokenizer: Tokenizer,
    documents: Iterable[str],
    *,
    top: int = 5,
    length: int = 0,
    stride: int = 0,
    batch: int = 8,
    split_sentences: bool = True,
    cancel: CancelToken = NEVER,
) -> Iterator[list[ScoredToken]]:
    """Yields the tokens of each document, of an ELMo those of each sentence; options as in `score`.

    The directions of a GPT and a BERT are "forward" and "masked", those of an ELMo "forward" and "backward".

    top: how many guesses, at most as many as there are tokens.

    Raises: DataError for a run without the head that predicts words.
    """
    config = check_predicts(model.config)
    check_batch(batch)
    if top < 1:
        raise DataError(f"top={top} is not a positive number of tokens")
    top, params = min(top, tokenizer.size), unstack_layers(params, config)
    if isinstance(config, ElmoConfig):
        yield from _elmo(config, params, tokenizer, documents, top, batch, split_sentences, cancel)
        return
    length = length or config.length
    room = length - 2 if isinstance(config, BertConfig) else length
    windows = length, stride or room
    if isinstance(config, BertConfig):
        check_masked_lm(model)
        yield from _bert(config, params, tokenizer, documents, top, windows, batch, cancel)
    else:
        yield from _gpt(config, params, tokenizer, documents, top, windows, batch, cancel)


def _totals(document: int) -> TextCounts:
    """Counts that nobody reads; errors name the document by its number in them."""
    return {"documents": document, "tokens": 0, "words": 0, "bytes": 0}


def _gpt(
    config: GptConfig,
    params: Params,
    tokenizer: Tokenizer,
    documents: Iterable[str],
    top: int,
    windows: tuple[int, int],
    batch: int,
    cancel: CancelToken,
) -> Iterator[list[ScoredToken]]:
    if not config.tied and "heads_lm" not in params:
        raise DataError("this run has no softmax over words: its own table was left behind; give a pretrained run")
    length, stride = windows
    for number, text in enumerate(documents):
        tokens: list[ScoredToken] = []
        for group in chunks(next_token_windows([text], tokenizer, length, stride, _totals(number)), batch):
            cancel.check()
            rows = [ids[:-1] for ids, _ in group]
            fields = token_lines(rows, batch, tokenizer.pad, config.length, length)
            hidden_BLD, table_VD = _hidden(config, params, {name: fields[name] for name in ("tokens", "mask")})
            if not tokens and tokenizer.end is None:
                tokens.append(ScoredToken(tokenizer.token(group[0][0][0])))
            ends = [(row, len(ids) - 1, new) for row, (ids, new) in enumerate(group)]
            at = [(row, place) for row, end, new in ends for place in range(end - new, end)]
            labels = [group[row][0][place + 1] for row, place in at]
            x_PD = hidden_BLD[np.array([row for row, _ in at]), np.array([place for _, place in at])]
            predictions = _of_vectors(x_PD, table_VD, None, labels, top, tokenizer.size, tokenizer.token)
            tokens += [ScoredToken(tokenizer.token(id), {"forward": one})
                       for id, one in zip(labels, predictions, strict=True)]  # fmt: skip
        yield tokens


def _bert(
    config: BertConfig,
    params: Params,
    tokenizer: Tokenizer,
    documents: Iterable[str],
    top: int,
    windows: tuple[int, int],
    batch: int,
    cancel: CancelToken,
) -> Iterator[list[ScoredToken]]:
    pieces, (length, stride) = wordpiece(tokenizer), windows
    vocabulary = min(pieces.size, config.vocab)
    for number, text in enumerate(documents):
        tokens: list[ScoredToken] = []
        rows = (
            row
            for window, new in masked_windows([text], pieces, length - 2, stride, _totals(number))
            for row in mask_each(window, new, pieces)
        )
        for group in chunks(rows, batch):
            cancel.check()
            fields = token_lines([ids for ids, _, _ in group], batch, pieces.pad, config.length)
            slots, labels = np.zeros((batch, 1), np.int32), np.zeros(batch, np.int32)
            slots[: len(group), 0] = [place for _, place, _ in group]
            labels[: len(group)] = [label for _, _, label in group]
            guesses = _masked_guesses(config, vocabulary, top, params, {**fields, "slots": slots, "labels": labels})
            tokens += [ScoredToken(pieces.token(label), {"masked": one}) for (_, _, label), one in zip(
                group, _predictions(guesses, len(group), pieces.token), strict=True)]  # fmt: skip
        yield tokens


def _elmo(
    config: ElmoConfig,
    params: Params,
    tokenizer: Tokenizer,
    documents: Iterable[str],
    top: int,
    batch: int,
    split_sentences: bool,
    cancel: CancelToken,
) -> Iterator[list[ScoredToken]]:
    if "heads_bilm" not in params:
        raise DataError("this run has no softmax over words: its task's run left it behind; give a pretrained run")
    words = word_tokenizer(tokenizer)
    split: Callable[[str], list[str]] = sentences if split_sentences else lambda line: [line]
    head: Any = params["heads_bilm"]
    for group in chunks(read_sentences(documents, words, split, _totals(0)), batch):
        cancel.check()
        fields = lanes(group, words, batch)
        hidden_BLD, _ = _hidden(config, params, {name: fields[name] for name in ("types", "index", "index_backward")})
        width = config.width // 2
        rows = [[BEGIN, *sentence, END] for sentence in group]
        predicted: list[list[dict[str, Prediction]]] = [[{} for _ in row] for row in rows]
        for number, (direction, suffix) in enumerate(DIRECTIONS.items()):
            at = [(row, place) for row, sentence in enumerate(group) for place in range(len(sentence) + 1)]
            places = np.array([row for row, _ in at]), np.array([place for _, place in at])
            labels = fields[f"next{suffix}"][places].tolist()
            x_PJ = hidden_BLD[places][:, number * width : (number + 1) * width]
            kernel, bias = head["kernel"], head["bias"]
            for (row, place), one in zip(
                at, _of_vectors(x_PJ, kernel, bias, labels, top, words.size, words.token), strict=True
            ):
                # Backward, position i predicts the word i + 1 places before the end mark.
                own = len(rows[row]) - 2 - place if suffix else place + 1
                predicted[row][own][direction] = one
        for row, own in zip(rows, predicted, strict=True):
            # What a text spells like a mark is a word that the vocabulary lacks.
            lacking = ["" if word in words.ids else UNK for word in row[1:-1]]
            yield [ScoredToken(*each) for each in zip(row, own, ["", *lacking, ""], strict=True)]


@partial(jax.jit, static_argnums=0)
def _hidden(config: ModelConfig, params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Returns (what the softmax reads, BLD; the table of a GPT's softmax, VD)."""
    outputs = build(config, ()).apply({"params": {"backbone": params["backbone"]}}, batch)
    assert isinstance(outputs, Outputs)
    encoding = outputs.encoding
    table: Any = encoding.table_VD
    if isinstance(config, GptConfig) and not config.tied:
        table = params["heads_lm"]["table"]  # pyright: ignore[reportIndexIssue]
    return encoding.hidden_BLD, encoding.hidden_BLD if table is None else table


def _of_vectors(
    x_PD: jax.Array,
    table_VD: jax.Array,
    bias_V: jax.Array | None,
    labels: Sequence[int],
    top: int,
    vocabulary: int,
    name: Callable[[int], str],
) -> list[Prediction]:
    """Returns the predictions of labels from what the softmax reads, _TOGETHER at a time."""
    predictions: list[Prediction] = []
    for first in range(0, len(labels), _TOGETHER):
        own = labels[first : first + _TOGETHER]
        missing = _TOGETHER - len(own)
        part_PD = jnp.pad(x_PD[first : first + _TOGETHER], ((0, missing), (0, 0)))
        label_P = np.array([*own, *[0] * missing], np.int32)
        guesses = _vector_guesses(min(vocabulary, table_VD.shape[0]), top, part_PD, table_VD, bias_V, label_P)
        predictions += _predictions(guesses, len(own), name)
    return predictions


@partial(jax.jit, static_argnums=(0, 1))
def _vector_guesses(
    vocabulary: int, top: int, x_PD: jax.Array, table_VD: jax.Array, bias_V: jax.Array | None, labels_P: jax.Array
) -> _Guesses:
    logits_PV = jnp.einsum("PD,VD->PV", x_PD, table_VD.astype(x_PD.dtype), preferred_element_type=jnp.float32)
    return _guesses(logits_PV if bias_V is None else logits_PV + bias_V[None], labels_P, vocabulary, top)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _masked_guesses(config: BertConfig, vocabulary: int, top: int, params: Params, batch: Batch) -> _Guesses:
    outputs = build(config, ("mlm",)).apply({"params": params}, batch)
    assert isinstance(outputs, Outputs)
    # Rows of the table beyond the vocabulary (it may be padded) are no tokens.
    return _guesses(outputs.heads["mlm"][:, 0, :vocabulary], jnp.asarray(batch["labels"]), vocabulary, top)


def _guesses(logits_PV: jax.Array, labels_P: jax.Array, vocabulary: int, top: int) -> _Guesses:
    log_probs_PV = jax.nn.log_softmax(logits_PV)
    own_P1 = jnp.take_along_axis(log_probs_PV, labels_P[:, None], 1)
    # 0 · -inf is no number, and such a token adds nothing.
    entropy_P = -jnp.where(log_probs_PV > -jnp.inf, jnp.exp(log_probs_PV) * log_probs_PV, 0.0).sum(1)
    # Rows beyond the vocabulary have no name.
    best_PK, ids_PK = jax.lax.top_k(log_probs_PV[:, :vocabulary], top)
    return _Guesses(own_P1[:, 0], entropy_P, 1 + (log_probs_PV > own_P1).sum(1), jnp.exp(best_PK), ids_PK)


def _predictions(guesses: _Guesses, count: int, name: Callable[[int], str]) -> list[Prediction]:
    log_probs, entropies, ranks, probs, ids = (x[:count].tolist() for x in map(np.asarray, jax.device_get(guesses)))
    return [
        Prediction(log_prob, max(entropy, 0.0), rank, [{"token": name(id), "score": prob} for id, prob in zip(
            own, shares, strict=True)])
        for log_prob, entropy, rank, own, shares in zip(log_probs, entropies, ranks, ids, probs, strict=True)
    ]  # fmt: skip
