"""How a model of words predicts the tokens of texts: one `TokenScorer` for each family.

A text is read in rows: windows for a GPT; copies of a window, each with a token masked, for a BERT; sentences for an
ELMo. `score` sums a row's predictions, `token_scores` shows each token's, `zeroshot` compares continuations by them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from contexture.analysis.results import TextCounts, TextScore, TokenScore
from contexture.data.bucketing import chunks, windows
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.layouts import Batch
from contexture.data.packing import Packing, RowFiller
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.checked_text import encode_checked
from contexture.models.model import Model
from contexture.models.shapes import Params

_TOGETHER = 64
"""Positions whose logits are in memory at once."""
_FLOATS = 32
"""What a token of a row that waits takes in memory, in numbers: at most 2 million wait (`bucketing.windows`)."""


class Row(NamedTuple):
    """One sequence that a model reads, and what it has to predict.

    Args:
        read: token ids, or an ELMo's words.
        places: the positions at which it predicts.
        labels: the ids that it should predict there.
        line: the number of the document, or of the sentence for an ELMo.
        first: whether it is the document's first row.
    """

    read: Sequence[Any]
    places: Sequence[int]
    labels: Sequence[int]
    line: int
    first: bool = False


class Predicted(NamedTuple):
    """-log p of each label of a row, f64, in nats, and whether it is the most probable token; a tie is no hit."""

    nats: np.ndarray
    hits: np.ndarray


class Planned(NamedTuple):
    """A batch to compute.

    Args:
        numbers: which rows of its window it holds.
        fields: what the model reads.
        places: where the predictions of each row are in the results, which are read as one row after the other.
    """

    numbers: Sequence[int]
    fields: Batch
    places: list[np.ndarray]


Directions: TypeAlias = dict[str, Predicted]
"""By direction: "forward" for a GPT, "masked" for a BERT, both "forward" and "backward" for an ELMo."""


@dataclass(frozen=True)
class Prediction:
    """How a token was predicted.

    Args:
        log_prob: in nats.
        entropy: of the predicted distribution, in nats.
        rank: 1 for the most probable token, 2 for the next, …
        guesses: the most probable tokens, in order.
    """

    log_prob: float
    entropy: float
    rank: int
    guesses: list[TokenScore]


@dataclass(frozen=True)
class ScoredToken:
    """A token and its predictions.

    Args:
        token: its text.
        predictions: by direction; a direction that does not predict this token is left out.
        scored_as: the token scored in its place, if the vocabulary lacks it.
    """

    token: str
    predictions: dict[str, Prediction] = field(default_factory=dict)
    scored_as: str = ""


class Continuation(NamedTuple):
    """The rows of a continuation behind its context.

    Args:
        rows: what the model reads.
        tokens: how many tokens the continuation has.
        truncated: how many tokens the context lost at its beginning, if both were too long for the model.
    """

    rows: list[Row]
    tokens: int
    truncated: int


class TokenScorer(ABC):
    """Predicts tokens by a model of one family."""

    directions: ClassVar[tuple[str, ...]]
    convention: ClassVar[str]
    """How the probability of a continuation is measured, in words."""
    unit: ClassVar[str] = "windows"
    """What a batch holds, in words."""

    def __init__(
        self, model: Model, params: Params, tokenizer: Tokenizer, length: int, stride: int, split_sentences: bool
    ) -> None:
        """Checks that the model can predict words.

        Args:
            length: tokens of a window; 0: the model's length.
            stride: tokens from one window to the next; 0: windows do not overlap.
            split_sentences: for a model that reads sentences: whether lines are split into them.

        Raises:
            DataError: when the model lacks the head that predicts words, or the length or stride does not fit.
        """
        self.config: Any = model.config
        self.params: Any = params
        self.tokenizer, self.length, self.stride, self.split_sentences = tokenizer, length, stride, split_sentences
        self.check(model)

    @abstractmethod
    def check(self, model: Model) -> None:
        """Raises as `__init__`."""

    @abstractmethod
    def rows(self, documents: Iterable[str], totals: TextCounts) -> Iterator[Row]:
        """Yields the rows of documents, each read alone; adds their documents, tokens, words and bytes to totals."""

    @abstractmethod
    def planned(self, window: Sequence[Row], batch: int) -> Iterator[Planned]:
        """Yields batches that hold each row of a window once, about `batch` of them at a time."""

    @abstractmethod
    def compute(self, fields: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        """Returns (-log p f32, hits) of all places of a batch by direction, on the device."""

    @abstractmethod
    def guess(self, fields: Batch, places: np.ndarray, top: int) -> dict[str, list[Prediction]]:
        """Returns the predictions at places of a batch by direction, with the `top` most probable tokens."""

    @abstractmethod
    def continuation(self, context: str, continuation: str, number: int) -> Continuation:
        """Returns the rows of a continuation. number: of the example, for errors.

        Raises:
            DataError: when the continuation has no token, or is longer than the model.
        """

    @abstractmethod
    def result(self, totals: TextCounts, nats: dict[str, float], unknown: int) -> TextScore:
        """Returns the figures of documents from sums of nats by direction, and the number of unknown labels."""

    def tokens(self, row: Row, predictions: dict[str, list[Prediction]]) -> list[ScoredToken]:
        """Returns the tokens of a row that are predicted, in the order of the text."""
        (direction,) = self.directions
        return [
            ScoredToken(self.tokenizer.token(label), {direction: one})
            for label, one in zip(row.labels, predictions[direction], strict=True)
        ]

    def predicted(
        self, rows: Iterable[Row], batch: int, cancel: CancelToken = NEVER
    ) -> Iterator[tuple[Row, Directions]]:
        """Yields each row with its predictions, in order; `batch` are computed at a time."""
        for window in windows(rows, batch, lambda row: _FLOATS * len(row.read)):
            predictions: dict[int, Directions] = {}
            before: tuple[Planned, Any] | None = None
            for planned in self.planned(window, batch):
                cancel.check()
                # jax returns before the device is done; the batch before is fetched meanwhile.
                computed = self.compute(planned.fields)
                predictions |= self._fetched(before)
                before = planned, computed
            predictions |= self._fetched(before)
            yield from ((row, predictions[number]) for number, row in enumerate(window))

    def _fetched(self, batch: tuple[Planned, Any] | None) -> dict[int, Directions]:
        """Returns the predictions of a computed batch's rows, by their numbers in the window."""
        if batch is None:
            return {}
        planned, arrays = batch[0], jax.device_get(batch[1])
        flat = {name: [x.reshape(-1) for x in arrays[name]] for name in self.directions}  # in this order: jax sorts
        return {
            number: {name: Predicted(nats[at].astype(np.float64), hits[at] > 0) for name, (nats, hits) in flat.items()}
            for number, at in zip(planned.numbers, planned.places, strict=True)
        }

    def guessed(
        self, rows: Iterable[Row], batch: int, top: int, cancel: CancelToken = NEVER
    ) -> Iterator[tuple[Row, dict[str, list[Prediction]]]]:
        """Yields each row with its predictions by direction and the `top` most probable tokens, in order."""
        # A batch at a time: guesses take much memory.
        for window in chunks(rows, batch):
            predictions: dict[int, dict[str, list[Prediction]]] = {}
            for planned in self.planned(window, batch):
                cancel.check()
                guessed = self.guess(planned.fields, np.concatenate(planned.places), top)
                own = {name: iter(each) for name, each in guessed.items()}
                for number, at in zip(planned.numbers, planned.places, strict=True):
                    predictions[number] = {name: list(islice(each, len(at))) for name, each in own.items()}
            yield from ((row, predictions[number]) for number, row in enumerate(window))


class PackedScorer(TokenScorer):
    """Predicts tokens by a model whose sequences share rows."""

    _filler: RowFiller | None = None

    @abstractmethod
    def laid_out(self, rows: Sequence[Row], packing: Packing, slots: int) -> tuple[Batch, list[np.ndarray]]:
        """Returns a batch of rows, with room for so many, and the places of each row's predictions."""

    def planned(self, window: Sequence[Row], batch: int) -> Iterator[Planned]:
        if self._filler is None or self._filler.batch != batch:
            self._filler = RowFiller(batch)
        for numbers, packing, slots in self._filler.fill(np.array([len(row.read) for row in window], np.int64)):
            yield Planned(numbers.tolist(), *self.laid_out([window[n] for n in numbers], packing, slots))


def windows_of(count: int, size: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yields (start, end, how many tokens no earlier window has scored) of windows over `count` tokens."""
    start = scored = 0
    while scored < count:
        end = min(start + size, count)
        yield start, end, end - scored
        scored, start = end, start + stride


def split_tokens(context: str, continuation: str, number: int, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Returns the tokens of a context and of its continuation.

    Both are tokenised as one text, and the context's tokens are cut off; if a token spans their border, the two are
    tokenised separately.

    Raises:
        DataError: when the continuation has no token.
    """
    at = [f"example {number}"] * 2
    both, before = encode_checked([context + continuation, context], at, tokenizer)
    own = both[len(before) :]
    # A piece spans the border: its probability would mix context and continuation.
    if both[: len(before)] != before or not own:
        (own,) = encode_checked([continuation], at[:1], tokenizer)
    if not own:
        raise DataError(f"example {number}: the continuation {continuation!r} has no token; give text")
    return before, own


def fitted(before: list[int], own: list[int], room: int, number: int, least: int = 0) -> tuple[list[int], int]:
    """Returns (the end of the context that fits in `room` with its continuation, how many tokens it lost).

    least: how many tokens of the context have to stay.
    """
    if len(own) > room - least:
        raise DataError(f"example {number}: the continuation has {len(own)} tokens, and the model takes {room - least}")
    # The context's beginning is cut, which is the farthest from the continuation.
    kept = before[max(len(before) + len(own) - room, 0) :]
    return kept, len(before) - len(kept)


def check_windows(length: int, stride: int, marks: int, limit: int) -> tuple[int, int]:
    """Returns (length, stride), with defaults in place of zeros.

    Args:
        length: tokens of a window; 0: `limit`.
        stride: new tokens in each window; 0: all.
        marks: how many tokens of a window are special ones.
        limit: the model's length.

    Raises:
        DataError: when the length or the stride does not fit.
    """
    length = length or limit
    fewest, room = (3, length - marks) if marks else (2, length)
    stride = stride or max(room, 1)
    if not fewest <= length <= limit:
        raise DataError(f"length={length} is not between {fewest} and the {limit} tokens that the model takes")
    if not 1 <= stride <= room:
        raise DataError(f"stride={stride} is not between 1 and {room if marks else f'length={length}'}")
    return length, stride


def perplexity(nats: float) -> float:
    """Returns exp of a mean of -log p; infinity on overflow."""
    with np.errstate(over="ignore"):
        return float(np.exp(nats))


# The most probable tokens


class Guesses(NamedTuple):
    """What a page shows of each of P predictions, with K guesses each."""

    log_prob_P: jax.Array
    entropy_P: jax.Array
    rank_P: jax.Array
    probs_PK: jax.Array
    ids_PK: jax.Array


def guesses(logits_PV: jax.Array, labels_P: jax.Array, vocabulary: int, top: int) -> Guesses:
    """Returns the figures of predictions; `vocabulary`: rows of the table beyond it are padding and are not guessed."""
    log_probs_PV = jax.nn.log_softmax(logits_PV)
    own_P1 = jnp.take_along_axis(log_probs_PV, labels_P[:, None], 1)
    # 0 · -inf is no number, and such a token adds nothing.
    entropy_P = -jnp.where(log_probs_PV > -jnp.inf, jnp.exp(log_probs_PV) * log_probs_PV, 0.0).sum(1)
    best_PK, ids_PK = jax.lax.top_k(log_probs_PV[:, :vocabulary], top)
    return Guesses(own_P1[:, 0], entropy_P, 1 + (log_probs_PV > own_P1).sum(1), jnp.exp(best_PK), ids_PK)


def predictions_of(guessed: Guesses, count: int, name: Callable[[int], str]) -> list[Prediction]:
    """Returns the first `count` predictions on the host; `name` gives the text of a token id."""
    log_probs, entropies, ranks, probs, ids = (x[:count].tolist() for x in map(np.asarray, jax.device_get(guessed)))
    return [
        Prediction(
            log_prob,
            # Rounding may leave an entropy a little below 0.
            max(entropy, 0.0),
            rank,
            [{"token": name(id), "score": prob} for id, prob in zip(own, shares, strict=True)],
        )
        for log_prob, entropy, rank, own, shares in zip(log_probs, entropies, ranks, ids, probs, strict=True)
    ]


def predictions_of_vectors(
    x_PD: jax.Array,
    table_VD: jax.Array,
    bias_V: jax.Array | None,
    labels: Sequence[int],
    top: int,
    tokenizer: Tokenizer,
) -> list[Prediction]:
    """Returns the predictions of labels from the softmax's inputs x_PD, _TOGETHER positions at a time."""
    # Each part is padded to one shape, so that a single program is compiled.
    predictions: list[Prediction] = []
    for first in range(0, len(labels), _TOGETHER):
        own = labels[first : first + _TOGETHER]
        missing = _TOGETHER - len(own)
        part_PD = jnp.pad(x_PD[first : first + _TOGETHER], ((0, missing), (0, 0)))
        label_P = np.array([*own, *[0] * missing], np.int32)
        # Rows of the table beyond the vocabulary are padding and have no name.
        guessed = _vector_guesses(min(tokenizer.size, table_VD.shape[0]), top, part_PD, table_VD, bias_V, label_P)
        predictions += predictions_of(guessed, len(own), tokenizer.token)
    return predictions


def _of_vectors(
    vocabulary: int, top: int, x_PD: jax.Array, table_VD: jax.Array, bias_V: jax.Array | None, labels_P: jax.Array
) -> Guesses:
    logits_PV = jnp.einsum("PD,VD->PV", x_PD, table_VD.astype(x_PD.dtype), preferred_element_type=jnp.float32)
    return guesses(logits_PV if bias_V is None else logits_PV + bias_V[None], labels_P, vocabulary, top)


_vector_guesses = jax.jit(_of_vectors, static_argnums=(0, 1))
