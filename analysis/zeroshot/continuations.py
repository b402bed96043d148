"""The probability of a continuation given its context, which zero-shot tasks compare (Radford et al. 2019, section 3).

GPT   Σ log p(token | the context and the tokens before it)
BERT  Σ log p(token | the context and all other tokens), each masked alone: a pseudo-log-likelihood (Salazar et al.
      2020)
ELMo  the mean over both directions of Σ log p(word) over the context and the continuation, read as one sentence: in
      the backward direction a continuation changes the probability of the context's words, so they count as well
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from contexture.analysis.scoring.scorer import Continuation, Directions, Row
from contexture.analysis.trained_model import TrainedModel
from contexture.data.bucketing import check_batch
from contexture.data.cancel import NEVER, CancelToken


class ScoredContinuation(NamedTuple):
    """A continuation's score.

    Args:
        log_prob: in nats, as this module defines it for each family.
        tokens: how many tokens it has; an ELMo's words.
        last: log p of its last token; for an ELMo of its last word, forward.
        greedy: whether each of its tokens is the most probable one at its position; for an ELMo forward.
        last_greedy: whether its last token is.
        truncated: tokens that the context lost at its beginning, if both were too long for the model.
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

    A GPT reads the end-of-document token before the context if its vocabulary has one. `split_tokens` says which tokens
    are the continuation's. Warns once of texts longer than the training sequences.

    Args:
        model: an open run.
        pairs: (context, continuation) of each.
        batch: continuations at a time.

    Raises:
        DataError: when a continuation has no token or is longer than the model, or the run cannot predict words.
    """
    check_batch(batch, "continuations")
    trained = model.watch_lengths()
    with model.computing():
        scorer = model.token_scorer()
        waiting, got = deque[Continuation](), list[Directions]()

        def rows() -> Iterator[Row]:
            for number, texts in enumerate(pairs):
                waiting.append(scorer.continuation(*texts, number))
                for row in waiting[-1].rows:
                    if scorer.length:
                        trained.check(len(row.read))
                    yield row

        for _, directions in scorer.predicted(rows(), batch, cancel):
            got.append(directions)
            if len(got) == len(waiting[0].rows):
                yield _joined(waiting.popleft(), got)
                got.clear()


def _joined(of: Continuation, rows: Sequence[Directions]) -> ScoredContinuation:
    """Returns the score of a continuation by the predictions of its rows."""
    log_prob = -float(np.mean([sum(row[name].nats.sum() for row in rows) for name in rows[0]]))
    # Forward comes first, and its last prediction is the continuation's last token.
    first = next(iter(rows[0]))
    nats, hits = (np.concatenate([row[first][place] for row in rows]) for place in (0, 1))
    # An ELMo (two directions) predicts the context before the continuation, and the sentence's end behind it, too.
    own = slice(len(nats) - of.tokens, None) if len(rows[0]) == 1 else slice(len(nats) - 1 - of.tokens, -1)
    nats, hits = nats[own], hits[own]
    return ScoredContinuation(log_prob, of.tokens, -float(nats[-1]), bool(hits.all()), bool(hits[-1]), of.truncated)
