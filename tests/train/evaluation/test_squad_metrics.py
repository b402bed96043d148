"""SQuAD's scores: hand-made cases, an independent implementation of the official script, the search of a threshold."""

import collections
import json
import math
import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.train.evaluation.predictions import metric_names
from contexture.train.evaluation.squad_metrics import Scored, best_threshold, figures, normalised, text_scores


def official_normal(text: str) -> list[str]:
    """The words that the official script compares, letter by letter."""
    kept = "".join(character for character in text.lower() if character not in set(string.punctuation))
    return [word for word in re.split(r"\s+", re.sub(r"\b(a|an|the)\b", " ", kept)) if word]


def official(predicted: str, gold: list[str]) -> tuple[float, float]:
    answers = [each for each in gold if official_normal(each)] or [""]
    exact = max(int(official_normal(predicted) == official_normal(each)) for each in answers)
    f1s = []
    for each in answers:
        one, other = collections.Counter(official_normal(predicted)), collections.Counter(official_normal(each))
        if not one or not other:
            f1s.append(float(one == other))
            continue
        same = sum(min(count, other[word]) for word, count in one.items())
        if not same:
            f1s.append(0.0)
            continue
        precision, recall = same / sum(one.values()), same / sum(other.values())
        f1s.append(2 * precision * recall / (precision + recall))
    return float(exact), max(f1s)


@pytest.mark.parametrize(
    ("predicted", "gold", "exact", "f1"),
    [
        ("The Eiffel Tower!", ["eiffel tower"], 1, 1),
        ("Tower of Eiffel", ["Eiffel Tower"], 0, 0.8),
        ("", ["Rollo"], 0, 0),
        ("", [], 1, 1),
        ("Rollo", [], 0, 0),
        ("the", [], 1, 1),  # nothing is left of an article
        ("", ["the", "a."], 1, 1),  # right answers of which nothing is left are none
        ("10th century", ["10th and 11th centuries", "the 10th century"], 1, 1),
        ("cat cat", ["cat"], 0, 2 / 3),  # words are counted as often as they stand there
        ("cat cat", ["cat cat dog"], 0, 0.8),
        ("", ["the", "Rollo"], 0, 0),  # of these only one is a right answer
        ("a-b", ["ab"], 1, 1),  # an article that was none before its hyphen was taken away
        ("北京", ["北京。"], 0, 0),  # a stop that is not ASCII stays: the script knows no Chinese
        ("北京", ["北京"], 1, 1),
        ("北 京", ["北京"], 0, 0),
        ("another theory", ["other theory"], 0, 0.5),  # articles within words stay
    ],
)
def test_hand_made_cases(predicted, gold, exact, f1):
    assert text_scores(predicted, gold) == pytest.approx((exact, f1), abs=0) == official(predicted, gold)


TEXTS = st.text("aA thTHe.,-an猫犬\t'0", max_size=14)


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.lists(TEXTS, max_size=3))
def test_scores_are_those_of_the_official_script_to_the_last_digit(predicted, gold):
    assert text_scores(predicted, gold) == official(predicted, gold)


def test_texts_are_normalised_as_the_script_does():
    assert normalised(" The  Eiffel-Tower,\tan a. ") == "eiffeltower"
    assert normalised("A a an THE anthem") == "anthem"


def test_real_answers_against_one_another(shared):
    """Every right answer of real questions against the right answers of the next question."""
    questions = []
    for article in json.loads((shared / "data" / "qa_squad2_subset" / "dev_part.json").read_text())["data"]:
        for paragraph in article["paragraphs"]:
            questions += [[each["text"] for each in question["answers"]] for question in paragraph["qas"]]
    for one, other in zip(questions, questions[1:], strict=False):
        for text in one or [""]:
            assert text_scores(text, other) == official(text, other)
            assert not one or text_scores(text, one) == (1, 1)


def scored(has_answer: bool, forced: float, null: float) -> Scored:
    silent = float(not has_answer)
    given = silent if null > 0 else forced
    return Scored(has_answer, (given, given), (forced, forced), (silent, silent), null)


NULLS = st.floats(-4, 4) | st.integers(-2, 2).map(float) | st.sampled_from([math.inf, -math.inf, math.nan, 1e300])


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 0.5, 1.0]), NULLS), min_size=1, max_size=9))
def test_the_best_threshold_gives_what_it_promises(cases):
    """Also where giving no answer at all is best, and where questions have equal scores, or none."""
    all_scored = [scored(*case) for case in cases]

    def mean(threshold: float) -> float:
        """As answers are given: `SpanCollector`."""
        given = [x.silent[1] if not x.null <= threshold else x.forced[1] for x in all_scored]
        return sum(given) / len(given)

    best, threshold = best_threshold(all_scored, 1)
    finite = [x.null for x in all_scored if math.isfinite(x.null)]
    assert math.isfinite(threshold) and mean(threshold) == best
    assert best == max(mean(t) for t in (-1e308, *finite))


@pytest.mark.parametrize(("nulls", "expected"), [((2.0, 3.0), 2.5), ((3.0, 3.0), 2.0), ((2.0, 2.0), 1.0)])
def test_the_last_bits_of_scores_change_no_answer(nulls: tuple[float, float], expected: float):
    """The threshold is midway between two questions, or away from the first."""
    assert best_threshold([scored(True, 1.0, nulls[0]), scored(False, 0.0, nulls[1])], 1)[1] == expected


def test_figures_of_a_set_with_and_without_unanswerable_questions():
    assert figures([scored(True, 0.5, -1), scored(True, 1.0, -2)]) == {"exact_match": 0.75, "f1": 0.75}
    both = figures([scored(True, 1.0, 2), scored(False, 0.0, 3)])
    assert both == {
        "exact_match": 0.5,
        "f1": 0.5,
        "has_answer_exact_match": 0.0,
        "has_answer_f1": 0.0,
        "no_answer_exact_match": 1.0,
        "best_exact_match": 1.0,
        "best_exact_match_threshold": 2.5,
        "best_f1": 1.0,
        "best_f1_threshold": 2.5,
    }
    with pytest.raises(ValueError, match="no examples"):
        figures([])


@pytest.mark.parametrize("counts", [(1, 0), (0, 1), (3, 2)])
def test_the_names_of_the_scores_are_known_before_they_are_measured(counts):
    """Which there are follows from the questions that are measured: with an answer, without one, or both."""
    scored = [
        Scored(has_answer, (1.0, 1.0), (1.0, 1.0), (0.0, 0.0), 0.5)
        for has_answer in [True] * counts[0] + [False] * counts[1]
    ]
    assert metric_names("span", (), counts) == [*figures(scored)]


def test_of_equal_thresholds_the_first_is_taken():
    """The sums are 1, 2, 1, 2: as in the official search, a later threshold has to be better to be taken."""
    cases = [scored(False, 1.0, 0.0), scored(True, 1.0, 1.0), scored(False, 0.0, 2.0), scored(True, 1.0, 3.0)]
    sums = [sum(each.forced[1] if each.null <= t else each.silent[1] for each in cases) for t in (-1, 0, 1, 2, 3)]
    assert sums == [2.0, 2.0, 3.0, 2.0, 3.0]
    assert best_threshold(cases, 1) == (0.75, 1.5)
