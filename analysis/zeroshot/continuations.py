"""How probable a model finds a continuation of a context: what zero-shot tasks compare (Radford et al. 2019, section
3).

GPT   Σ log p(token | the context and the tokens before it)
BERT  Σ log p(token | the context and all other tokens), each masked alone: a pseudo-log-likelihood (Salazar et al.
      2020)
ELMo  the mean over both directions of Σ log p(word) over the context and the continuation, read as one sentence:
      backward, a continuation changes how probable the words of the context are, so that they count as well
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from contexture.analysis.bilm_score import DIRECTIONS, lanes
from contexture.analysis.masked_score import check_predicts, masked_losses
from contexture.analysis.trained_model import TrainedModel
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.layouts import Batch, power_of_two, token_lines
from contexture.data.tasks.encode_examples import check_batch, chunks
from contexture.data.tasks.word_alignment import encode_checked
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.word_level import word_tokenizer
from contexture.data.tokenizers.wordpiece import wordpiece
from contexture.models.config import BertConfig, ElmoConfig, GptConfig
from contexture.models.heads.chunked_softmax import TokenLosses
from contexture.models.layers.stacked import unstack_layers
from contexture.models.model import Outputs, build
from contexture.models.shapes import Params
from contexture.train.run.trained_length import LengthWatch

CONVENTIONS = {
    "gpt": "log p of the continuation's tokens, each from the context and those before it",
    "bert": "pseudo-log-likelihood of the continuation's tokens: each masked alone, predicted from all others",
    "elmo": "log p of the words of context and continuation as one sentence, the mean of both directions",
}


class ScoredContinuation(NamedTuple):
    """A continuation's score.

    log_prob    in nats, as this module says of each family
    tokens      how many tokens it has, an ELMo's words
    last        log p of its last token; of an ELMo that of its last word, forward
    greedy      whether each of its tokens is the most probable one where it stands; of an ELMo forward
    last_greedy whether its last token is
    truncated   tokens that the context lost at its beginning, where both were too long for the model
    """

    log_prob: float
    tokens: int
    last: float
    greedy: bool
    last_greedy: bool
    truncated: int


def score_continuations(
    model: TrainedModel,
    pairs: Iterable[tuple[str, str]],
    *,
    batch: int = 16,
    cancel: CancelToken = NEVER,
) -> Iterator[ScoredContinuation]:
    """Yields the score of each (context, continuation), in their order; between the two nothing is added.

    A GPT reads the end-of-document token before the context where its vocabulary has one. The tokens of the
    continuation are those of both texts together without those of the context alone; where both together are cut
    otherwise at their border, the two are tokenised apart.

    A warning says once that texts are longer than those of training.

    Raises: DataError for a continuation without a token, one that is longer than the model, and a run without the head
        that predicts words.
    """
    check_batch(batch, "continuations")
    config = check_predicts(model.model.config)
    trained = model.watch_lengths()
    with model.computing():
        params = unstack_layers(model.params, config)
        for group in chunks(enumerate(pairs), batch):
            cancel.check()
            if isinstance(config, GptConfig):
                yield from _gpt(model, config, params, group, batch, trained)
            elif isinstance(config, BertConfig):
                yield from _bert(model, config, params, group, batch, trained, cancel)
            else:
                yield from _elmo(model, config, group, batch)


_Group = Sequence[tuple[int, tuple[str, str]]]


def split_tokens(context: str, continuation: str, number: int, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Returns the tokens of a context and of its continuation. Raises: DataError for a continuation without one."""
    at = [f"example {number}"] * 2
    both, before = encode_checked([context + continuation, context], at, tokenizer)
    own = both[len(before) :]
    if both[: len(before)] != before or not own:
        (own,) = encode_checked([continuation], at[:1], tokenizer)
    if not own:
        raise DataError(f"example {number}: the continuation {continuation!r} has no token; give text")
    return before, own


def _fitted(before: list[int], own: list[int], room: int, number: int) -> tuple[list[int], int]:
    """Returns (the end of a context that has room beside its continuation, how many tokens it lost)."""
    if len(own) > room:
        raise DataError(f"example {number}: the continuation has {len(own)} tokens, and the model takes {room}")
    kept = before[max(len(before) + len(own) - room, 0) :]
    return kept, len(before) - len(kept)


def _gpt(
    model: TrainedModel, config: GptConfig, params: Params, group: _Group, batch: int, trained: LengthWatch
) -> Iterator[ScoredContinuation]:
    if not config.tied and "heads_lm" not in params:
        raise DataError("this run has no softmax over words: its own table was left behind; give a pretrained run")
    start = [] if model.tokenizer.end is None else [model.tokenizer.end]
    rows: list[tuple[list[int], int, int]] = []
    for number, (context, continuation) in group:
        before, own = split_tokens(context, continuation, number, model.tokenizer)
        if not start and not before:
            raise DataError(f"example {number}: the context is empty, and this vocabulary has no token to begin with")
        # The last token is predicted and never read: the model takes one more.
        kept, lost = _fitted(start + before, own, config.length + 1, number)
        rows.append(([*kept, *own], len(own), lost))
        trained.check(len(kept) + len(own) - 1)
    length = min(power_of_two(max(len(ids) - 1 for ids, _, _ in rows)), config.length)
    fields = {name: np.zeros((batch, length), np.int32) for name in ("tokens", "mask", "next")}
    for row, (ids, _, _) in enumerate(rows):
        size = len(ids) - 1
        fields["tokens"][row, :size], fields["next"][row, :size], fields["mask"][row, :size] = ids[:-1], ids[1:], 1
    scored = jax.device_get(_next_tokens(config, params, fields))
    for row, (ids, count, lost) in enumerate(rows):
        own = slice(len(ids) - 1 - count, len(ids) - 1)
        log_probs, hits = -scored.loss_BL[row, own].astype(np.float64), scored.hit_BL[row, own]
        yield ScoredContinuation(
            float(log_probs.sum()), count, float(log_probs[-1]), bool(hits.all()), bool(hits[-1]), lost
        )


@partial(jax.jit, static_argnums=0)
def _next_tokens(config: GptConfig, params: Params, batch: Batch) -> TokenLosses:
    weights_BL = jnp.asarray(batch["mask"], jnp.float32)
    outputs = build(config, ("lm",)).apply({"params": params}, {**batch, "next_weights": weights_BL})
    assert isinstance(outputs, Outputs)
    return outputs.heads["lm"]


def _bert(
    model: TrainedModel,
    config: BertConfig,
    params: Params,
    group: _Group,
    batch: int,
    trained: LengthWatch,
    cancel: CancelToken,
) -> Iterator[ScoredContinuation]:
    if "mlm" not in model.model.heads:
        raise DataError("this run was trained for a task and has no head for masked tokens; give a pretrained run")
    pieces = wordpiece(model.tokenizer)
    rows: list[tuple[list[int], int, int]] = []
    counts: list[tuple[int, int]] = []
    for number, (context, continuation) in group:
        before, own = split_tokens(context, continuation, number, pieces)
        kept, lost = _fitted(before, own, config.length - 2, number)
        ids = [pieces.cls, *kept, *own, pieces.sep]
        trained.check(len(ids))
        first = 1 + len(kept)
        rows += [([*ids[:at], pieces.mask, *ids[at + 1 :]], at, ids[at]) for at in range(first, first + len(own))]
        counts.append((len(own), lost))
    log_probs, hits = np.zeros(len(rows)), np.zeros(len(rows), bool)
    for first in range(0, len(rows), batch):
        cancel.check()
        some = rows[first : first + batch]
        fields = token_lines([ids for ids, _, _ in some], batch, pieces.pad, config.length)
        places, labels = np.zeros((batch, 1), np.int32), np.zeros((batch, 1), np.int32)
        places[: len(some), 0], labels[: len(some), 0] = [at for _, at, _ in some], [label for *_, label in some]
        losses, hit = masked_losses(config, pieces, params, {**fields, "slots": places, "labels": labels})
        log_probs[first : first + batch] = -np.asarray(losses, np.float64)[: len(some)]
        hits[first : first + batch] = np.asarray(hit)[: len(some)]
    at = 0
    for count, lost in counts:
        own = slice(at, at + count)
        at += count
        yield ScoredContinuation(
            float(log_probs[own].sum()),
            count,
            float(log_probs[at - 1]),
            bool(hits[own].all()),
            bool(hits[at - 1]),
            lost,
        )


def _elmo(model: TrainedModel, config: ElmoConfig, group: _Group, batch: int) -> Iterator[ScoredContinuation]:
    if "heads_bilm" not in model.params:
        raise DataError("this run has no softmax over words: its task's run left it behind; give a pretrained run")
    words = word_tokenizer(model.tokenizer)
    sentences, counts = list[list[str]](), list[int]()
    for number, (context, continuation) in group:
        own = words.words(continuation)
        if not own:
            raise DataError(f"example {number}: the continuation {continuation!r} has no word; give text")
        sentences.append([*words.words(context), *own])
        counts.append(len(own))
    losses = jax.device_get(_both_directions(config, model.params, lanes(sentences, words, batch)))
    for row, (sentence, count) in enumerate(zip(sentences, counts, strict=True)):
        # The end of the sentence, backward its beginning, is predicted too.
        both = [losses[name].loss_BL[row, : len(sentence) + 1].astype(np.float64).sum() for name in DIRECTIONS]
        own = slice(len(sentence) - count, len(sentence))
        hits = losses["forward"].hit_BL[row, own]
        last = -float(losses["forward"].loss_BL[row, len(sentence) - 1])
        yield ScoredContinuation(-float(sum(both)) / 2, count, last, bool(hits.all()), bool(hits[-1]), 0)


@partial(jax.jit, static_argnums=0)
def _both_directions(config: ElmoConfig, params: Params, batch: Batch) -> dict[str, TokenLosses]:
    outputs = build(config, ("bilm",)).apply({"params": params}, batch)
    assert isinstance(outputs, Outputs)
    return outputs.heads["bilm"]
