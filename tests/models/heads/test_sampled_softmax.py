"""ELMo's sampled softmax against its equations in NumPy, in float64 (Jean et al. 2015; bilm-tf)."""

import jax.numpy as jnp
import numpy as np

from contexture.models.heads.sampled_softmax import expected_count, sampled_loss
from tests.helpers.parity_rule import assert_differs, close

B, L, J, V, S, TRIES = 2, 3, 5, 40, 6, 9


def _inputs() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x, kernel, bias = rng.normal(size=(B, L, J)), rng.normal(size=(V, J)), rng.normal(size=V)
    negatives = rng.choice(V, S, replace=False)
    following = rng.integers(0, V, (B, L))
    following[0, 0] = negatives[2]  # an accidental hit
    return x, kernel, bias, following, negatives


def _log_counts(ids: np.ndarray) -> np.ndarray:
    """log(1 - (1 - p)^tries), p = log((k + 2)/(k + 1))/log(V + 1): the log-uniform sampler without repeats."""
    p = np.log((ids + 2) / (ids + 1)) / np.log(V + 1)
    return np.log(1 - (1 - p) ** TRIES)


def _wanted(corrected: bool) -> np.ndarray:
    x, kernel, bias, following, negatives = _inputs()
    take = _log_counts if corrected else lambda ids: 0.0 * ids
    loss = np.empty((B, L))
    for row, column in np.ndindex(B, L):
        word = following[row, column]
        others = negatives[negatives != word]
        own = x[row, column] @ kernel[word] + bias[word] - take(word)
        logits = np.append(x[row, column] @ kernel[others].T + bias[others] - take(others), own)
        loss[row, column] = np.log(np.exp(logits).sum()) - own
    return loss


def _got() -> np.ndarray:
    x, kernel, bias, following, negatives = _inputs()
    x, kernel, bias = (jnp.asarray(a, jnp.float32) for a in (x, kernel, bias))
    return np.asarray(sampled_loss(x, kernel, bias, jnp.asarray(following), jnp.asarray(negatives), jnp.float32(TRIES)))


def test_each_logit_has_the_log_of_its_expected_count_taken_off():
    close(_got(), _wanted(corrected=True))
    assert_differs(_wanted(corrected=False), _wanted(corrected=True), 0.1)


def test_the_expected_count_of_a_word_falls_with_its_rank_and_is_a_chance():
    ids = np.arange(V)
    result = np.asarray(expected_count(jnp.asarray(ids), jnp.float32(TRIES), V))
    close(result, np.exp(_log_counts(ids)))
    assert (np.diff(result) < 0).all() and 0 < result[-1] and result[0] < 1
    close(expected_count(jnp.asarray(ids), jnp.float32(1), V).sum(), 1.0)  # one draw finds one word
