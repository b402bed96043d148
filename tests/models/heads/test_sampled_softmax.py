"""ELMo's sampled softmax against its equations in NumPy, in float64 (Jean et al. 2015; bilm-tf)."""

import jax
import jax.numpy as jnp
import numpy as np

from contexture.models.heads.sampled_softmax import (
    WordRows,
    expected_count,
    gather_words,
    number_words,
    sampled_loss,
)
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
    batch = {"next": following, "next_backward": following, "negatives": negatives[None]}
    labels, _, rows = gather_words(kernel, bias, {name: jnp.asarray(ids) for name, ids in batch.items()})
    drawn = WordRows(*(x[0] for x in rows))
    return np.asarray(sampled_loss(x, labels, drawn, jnp.float32(TRIES), V))


def test_each_logit_has_the_log_of_its_expected_count_taken_off():
    close(_got(), _wanted(corrected=True))
    assert_differs(_wanted(corrected=False), _wanted(corrected=True), 0.1)


def test_the_expected_count_of_a_word_falls_with_its_rank_and_is_a_chance():
    ids = np.arange(V)
    result = np.asarray(expected_count(jnp.asarray(ids), jnp.float32(TRIES), V))
    close(result, np.exp(_log_counts(ids)))
    assert (np.diff(result) < 0).all() and 0 < result[-1] and result[0] < 1
    close(expected_count(jnp.asarray(ids), jnp.float32(1), V).sum(), 1.0)  # one draw finds one word


def test_one_words_number_is_the_same_in_all_places():
    """The example of the docstring, and words drawn: each number leads to its word, and numbers no word twice."""
    drawn = np.random.default_rng(0).integers(0, 8, (3, 2, 3))
    for shape, ids in (((1, 4), [7, 3, 7, 9]), ((2, 3), drawn[0])):
        following = np.reshape(ids, shape)
        batch = {"next": following, "next_backward": drawn[1], "negatives": drawn[2]}
        words, numbered = number_words({name: jnp.asarray(x, jnp.int32) for name, x in batch.items()}, 10)
        assert np.array_equal(words, numbered["words"])
        for name, places in batch.items():
            assert np.array_equal(np.asarray(words)[np.asarray(numbered[name])], places)
        used = np.unique(np.concatenate([np.asarray(numbered[name]).ravel() for name in batch]))
        unused = np.setdiff1d(np.arange(words.size), used)
        assert len(set(np.asarray(words)[used])) == len(used) and len(set(np.asarray(words).tolist())) == words.size
        assert (np.asarray(words)[unused] >= 10).all()


def test_a_table_is_read_by_one_gather_and_written_by_one_scatter():
    x, kernel, bias, following, negatives = _inputs()
    batch = {"next": following, "next_backward": following[::-1], "negatives": np.stack([negatives, negatives[::-1]])}

    def loss(kernel, bias):
        forward, backward, rows = gather_words(kernel, bias, {name: jnp.asarray(ids) for name, ids in batch.items()})
        losses = [
            sampled_loss(jnp.asarray(x), labels, WordRows(*(part[number] for part in rows)), jnp.float32(TRIES), V)
            for number, labels in enumerate((forward, backward))
        ]
        return losses[0].sum() + losses[1].sum()

    text = jax.jit(jax.grad(loss, argnums=0)).lower(*(jnp.asarray(a, jnp.float32) for a in (kernel, bias))).as_text()
    table = f"tensor<{V}x{J}xf32>"
    gathers = [line for line in text.splitlines() if "stablehlo.gather" in line and table in line]
    assert len(gathers) == 1 and text.count('"stablehlo.scatter"') == 1
