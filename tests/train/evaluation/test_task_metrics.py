"""Metrics of labelled tasks equal a slow count by hand from their definitions, and never warn."""

import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data.tasks.read.entity_schemes import entity_tags, why_no_entities
from contexture.train.evaluation.predictions import majority_baseline
from contexture.train.evaluation.task_metrics import (
    class_table,
    classified,
    majority,
    mean_guess,
    numbers,
    regressed,
    tag_table,
    tagged,
)

quick = settings(max_examples=100, deadline=None, database=None)


def near(got: dict, expected: dict) -> None:
    assert got.keys() == expected.keys()
    for name, value in got.items():
        assert type(value) is float, name
        assert value == pytest.approx(expected[name], rel=1e-9, abs=1e-9, nan_ok=True), name


def share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def by_hand(gold: list, predicted: list) -> dict:
    """Each thing's precision, recall, F1 and count in gold, from pairs counted one by one."""
    hits, answered, count = Counter(), Counter(predicted), Counter(gold)
    for right, answer in zip(gold, predicted, strict=True):
        hits[right] += right == answer
    return {
        thing: (
            share(hits[thing], answered[thing]),
            share(hits[thing], count[thing]),
            share(2 * hits[thing], answered[thing] + count[thing]),
            count[thing],
        )
        for thing in answered | count
    }


def matthews_by_hand(gold: list, predicted: list) -> float:
    """The correlation of the two one-hot tables: Σ over classes of their covariances."""
    n, right, answered, count = len(gold), sum(map(int.__eq__, gold, predicted)), Counter(predicted), Counter(gold)
    both = right * n - sum(answered[k] * count[k] for k in answered)
    spread = (n * n - sum(c * c for c in answered.values())) * (n * n - sum(c * c for c in count.values()))
    return share(both, math.sqrt(spread))


@st.composite
def classes(draw):
    """Labels, and numbers of them; a predicted -1 is no answer."""
    labels = draw(st.integers(1, 6))
    pairs = draw(st.lists(st.tuples(st.integers(0, labels - 1), st.integers(-1, labels - 1)), min_size=1, max_size=40))
    gold, predicted = map(list, zip(*pairs, strict=True))
    return [f"label {i}" for i in range(labels)], gold, predicted


@quick
@given(classes())
def test_classified_is_the_count_by_hand(case):
    labels, gold, predicted = case
    rates = by_hand(gold, predicted)
    rates.pop(-1, None)
    expected = {
        "accuracy": sum(map(int.__eq__, gold, predicted)) / len(gold),
        "f1_macro": sum(f1 for _, _, f1, _ in rates.values()) / len(rates),
        "f1_weighted": sum(f1 * count for _, _, f1, count in rates.values()) / len(gold),
        "matthews": matthews_by_hand(gold, predicted),
    }
    if len(labels) == 2:
        expected["precision"], expected["recall"], expected["f1"] = rates.get(1, (0.0, 0.0, 0.0, 0))[:3]
    arrays = np.array(gold, np.int32), np.array(predicted, np.int32)
    near(classified(*arrays, labels), expected)
    table = class_table(*arrays, labels)
    assert [row.pop("label") for row in table] == labels
    for i, row in enumerate(table):
        assert type(row["count"]) is int
        assert tuple(row.values()) == pytest.approx(rates.get(i, (0.0, 0.0, 0.0, 0)), abs=1e-9)


def ranks_by_hand(values: list[float]) -> list[float]:
    """1 for the smallest; equal values share the mean of their ranks."""
    return [sum(v < value for v in values) + (1 + sum(v == value for v in values)) / 2 for value in values]


def pearson_by_hand(a: list[float], b: list[float]) -> float:
    if len(set(a)) < 2 or len(set(b)) < 2:
        return math.nan
    mean_a, mean_b = math.fsum(a) / len(a), math.fsum(b) / len(b)
    both = math.fsum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    squares = math.fsum((x - mean_a) ** 2 for x in a) * math.fsum((y - mean_b) ** 2 for y in b)
    return both / math.sqrt(squares)


@quick
@given(st.lists(st.tuples(*[st.integers(-20, 20).map(lambda i: i / 4)] * 2), min_size=1, max_size=30))
def test_regressed_is_the_count_by_hand(pairs):
    gold, predicted = map(list, zip(*pairs, strict=True))
    expected = {
        "pearson": pearson_by_hand(gold, predicted),
        "spearman": pearson_by_hand(ranks_by_hand(gold), ranks_by_hand(predicted)),
        "mse": math.fsum((a - b) ** 2 for a, b in pairs) / len(pairs),
        "mae": math.fsum(abs(a - b) for a, b in pairs) / len(pairs),
    }
    near(regressed(np.array(gold), np.array(predicted)), expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_predictions_that_are_not_finite_have_no_correlation(bad):
    figures = regressed(np.array([1.0, 2.0, 3.0]), np.array([1.0, bad, 2.0]))
    assert math.isnan(figures["pearson"]) and math.isnan(figures["spearman"]) and not math.isfinite(figures["mse"])


def test_numbers_nearly_alike_do_not_warn():
    regressed(np.array([1.0, 1.0 + 1e-15, 1.0]), np.array([1e200, 2e200, 3e200]))


def spans_by_hand(rows: list[list[str]]) -> list[tuple]:
    """Entities of B-, I- and O as conlleval finds them: (type, row, first word, words)."""
    spans: list[list] = []
    for number, row in enumerate(rows):
        before = "O"
        for i, tag in enumerate(tag or "O" for tag in row):
            if tag[0] == "B" or (tag[0] == "I" and (before == "O" or before[2:] != tag[2:])):
                spans.append([tag[2:], number, i, 0])
            if tag != "O":
                spans[-1][3] += 1
            before = tag
    return [tuple(span) for span in spans]


@st.composite
def tag_rows(draw, tags):
    """Rows of gold tags and as many predicted; "" is no answer."""
    word = st.tuples(st.sampled_from(tags), st.sampled_from([*tags, ""]))
    rows = draw(st.lists(st.lists(word, max_size=9), min_size=1, max_size=6).filter(any))
    return [[gold for gold, _ in row] for row in rows], [[predicted for _, predicted in row] for row in rows]


def words_by_hand(gold: list[list[str]], predicted: list[list[str]]) -> tuple[dict, dict]:
    flat_gold, flat_predicted = [tag for row in gold for tag in row], [tag for row in predicted for tag in row]
    rates = by_hand(flat_gold, flat_predicted)
    rates.pop("", None)
    right = sum(map(str.__eq__, flat_gold, flat_predicted))
    return rates, {
        "accuracy": right / len(flat_gold),
        "f1_macro": sum(f1 for _, _, f1, _ in rates.values()) / len(rates),
    }


@quick
@given(tag_rows(["NOUN", "VERB", "ADJ", "O"]))
def test_tagged_is_the_count_by_hand(case):
    gold, predicted = case
    rates, expected = words_by_hand(gold, predicted)
    near(tagged(gold, predicted), expected)
    table = tag_table(gold, predicted, ["VERB", "NOUN"])
    assert [row["label"] for row in table] == ["VERB", "NOUN", *sorted(rates.keys() - {"VERB", "NOUN"})]
    for row in table:
        assert tuple(row.values())[1:] == pytest.approx(rates.get(row["label"], (0.0, 0.0, 0.0, 0)), abs=1e-9)


IOB = ["O", "B-PER", "I-PER", "B-the-place", "I-the-place"]


@quick
@given(tag_rows(IOB))
def test_entities_are_those_of_conlleval(case):
    gold, predicted = case
    _, expected = words_by_hand(gold, predicted)
    asked, answered = spans_by_hand(gold), spans_by_hand(predicted)
    hits = set(asked) & set(answered)
    expected["entity_precision"], expected["entity_recall"] = (
        share(len(hits), len(answered)),
        share(len(hits), len(asked)),
    )
    expected["entity_f1"] = share(2 * len(hits), len(answered) + len(asked))
    near(tagged(gold, predicted, IOB), expected)
    table = tag_table(gold, predicted, IOB)
    assert [row["label"] for row in table] == ["PER", "the-place"]
    for row in table:
        hit, all_said, all_asked = (sum(span[0] == row["label"] for span in spans) for spans in (hits, answered, asked))
        rates = (share(hit, all_said), share(hit, all_asked), share(2 * hit, all_said + all_asked), all_asked)
        assert tuple(row.values())[1:] == pytest.approx(rates, abs=1e-9)


@quick
@given(tag_rows(IOB), st.sampled_from(["IES", "ILU", "MES"]), st.sampled_from(["{}-{}", "{}_{}", "{1}-{0}", "{1}_{0}"]))
def test_every_form_of_tags_marks_the_same_entities(case, marks, form):
    """BIOES, BILOU and BMES rows, and types in front of their marks, have the scores of the same entities in IOB."""
    gold, predicted = ([[tag or "O" for tag in row] for row in rows] for rows in case)

    def marked(rows: list[list[str]]) -> list[list[str]]:
        written = [["O"] * len(row) for row in rows]
        for name, number, first, words in spans_by_hand(rows):
            inner = ["B", *marks[0] * (words - 2), marks[1]] if words > 1 else [marks[2]]
            written[number][first : first + words] = [form.format(mark, name) for mark in inner]
        return written

    labels = ["O", *(form.format(mark, "PER") for mark in f"B{marks}")]
    plain, other = tagged(gold, predicted, IOB), tagged(marked(gold), marked(predicted), labels)
    entity = {name for name in plain if name.startswith("entity")}
    assert len(entity) == 3
    near({name: other[name] for name in entity}, {name: plain[name] for name in entity})


def test_entity_schemes_are_told_from_other_tags():
    assert entity_tags(IOB) == {tag: tag for tag in IOB}
    assert entity_tags(["O", "B_X", "L_Y-Z"]) == {"O": "O", "B_X": "B-X", "L_Y-Z": "E-Y-Z"}
    for labels in (["O"], [], ["NOUN", "VERB"], ["O", "B-"], ["O", "B-X", "X"], ["O", "E-X", "S-X"], ["B-X", "I_X"]):
        assert entity_tags(labels) is None, labels


def test_entities_without_types_are_of_one_type():
    """As names that are only found, and as the words in a line of characters."""
    figures = tagged([["B", "I", "O", "B"]], [["B", "I", "O", "O"]], ["B", "I", "O"])
    assert figures["entity_precision"] == 1.0 and figures["entity_recall"] == 0.5
    assert [row["label"] for row in tag_table([["B", "M", "E", "S"]], [["B", "E", "S", "S"]], [*"BMES"])] == ["entity"]
    assert tagged([["B", "M", "E", "S"]], [["B", "E", "S", "S"]], [*"BMES"])["entity_precision"] == 1 / 3


@pytest.mark.parametrize(
    ("labels", "odd"),
    [(["B-PER", "I-PER", "O", "PERSON"], "PERSON"), (["B", "I", "O", "X"], "X"), (["B-X", "I_X", "I-X", "O"], "I_X"),
     (["PER-B", "PER-I", "_"], "_"), (IOB, ""), (["NOUN", "VERB", "X"], ""), (["O"], ""), (["E-X", "S-X", "O"], ""),
     (["B", "NOUN", "VERB", "DET"], "")],
)  # fmt: skip
def test_it_is_said_which_tag_keeps_entities_from_being_scored(labels, odd):
    line = why_no_entities(labels)
    assert f"the tag {odd!r} is neither O nor of the form of {labels[0]!r}" in line if odd else not line


def test_a_scheme_without_entities_scores_nothing():
    figures = tagged([["O", "O"]], [["O", ""]], IOB)
    assert figures["accuracy"] == 0.5 and figures["entity_f1"] == 0.0
    assert [row["count"] for row in tag_table([["O"]], [["O"]], IOB)] == [0, 0]


def test_baselines_say_one_thing_always():
    assert majority([1, 5, 5], np.array([1, 2, 1, 0])) == {"majority_accuracy": 0.5}
    assert majority([2], numbers([["x", "y"], ["x"]], ["x"])) == {"majority_accuracy": 2 / 3}
    assert mean_guess(2.0, np.array([1.0, 5.0])) == {"mean_mse": 5.0}


def test_many_labels_in_few_examples_do_not_warn():
    gold = np.arange(30, dtype=np.int32)
    assert classified(gold, gold, [str(i) for i in gold])["accuracy"] == 1.0
    assert all(row["f1"] == 1.0 for row in class_table(gold, gold, [str(i) for i in gold]))


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: classified(np.array([], np.int32), np.array([], np.int32), ["a"]), "no examples"),
        (lambda: classified(np.array([0, 1]), np.array([0]), ["a", "b"]), r"gold \[2\] and predicted \[1\]"),
        (lambda: classified(np.array([2]), np.array([0]), ["a", "b"]), "none of the 2 labels"),
        (lambda: classified(np.array([-1]), np.array([0]), ["a", "b"]), "none of the 2 labels"),
        (lambda: regressed(np.array([]), np.array([])), "no examples"),
        (lambda: tagged([], []), "no examples"),
        (lambda: tagged([[]], [[]], IOB), "no examples"),
        (lambda: tagged([["O"], ["O"]], [["O", "O"], []]), "not the same words"),
        (lambda: tagged([["", "O"]], [["", "O"]]), "no tag"),
        (lambda: majority([], np.array([0])), "no labels"),
        (lambda: majority([1], np.array([])), "no examples"),
        (lambda: mean_guess(0.0, np.array([])), "no examples"),
    ],
)
def test_nothing_to_score_is_an_error(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_the_number_that_is_always_answered_is_trainings_mean():
    answers = {"train": np.array([1.0, 2.0, 6.0]), "dev": np.array([5.0, 7.0])}
    splits: Any = {name: SimpleNamespace(spans=None, answers=lambda own=own: own) for name, own in answers.items()}
    store: Any = SimpleNamespace(kind="regress", splits=splits, counts=())
    assert majority_baseline(store, splits["dev"]) == {"mean_mse": 10.0}  # of dev's own mean, 6, it would be 1
    counts: Any = SimpleNamespace(kind="classify", splits=splits, counts=(3, 1))
    labels: Any = SimpleNamespace(spans=None, answers=lambda: np.array([1, 1, 0]))
    assert majority_baseline(counts, labels) == {"majority_accuracy": pytest.approx(1 / 3)}
