"""Laws of probes on features whose content is known (Tenney et al. 2019b; Hewitt and Liang 2019)."""

from dataclasses import replace

import numpy as np
import pytest

from contexture.analysis.options import ProbeOptions
from contexture.analysis.probing.probe import _probe_task
from contexture.analysis.probing.probe_examples import ProbeExamples, control_task, encode_targets
from contexture.analysis.probing.probe_scores import (
    centre_of_gravity,
    expected_layer,
    majority_f1,
    micro_f1,
)
from contexture.analysis.probing.span_features import SpanFeatures
from contexture.analysis.probing.target_types import Sentence, Target
from contexture.analysis.probing.train_probes import (
    layers_of,
    measure_probes,
    predict_labels,
    train_probes,
)
from contexture.data.cancel import NEVER
from tests.analysis.probing.synthetic import joined, synthetic_task
from tests.helpers.long import long
from tests.helpers.parity_rule import assert_close, close

HOW = ProbeOptions(lr=3e-3, epochs=6, batch=32)
CARRIERS = ((0, 1), (2, 1), (3, 1), (2, 2))
"""A layer, and the spans of a target."""
CUMULATIVE = [list(range(n + 1)) for n in range(4)]


def _f1(train: ProbeExamples, dev: ProbeExamples, units: np.ndarray, which: list[list[int]], how=HOW) -> list[float]:
    probes = train_probes(train, dev, units, layers_of(which, units.shape[1]), how)
    counts, _ = measure_probes(probes.params, probes.layers_PN, dev, units, 32)
    return [micro_f1(each) for each in counts]


@pytest.mark.parametrize(
    ("carrier", "spans", "count", "rate"), [(2, 1, 300, 1e-2), *long(*((n, k, 600, 3e-3) for n, k in CARRIERS))]
)
def test_a_label_in_one_layer_is_there_for_mix_and_cumulative_scores(carrier: int, spans: int, count: int, rate: float):
    train, dev, units = joined(
        synthetic_task(count, carrier=carrier, spans=spans), synthetic_task(150, carrier=carrier, spans=spans, seed=1)
    )
    how = replace(HOW, lr=rate, epochs=round(7200 * 3e-3 / rate / count), patience=12)
    probes = train_probes(train, dev, units, layers_of(CUMULATIVE, 4), how)
    counts, _ = measure_probes(probes.params, probes.layers_PN, dev, units, 32)
    scores = [micro_f1(each) for each in counts]
    assert all(score < 0.6 for score in scores[:carrier])
    assert all(score > 0.97 for score in scores[carrier:])
    weights = probes.weights_PN[-1]
    assert weights.argmax() == carrier and weights[carrier] > 1.2 * np.sort(weights)[-2]
    # The centre moves from the middle of equal weights, 1.5, towards the layer; the expected layer is there.
    assert abs(centre_of_gravity(weights) - carrier) < abs(1.5 - carrier)
    if carrier:
        found = expected_layer(scores)
        assert found is not None and abs(found - carrier) < 0.25


@pytest.mark.long
def test_each_layer_alone_has_the_label_or_has_it_not():
    train, dev, units = joined(synthetic_task(600), synthetic_task(150, seed=1))
    scores = _f1(train, dev, units, [[0], [1], [2], [3]])
    assert int(np.argmax(scores)) == 2 and scores[2] > 0.97 and max(scores[:2] + scores[3:]) < 0.6


@pytest.mark.long
def test_shuffled_labels_fall_to_the_majority():
    shares = 0.8, 0.2
    train, dev, units = joined(
        synthetic_task(600, labels=2, shares=shares), synthetic_task(400, labels=2, shares=shares, seed=1)
    )
    assert _f1(train, dev, units, [[0, 1, 2, 3]])[0] > 0.97
    shuffled = replace(train, labels_TC=np.random.default_rng(3).permutation(train.labels_TC))
    # With a low rate nothing is learnt by heart, and the frequent label is all that there is to know.
    fallen = _f1(shuffled, dev, units, [[0, 1, 2, 3]], replace(HOW, lr=1e-4))[0]
    majority = majority_f1(shuffled.labels_TC, dev.labels_TC, 0)
    assert 0.7 < majority < 0.9
    assert_close(fallen, majority, atol=0.03)


def _word_task(count: int, types: int, seed: int) -> tuple[ProbeExamples, np.ndarray]:
    """Targets whose features say which word stands there and nothing else."""
    drawn = np.random.default_rng(seed).integers(types, size=count)
    units = np.repeat(6 * np.eye(types, dtype=np.float32)[drawn][:, None], 2, 1)
    spans = np.stack([np.arange(count), np.arange(count) + 1], -1)[:, None]
    labels = np.eye(3, dtype=bool)[drawn % 3]
    words = [((f"w{n}",),) for n in drawn]
    return ProbeExamples(spans, labels, np.zeros(count, int), words, 0, {}), units


@pytest.mark.long
def test_a_probe_that_knows_words_by_heart_has_no_selectivity():
    train, dev, units = joined(_word_task(900, 24, 0), _word_task(200, 24, 1))
    score = _f1(train, dev, units, [[0, 1]])[0]
    drawn = [control_task(each, train.labels_TC, 0) for each in (train, dev)]
    control = _f1(drawn[0], drawn[1], units, [[0, 1]])[0]
    assert score > 0.97 and abs(score - control) < 0.03


@pytest.mark.long
def test_features_without_the_word_leave_the_control_task_unsolved():
    train, dev, units = joined(synthetic_task(600), synthetic_task(150, seed=1))
    drawn = np.random.default_rng(0).integers(40, size=750)
    words = [((f"w{n}",),) for n in drawn]
    train, dev = replace(train, words=words[:600]), replace(dev, words=words[600:])
    score = _f1(train, dev, units, [[0, 1, 2, 3]])[0]
    control_train, control_dev = (control_task(each, train.labels_TC, 0) for each in (train, dev))
    control = _f1(control_train, control_dev, units, [[0, 1, 2, 3]])[0]
    assert score - control > 0.4


def test_a_control_label_is_a_function_of_the_words():
    train, _ = _word_task(900, 24, 0)
    control = control_task(train, train.labels_TC, 5)
    of_word: dict[object, set[bytes]] = {}
    for words, row in zip(control.words, control.labels_TC, strict=True):
        of_word.setdefault(words, set()).add(row.tobytes())
    assert {len(rows) for rows in of_word.values()} == {1}
    assert len({next(iter(rows)) for rows in of_word.values()}) == 3
    other = control_task(train, train.labels_TC, 6)
    assert (control.labels_TC != other.labels_TC).any()


def test_a_control_label_of_a_pair_is_one_of_both_words():
    train, _ = synthetic_task(400, labels=2, spans=2)
    pairs = [((f"a{n % 2}",), (f"b{n}",)) for n in range(400)]
    rows = control_task(replace(train, words=pairs), train.labels_TC, 0).labels_TC
    assert {tuple(row) for row in rows[::2]} == {tuple(row) for row in rows[1::2]} == {(True, False), (False, True)}


def test_labels_that_the_training_set_lacks_are_missed():
    sentence = Sentence(("a", "cat"), (Target((0, 2), None, ("x", "new")), Target((1, 2), None, ("new",))), "f:1")
    features = SpanFeatures(np.zeros((3, 2, 4), np.float32), [np.array([0, 1])], [np.array([1, 3])], 3)
    examples = encode_targets([sentence], {sentence.words: 0}, features, ("w", "x"))
    assert examples.labels_TC.tolist() == [[False, True], [False, False]]
    assert examples.missed_T.tolist() == [1, 1] and examples.unknown == {"new": 2}
    assert examples.spans_TS2.tolist() == [[[0, 3]], [[1, 3]]]
    assert examples.words == [(("a", "cat"),), (("cat",),)]


def test_control_labels_are_as_frequent_as_the_tasks():
    train, _ = synthetic_task(4000, shares=(0.7, 0.2, 0.1))
    control = control_task(train, train.labels_TC, 0)
    assert_close(control.labels_TC.mean(0), train.labels_TC.mean(0), atol=0.03)


def test_probes_trained_together_are_those_trained_alone():
    train, dev, units = joined(synthetic_task(200), synthetic_task(60, seed=1))
    how = replace(HOW, epochs=3)
    together = train_probes(train, dev, units, layers_of(CUMULATIVE, 4), how)
    for probe in (0, 2):
        alone = train_probes(train, dev, units, layers_of([CUMULATIVE[probe]], 4), how)
        assert alone.epochs_P[0] == together.epochs_P[probe]
        a, b = (predict_labels(each, dev, units)[p] for each, p in ((alone, 0), (together, probe)))
        close(a, b, tolerance=1e-4)


def test_a_probe_that_is_done_stays_as_it_is():
    train, dev, units = joined(synthetic_task(200), synthetic_task(60, seed=1))
    train = replace(train, labels_TC=np.roll(train.labels_TC, 40, 0))
    short = train_probes(train, dev, units, layers_of([[2]], 4), replace(HOW, epochs=30, patience=1))
    assert short.trained < 30 and short.epochs_P[0] == short.trained - 1
    both = train_probes(train, dev, units, layers_of([[2], [0]], 4), replace(HOW, epochs=30, patience=1))
    assert both.epochs_P[0] == short.epochs_P[0]
    close(predict_labels(both, dev, units)[0], predict_labels(short, dev, units)[0], tolerance=1e-4)


@pytest.mark.long
def test_predictions_do_not_depend_on_the_batch():
    train, dev, units = joined(synthetic_task(200, spans=2), synthetic_task(45, seed=1, spans=2))
    longer = np.random.default_rng(0).choice([0, 3], size=(45, 2, 1))  # few widths, each of which is compiled for
    dev = replace(dev, spans_TS2=dev.spans_TS2 - longer * [[[1, 0]]])
    probes = train_probes(train, dev, units, layers_of(CUMULATIVE, 4), replace(HOW, epochs=2))
    one, many = (predict_labels(probes, dev, units, batch) for batch in (1, 32))
    close(one, many)
    counts_one, losses_one = measure_probes(probes.params, probes.layers_PN, dev, units, 1)
    counts_many, losses_many = measure_probes(probes.params, probes.layers_PN, dev, units, 32)
    assert counts_one == counts_many
    close(losses_one, losses_many)


def test_the_best_layer_is_chosen_on_dev_and_measured_on_test():
    """The label stands in layers 1 and 3 of the training set, in 1 of dev, and in 3 of test."""
    parts = {"train": synthetic_task(300, carrier=1), "dev": synthetic_task(150, carrier=1, seed=1),
             "test": synthetic_task(150, carrier=3, seed=2)}  # fmt: skip
    parts["train"][1][:, 3] = parts["train"][1][:, 1]
    starts = np.cumsum([0, *(len(units) for _, units in parts.values())])
    sets = {name: replace(own, spans_TS2=own.spans_TS2 + start)
            for (name, (own, _)), start in zip(parts.items(), starts, strict=False)}  # fmt: skip
    features = SpanFeatures(np.concatenate([units for _, units in parts.values()]), [], [], 1)
    row = _probe_task(sets, features, [0, 1, 2, 3], replace(HOW, lr=1e-2, layers="each", control=False), NEVER)
    assert row["split"] == "test" and row["best_layer"] == 1 and row["f1"] == row["layer_f1"][1] < 0.6
    assert row["layer_f1"][3] > 0.97
