"""Scores text by a run of any family: perplexity of a GPT and an ELMo, pseudo-perplexity of a BERT."""

from collections.abc import Iterable, Iterator

from contexture.analysis.results import TextCounts, TextScore
from contexture.analysis.scoring.scorer import ScoredToken, TokenScorer
from contexture.data.bucketing import check_batch
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError


def score(scorer: TokenScorer, documents: Iterable[str], *, batch: int = 8, cancel: CancelToken = NEVER) -> TextScore:
    """Computes how well a model predicts documents, each of them alone.

        GPT   each token from those before it:
              perplexity      = exp(nats / tokens)
              word_perplexity = exp(nats / words)             words between white space
              bits_per_byte   = nats / ln 2 / bytes           bytes of UTF-8
        BERT  each token, masked alone, from all others of its window (Salazar et al. 2020):
              pseudo_perplexity, word_pseudo_perplexity       the same of these nats
        ELMo  each word of a sentence from those before it, and from those behind it:
              forward_perplexity, backward_perplexity         exp(nats / tokens) of a direction
              perplexity                                      of the mean of both directions' nats

    What the vocabulary of a BERT or an ELMo lacks is scored as its unknown token, and counted in `unknown`.

    Tokens that the window before has scored are only context. If a GPT's vocabulary has an end-of-document token, each
    document begins behind it and all its tokens are scored; else its first token is neither scored nor counted.
    `convention` of the result repeats this.

    Args:
        scorer: predicts the tokens.
        documents: texts, read one at a time.
        batch: windows, or an ELMo's sentences, at a time.

    Raises:
        DataError: when the documents have no token.
    """
    check_batch(batch, scorer.unit)
    totals: TextCounts = {"documents": 0, "tokens": 0, "words": 0, "bytes": 0}
    nats, unknown = dict.fromkeys(scorer.directions, 0.0), 0

    for row, predicted in scorer.predicted(scorer.rows(documents, totals), batch, cancel):
        nats = {name: nats[name] + float(own.nats.sum()) for name, own in predicted.items()}
        unknown += sum(label == scorer.tokenizer.unk for label in row.labels)
    if not totals["tokens"]:
        raise DataError("there is no token to score in the text; give text")
    return scorer.result(totals, nats, unknown)


def token_scores(
    scorer: TokenScorer, documents: Iterable[str], *, top: int = 5, batch: int = 8, cancel: CancelToken = NEVER
) -> Iterator[list[ScoredToken]]:
    """Yields the tokens of each document that has any, or of each sentence for an ELMo: the log-probability of each
    (`score` sums these), the entropy of the predicted distribution, and the `top` most probable tokens there.

    A GPT's direction is "forward", a BERT's "masked"; an ELMo has "forward" and "backward".
    """
    check_batch(batch, scorer.unit)
    if top < 1:
        raise DataError(f"top={top} is not a positive number of tokens")
    totals: TextCounts = {"documents": 0, "tokens": 0, "words": 0, "bytes": 0}
    line, tokens = 0, list[ScoredToken]()
    for row, predictions in scorer.guessed(
        scorer.rows(documents, totals), batch, min(top, scorer.tokenizer.size), cancel
    ):
        # A document may have several rows: its tokens end where the next document begins.
        if row.line != line and tokens:
            yield tokens
            tokens = []
        line = row.line
        tokens += scorer.tokens(row, predictions)
    if tokens:
        yield tokens
