"""The probe and its figures, against slow references in float64 and scikit-learn."""

from typing import Any

import jax
import numpy as np
import pytest
from sklearn.metrics import f1_score, precision_recall_fscore_support

from contexture.analysis.probing import probe_model
from contexture.analysis.probing.probe_scores import (
    Counts,
    centre_of_gravity,
    differentials,
    divergence_from_uniform,
    expected_layer,
    majority_f1,
    micro_f1,
    precision_and_recall,
)
from contexture.analysis.probing.train_probes import TrainedProbes, measure_probes, predict_labels
from contexture.models.heads.layer_mix import ScalarMix
from contexture.models.shapes import by_path
from tests.analysis.probing.synthetic import synthetic_task
from tests.helpers.parity_rule import assert_close, close

RNG = np.random.default_rng(0)
mix_layers: Any = probe_model.mix_layers
mix_weights: Any = probe_model.mix_weights
pool_spans: Any = probe_model.pool_spans
probe_logits: Any = probe_model.probe_logits
binary_cross_entropy: Any = probe_model.binary_cross_entropy
"""Called with NumPy's arrays here, which their types do not name."""


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def test_the_mix_is_its_formula():
    units, weights = RNG.normal(size=(2, 1, 3, 4, 5)), RNG.normal(size=4)
    read = np.array([True, False, True, True])
    expected = np.zeros((2, 1, 3, 5))
    own = _softmax(weights[read])
    for weight, layer in zip(own, np.flatnonzero(read), strict=True):
        expected += 0.7 * weight * units[:, :, :, layer]
    mix = {"weights_N": weights.astype(np.float32), "gamma": np.float32(0.7)}
    close(mix_layers(mix, read, units.astype(np.float32)), expected)


def test_the_mix_of_all_layers_is_that_of_task_heads():
    units, weights = RNG.normal(size=(2, 3, 4, 5)).astype(np.float32), RNG.normal(size=4).astype(np.float32)
    mix = {"weights": weights, "gamma": np.float32(1.3)}
    layers = tuple(units[:, :, n] for n in range(4))
    ours = ScalarMix().apply({"params": mix}, layers, np.ones((2, 3), np.int32))
    of_probe = {"weights_N": weights, "gamma": np.float32(1.3)}
    close(mix_layers(of_probe, np.ones(4, bool), units[:, None])[:, 0], ours)


def test_a_pooled_span_is_its_formula_and_sees_no_padding():
    kernel, units = RNG.normal(size=(2, 5)), RNG.normal(size=(3, 2, 4, 5))
    lengths = np.array([[1, 4], [2, 3], [4, 1]])
    inside = np.arange(4) < lengths[..., None]
    expected = np.zeros((3, 2, 5))
    for b in range(3):
        for s in range(2):
            own = units[b, s, : lengths[b, s]]
            attention = _softmax(np.array([vector @ kernel[s] for vector in own]))
            expected[b, s] = sum(a * vector for a, vector in zip(attention, own, strict=True))
    padded = np.where(inside[..., None], units, 1e6).astype(np.float32)
    close(pool_spans(kernel.astype(np.float32), padded, inside), expected)


def test_a_probe_is_its_equations():
    params = probe_model.init_probe(jax.random.key(0), 3, 6, 2, 4)
    params = jax.tree.map(lambda x: x + RNG.normal(0, 0.2, x.shape).astype(np.float32), params)
    units = RNG.normal(size=(2, 2, 2, 3, 6)).astype(np.float32)
    inside = np.array([[[True, True], [True, False]], [[True, False], [True, True]]])
    read = np.array([True, True, False])
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    expected = np.zeros((2, 4))
    for b in range(2):
        sides = []
        for s in range(2):
            own = []
            for w in np.flatnonzero(inside[b, s]):
                own_weights = _softmax(p["mix"]["weights_N"][:2])
                mixed = p["mix"]["gamma"] * sum(own_weights[n] * units[b, s, w, n].astype(float) for n in range(2))
                own.append(mixed @ p["project"]["kernel_SDX"][s] + p["project"]["bias_SX"][s])
            attention = _softmax(np.array([x @ p["attend"]["kernel_SX"][s] for x in own]))
            sides.append(sum(a * x for a, x in zip(attention, own, strict=True)))
        hidden = p["hidden"]
        h = np.tanh(sum(sides[s] @ hidden["kernel_SXY"][s] for s in range(2)) + hidden["bias_Y"])
        h = (h - h.mean()) / np.sqrt(h.var() + 1e-5) * hidden["scale_Y"] + hidden["shift_Y"]
        expected[b] = h @ p["out"]["kernel_YC"] + p["out"]["bias_C"]
    close(probe_logits(params, read, units, inside), expected)


def test_a_fresh_probe_mixes_all_layers_alike():
    params = probe_model.init_probe(jax.random.key(0), 3, 6, 1, 4)
    close(mix_weights(params["mix"]["weights_N"], np.array([True, False, True])), [0.5, 0, 0.5])


def test_a_fresh_probes_kernels_are_drawn_by_how_many_numbers_they_sum():
    """One over the root of the fan-in, as LeCun. Each span has its own projection; the layer behind sums both."""
    params = probe_model.init_probe(jax.random.key(0), 3, 300, 2, 40)
    kernels = {path: x for path, x in by_path(params).items() if "kernel" in path}
    fan_in = {"project/kernel_SDX": 300, "attend/kernel_SX": 256, "hidden/kernel_SXY": 2 * 256, "out/kernel_YC": 512}
    for path, count in fan_in.items():
        x = np.asarray(kernels.pop(path))
        assert x.std() == pytest.approx(count**-0.5, rel=0.06), path
        assert abs(x.mean()) < 5 * count**-0.5 * x.size**-0.5, path
    assert not kernels


def test_cross_entropy_is_its_definition():
    logits, labels = RNG.normal(0, 3, (5, 4)), RNG.integers(2, size=(5, 4)).astype(float)
    p = 1 / (1 + np.exp(-logits))
    expected = -(labels * np.log(p) + (1 - labels) * np.log(1 - p)).mean(-1)
    close(binary_cross_entropy(logits.astype(np.float32), labels.astype(np.float32)), expected)


@pytest.mark.parametrize("probability", [0.05, 0.5, 0.9])
def test_micro_f1_is_scikit_learns(probability: float):
    rng = np.random.default_rng(1)
    gold, predicted = rng.random((40, 6)) < 0.3, rng.random((40, 6)) < probability
    counts = Counts(int((gold & predicted).sum()), int((~gold & predicted).sum()), int((gold & ~predicted).sum()))
    assert_close(micro_f1(counts), f1_score(gold, predicted, average="micro"), rtol=1e-12)
    precision, recall, _, _ = precision_recall_fscore_support(gold, predicted, average="micro")
    assert_close(precision_and_recall(counts), (precision, recall), rtol=1e-12)


def test_counts_of_a_probe_are_scikit_learns_of_its_predictions():
    examples, units = synthetic_task(70, labels=5, spans=2)
    one = [probe_model.init_probe(jax.random.key(n), 4, 12, 2, 5) for n in range(2)]
    params = jax.tree.map(lambda *xs: np.stack(xs), *one)
    layers = np.array([[True] * 4, [True, False, False, False]])
    counts, losses = measure_probes(params, layers, examples, units, 32)
    probes = TrainedProbes(params, layers, np.zeros(2, int), 0)
    probabilities = predict_labels(probes, examples, units)
    for each, own, loss in zip(counts, probabilities, losses, strict=True):
        assert each.right > 0
        assert_close(micro_f1(each), f1_score(examples.labels_TC, own > 0.5, average="micro"), rtol=1e-12)
        y, p = examples.labels_TC, own.astype(np.float64)
        assert_close(loss, -(y * np.log(p) + ~y * np.log(1 - p)).mean(), rtol=1e-5)


def test_labels_that_no_probe_can_predict_count_as_missed():
    from dataclasses import replace

    examples, units = synthetic_task(20)
    params = jax.tree.map(lambda x: x[None], probe_model.init_probe(jax.random.key(0), 4, 12, 1, 3))
    before, _ = measure_probes(params, np.ones((1, 4), bool), examples, units, 8)
    lacking = replace(examples, missed_T=np.array([2, *[0] * 18, 1]))
    after, _ = measure_probes(params, np.ones((1, 4), bool), lacking, units, 8)
    assert after[0] == before[0]._replace(missed=before[0].missed + 3)


def test_no_label_at_all_is_no_f1():
    assert micro_f1(Counts(0, 0, 0)) == 0.0
    assert precision_and_recall(Counts(0, 0, 0)) == (0.0, 0.0)


def test_centre_differentials_and_expected_layer_are_their_formulas():
    weights = [0.1, 0.2, 0.3, 0.4]
    assert_close(centre_of_gravity(weights), 0 * 0.1 + 1 * 0.2 + 2 * 0.3 + 3 * 0.4, rtol=1e-12)
    assert_close(centre_of_gravity([0.25, 0.75], [2, 4]), 3.5, rtol=1e-12)
    scores = [0.5, 0.7, 0.65, 0.9]
    gains = [0.7 - 0.5, 0.65 - 0.7, 0.9 - 0.65]
    assert_close(differentials(scores), gains, rtol=1e-12)
    assert_close(expected_layer(scores), (1 * gains[0] + 2 * gains[1] + 3 * gains[2]) / sum(gains), rtol=1e-12)
    assert expected_layer([0.7, 0.5]) is None


def test_divergence_is_that_from_equal_weights():
    assert abs(divergence_from_uniform([0.25] * 4)) < 1e-12
    assert_close(divergence_from_uniform([0, 0, 1, 0]), 2.0, rtol=1e-12)
    assert_close(divergence_from_uniform([0.5, 0.5, 0, 0]), 1.0, rtol=1e-12)


def test_the_majority_is_that_of_the_training_set():
    train = np.array([[1, 0], [1, 0], [0, 1]], bool)
    dev = np.array([[1, 0], [0, 1], [0, 1], [1, 1]], bool)
    expected = f1_score(dev, np.tile([True, False], (4, 1)), average="micro")
    assert_close(majority_f1(train, dev, 0), expected, rtol=1e-12)
    assert majority_f1(train, dev, 4) < expected
