"""What an example counts: class weights in the loss, over the whole batch, however the batch is cut into parts."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from contexture.data.config import DataConfig, TaskConfig
from contexture.data.tasks.batch.batches import HeldOutTask
from contexture.data.tasks.batch.training_batches import TaskBatches
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tasks.read.labels import class_weights
from contexture.data.tokenizers.wordpiece import SPECIAL, WordPiece
from contexture.models.encoding import Encoding
from contexture.models.model import Outputs
from contexture.train.objectives import OBJECTIVES, cross_entropy, loss, means
from tests.helpers.parity_rule import assert_differs, close

WEIGHTS_C = np.array([1.0, 2.5, 0.5], np.float32)
NOTHING = Encoding(jnp.zeros((1, 1, 1)), jnp.ones((1, 1), jnp.int32))


def _drawn(kind: str) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Logits, the labels' numbers (-1: none) and the batch of 8 lines."""
    rng = np.random.default_rng(3)
    if kind == "classify":
        logits, labels = rng.normal(size=(8, 3)).astype(np.float32), rng.integers(0, 3, 8)
        batch = {"labels": labels, "weights": WEIGHTS_C[labels], "valid": np.ones(8, np.float32)}
    else:
        logits, labels = rng.normal(size=(8, 4, 3)).astype(np.float32), rng.integers(-1, 3, (8, 4))
        weights = np.where(labels >= 0, WEIGHTS_C[labels], 0.0).astype(np.float32)
        batch = {"tags": labels, "tag_weights": weights, "valid": np.ones(8, np.float32)}
    return logits, labels, batch


def _losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    return np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, np.maximum(labels, 0)[..., None], -1)[..., 0]


@pytest.mark.parametrize("kind", ["classify", "tag"])
def test_a_loss_is_the_mean_over_the_weights_of_its_labels(kind):
    """Σ w·loss / Σ w, not the mean over examples; accuracy counts every example once."""
    logits, labels, batch = _drawn(kind)
    objective, outputs = OBJECTIVES[kind], Outputs(NOTHING, {kind: jnp.asarray(logits)})
    sums = objective.sums(outputs, batch)
    counted = labels >= 0
    weights = np.where(counted, WEIGHTS_C[labels], 0.0)
    expected = (weights * _losses(logits, labels)).sum() / weights.sum()
    close(loss(objective, sums, objective.weights(batch)), expected)
    assert_differs(expected, _losses(logits, labels)[counted].mean(), 1e-3)
    hits = (logits.argmax(-1) == labels)[counted]
    assert float(means(sums)["accuracy"]) == pytest.approx(hits.mean(), rel=1e-6)


def test_a_batch_holds_the_weight_of_each_label_and_none_of_padding(tmp_path):
    """In training and on held-out examples; a tag's stands where its word is read."""
    tokenizer = WordPiece([*SPECIAL, "w", "##x"], lowercase=True)
    data = DataConfig(batch=4, length=16, max_predictions=1)
    (tmp_path / "t.tsv").write_text("text\tlabel\nw\ta\nw w\tb\nwx\tb\n", "utf-8")
    task = TaskConfig(kind="classify", train=(str(tmp_path / "t.tsv"),), class_weights=("b=2.5", "a=0.5"))
    store = encode(task, tokenizer, tmp_path / "classify")
    batch = TaskBatches(store, tokenizer, data, task, seed=0, family="bert").read(0)
    assert np.array_equal(batch["weights"], np.array([0.5, 2.5], np.float32)[batch["labels"]])
    weights = class_weights(task, store.labels, store.counts)
    held = HeldOutTask(store.splits["train"], tokenizer, data, 4, weights, family="bert").read(0)
    # Room for a power of two: the last slot holds nothing.
    assert held["weights"].tolist() == [0.5, 2.5, 2.5, 0.0]
    (tmp_path / "t.conll").write_text("w a\nwx b\n\nw b\n\nwx b\n", "utf-8")
    task = TaskConfig(kind="tag", train=(str(tmp_path / "t.conll"),), class_weights=("b=2.5",))
    store = encode(task, tokenizer, tmp_path / "tag")
    weights = class_weights(task, store.labels, store.counts)
    held = HeldOutTask(store.splits["train"], tokenizer, data, 3, weights, family="bert").read(0)
    one = [0.0, 2.5, 0.0, 0.0, 0.0]
    assert held["tag_weights"][:, :5].tolist() == [[0.0, 1.0, 2.5, 0.0, 0.0], one, one, [0.0] * 5]


@pytest.mark.parametrize("kind", ["classify", "tag"])
def test_parts_of_a_batch_are_weighted_by_the_whole_batch(kind):
    """Each part is divided by the weight of the whole, so that the parts' losses add up to the whole's."""
    logits, _, batch = _drawn(kind)
    objective = OBJECTIVES[kind]
    whole = objective.weights(batch)
    total = loss(objective, objective.sums(Outputs(NOTHING, {kind: jnp.asarray(logits)}), batch), whole)
    parts = []
    for first in (0, 1, 2):
        rows = slice(first, None, 3)  # parts of unlike weights
        part = {name: x[rows] for name, x in batch.items()}
        parts.append(loss(objective, objective.sums(Outputs(NOTHING, {kind: jnp.asarray(logits[rows])}), part), whole))
    close(sum(map(float, parts)), total, tolerance=1e-6)


def test_a_line_without_weight_counts_for_nothing():
    logits, _, batch = _drawn("classify")
    objective = OBJECTIVES["classify"]
    batch["weights"][3] = batch["valid"][3] = 0.0
    sums = objective.sums(Outputs(NOTHING, {"classify": jnp.asarray(logits)}), batch)
    moved = objective.sums(Outputs(NOTHING, {"classify": jnp.asarray(logits).at[3].add(7.0)}), batch)
    for name in sums:
        assert float(sums[name].total) == float(moved[name].total) != 0.0
        assert float(sums[name].weight) == pytest.approx(batch["weights" if "loss" in name else "valid"].sum())


def test_balanced_weights_are_the_inverse_of_how_often_a_label_is():
    """n/(classes · count), as scikit-learn's: every class has the same weight in all."""
    task = TaskConfig(kind="classify", class_weights=("balanced",))
    weights = class_weights(task, ("a", "b", "c"), (30, 10, 20))
    close(weights, [60 / 90, 2.0, 1.0], tolerance=1e-6)
    close(weights * [30, 10, 20], [20.0] * 3, tolerance=1e-6)


def test_cross_entropy_is_in_nats_and_a_hit_is_the_one_largest_logit():
    logits = np.array([[0.0, 0.0], [2.0, 1.0], [1.0, 3.0]], np.float32)
    losses, hit = cross_entropy(jnp.asarray(logits), jnp.asarray([0, 0, 0]))
    close(losses, [np.log(2), np.log1p(np.exp(-1)), np.log1p(np.exp(2))], tolerance=1e-6)
    assert hit.tolist() == [0.0, 1.0, 0.0]  # a tie is no hit
