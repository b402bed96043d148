"""What is optimised, by hand: the terms of each loss, their weights, and what is measured beside them."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from contexture.data.pretraining import sentence_pairs
from contexture.data.task_kinds import KINDS
from contexture.models.encoding import Encoding
from contexture.models.heads.chunked_softmax import TokenLosses
from contexture.models.model import Outputs
from contexture.train.objectives import OBJECTIVES, Sum, cross_entropy, loss, mean, means, without_padding
from tests.helpers.parity_rule import assert_differs, close

NOTHING = Encoding(jnp.zeros((1, 1, 1)), jnp.ones((1, 1), jnp.int32))


def _loss_of(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    return np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, labels[..., None], -1)[..., 0]


def _found(name: str, heads: dict[str, Any], batch: dict[str, Any]) -> tuple[float, dict[str, float]]:
    objective = OBJECTIVES[name]
    sums = objective.sums(Outputs(NOTHING, heads), batch)
    total = loss(objective, sums, objective.weights(batch))
    return float(total), {key: float(x) for key, x in means(sums).items()}


def test_masked_tokens_and_next_sentence_are_two_means():
    """Over the slots in use (the original adds 1e-5 to their count), and over the lines."""
    rng = np.random.default_rng(0)
    mlm, nsp = rng.normal(size=(4, 3, 7)).astype(np.float32), rng.normal(size=(4, 2)).astype(np.float32)
    labels, is_random = rng.integers(0, 7, (4, 3)), rng.integers(0, 2, 4)
    weights = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 1]], np.float32)
    batch = {"labels": labels, "is_random": is_random, "slot_weights": weights, "valid": np.ones(4, np.float32)}
    total, measured = _found("mlm_nsp", {"mlm": jnp.asarray(mlm), "nsp": jnp.asarray(nsp)}, batch)
    slots, lines = (_loss_of(mlm, labels) * weights).sum(), _loss_of(nsp, is_random).mean()
    close(total, slots / (6 + 1e-5) + lines, tolerance=1e-6)
    close(measured["mlm_loss"], slots / 6, tolerance=1e-6)
    close(measured["nsp_loss"], lines, tolerance=1e-6)
    hits = (mlm.argmax(-1) == labels)[weights > 0].mean()
    assert measured["mlm_accuracy"] == pytest.approx(hits)
    none, _ = _found(
        "mlm_nsp", {"mlm": jnp.asarray(mlm), "nsp": jnp.asarray(nsp)}, batch | {"slot_weights": 0 * weights}
    )
    close(none, lines, tolerance=1e-6)  # 0/1e-5, not 0/0


def test_a_bilms_loss_is_half_of_both_and_its_perplexity_that_of_both():
    def scored(total: float) -> TokenLosses:
        return TokenLosses(jnp.float32(total), jnp.zeros((2, 3)), jnp.zeros((2, 3)))

    batch = {"next_weights": np.array([[1, 1, 1], [1, 0, 0]], np.float32),
             "next_weights_backward": np.array([[1, 1, 0], [0, 0, 0]], np.float32)}  # fmt: skip
    heads = {"bilm": {"forward": scored(8.0), "backward": scored(6.0)}}
    total, measured = _found("bilm", heads, batch)
    assert total == pytest.approx(0.5 * 8 / 4 + 0.5 * 6 / 2)
    assert measured["full_perplexity"] == pytest.approx(np.exp(14 / 6), rel=1e-6)
    assert "sampled_perplexity" in _found("bilm", heads, batch | {"negatives": np.zeros((2, 3))})[1]


def test_a_spans_loss_is_half_the_sum_of_both_ends():
    rng = np.random.default_rng(1)
    logits, starts, ends = rng.normal(size=(3, 5, 2)).astype(np.float32), np.array([0, 4, 2]), np.array([1, 4, 2])
    weights = np.array([1, 1, 0], np.float32)
    batch = {"starts": starts, "ends": ends, "weights": weights, "valid": weights}
    both = (_loss_of(logits[..., 0], starts) + _loss_of(logits[..., 1], ends)) / 2
    close(_found("span", {"span": jnp.asarray(logits)}, batch)[0], both[:2].mean(), tolerance=1e-6)


def test_a_regressions_loss_is_the_squared_error_of_lines_that_count():
    values, targets = np.array([[1.0], [2.0], [9.0]], np.float32), np.array([0.5, 4.0, 0.0], np.float32)
    batch = {"targets": targets, "valid": np.array([1, 1, 0], np.float32)}
    assert _found("regress", {"regress": jnp.asarray(values)}, batch)[0] == pytest.approx((0.25 + 4) / 2)


def test_a_mean_on_the_host_is_that_on_the_device():
    sums = {"loss": Sum(jnp.float32(6), jnp.float32(4)), "full_perplexity": Sum(jnp.float32(6), jnp.float32(4))}
    for name, value in means(sums).items():
        assert mean(name, 6.0, 4.0) == pytest.approx(float(value), rel=1e-6)
    assert_differs(means(sums)["loss"], means(sums)["full_perplexity"], 1.0)


def test_padding_is_no_place_of_an_answer_in_the_loss():
    logits_BLC, mask_BL = np.random.default_rng(2).normal(size=(3, 9, 2)), np.ones((3, 9), np.int32)
    mask_BL[:, 6:] = 0
    padded, _ = cross_entropy(without_padding(jnp.asarray(logits_BLC), jnp.asarray(mask_BL))[:, :, 1], jnp.arange(3))
    whole, _ = cross_entropy(jnp.asarray(logits_BLC[:, :6, 1]), jnp.arange(3))
    close(padded, whole)
    # A row that only fills up a batch has nothing but padding.
    nothing, _ = cross_entropy(without_padding(jnp.asarray(logits_BLC), jnp.zeros((3, 9)))[:, :, 0], jnp.arange(3))
    assert np.isfinite(nothing).all()


SHAPES = {"mlm": (3, 7), "nsp": (2,), "classify": (4,), "choice": (4,), "tag": (5, 6), "span": (5, 2), "regress": (1,)}
COUNTS = {"labels": 4, "is_random": 2, "tags": 6, "starts": 5, "ends": 5}
"""Of each head, the dims behind the first; of each field of whole numbers, how many there are."""


@pytest.mark.parametrize("name", ["mlm_nsp", "classify", "regress", "tag", "choice", "span"])
def test_lines_that_fill_up_a_batch_change_no_sum(name: str):
    objective, rng, lines = OBJECTIVES[name], np.random.default_rng(5), 5
    sizes = {"B": (lines,), "BL": (lines, 5), "BP": (lines, 3), "BA": (lines, 4)}
    batch: dict[str, Any] = {}
    for field, kind in (sentence_pairs.FIELDS if name == "mlm_nsp" else KINDS[name].batch).items():
        if field in ("tokens", "segments", "mask", "slots"):
            continue
        dtype, dims = kind.split()
        numbers = (
            rng.integers(0, COUNTS.get(field, 3), sizes[dims]) if dtype == "i32" else rng.uniform(1, 2, sizes[dims])
        )
        batch[field] = numbers.astype({"i32": np.int32, "f32": np.float32}[dtype])
    batch["valid"] = np.ones(lines, np.float32)
    heads = {head: rng.normal(size=(lines, *SHAPES[head])).astype(np.float32) for head in objective.heads}
    for field in batch.keys() & {"valid", "weights", "slot_weights", "tag_weights"}:
        batch[field][3:] = 0
    sums = objective.sums(Outputs(NOTHING, {head: jnp.asarray(x) for head, x in heads.items()}), batch)
    alone = objective.sums(
        Outputs(NOTHING, {head: jnp.asarray(x[:3]) for head, x in heads.items()}),
        {field: x[:3] for field, x in batch.items()},
    )
    assert sums.keys() == alone.keys()
    for each, own in alone.items():
        expected = float(own.total), float(own.weight)
        assert (float(sums[each].total), float(sums[each].weight)) == pytest.approx(expected, rel=1e-5), each
