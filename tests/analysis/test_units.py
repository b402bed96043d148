"""Scoring and embedding in small: what a window scores anew, what is pooled, what is sampled; no training."""

import math
from typing import Any

import jax
import numpy as np
import pytest

from contexture.analysis.embed import embed
from contexture.analysis.options import EmbedOptions
from contexture.analysis.results import TextCounts
from contexture.analysis.scoring.gpt import GptScorer
from contexture.analysis.scoring.scorer import Prediction
from contexture.data.errors import DataError
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.wordpiece import WordPiece
from contexture.models.config import BertConfig, GptConfig
from contexture.models.families import build, example
from tests.helpers.parity_rule import assert_close, close
from tests.helpers.random_runs import random_parameters
from tests.helpers.scoring import score_texts

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "##d", "e"]


class Letters:
    """A token a letter, `.` ends documents."""

    kind, lossless, pad, unk, specials = "letters", True, 0, None, {}
    vocabulary = ".abcdefghij klmé"
    size = len(vocabulary)

    def __init__(self, end: int | None = 0) -> None:
        self.end = end

    def encode(self, texts):
        return [[self.vocabulary.index(letter) for letter in text] for text in texts]

    def decode(self, ids):
        return "".join(map(self.token, ids))

    def token(self, id):
        return self.vocabulary[id]


def _totals() -> TextCounts:
    return {"documents": 0, "tokens": 0, "words": 0, "bytes": 0}


@pytest.mark.parametrize("end", [0, None])
@pytest.mark.parametrize(("length", "stride"), [(4, 4), (4, 1), (4, 3), (7, 2), (50, 50)])
def test_every_token_is_scored_once_with_all_context_of_its_window(length, stride, end):
    """Windows of length + 1 ids, `stride` apart; of each the tokens that no window before has scored."""
    text, totals = "abc defghij", _totals()
    tokenizer: Tokenizer = Letters(end)  # pyright: ignore[reportAssignmentType]
    (ids,) = tokenizer.encode([text])
    row, scored, start = ([end, *ids] if end is not None else ids), [], 0
    config = GptConfig(vocab=16, length=50, layers=1, hidden=8, heads=2, ffn=8)
    scorer, shown = GptScorer(build(config), {}, tokenizer, length, stride, True), ""
    for each in scorer.rows([text], totals):
        window = row[start : start + length + 1]
        assert each.read == window[:-1] and list(each.labels) == [window[place + 1] for place in each.places]
        scored += [start + place + 1 for place in each.places]
        start += stride
        predictions = {"forward": [Prediction(0.0, 0.0, 1, [])] * len(each.labels)}
        shown += "".join(token.token for token in scorer.tokens(each, predictions))
    assert scored == list(range(1, len(row))) and shown == text
    counted = text if end is not None else text[1:]
    assert totals == {"documents": 1, "tokens": len(row) - 1, "words": 2, "bytes": len(counted)}


@pytest.mark.parametrize("end", [0, None])
def test_a_continuation_leaves_room_for_a_token_before_it(end):
    config = GptConfig(vocab=16, length=4, layers=1, hidden=8, heads=2, ffn=8)
    scorer = GptScorer(build(config), {}, Letters(end), 0, 0, True)  # pyright: ignore[reportArgumentType]
    fits = scorer.continuation("ab", "cdef", 0)
    (row,) = fits.rows
    assert (list(row.places), fits.tokens, len(row.read)) == ([0, 1, 2, 3], 4, 4)
    assert fits.truncated == (2 if end is not None else 1)
    with pytest.raises(DataError, match="example 3: the continuation has 5 tokens, and the model takes 4"):
        scorer.continuation("ab", "cdefg", 3)


def test_a_score_is_that_of_the_tokens_one_by_one():
    """Perplexity per token, per word and bits per byte of the same total; a stride gives context and counts once."""
    config = GptConfig(vocab=16, length=6, layers=1, hidden=8, heads=2, ffn=8, dropout=0.0, init_std=0.5)
    model = build(config, ("lm",))
    tokenizer: Tokenizer = Letters()  # pyright: ignore[reportAssignmentType]
    batch = example(
        {"tokens": "i32 BL", "mask": "i32 BL", "next": "i32 BL", "next_weights": "f32 BL"}, {"B": 1, "L": 6}
    )
    params = random_parameters(model, batch)
    documents = ["abc dé fgh", "aab"]
    nats, forward = 0.0, jax.jit(model.clone(heads={}).apply)
    for text in documents:
        row = [0, *tokenizer.encode([text])[0]]
        for at in range(1, len(row)):
            first = max(at - 1 - (at - 1) % 2 - 4, 0) if at > 6 else 0  # windows of 6, two new in each behind the first
            context = np.zeros((1, 6), np.int32)  # the rest is padding, which nothing before it sees
            context[0, : at - first] = row[first:at]
            out: Any = forward(
                {"params": {"backbone": params["backbone"]}},
                {"tokens": context, "mask": (np.arange(6) < at - first).astype(np.int32)[None]},
            )
            table = np.asarray(params["backbone"]["embeddings"]["tokens"], np.float64)
            logits = table @ np.asarray(out.encoding.hidden_BLD[0, at - first - 1], np.float64)
            nats += np.log(np.exp(logits).sum()) - logits[row[at]]
    result: Any = score_texts(model, params, tokenizer, documents, length=6, stride=2, batch=2)
    assert (result["documents"], result["tokens"], result["words"], result["bytes"]) == (2, 13, 4, 14)
    close(result["loss"], nats / 13)
    close(result["perplexity"], math.exp(nats / 13))
    close(result["word_perplexity"], math.exp(nats / 4), tolerance=1e-4)
    close(result["bits_per_byte"], nats / math.log(2) / 14)


def test_pools_of_a_bert_are_of_the_tokens_that_their_names_say():
    config = BertConfig(vocab=10, length=8, layers=2, hidden=8, heads=2, ffn=8, init_std=0.5)
    model, tokenizer = build(config), WordPiece(PIECES, True)
    fields = {"tokens": "i32 BL", "segments": "i32 BL", "mask": "i32 BL"}
    params = random_parameters(model, example(fields, {"B": 1, "L": 8}))
    lines = [[2, 5, 6, 7, 3], [2, 9, 3]]
    (whole, short) = embed(model, params, tokenizer, lines, EmbedOptions(batch=2))
    assert whole.shape == (3, 5, 8) and short.shape == (3, 3, 8)
    pooled = {
        pool: list(embed(model, params, tokenizer, lines, EmbedOptions(pool=pool, batch=2)))
        for pool in ("mean", "mean-words", "last", "cls")
    }
    for row, vectors in enumerate((whole, short)):
        assert_close(pooled["mean"][row], vectors.mean(1), rtol=1e-6, atol=1e-6)
        assert_close(pooled["mean-words"][row], vectors[:, 1:-1].mean(1), rtol=1e-6, atol=1e-6)
        assert np.array_equal(pooled["last"][row], vectors[:, -2])
        assert np.array_equal(pooled["cls"][row], vectors[:, 0])
    (top, _) = embed(model, params, tokenizer, lines, EmbedOptions(layers=(2,), batch=2))
    assert np.array_equal(top, whole[2:])
    (chosen, _) = embed(model, params, tokenizer, lines, EmbedOptions(layers=(2, 0), batch=2))
    assert np.array_equal(chosen, whole[[2, 0]])
