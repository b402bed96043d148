"""Ties go to the first: scores that differ by their rounding alone, which depends on what shares a batch, give one
answer."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contexture.models.heads.chunked_softmax import TIE, next_token_loss
from contexture.train.evaluation.spans import ranked
from contexture.train.objectives import best_place, cross_entropy, has_best, is_hit

ROUNDING = 3e-7


@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_rounding_changes_no_answer_and_no_hit(seed, classes):
    rng = np.random.default_rng(seed)
    # Steps of a tenth: some scores are equal, the others are apart.
    scores = (rng.integers(0, 3, (4, classes)) / 10).astype(np.float32)
    nearly = scores + rng.uniform(-ROUNDING, ROUNDING, scores.shape).astype(np.float32)
    labels = rng.integers(0, classes, 4)
    assert best_place(scores).tolist() == best_place(nearly).tolist() == scores.argmax(-1).tolist()
    assert has_best(scores).tolist() == has_best(nearly).tolist()
    assert [is_hit(each, label) for each, label in zip(nearly, labels, strict=True)] == [
        bool((each[label] > np.delete(each, label)).all()) for each, label in zip(scores, labels, strict=True)
    ]
    hits = [cross_entropy(jnp.asarray(x), jnp.asarray(labels))[1].tolist() for x in (scores, nearly)]
    assert hits[0] == hits[1]


def test_nan_is_no_best_and_infinity_is():
    nan, inf = np.nan, np.inf
    scores = np.array([[0.0, nan], [nan, nan], [1.0, -inf], [-inf, -inf]], np.float32)
    assert best_place(scores)[2] == 0
    assert has_best(scores).tolist() == [False, False, True, False]
    assert cross_entropy(jnp.array([[1.0, -inf]]), jnp.array([0]))[1].tolist() == [1]


@given(st.integers(0, 2**32 - 1), st.floats(-20, 20))
def test_spans_that_differ_by_rounding_are_ranked_by_place(seed, offset):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 4, 12) / 8 + offset
    expected = [*ranked(scores)]
    assert expected == np.lexsort((np.arange(12), -scores)).tolist()
    assert [*ranked(scores + rng.uniform(-ROUNDING, ROUNDING, 12))] == expected
    assert sorted(ranked(np.where(rng.random(12) < 0.3, np.nan, scores))) == [*range(12)]


@pytest.mark.parametrize(("lead", "hit"), [(0.0, 0), (TIE / 2, 0), (2 * TIE, 1)])
def test_a_next_token_is_a_hit_by_more_than_rounding(lead, hit):
    table = jnp.array([[1.0], [1.0 + lead], [0.5]])
    losses = next_token_loss(jnp.ones((1, 1, 1)), table, jnp.array([[1]]), jnp.ones((1, 1)))
    assert losses.hit_BL.tolist() == [[hit]]
